"""Roofline: costs counted by hand, ceilings measured here and recorded, runs placed under them."""

import pandas as pd
import pytest
import torch
from cases import for_all

from course.analysis.roofline import bounds
from course.analysis.roofline.bounds import Ceilings, ceilings, points, recorded_ceilings
from course.analysis.roofline.cost import fused, operators, step_cost
from course.analysis.roofline.figures import plot_roofline as draw
from course.config import LADDER, rung
from course.runs.recordings import recorded
from course.training import models

CPU = torch.device("cpu")
SMALL = {"data": "synthetic", "image_px": 64, "batch_size": 16, "model": "resnet18"}


@pytest.fixture(scope="module")
def small() -> pd.DataFrame:
    return operators(rung("device", **SMALL)).set_index("operator")


def test_operators_by_hand(small):
    network = models.create("resnet18", 1000)
    for part in network.modules():
        if isinstance(part, torch.nn.Conv2d):
            part.register_forward_hook(lambda _m, args, out: sizes.append((args[0], out)))
    sizes: list[tuple[torch.Tensor, torch.Tensor]] = []
    with torch.no_grad():
        network(torch.zeros(1, 3, 64, 64))
    inputs = sum(given.numel() for given, _ in sizes)
    outputs = sum(made.numel() for _, made in sizes)
    weights = sum(
        each.weight.numel() for each in network.modules() if isinstance(each, torch.nn.Conv2d)
    )
    megabyte = 1e6 / 4
    assert small["megabytes"]["convolution"] * megabyte == pytest.approx(
        inputs + outputs + weights / 16
    )
    # Every convolution has its BatchNorm: read twice, written once; backward reads twice what
    # goes in and its gradient, and writes one. Weights and statistics are the last per cent.
    assert small["megabytes"]["native_batch_norm"] * megabyte == pytest.approx(
        3 * outputs, rel=0.01
    )
    assert small["megabytes"]["native_batch_norm_backward"] * megabyte == pytest.approx(
        5 * outputs, rel=0.01
    )
    # Two kernels, for the gradients of weights and input, both read the output's gradient; the
    # first layer has the one alone.
    (first_in, first_out), backward = sizes[0], small["megabytes"]["convolution_backward"]
    assert backward * megabyte == pytest.approx(
        2 * outputs - first_out.numel() + 2 * inputs - first_in.numel() + 2 * weights / 16
    )
    assert small["calls"]["convolution"] == small["calls"]["native_batch_norm"] == 20


def test_update_moves_each_parameter_eleven_times(small):
    # Weight decay and momentum: reads 2, writes 1; reads 1, writes 1; twice reads 2, writes 1.
    parameters = models.parameter_count(models.create("resnet18", 1000))
    moved = small["megabytes"]["mul_"] * 16 * 1e6 / 4
    assert moved == pytest.approx(2 * parameters)
    frozen = operators(rung("device", **SMALL, momentum=0.0)).set_index("operator")["megabytes"]
    less = small["megabytes"].sum() - frozen.sum()
    # Momentum is a product in place and a sum in place, five movements of the eleven.
    assert less * 16 * 1e6 / 4 == pytest.approx(5 * parameters)


@pytest.mark.slow
def test_flop_are_three_forward_passes_but_for_the_first_layer():
    forward = models.forward_gflop(models.create("resnet50", 1000), 224)
    stem = 2 * 112 * 112 * 64 * 3 * 49 / 1e9  # images need no gradient
    cost = step_cost(rung("amp", data="synthetic", batch_size=256))
    assert cost.flop / 1e9 == pytest.approx(3 * forward - stem, rel=0.001)
    # The figures of reference; the second was counted apart from this code, and not as finely.
    assert cost.flop / 1e9 == pytest.approx(24.3, rel=0.005)
    assert cost.bytes / 1e6 == pytest.approx(475, rel=0.05)


@pytest.mark.slow
def test_half_precision_moves_half_and_computes_as_much():
    large = {**SMALL, "batch_size": 512}
    full, half = (step_cost(rung(name, **large)) for name in ("device", "amp"))
    assert half.flop == pytest.approx(full.flop)
    assert 0.5 < half.bytes / full.bytes < 0.7  # weights, gradients and momentum stay fp32
    assert half.flop_per_byte == half.flop / half.bytes
    other = operators(rung("amp", **large, precision="fp16"))  # which `step_cost` takes for bf16
    assert other["megabytes"].sum() * 1e6 == pytest.approx(half.bytes)


@pytest.mark.slow
def test_ceilings_of_this_machine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(bounds.COPY_BYTES, "cpu", 2**24)  # may fit into a cache: it is faster then
    monkeypatch.setitem(bounds.ENOUGH_S, "cpu", 0.005)
    found = ceilings(CPU, "fp32")
    assert set(found.flop_per_s) == {"fp32"} and found.source == "measured"
    assert found.machine.endswith("cores")
    assert 1e8 < found.flop_per_s["fp32"] < 1e15 and 1e8 < found.bytes_per_s < 1e13


def test_a_ceiling_is_work_over_the_time_of_the_fastest_call(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def took(call, device: torch.device) -> float:
        call()
        asked.append(device)
        return 4.0 if len(asked) % 3 else 2.0

    monkeypatch.setattr(bounds, "seconds", took)
    found = ceilings(CPU, "fp32")
    convolution = 2 * 8 * 28**2 * 256**2 * 3**2  # more than a product of 256 x 256
    assert found.flop_per_s["fp32"] == convolution / 2
    assert found.bytes_per_s == 2 * bounds.COPY_BYTES["cpu"] / 2
    assert len(asked) == 9 and {*asked} == {CPU}  # a product, a convolution and a copy, 3 times


@for_all(
    "device, precision, message",
    [
        ("cpu", "fp8", "precision='fp8': choose fp32 or tf32 or bf16 or fp16"),
        ("cpu", "tf32", "exists on CUDA alone: choose fp32"),
        ("meta", "fp32", "device='meta': choose cpu or cuda"),
    ],
)
def test_what_cannot_be_measured_is_refused(device, precision, message):
    with pytest.raises(ValueError, match=message):
        ceilings(torch.device(device), precision)


@pytest.mark.slow
def test_recorded_runs_lie_below_their_ceilings():
    runs = recorded("nvidia-h100")
    runs = runs[(runs["batch_size"] == 256) | (runs["status"] == "oom")]
    assert runs["rung"].eq("compile").any()  # counted bytes are those of a model as it stands
    table = points(runs, recorded_ceilings("nvidia-h100"))
    # Those that ran out of memory are left out, and the one on the host's CPU.
    expected = runs[(runs["status"] == "ok") & (runs["device"] == "cuda")]
    expected = expected[~expected["rung"].isin(["compile", "algebra"])]
    assert 5 < len(table) == len(expected) < len(runs)
    assert all(machine.startswith("NVIDIA H100") for machine in table["machine"])
    assert set(table["precision"]) == {"fp32", "tf32", "bf16", "fp16"}
    assert table["share"].between(0.3, 0.8).all()
    # Without Tensor Cores arithmetic holds ResNet-50, with them memory does.
    arithmetic = table["nearer"] == "arithmetic"
    assert (arithmetic == (table["precision"] == "fp32")).all()
    row = table[(table["rung"] == "channels_last") & (table["precision"] == "fp16")].iloc[0]
    assert row["share"] == pytest.approx(row["images_per_s"] / row["memory_images_per_s"])
    assert row["flop_per_s"] == pytest.approx(row["images_per_s"] * 24.3e9, rel=0.001)


@pytest.mark.slow
def test_recorded_picture_names_machine_ceilings_and_runs():
    runs = recorded("nvidia-h100")
    found = recorded_ceilings("nvidia-h100")
    rungs = runs["rung"].isin(LADDER) & runs["batch_size"].eq(256)
    picture = draw(found, points(runs[rungs], found))
    (axes,), (legend,) = picture.axes, picture.legends
    assert "NVIDIA H100 80GB HBM3 (recorded" in axes.get_title(loc="left")
    assert "ceilings: recorded" in axes.get_title(loc="left")
    roofs = [text.get_text() for text in axes.texts]
    assert {"memory: 3.02 TB/s", "tf32: 365 TFLOP/s", "bf16: 673 TFLOP/s"} <= set(roofs)
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels[0] == "channels_last, fp16:\n73% of the memory bound" and len(labels) == 6
    boxes = [text.get_window_extent() for text in axes.texts]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def cpu_row(**changes) -> dict:
    config = vars(rung("baseline", **SMALL))
    return {
        "status": "ok",
        "machine": "a CPU, 2 cores",
        "device": "cpu",
        "images_per_s": 10.0,
        "config": config,
        **changes,
    }


CPU_CEILINGS = Ceilings("a CPU, 2 cores", {"fp32": 1e11}, 1e10, "measured")


def test_point_by_hand():
    (row,) = points(pd.DataFrame([cpu_row()]), CPU_CEILINGS).to_dict("records")
    cost = step_cost(rung("baseline", **SMALL))
    assert row["flop_per_s"] == 10 * cost.flop
    assert row["arithmetic_images_per_s"] == pytest.approx(1e11 / cost.flop)
    assert row["memory_images_per_s"] == pytest.approx(1e10 / cost.bytes)
    assert row["nearer"] == "arithmetic" and row["share"] == pytest.approx(10 * cost.flop / 1e11)


def test_runs_of_another_machine_or_without_a_speed_are_left_out():
    others = [cpu_row(machine="NVIDIA H100"), cpu_row(status="oom", images_per_s=None)]
    assert len(points(pd.DataFrame([cpu_row(), *others]), CPU_CEILINGS)) == 1
    with pytest.raises(ValueError, match="those of a CPU, 2 cores in fp32; the runs are .*H100"):
        points(pd.DataFrame(others), CPU_CEILINGS)
    with pytest.raises(ValueError, match="the runs are none"):
        points([], CPU_CEILINGS)


def test_what_is_not_recorded_is_told():
    with pytest.raises(ValueError, match="no ceilings are recorded for 'nvidia-h200'"):
        recorded_ceilings("nvidia-h200")
    with pytest.raises(ValueError, match="nothing is recorded for 'abacus'"):
        recorded_ceilings("abacus")


def test_fused_traffic_by_hand():
    # y = relu(a + b): 3 + 2 movements, of which b's is left; relu's backward: 3, or its mask's.
    moved = {"convolution": 10.0, "add_": 3.0, "add": 0.0, "relu_": 2.0, "threshold_backward": 3.0}
    table = pd.DataFrame({"megabytes": moved})
    assert fused(table).sum().to_dict() == pytest.approx({"eager": 18, "least": 11, "most": 12})
