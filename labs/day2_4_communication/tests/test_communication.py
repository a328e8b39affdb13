"""What ranks send each other: read from traces of gloo and NCCL, and the lab's own pieces.

The NCCL trace is made by hand, in the form that PyTorch writes; gloo's are of real runs of two
processes.
"""

import json
from collections.abc import Callable
from pathlib import Path

import of_two_ranks as of_two
import pandas as pd
import pytest
import torch
from job_helpers import NARROW, narrow_solution, run_ranks, warm_up
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
from labs.day2_4_communication import batchnorm
from labs.day2_4_communication import figures as pictures
from tools import record

SMALL = {
    "model": "resnet18",
    "image_px": 32,
    "steps": 6,
    "warmup_steps": 4,
    "profile_steps": 1,
    "val_steps": 0,
}
TINY = rung("baseline", quick=True, **SMALL, data="synthetic")
NET = Narrow(1000)  # which the runs train
WEIGHTS = 4 * models.parameter_count(NET)  # bytes of all gradients


# ---- NCCL, made by hand ------------------------------------------------------------------------


def event(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: object) -> dict:
    args = {key.replace("_", " "): value for key, value in args.items()}
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 1,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def sent(collective: str, elements: int, dtype: str, correlation: int) -> dict[str, object]:
    return {
        "stream": 20,
        "correlation": correlation,
        "Collective name": collective,
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "Group size": 2,
        "dtype": dtype,
        "Process Group Name": "0",
    }


@pytest.fixture
def nccl(tmp_path: Path) -> Path:
    """A step of 1000 µs on two GPUs, made by hand: names and fields are those of PyTorch 2.

    The host asks for everything in its first 200 µs. The device computes 100 to 500 and 600 to
    700; the broadcast runs 50 to 100, the all-reduces 300 to 550 and 550 to 650.
    """
    launches = [(10, 1), (60, 2), (110, 3), (120, 4), (130, 5)]
    calls = [
        event("cuda_runtime", "cudaLaunchKernel", ts, 2, correlation=number)
        for ts, number in launches
    ]
    kernels = [
        event(
            "kernel",
            "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            50,
            50,
            20,
            **sent("broadcast", 100, "Float", 1),
        ),
        event("kernel", "sm90_xmma_fprop", 100, 400, 7, stream=7, correlation=2),
        event(
            "kernel",
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)",
            300,
            250,
            20,
            **sent("allreduce", 1_000_000, "Float", 3),
        ),
        event(
            "kernel",
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)",
            550,
            100,
            20,
            **sent("allreduce", 500, "BFloat16", 4),
        ),
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


def test_nccl_kernels_with_what_hides_them(nccl: Path) -> None:
    report = comm_report(tables.read(nccl))
    assert list(report["operation"]) == ["broadcast", "all_reduce", "all_reduce"]
    assert list(report["bytes"]) == [400, 4_000_000, 1000]
    assert list(report["type"]) == ["float32", "float32", "bfloat16"]
    assert set(report["group_size"]) == {2}
    assert list(report["phase"]) == ["forward", "backward", "backward"]  # where they were asked for
    assert list(report["start_ms"] * 1e3) == pytest.approx([50, 300, 550])
    assert list(report["overlapped_ms"] * 1e3) == pytest.approx([0, 200, 50])
    assert list(report["backward_ms"] * 1e3) == pytest.approx([0, 0, 50])  # the rest is forward's
    assert list(report["exposed_ms"] * 1e3) == pytest.approx([50, 50, 50])
    told = report.attrs["text"]
    assert "3 collectives a step, over 2 ranks: 4.0 MB" in told
    assert "2 all_reduce" not in told  # of two types: a line's part for each
    assert "1 all_reduce of bfloat16" in told


def test_a_thin_nccl_trace_tells_the_same(nccl: Path, tmp_path: Path) -> None:
    before = comm_report(tables.read(nccl))
    after = comm_report(tables.read(tables.thin(nccl, tmp_path / "thin.json.gz")))
    pd.testing.assert_frame_equal(before, after)


def test_fields_come_from_the_operator_where_the_kernel_has_none() -> None:
    told = sent("_allgather_base", 30, "Half", 1) | {"External id": 9}
    rows = collectives(
        [
            event("cpu_op", "record_param_comms", 0, 5) | {"args": told},
            event(
                "kernel",
                "ncclKernel_AllGather_RING_LL_Sum_int8_t(x)",
                5,
                10,
                External_id=9,
                stream=20,
            ),
        ],
        0,
        {},
    )
    (row,) = rows
    assert (row["operation"], row["bytes"], row["type"]) == ("all_gather", 60, "float16")


def test_a_kernel_without_any_field_is_named_after_itself() -> None:
    (row,) = collectives([event("kernel", "ncclDevKernel_ReduceScatter_Sum_f32(x)", 5, 10)], 0, {})
    assert (row["operation"], row["bytes"], row["type"]) == ("reduce_scatter", 0, "")
    assert not collectives([event("kernel", "sm90_xmma_nccl", 5, 10)], 0, {})


def test_a_trace_of_one_process_is_refused_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [event("cpu_op", "aten::add", 0, 5)]}))
    with pytest.raises(ValueError, match="gpus=2"):
        comm_report(tables.read(path))


# ---- gloo, from real runs of two processes -----------------------------------------------------


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> dict[float, Run]:
    """Two ranks, traced, with gradients in many buckets and in one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_RUNS", str(tmp_path_factory.mktemp("runs")))
        warm_up()
        script = narrow_solution(tmp_path_factory.mktemp("narrow"))
        runs = launch.launch_all(script, vary(TINY, bucket_mb=[0.001, 100]), gpus=2)
        launch.wait(runs, timeout_s=300)
        return {run.config.bucket_mb: run for run in runs}


@pytest.mark.slow
def test_every_gradient_is_sent_once(swept: dict[float, Run]) -> None:
    numbers = {}
    for size, run in swept.items():
        report = comm_report(run)
        backward = report[report["phase"] == "backward"]
        assert backward["bytes"].sum() == WEIGHTS
        assert set(backward["operation"]) == {"all_reduce"}
        assert set(backward["type"]) == {"float32"}
        assert set(report["group_size"]) == {2}
        numbers[size] = len(backward)
    assert numbers[100] == 1
    assert numbers[0.001] > 5


@pytest.mark.slow
def test_the_first_step_has_one_bucket(swept: dict[float, Run]) -> None:
    assert {run.record.evidence["collectives"]["allreduce"] for run in swept.values()} == {1}


@pytest.mark.slow
def test_batchnorms_statistics_are_broadcast_in_forward(swept: dict[float, Run]) -> None:
    statistics = sum(each.numel() * 4 for each in NET.buffers() if each.is_floating_point())
    report = comm_report(swept[0.001])
    forward = report[report["phase"] == "forward"]
    assert set(forward["operation"]) == {"broadcast"}
    assert forward.loc[forward["type"] == "float32", "bytes"].sum() == statistics


@pytest.mark.slow
def test_hidden_and_exposed_add_up(swept: dict[float, Run]) -> None:
    for run in swept.values():
        report = comm_report(run)
        total = report["overlapped_ms"] + report["exposed_ms"]
        assert list(total) == pytest.approx(list(report["duration_ms"]))
        assert (report["backward_ms"] <= report["overlapped_ms"] + 1e-6).all()
    one = comm_report(swept[100]).query("phase == 'backward'")
    assert one["backward_ms"].sum() < 0.2 * one["duration_ms"].sum()  # sent when backward is over


@pytest.mark.slow
def test_reports_side_by_side(swept: dict[float, Run]) -> None:
    table = communication.compared({f"{size:g}": comm_report(run) for size, run in swept.items()})
    assert table.loc["100", "collectives"] == 3
    assert table.loc["0.001", "collectives"] > table.loc["100", "collectives"]
    assert table["megabytes"].max() == pytest.approx(table["megabytes"].min())


@pytest.mark.slow
def test_pictures_show_each_collective(swept: dict[float, Run], nccl: Path, tmp_path: Path) -> None:
    reports = {f"{size:g} MB": comm_report(run) for size, run in swept.items()}
    left, _ = pictures.plot_buckets(reports).axes
    backward = sum(len(each.query("phase == 'backward'")) for each in reports.values())
    assert len(left.patches) == backward
    found = tables.read_run(swept[100])
    pictures.plot_timeline(found).savefig(tmp_path / "drawn.png")
    drawn = pictures.plot_timeline(tables.read(nccl))
    assert [text.get_text() for text in drawn.axes[0].texts] == ["4 MB"]
    with pytest.raises(ValueError, match="steps"):
        pictures.plot_timeline(found, step=77)


@pytest.mark.slow
def test_a_thin_gloo_trace_tells_the_same(swept: dict[float, Run], tmp_path: Path) -> None:
    run = swept[0.001]
    thin = tables.thin(run.folder / run.record.trace, tmp_path / "thin.json.gz")
    before, after = comm_report(run), comm_report(tables.read(thin))
    same = ["operation", "bytes", "type", "group_size", "phase", "step"]
    pd.testing.assert_frame_equal(before[same], after[same])
    assert list(after["exposed_ms"]) == pytest.approx(list(before["exposed_ms"]), abs=1e-2)


@pytest.mark.slow
def test_recorded_runs_answer_as_ones_own(
    swept: dict[float, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(recordings, "RECORDED", tmp_path)
    assert communication.recorded_runs("two") == {}
    assert "nothing to show" in capsys.readouterr().out
    for run in swept.values():
        record.pack(run, tmp_path / "two", "communication")
    found = communication.recorded_runs("two")
    assert list(found) == [run.config.rung for run in swept.values()]
    own, packed = comm_report(swept[0.001]), comm_report(found[swept[0.001].config.rung])
    assert list(packed["bytes"]) == list(own["bytes"])
    told = [
        tables.read_run(run).recorded for run in (swept[0.001], found[swept[0.001].config.rung])
    ]
    assert not told[0] and told[1].startswith(", recorded 20")
    assert communication.recorded_runs("two", gpus=4) == {}
    assert list(communication.recorded_runs("two", gpus=2)) == list(found)


@pytest.mark.slow
def test_messages_are_the_all_reduces_of_traced_runs(swept: dict[float, Run]) -> None:
    found = communication.messages(swept.values())
    own = pd.concat([comm_report(run).query("operation == 'all_reduce'") for run in swept.values()])
    assert list(found["bytes"]) == list(own["bytes"])
    assert found["duration_s"].sum() * 1e3 == pytest.approx(own["duration_ms"].sum())
    assert set(found["ranks"]) == {2} and set(found["run"]) == {run.name for run in swept.values()}
    assert communication.messages([]).empty


# ---- two processes, without a job --------------------------------------------------------------


@pytest.fixture(scope="module")
def of_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list]:
    """What each of two processes of one gloo group saved, by the name of what it computed."""
    folder = tmp_path_factory.mktemp("ranks")
    ended = run_ranks(Path(of_two.__file__), str(folder), folder=folder)
    assert [each.returncode for each in ended] == [0, 0], ended
    return lambda name: [torch.load(folder / f"{name}-{rank}.pt") for rank in range(2)]


@pytest.mark.slow
def test_sync_batchnorm_is_batchnorm_of_the_joined_batch(of_two_ranks) -> None:
    model, images = of_two.layers(), of_two.IMAGES.clone().requires_grad_()
    for _ in range(2):
        output = model(images)
    output.square().sum().backward()
    for share, saved in zip(of_two.SHARES, of_two_ranks("batchnorm")):
        found, gradient, gradients, state = saved
        torch.testing.assert_close(found, output[share], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(gradient, images.grad[share], rtol=1e-3, atol=1e-3)
        for mine, wanted in zip(gradients, model.parameters()):
            torch.testing.assert_close(mine, wanted.grad, rtol=1e-3, atol=1e-3)
        for name, wanted in model.state_dict().items():
            torch.testing.assert_close(state[name], wanted, rtol=1e-4, atol=1e-4)


def test_in_validation_it_uses_what_it_gathered() -> None:
    model, images = of_two.layers().eval(), of_two.IMAGES[:3]
    wanted = model(images)
    torch.testing.assert_close(sync_batchnorm.convert(model)(images), wanted)
    assert isinstance(model[1], sync_batchnorm.SyncBatchNorm2d)


@pytest.mark.slow
def test_unused_weights_stop_ddp_and_masks_do_not(of_two_ranks) -> None:
    for heads, looked_for, masked in of_two_ranks("unused"):
        assert "Expected to have finished reduction" in heads
        assert looked_for == masked == ""


def test_masks_change_training_and_not_validation() -> None:
    model = models.create("resnet18", 4)
    for block in model.modules():  # or every branch begins at 0, and dropping one is not seen
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
    assert all(each.grad is not None for each in model.parameters())


def test_one_head_is_used_at_a_time() -> None:
    model = stochastic_depth.Heads(models.create("resnet18", 4), 3)
    model(of_two.IMAGES).sum().backward()
    assert sum(head.weight.grad is not None for head in model.heads) == 1


# ---- a run that keeps its statistics, from a variant of the script ------------------------------

SAVING = {
    "from course.training.recorder import recording": "from course.training import sync_batchnorm"
    + NARROW,
    "profiler.stop()": "sync_batchnorm.save_statistics(net)",
}


@pytest.mark.slow
def test_statistics_differ_unless_they_are_shared(runs_root: Path) -> None:
    made = "model = models.create(cfg.model, sets.classes)"
    shared = {made: "model = sync_batchnorm.convert(model)"}
    different = {'meter.lap("load")': "images = images + run.rank"}  # synthetic ones are alike
    warm_up()
    scripts = [
        script_variant("plain", SAVING | different),
        script_variant("shared", SAVING | different | shared),
    ]
    runs = [launch.launch(script, TINY, gpus=2) for script in scripts]
    launch.wait(runs, timeout_s=300)
    plain, same = (batchnorm.spread(batchnorm.statistics(run)) for run in runs)
    norms = sum(isinstance(layer, nn.BatchNorm2d) for layer in NET.modules())
    assert len(plain) == norms
    assert plain.loc[0, "spread"] > 0.01
    assert same["largest"].max() == 0
    drawn = pictures.plot_statistics({"own": plain, "shared": same}).axes[0]
    assert len(drawn.lines) == 2
    small = comm_report(runs[1]).query("operation == 'all_reduce' and bytes < 10000")
    assert list(small.groupby("phase").size()) == [norms, norms]  # backward, forward
    assert (small.query("phase == 'forward'")["bytes"] % 8 == 4).all()  # 2 C + 1 numbers


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


@pytest.mark.parametrize("anchor, times", [("no_such_line()", 0), ("else:", 0), ("# <<<", 0)])
def test_a_variant_of_a_line_that_is_not_there(anchor: str, times: int, runs_root: Path) -> None:
    with pytest.raises(ValueError, match=f"{times} times"):
        script_variant("none", {anchor: "pass"})


def test_a_variant_of_a_line_that_is_there_twice(runs_root: Path) -> None:
    with pytest.raises(ValueError, match="times: choose one"):
        script_variant("twice", {"with autocast:": "pass"})


def test_statistics_of_a_run_without(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="save_statistics"):
        batchnorm.statistics(Run(tmp_path))
