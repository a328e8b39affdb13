"""What ranks send each other: traces of NCCL (written by hand) and gloo (of real runs)."""

import json
from collections.abc import Callable
from pathlib import Path

import of_two_ranks as of_two
import pandas as pd
import pytest
import torch
from job_helpers import NARROW, run_ranks
from narrow import Narrow
from torch import nn

from course.analysis import communication, read_trace
from course.analysis.communication import comm_report
from course.checks.script_variants import script_variant
from course.config import rung, vary
from course.jobs import launch
from course.runs import recordings
from course.runs.run import Run
from course.training import models, stochastic_depth, sync_batchnorm
from labs.communication import figures
from tools import record
from trainspeed.traces import tables
from trainspeed.traces.communication import comm_report as report_trace

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


def event(cat: str, name: str, ts: float, dur: float, **args: object) -> dict:
    place = {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1}
    return place | {"ts": ts, "dur": dur, "args": args}


def write_trace(path: Path, *events: dict) -> tables.Trace:
    """Write a trace of PyTorch's profiler, and read it."""
    distributed = {"backend": "nccl", "rank": 0, "world_size": 2}
    path.write_text(json.dumps({"traceEvents": events, "distributedInfo": distributed}))
    return tables.read(path)


def test_computing_hides_a_part_of_an_all_reduce(tmp_path: Path) -> None:
    sent = {"Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000}
    sent |= {"Group size": 2, "dtype": "BFloat16", "stream": 20, "correlation": 2}
    trace = write_trace(
        tmp_path / "trace.json",
        event("user_annotation", "ProfilerStep#2", 0, 1000),
        event("user_annotation", "backward", 100, 100),
        event("cuda_runtime", "cudaLaunchKernel", 110, 2, correlation=1),
        event("cuda_runtime", "cudaLaunchKernel", 120, 2, correlation=2),
        event("kernel", "sm90_xmma_wgrad", 100, 400, stream=7, correlation=1),
        event("kernel", "ncclDevKernel_AllReduce_Sum_bf16(x)", 300, 250, **sent),
    )
    (row,) = report_trace(trace).itertuples()
    assert (row.operation, row.bytes, row.type) == ("all_reduce", 2000, "bfloat16")
    assert (row.group_size, row.phase) == (2, "backward")
    assert (row.overlapped_ms, row.exposed_ms) == pytest.approx((0.2, 0.05))


def test_messages_that_follow_each_other_are_drawn_apart(tmp_path: Path) -> None:
    sent = {"Collective name": "allreduce", "In msg nelems": 1000, "dtype": "Float", "stream": 20}
    trace = write_trace(
        tmp_path / "trace.json",
        event("user_annotation", "ProfilerStep#2", 0, 1000),
        event("user_annotation", "backward", 100, 100),
        *(event("cuda_runtime", "cudaLaunchKernel", 110, 2, correlation=n) for n in (1, 2, 3)),
        event("kernel", "sm90_xmma_wgrad", 100, 800, stream=7, correlation=1),
        event("kernel", "ncclDevKernel_AllReduce_Sum_f32(x)", 300, 100, correlation=2, **sent),
        event("kernel", "ncclDevKernel_AllReduce_Sum_f32(x)", 400, 100, correlation=3, **sent),
    )
    (axes,) = figures.plot_timeline(trace).axes
    boxes = [path.get_extents() for bars in axes.collections for path in bars.get_paths()]
    first, second = sorted(box.intervalx.tolist() for box in boxes if box.y0 < 2 < box.y1)
    assert first[0] == pytest.approx(0.3) and first[1] < second[0] == pytest.approx(0.4)


def test_recorded_gpus_send_every_gradient_once() -> None:
    runs = communication.traced_runs("nvidia-h200-x4", gpus=4)
    runs = {name: run for name, run in runs.items() if "bucket" in name}
    reports = {name: comm_report(run) for name, run in runs.items()}
    for name, report in reports.items():
        backward = report.query("phase == 'backward'")
        assert set(backward["operation"]) == {"all_reduce"}, name
        assert backward["bytes"].sum() == 4 * 25_557_032  # ResNet-50's parameters
        assert figures.plot_timeline(read_trace(runs[name])).alt
    table = communication.compare_reports(reports)
    assert table["collectives"].nunique() == 3 == len(reports)


PLAIN = {"from course.training.recorder import recording": NARROW}
SYNCED = {"model = models.create(cfg.model, sets.classes)": "model = sync_batchnorm.convert(model)"}


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Trace two ranks: gradients in many buckets, in one, and with synchronized BatchNorm."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_RUNS", str(tmp_path_factory.mktemp("runs")))
        plain, synced = script_variant("plain", PLAIN), script_variant("synced", PLAIN | SYNCED)
        many, one = vary(TINY, bucket_mb=[0.001, 100])
        runs = {
            "many": launch.launch(plain, many, gpus=2),
            "one": launch.launch(plain, one, gpus=2),
            "synced": launch.launch(synced, one, gpus=2),
        }
        launch.wait(runs.values(), timeout_s=300)
        return runs


@pytest.mark.slow
def test_every_gradient_is_sent_once(traced: dict[str, Run]) -> None:
    reports = {name: comm_report(traced[name]) for name in ("many", "one")}
    counts = {}
    for name, report in reports.items():
        backward = report[report["phase"] == "backward"]
        assert backward["bytes"].sum() == WEIGHTS
        assert set(backward["operation"]) == {"all_reduce"}
        parts = report["overlapped_ms"] + report["exposed_ms"]
        assert list(parts) == pytest.approx(list(report["duration_ms"]))
        counts[name] = len(backward)
    assert counts["one"] == 1 and counts["many"] > 5
    assert backward["backward_ms"].sum() < 0.2 * backward["duration_ms"].sum()  # one bucket is late
    forward = report[report["phase"] == "forward"]
    statistics = sum(buffer.nbytes for buffer in NET.buffers() if buffer.is_floating_point())
    assert set(forward["operation"]) == {"broadcast"}
    assert forward.loc[forward["type"] == "float32", "bytes"].sum() == statistics
    left, _ = figures.plot_buckets(reports).axes
    assert len(left.patches) == sum(counts.values())


@pytest.mark.slow
def test_recorded_runs_give_the_same_report(
    traced: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(recordings, "RECORDED", tmp_path)
    assert communication.traced_runs("two") == {}
    assert "No traced run on several GPUs is recorded for two" in capsys.readouterr().out
    run = traced["many"]
    record.pack(run, tmp_path / "two", "communication")
    (packed,) = communication.traced_runs("two", gpus=2).values()
    assert communication.traced_runs("two", gpus=4) == {}
    same = ["operation", "bytes", "type", "group_size", "phase", "step"]
    before, after = comm_report(run), comm_report(packed)  # its trace was thinned
    pd.testing.assert_frame_equal(before[same], after[same])
    assert list(after["exposed_ms"]) == pytest.approx(list(before["exposed_ms"]), abs=1e-2)
    table = communication.messages([run])
    all_reduces = before[before["operation"] == "all_reduce"]
    assert list(table["bytes"]) == list(all_reduces["bytes"]) and set(table["ranks"]) == {2}
    assert table["duration_s"].sum() * 1e3 == pytest.approx(all_reduces["duration_ms"].sum())


@pytest.mark.slow
def test_sync_batchnorm_sends_two_small_messages_per_layer(traced: dict[str, Run]) -> None:
    norms = sum(isinstance(layer, nn.BatchNorm2d) for layer in NET.modules())
    small = comm_report(traced["synced"]).query("operation == 'all_reduce' and bytes < 10000")
    assert list(small.groupby("phase").size()) == [norms, norms]  # backward, forward


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
    assert not torch.allclose(model(of_two.IMAGES), model(of_two.IMAGES), atol=1e-3)
