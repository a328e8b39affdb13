"""The rules judge kernels right whose machine code or counters are known; the report counts."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from course.analysis import read_trace
from course.runs.recordings import trace_path
from trainspeed import tensor_cores
from trainspeed.tensor_cores.rules import classify, rules
from trainspeed.traces import tables


@pytest.fixture(scope="module")
def h100() -> dict[str, tables.Trace]:
    names = {"fp32": "device", "amp": "amp", "channels_last": "channels_last"}
    return {rung: read_trace(trace_path("nvidia-h100", file)) for rung, file in names.items()}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.example[:40])
def test_every_rule_decides_its_example(rule) -> None:
    assert classify(rule.example) == rule
    assert classify("void acme::frobnicate<float>(float*)").verdict == "unknown"


def test_the_h100_used_tensor_cores_with_amp_and_not_in_fp32(h100) -> None:
    table = tensor_cores.tensor_core_summary(**h100).set_index("name")
    used, layout = table["tensor_core_share"], table["layout_share"]
    assert used["fp32"] == 0 and table.loc["fp32", "eligible_share"] > 0.6
    assert 0.1 < used["amp"] < used["channels_last"]
    assert layout["amp"] > 0.05 > 0.02 > layout["channels_last"]
    parts = ["tensor_core_share", "eligible_share", "not_eligible_share", "unknown_share"]
    assert table[parts].sum(axis=1).tolist() == pytest.approx([1, 1, 1])
    assert table["unknown_share"].max() < 0.005


def test_report_agrees_with_the_trace(h100) -> None:
    trace = h100["amp"]
    table = tensor_cores.tensor_core_report(trace).set_index("operator")
    by_operator = tables.by_operator(trace).set_index("name")
    assert table["gpu_s"].to_dict() == pytest.approx(by_operator["seconds"].to_dict())
    conv = table.loc["aten::conv2d"]
    assert (conv["eligible"], conv["uses_tensor_cores"], conv["types"]) == ("yes", "used", "bf16")
    assert conv["calls"] == 53  # autocast calls it twice for one
    norm = table.loc["aten::native_batch_norm_backward"]
    assert (norm["eligible"], norm["uses_tensor_cores"]) == ("no", "not")


@pytest.mark.parametrize(
    ("device", "operator", "kind", "eligible"),
    [
        ("NVIDIA H100", "aten::conv2d", "float", "yes"),  # as TF32
        ("Tesla V100-SXM2-16GB", "aten::conv2d", "float", "no"),
        ("Tesla V100-SXM2-16GB", "aten::conv2d", "c10::Half", "yes"),
        ("Tesla V100-SXM2-16GB", "aten::linear", "c10::BFloat16", "no"),
        ("Tesla P100-PCIE-16GB", "aten::conv2d", "c10::Half", "no"),
        ("Tesla T4", "aten::_int_mm", "signed char", "yes"),
        ("NVIDIA H100", "aten::scaled_dot_product_attention", "c10::Half", "yes"),
        ("NVIDIA H100", "aten::upsample_bilinear2d", "c10::Half", "no"),
        ("NVIDIA H100", "aten::_conv_depthwise2d", "c10::Half", "no"),
    ],
)
def test_eligible_by_operator_type_and_gpu(h100, device, operator, kind, eligible) -> None:
    columns = {"kernel": "elementwise_kernel", "operator": operator}
    kernels = h100["fp32"].kernels.head(1).assign(**columns, input_types=[(kind, kind, "")])
    trace = replace(h100["fp32"], kernels=kernels, device=device)
    assert tensor_cores.tensor_core_report(trace)["eligible"].item() == eligible


def test_unknown_kernels_are_reported(h100) -> None:
    kernels = h100["channels_last"].kernels.copy()
    kernels.loc[kernels["operator"] == "aten::relu_", "kernel"] = "acme_frobnicate"
    report = tensor_cores.tensor_core_report(kernels).set_index("operator")
    assert report.loc["aten::relu_", "uses_tensor_cores"] == "unknown"
    with pytest.raises(ValueError, match="duration_s"):
        tensor_cores.tensor_core_report(kernels[["kernel"]])


def test_report_of_a_cpu_run(tmp_path: Path) -> None:
    layer, images = torch.nn.Conv2d(3, 8, 3), torch.randn(2, 3, 8, 8)
    with torch.profiler.profile(record_shapes=True) as profiler:
        layer(images).relu_().sum().backward()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    with pytest.raises(ValueError, match="a CPU has no Tensor Cores"):
        tensor_cores.tensor_core_report(read_trace(tmp_path / "trace.json"))
