"""Traces from every profiler have the same tables, and the summaries of them are right."""

import json
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn
from torch.profiler import record_function
from trace_files import CONV, WGRAD, message_of

from trainspeed.phases import PHASES
from trainspeed.traces import reader, tables
from trainspeed.traces.communication import comm_report
from trainspeed.traces.reader import COLUMNS, assemble

# They depend on the 16-bit hardware of the CPU: make test-formats.
pytestmark = pytest.mark.formats

# ---- PyTorch's trace of a CPU: a real one, of a tiny network -----------------------------------


@pytest.fixture(scope="module")
def cpu_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "cpu.json.gz"
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    profiler = torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=2, repeat=1),
        on_trace_ready=lambda ready: ready.export_chrome_trace(str(path)),
        record_shapes=True,
    )
    with profiler:
        for _ in range(4):
            with record_function("load"):
                images = torch.randn(2, 3, 8, 8)
            with record_function("forward"):
                scores = model(images)
            with record_function("loss"):
                loss = scores.square().mean()
            with record_function("backward"):
                loss.backward()
            with record_function("optimizer"), torch.no_grad():
                for weight in model.parameters():
                    weight -= 0.1 * weight.grad
            profiler.step()
    return path


def test_cpu_trace_has_operators_in_their_phases_and_empty_gpu_tables(cpu_file: Path) -> None:
    trace = tables.read(cpu_file)
    operators = trace.operators.set_index("name")
    assert set(operators["step"]) == {1, 2}
    assert set(operators.loc["aten::conv2d", "phase"]) == {"forward"}
    assert set(operators.loc["aten::randn", "phase"]) == {"load"}
    backward = operators.loc["aten::convolution_backward"]
    assert list(backward["phase"]) == ["backward", "backward"]
    assert backward["input_shapes"].iloc[0][:2] == ((2, 8, 6, 6), (2, 3, 8, 8))
    assert backward["input_types"].iloc[0][0] == "float"
    functions = (tables.by_kernel, tables.idle, tables.layout_kernels)
    for table in (trace.kernels, *(function(trace) for function in functions)):
        assert table.empty and len(table.columns) > 2
    phases = trace.ranges[trace.ranges["name"].isin(PHASES)]
    steps = tables.steps(trace)
    assert set(phases["name"]) == set(PHASES)
    assert phases["duration_s"].sum() <= (steps["end_s"] - steps["start_s"]).sum()


def test_cpu_time_excludes_inner_operators(cpu_file: Path) -> None:
    trace = tables.read(cpu_file)
    table = tables.by_operator(trace)
    assert set(table["measured"]) == {"CPU"} and table["share"].sum() == pytest.approx(1)
    outermost = trace.operators.loc[trace.operators["depth"] == 0, "duration_s"].sum()
    assert table["seconds"].sum() == pytest.approx(outermost)  # no second counts twice
    assert (trace.operators["self_s"] >= -1e-9).all()


# ---- PyTorch's trace of a GPU: a few events in Kineto's format ----------------------------------

ENGINE = "autograd::engine::evaluate_function"
MAIN, AUTOGRAD, GPU = {"pid": 9, "tid": 9}, {"pid": 9, "tid": 31}, {"pid": 0, "tid": 7}
CAST = "void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda>"
LAYOUT = "void cudnn::engines_precompiled::nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16, float>"


def event(cat: str, name: str, ts: float, dur: float, where: dict, **args) -> dict:
    args = {key.replace("_", " "): value for key, value in args.items()}
    return {"ph": "X", "cat": cat, "name": name, "ts": 5e12 + ts, "dur": dur, **where, "args": args}


def launch(name: str, ts: float, where: dict, correlation: int) -> dict:
    return event("cuda_runtime", name, ts, 4, where, correlation=correlation)


def kernel(name: str, ts: float, dur: float, correlation: int, **args) -> dict:
    return event("kernel", name, ts, dur, GPU, correlation=correlation, stream=7, **args)


HALF = {"Input_type": ["c10::BFloat16", "c10::BFloat16"], "Input_Dims": [[2, 8], [8, 3]]}
FLOAT = {"Input_type": ["float", "float"], "Input_Dims": [[2, 8], [8, 3]]}
EVENTS = [
    event("user_annotation", "ProfilerStep#3", 0, 1000, MAIN),
    event("user_annotation", "forward", 100, 300, MAIN),  # its "load" opened before the profiler
    event("user_annotation", "backward", 400, 400, MAIN),
    event("user_annotation", "optimizer", 800, 190, MAIN),
    event("user_annotation", "load", 995, 800, MAIN),  # the next step's, with the profiler's end
    event("cpu_op", "aten::to", 20, 60, MAIN, **FLOAT),
    launch("cudaMemcpyAsync", 30, MAIN, 1),
    event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 40, 20, GPU, correlation=1, bytes=4000),
    event("cpu_op", "aten::conv2d", 110, 100, MAIN, External_id=50, **FLOAT),
    event("cpu_op", "aten::to", 112, 20, MAIN, **FLOAT),
    event("cpu_op", "aten::copy_", 114, 10, MAIN, **FLOAT),
    launch("cudaLaunchKernel", 115, MAIN, 2),
    event("cpu_op", "aten::empty", 126, 2, MAIN),
    event("cpu_op", "aten::cudnn_convolution", 140, 60, MAIN, **HALF),
    launch("cudaLaunchKernel", 150, MAIN, 3),
    event("cuda_driver", "cuLaunchKernelEx", 160, 4, MAIN, correlation=4),
    launch("cudaGetDevice", 170, MAIN, 99),
    event("cpu_op", f"{ENGINE}: ConvolutionBackward0", 500, 200, AUTOGRAD),
    event("cpu_op", "ConvolutionBackward0", 505, 190, AUTOGRAD),
    event("cpu_op", "aten::convolution_backward", 510, 180, AUTOGRAD, External_id=70, **HALF),
    launch("cudaLaunchKernel", 520, AUTOGRAD, 5),
    launch("cudaDeviceSynchronize", 850, MAIN, 6),
    kernel(CAST, 200, 10, 2),
    kernel(LAYOUT, 210, 20, 3),
    kernel(CONV, 230, 70, 4),
    kernel(WGRAD, 600, 100, 5),  # 300 microseconds after the last one
    kernel("lost", 900, 1, 777, External_id=70),  # its launch is not in the trace
    {"ph": "s", "id": 3, "cat": "ac2g", "name": "ac2g", "ts": 5e12, **MAIN},
    {"ph": "M", "name": "process_name", "ts": 0, "pid": 9, "tid": 0, "args": {"name": "python"}},
]
TRACE = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}],
    "traceEvents": EVENTS,
}


@pytest.fixture
def gpu_file(tmp_path: Path) -> Path:
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps(TRACE))
    return path


def test_kernel_has_its_operator_phase_and_types(gpu_file: Path) -> None:
    trace = tables.read(gpu_file)
    rows = trace.kernels.set_index("kernel")
    assert trace.device == "NVIDIA H100"
    backward = "aten::convolution_backward"
    operators = ["aten::to", "aten::conv2d", "aten::conv2d", backward, backward]
    assert list(rows["operator"]) == operators
    assert list(rows["phase"]) == ["forward", "forward", "forward", "backward", "backward"]
    assert set(rows["step"]) == {3}
    conv = rows.loc[CONV]
    assert conv["input_types"] == ("c10::BFloat16", "c10::BFloat16")  # after autocast
    assert conv["input_shapes"] == ((2, 8), (8, 3))
    assert conv["start_s"] == pytest.approx(230e-6)
    assert rows.loc[WGRAD, "launch_s"] == pytest.approx(520e-6)
    assert list(trace.copies["phase"]) == ["load"]  # although its range is not in the trace
    host_s = trace.ranges.groupby("name")["duration_s"].sum()
    assert host_s["load"] == pytest.approx(105e-6)  # 100, and 5 of the next one; not the 800


def test_gpu_time_by_operator_layout_kernels_and_copies(gpu_file: Path) -> None:
    trace = tables.read(gpu_file)
    table = tables.by_operator(trace).set_index("name")
    assert set(table["measured"]) == {"GPU"}
    assert table.loc["aten::conv2d", "seconds"] == pytest.approx(90e-6)
    assert table.loc["aten::conv2d", "share"] == pytest.approx(90 / 201)
    (layout,) = tables.layout_kernels(trace).itertuples()
    assert (layout.name, layout.share) == (LAYOUT, pytest.approx(20 / 201))
    (copy,) = trace.copies.itertuples()
    assert (copy.kind, copy.memory, copy.bytes) == ("HtoD", "Pinned -> Device", 4000)


def test_idle_time(gpu_file: Path) -> None:
    overlapping = kernel("other", 235, 60, 4) | {"tid": 20}
    gpu_file.write_text(json.dumps(TRACE | {"traceEvents": [*EVENTS, overlapping]}))
    trace = tables.read(gpu_file)
    (row,) = tables.idle(trace).itertuples()
    assert row.step == 3
    assert row.span_s == pytest.approx(701e-6)
    assert row.busy_share == pytest.approx(201 / 701)
    assert row.gap_s == pytest.approx(500e-6)
    assert row.launch_delay_s == pytest.approx(75e-6)  # median of 85, 60, 70, 80 and 75


INVALID = (
    {"ts": 0, "dur": 0},  # what CUPTI writes if it has no time
    {"dur": -5},
    {"dur": float("inf")},
    {"ts": float("nan")},
    {"ts": float("-inf")},
    {"dur": None},
    {"dur": "12"},
)


def test_rows_without_a_valid_time_are_left_out_and_counted(
    gpu_file: Path, capsys: pytest.CaptureFixture
) -> None:
    before = tables.read(gpu_file)
    assert before.dropped == {} and not capsys.readouterr().err
    invalid = [event | changes for event in (EVENTS[5], EVENTS[-5]) for changes in INVALID]
    without_end = {key: value for key, value in EVENTS[-5].items() if key != "dur"}
    events = [*invalid, *EVENTS, without_end]
    gpu_file.write_text(json.dumps(TRACE | {"traceEvents": events}))
    trace = tables.read(gpu_file)
    for name in COLUMNS:
        pd.testing.assert_frame_equal(getattr(trace, name), getattr(before, name))
    reasons = {
        "whose start and end are 0": 2,
        "that end before they start": 2,
        "with an infinite time": 6,
        "without a start or an end": 5,
    }
    assert trace.dropped == reasons
    assert trace.source == "gpu.json, PyTorch, without 15 invalid rows"
    assert "6 with an infinite time, 5 without a start or an end" in capsys.readouterr().err


def test_devices_are_busy_separately(gpu_file: Path) -> None:
    """Each of two devices computes half of the time, and both together all of it."""
    where = ({"pid": 0, "tid": 7}, {"pid": 1, "tid": 7})
    kernels = [
        event("kernel", CONV, begin, 50, where[begin // 50 % 2], stream=7, device=begin // 50 % 2)
        for begin in (100, 150, 200, 250)
    ]
    step = event("user_annotation", "ProfilerStep#3", 0, 1000, MAIN)
    gpu_file.write_text(json.dumps(TRACE | {"traceEvents": [step, *kernels]}))
    table = tables.idle(tables.read(gpu_file))
    assert list(table["device"]) == [0, 1]
    assert list(table["busy_share"]) == pytest.approx([2 / 3, 2 / 3])  # of 150 microseconds
    for row in kernels:  # older PyTorch has the device's number only as a process
        del row["args"]["device"]
    gpu_file.write_text(json.dumps(TRACE | {"traceEvents": [step, *kernels]}))
    pd.testing.assert_frame_equal(tables.idle(tables.read(gpu_file)), table)


def test_a_device_does_not_hide_the_messages_of_another() -> None:
    columns = {"phase": "backward", "step": 3, "operation": "all_reduce", "bytes": 8, "type": "f"}
    message = columns | {"group_size": 2, "name": "x", "start_s": 1.0, "duration_s": 1.0}
    kernel = {"name": CONV, "start_s": 1.0, "duration_s": 1.0, "device": 1}
    for device, hidden_ms in ((0, 0), (1, 1000)):
        rows = {"kernels": [kernel], "collectives": [message | {"device": device}]}
        trace = assemble(rows, device="", source="", dropped={})
        report = comm_report(trace)
        assert report["overlapped_ms"].item() == pytest.approx(hidden_ms)
        assert report.attrs["exposed_ms"] == pytest.approx(1000 - hidden_ms)


@pytest.mark.parametrize("properties", [None, [], {}, "H100", ["H100"], [{"id": 0}], [None, 5]])
def test_a_label_never_refuses_a_trace(gpu_file: Path, properties: object) -> None:
    odd = {"deviceProperties": properties, "distributedInfo": properties}
    events = [{"ph": "M", "name": 7, "args": [1]}, *EVENTS]
    gpu_file.write_text(json.dumps(TRACE | odd | {"traceEvents": events}))
    trace = tables.read(gpu_file)
    assert trace.device == "" and len(trace.kernels) == 5


def test_a_trace_larger_than_the_memory_is_refused(
    gpu_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "memory_bytes", lambda: (2**30, 5000))
    assert "too much for the free memory: record fewer steps" in message_of(tables.read, gpu_file)


# ---- Files that are not traces -----------------------------------------------------------------


def test_files_that_are_not_traces_are_named(tmp_path: Path, cpu_file: Path) -> None:
    path = tmp_path / "bad.json.gz"
    assert "No such file" in message_of(tables.read, path)
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2, "tid": 1}
    for content, words in (
        (cpu_file.read_bytes()[:2000], "cut off"),
        (b'{"a": 1', "not JSON"),
        (b'{"rung": "amp"}', "no list traceEvents"),
        (b'{"traceEvents": []}', "no operator and no kernel"),
        (json.dumps([event | {"ts": None}]).encode(), "no kernel (left out: 1 without a start"),
        (json.dumps([event | {"args": {"Input Dims": 3}, "cat": []}]).encode(), "no operator"),
    ):
        path.write_bytes(content)
        assert words in message_of(tables.read, path)
    path.write_text(json.dumps([event | {"args": None}]))  # some tools write null
    assert tables.by_operator(tables.read(path))["name"].tolist() == ["aten::mm"]
