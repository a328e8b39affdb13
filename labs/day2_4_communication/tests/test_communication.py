"""What ranks send each other: traces of NCCL (written by hand) and gloo (of real runs)."""

import json
from collections.abc import Callable
from pathlib import Path

import of_two_ranks as of_two
import pandas as pd
import pytest
import torch
from job_helpers import NARROW, narrow_solution, run_ranks
from narrow import Narrow
from torch import nn

from course.analysis import communication
from course.analysis.communication import comm_report
from course.analysis.traces import tables
from course.analysis.traces.collectives import collectives
from course.checks.exercises import script_variant
from course.config import rung, vary
from course.jobs import launch
from course.runs import recordings
from course.runs.run import Run
from course.training import models, stochastic_depth, sync_batchnorm
from labs.day2_4_communication import batchnorm, figures
from tools import record, thin_trace

TINY = rung(
    "baseline",
    quick=True,
    model="resnet18",
    image_px=32,
    steps=6,
    warmup_steps=4,
    profile_steps=1,
    val_steps=0,
    data="synthetic",
)
NET = Narrow(1000)  # the network of the runs
WEIGHTS = 4 * models.parameter_count(NET)  # bytes of all gradients


# ---- a trace of NCCL, written by hand -----------------------------------------------------------


def event(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: object) -> dict:
    args = {key.replace("_", " "): value for key, value in args.items()}
    place = {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid}
    return place | {"ts": ts, "dur": dur, "args": args}


def collective(name: str, elements: int, dtype: str, correlation: int) -> dict[str, object]:
    return {
        "stream": 20,
        "correlation": correlation,
        "Collective name": name,
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "Group size": 2,
        "dtype": dtype,
        "Process Group Name": "0",
    }


@pytest.fixture
def nccl(tmp_path: Path) -> Path:
    """Write the trace of a step of 1000 µs on two GPUs, with names and fields of PyTorch 2.

    The host launches everything in its first 200 µs. The device computes 100 to 500 and 600 to
    700; the broadcast runs 50 to 100, the all-reduces 300 to 550 and 550 to 650.
    """
    calls = [
        event("cuda_runtime", "cudaLaunchKernel", ts, 2, correlation=number)
        for ts, number in [(10, 1), (60, 2), (110, 3), (120, 4), (130, 5)]
    ]
    collectives = [
        (50, 50, "Broadcast_RING_LL(x)", collective("broadcast", 100, "Float", 1)),
        (300, 250, "AllReduce_Sum_f32(x)", collective("allreduce", 1_000_000, "Float", 3)),
        (550, 100, "AllReduce_Sum_bf16(x)", collective("allreduce", 500, "BFloat16", 4)),
    ]
    kernels = [
        event("kernel", f"ncclDevKernel_{name}", ts, dur, 20, **fields)
        for ts, dur, name, fields in collectives
    ]
    kernels += [
        event("kernel", "sm90_xmma_fprop", 100, 400, 7, stream=7, correlation=2),
        event("kernel", "sm90_xmma_wgrad", 600, 100, 7, stream=7, correlation=5),
    ]
    ranges = [
        event("user_annotation", name, ts, dur)
        for name, ts, dur in [
            ("ProfilerStep#2", 0, 1000),
            ("forward", 0, 100),
            ("backward", 100, 100),
        ]
    ]
    operators = [event("cpu_op", "aten::conv2d", 58, 10, External_id=1)]
    content = {
        "traceEvents": [*ranges, *operators, *calls, *kernels],
        "deviceProperties": [{"name": "hand-made"}],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2},
    }
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(content))
    return path


def test_nccl_kernels_and_what_hides_them(nccl: Path, tmp_path: Path) -> None:
    report = comm_report(tables.read(nccl))
    assert list(report["operation"]) == ["broadcast", "all_reduce", "all_reduce"]
    assert list(report["bytes"]) == [400, 4_000_000, 1000]
    assert list(report["type"]) == ["float32", "float32", "bfloat16"]
    assert set(report["group_size"]) == {2}
    assert list(report["phase"]) == ["forward", "backward", "backward"]  # of the launches
    assert list(report["start_ms"] * 1e3) == pytest.approx([50, 300, 550])
    assert list(report["overlapped_ms"] * 1e3) == pytest.approx([0, 200, 50])
    assert list(report["backward_ms"] * 1e3) == pytest.approx([0, 0, 50])  # the rest is forward's
    assert list(report["exposed_ms"] * 1e3) == pytest.approx([50, 50, 50])
    summary = report.attrs["text"]
    assert "3 collectives a step, over 2 ranks: 4.0 MB" in summary
    assert "1 all_reduce of bfloat16" in summary and "2 all_reduce" not in summary
    thin = thin_trace.thin(nccl, tmp_path / "thin.json.gz")
    pd.testing.assert_frame_equal(report, comm_report(tables.read(thin)))
    drawn = figures.plot_timeline(tables.read(nccl))
    assert [text.get_text() for text in drawn.axes[0].texts] == ["4 MB"]


def test_fields_missing_from_a_kernel() -> None:
    fields = collective("_allgather_base", 30, "Half", 1) | {"External id": 9}
    kernel = event("kernel", "ncclKernel_AllGather_RING_LL_Sum_int8_t(x)", 5, 10, External_id=9)
    (row,) = collectives(
        [event("cpu_op", "record_param_comms", 0, 5) | {"args": fields}, kernel], 0, {}
    )
    assert (row["operation"], row["bytes"], row["type"]) == ("all_gather", 60, "float16")
    (row,) = collectives([event("kernel", "ncclDevKernel_ReduceScatter_Sum_f32(x)", 5, 10)], 0, {})
    assert (row["operation"], row["bytes"], row["type"]) == ("reduce_scatter", 0, "")
    assert not collectives([event("kernel", "sm90_xmma_nccl", 5, 10)], 0, {})


def test_a_trace_of_one_process_is_refused_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [event("cpu_op", "aten::add", 0, 5)]}))
    for read in (comm_report, figures.plot_timeline):
        with pytest.raises(ValueError, match="gpus=2"):
            read(tables.read(path))


# ---- gloo, from real runs of two processes ------------------------------------------------------


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> dict[float, Run]:
    """Trace two ranks with gradients in many buckets and in one; by bucket_mb."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_RUNS", str(tmp_path_factory.mktemp("runs")))
        script = narrow_solution(tmp_path_factory.mktemp("narrow"))
        runs = launch.launch_all(script, vary(TINY, bucket_mb=[0.001, 100]), gpus=2)
        launch.wait(runs, timeout_s=300)
        return {run.config.bucket_mb: run for run in runs}


@pytest.mark.slow
def test_every_gradient_is_sent_once(sweep: dict[float, Run]) -> None:
    reports = {size: comm_report(run) for size, run in sweep.items()}
    counts = {}
    for size, report in reports.items():
        backward = report[report["phase"] == "backward"]
        assert backward["bytes"].sum() == WEIGHTS
        assert set(backward["operation"]) == {"all_reduce"}
        assert set(backward["type"]) == {"float32"}
        assert set(report["group_size"]) == {2}
        parts = report["overlapped_ms"] + report["exposed_ms"]
        assert list(parts) == pytest.approx(list(report["duration_ms"]))
        assert (report["backward_ms"] <= report["overlapped_ms"] + 1e-6).all()
        counts[size] = len(backward)
    assert counts[100] == 1 and counts[0.001] > 5
    assert backward["backward_ms"].sum() < 0.2 * backward["duration_ms"].sum()  # one bucket is late
    forward = report[report["phase"] == "forward"]
    statistics = sum(buffer.nbytes for buffer in NET.buffers() if buffer.is_floating_point())
    assert set(forward["operation"]) == {"broadcast"}
    assert forward.loc[forward["type"] == "float32", "bytes"].sum() == statistics
    first_steps = {run.record.evidence["collectives"]["allreduce"] for run in sweep.values()}
    assert first_steps == {1}
    table = communication.compare_reports(reports)
    assert table["collectives"][100] == 3 < table["collectives"][0.001]
    assert table["megabytes"].max() == pytest.approx(table["megabytes"].min())
    left, _ = figures.plot_buckets(
        {f"{size:g} MB": report for size, report in reports.items()}
    ).axes
    assert len(left.patches) == sum(counts.values())


@pytest.mark.slow
def test_recorded_runs_give_the_same_report(
    sweep: dict[float, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(recordings, "RECORDED", tmp_path)
    assert communication.traced_runs("two") == {}
    assert "No traced run on several GPUs is recorded for two" in capsys.readouterr().out
    for run in sweep.values():
        record.pack(run, tmp_path / "two", "communication")
    recorded = communication.traced_runs("two", gpus=2)
    assert list(recorded) == [run.config.rung for run in sweep.values()]
    assert communication.traced_runs("two", gpus=4) == {}
    run = sweep[0.001]
    packed = recorded[run.config.rung]
    same = ["operation", "bytes", "type", "group_size", "phase", "step"]
    before, after = comm_report(run), comm_report(packed)  # its trace was thinned
    pd.testing.assert_frame_equal(before[same], after[same])
    assert list(after["exposed_ms"]) == pytest.approx(list(before["exposed_ms"]), abs=1e-2)
    assert not tables.read_run(run).recorded
    assert tables.read_run(packed).recorded.startswith(", recorded 20")


@pytest.mark.slow
def test_messages_are_the_all_reduces_of_traced_runs(sweep: dict[float, Run]) -> None:
    table = communication.messages(sweep.values())
    reports = pd.concat(comm_report(run) for run in sweep.values())
    reports = reports[reports["operation"] == "all_reduce"]
    assert list(table["bytes"]) == list(reports["bytes"])
    assert table["duration_s"].sum() * 1e3 == pytest.approx(reports["duration_ms"].sum())
    assert set(table["ranks"]) == {2}
    assert set(table["run"]) == {run.name for run in sweep.values()}


# ---- two processes, without a job --------------------------------------------------------------


@pytest.fixture(scope="module")
def of_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list]:
    """Run two processes of one gloo group, and return a function that loads their results."""
    folder = tmp_path_factory.mktemp("ranks")
    ended = run_ranks(Path(of_two.__file__), str(folder), folder=folder)
    assert [process.returncode for process in ended] == [0, 0], ended
    return lambda name: [torch.load(folder / f"{name}-{rank}.pt") for rank in range(2)]


@pytest.mark.slow
def test_sync_batchnorm_is_batchnorm_of_the_joined_batch(of_two_ranks) -> None:
    model, images = of_two.layers(), of_two.IMAGES.clone().requires_grad_()
    for _ in range(2):
        output = model(images)
    output.square().sum().backward()
    for share, results in zip(of_two.SHARES, of_two_ranks("batchnorm")):
        rank_output, gradient, gradients, state = results
        torch.testing.assert_close(rank_output, output[share], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(gradient, images.grad[share], rtol=1e-3, atol=1e-3)
        for mine, wanted in zip(gradients, model.parameters()):
            torch.testing.assert_close(mine, wanted.grad, rtol=1e-3, atol=1e-3)
        for name, wanted in model.state_dict().items():
            torch.testing.assert_close(state[name], wanted, rtol=1e-4, atol=1e-4)


def test_validation_uses_the_running_statistics() -> None:
    model, images = of_two.layers().eval(), of_two.IMAGES[:3]
    wanted = model(images)
    torch.testing.assert_close(sync_batchnorm.convert(model)(images), wanted)
    assert isinstance(model[1], sync_batchnorm.SyncBatchNorm2d)


@pytest.mark.slow
def test_unused_weights_stop_ddp_and_masks_do_not(of_two_ranks) -> None:
    for heads, find_unused, masked in of_two_ranks("unused"):
        assert "Expected to have finished reduction" in heads
        assert find_unused == masked == ""


def test_masks_change_training_and_not_validation() -> None:
    model = models.create("resnet18", 4)
    for block in model.modules():  # zeros would hide a dropped branch
        if isinstance(block, nn.BatchNorm2d):
            nn.init.ones_(block.weight)
    wanted = model.eval()(of_two.IMAGES)
    model = stochastic_depth.masked_depth(model, 0.5)
    torch.testing.assert_close(model(of_two.IMAGES), wanted)
    model.train()
    torch.manual_seed(0)
    first = model(of_two.IMAGES)
    assert not torch.allclose(first, model(of_two.IMAGES), atol=1e-3)
    first.square().mean().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_one_head_is_used_at_a_time() -> None:
    model = stochastic_depth.Heads(models.create("resnet18", 4), 3)
    model(of_two.IMAGES).sum().backward()
    assert sum(head.weight.grad is not None for head in model.heads) == 1


# ---- BatchNorm's statistics, from variants of the script ----------------------------------------

SAVING = {
    "from course.training.recorder import recording": "from course.training import sync_batchnorm"
    + NARROW,
    "profiler.stop()": "sync_batchnorm.save_statistics(net)",
    'meter.lap("load")': "images = images + run.rank",  # synthetic images are alike
}


@pytest.mark.slow
def test_statistics_differ_without_sync_batchnorm(runs_root: Path) -> None:
    synced = {
        "model = models.create(cfg.model, sets.classes)": "model = sync_batchnorm.convert(model)"
    }
    scripts = [script_variant("plain", SAVING), script_variant("synced", SAVING | synced)]
    runs = [launch.launch(script, TINY, gpus=2) for script in scripts]
    launch.wait(runs, timeout_s=300)
    spreads = [batchnorm.rank_spread(batchnorm.running_statistics(run)) for run in runs]
    norms = sum(isinstance(layer, nn.BatchNorm2d) for layer in NET.modules())
    assert len(spreads[0]) == norms
    assert spreads[0]["spread"][0] > 0.01 and spreads[1]["largest"].max() == 0
    picture = figures.plot_rank_spread(dict(zip(("plain", "synced"), spreads)))
    assert len(picture.axes[0].lines) == 2
    small = comm_report(runs[1]).query("operation == 'all_reduce' and bytes < 10000")
    assert list(small.groupby("phase").size()) == [norms, norms]  # backward, forward
    assert (small.query("phase == 'forward'")["bytes"] % 8 == 4).all()  # 2 C + 1 numbers


def test_statistics_of_a_run_without(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="save_statistics"):
        batchnorm.running_statistics(Run(tmp_path))


# ---- variants ----------------------------------------------------------------------------------


def test_a_variant_keeps_all_lines_and_adds_some(runs_root: Path, capsys) -> None:
    path = script_variant("more", {"loss = criterion(scores, labels)": "if True:\n    print(loss)"})
    text = path.read_text()
    assert (
        "                loss = criterion(scores, labels)\n"
        "                if True:\n"
        "                    print(loss)\n"
    ) in text
    compile(text, "train.py", "exec")
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("+")] == [
        "+                if True:",
        "+                    print(loss)",
    ]


def test_a_variant_needs_lines_that_occur_once(runs_root: Path) -> None:
    for line, message in (
        ("no_such_line()", "0 times"),
        ("# <<<", "0 times"),
        ("with autocast:", "times: choose one"),
    ):
        with pytest.raises(ValueError, match=message):
            script_variant("wrong", {line: "pass"})
