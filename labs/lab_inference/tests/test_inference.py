"""A network answers: timed, folded, exported, with eight bits; right, and wrong."""

from pathlib import Path

import pytest
import torch
from torch import nn

from course.training import models
from course.training.models import patches
from labs import lab_inference as inference
from labs.lab_inference import export, latency
from labs.lab_inference import verify as written
from labs.lab_inference.int8 import scale_of, to_int8
from labs.lab_inference.variants import images_for, ready


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Others wait for each other, at networks as small as these."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def net() -> nn.Module:
    """A narrow network with statistics that are not 0 and 1."""
    torch.manual_seed(0)
    network = patches(16, width=4)
    with torch.no_grad():
        network(1 + 2 * torch.randn(64, 3, 32, 32))
    return network.eval()


def test_a_latency_lasts_until_the_device_is_done() -> None:
    with written._device() as device:
        told = latency.latencies(device.call, device.wait, 3, written.WARM_UP)
    assert all(each >= takes for each, takes in zip(told, device.takes[written.WARM_UP :]))


def test_a_curve_has_a_row_a_batch(net: nn.Module) -> None:
    table = inference.curve(net, batches=(1, 4), budget_s=0.01)
    assert table["batch"].tolist() == [1, 4] and (table["p99_s"] >= table["p50_s"]).all()
    assert (table["calls"] >= latency.LEAST).all()
    expected = table["batch"] / table["p50_s"]
    assert (table["images_per_s"] == expected).all()


def test_the_knee_is_where_throughput_is_nearly_all() -> None:
    table = inference.latency.pd.DataFrame(
        {"batch": [1, 2, 4, 8], "images_per_s": [100.0, 190.0, 271.0, 300.0]}
    )
    assert inference.knee(table) == 4 and inference.knee(table, nearly=0.95) == 8


@pytest.mark.parametrize("name", ["resnet8_patches", "resnet18_cifar"])
def test_folded_networks_give_the_same_scores(name: str) -> None:
    torch.manual_seed(0)
    network = models.create(name, 16)
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        network(images)
        due = network.eval()(images)
        short = inference.folded(network)
        assert inference.norms(network) > 0 == inference.norms(short)
        assert torch.allclose(short(images), due, atol=1e-4 * due.abs().max())


def test_a_norm_stays_where_others_need_what_is_before_it() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.conv(x)
            return x + self.norm(x)

    network, images = Both().eval(), torch.randn(1, 3, 4, 4)
    network.norm.running_mean.fill_(3)
    found = inference.folded(network)
    assert inference.norms(found) == 1 and torch.equal(found(images), network(images))


def test_ways_that_there_are_not(net: nn.Module) -> None:
    images = images_for(net, 1, 32)
    with pytest.raises(ValueError, match="precision='fp8': choose fp32 or bf16 or fp16"):
        ready(net, images, inference.Way("fp8"))
    with pytest.raises(ValueError, match="graph=True records kernels of CUDA, and images are on c"):
        ready(net, images, inference.Way(graph=True))


def test_a_way_is_what_it_says(net: nn.Module) -> None:
    images, seen = images_for(net, 4, 32), {}
    way = inference.Way("bf16", channels_last=True, folded=True)
    network = inference.variants.prepared(net, way)
    weights = [each for each in network.parameters() if each.ndim == 4]
    assert {each.dtype for each in network.parameters()} == {torch.bfloat16}
    assert all(each.is_contiguous(memory_format=torch.channels_last) for each in weights)
    assert inference.norms(network) == 0 and inference.norms(net) == 7
    scores = ready(net, images, way)()
    assert scores.dtype == torch.bfloat16 and scores.is_inference() and not seen
    right = ready(net, images, inference.Way())()
    assert 0 < (scores.float() - right).abs().max() < 0.05 * right.abs().max()


def test_whole_numbers_lose_half_a_step(net: nn.Module) -> None:
    weight = next(net.parameters()).detach()
    for most in (127, 7):
        for per_channel in (False, True):
            scale = scale_of(weight, most, per_channel)
            back = to_int8(weight, scale, most) * scale
            assert ((back - weight).abs() <= 0.501 * scale).all()
    own, shared = (
        (to_int8(weight, scale, 7) * scale - weight).abs().mean()
        for scale in (scale_of(weight, 7, True), scale_of(weight, 7))
    )
    assert own < shared


def test_a_quantized_network_sees_steps_alone(net: nn.Module) -> None:
    images = images_for(net, 16, 32)
    found = inference.quantized(net, images, bits=4)
    convs = [part for part in found.modules() if isinstance(part, nn.Conv2d)]
    assert len(convs) == 7 and all(len(each.weight[0].unique()) <= 15 for each in convs)
    seen = []
    convs[2].register_forward_hook(lambda layer, given, out: seen.append(given[0].unique()))
    with torch.no_grad():
        off = (found(images) - net(images)).abs().max()
        near = (inference.quantized(net, images)(images) - net(images)).abs().max()
    assert len(seen[0]) <= 15 and near < off / 4
    with pytest.raises(ValueError, match="bits=9: choose 2 to 8"):
        inference.quantized(net, images, bits=9)


@pytest.mark.slow
def test_a_network_as_a_file(net: nn.Module, tmp_path: Path) -> None:
    short = inference.folded(net)
    program = inference.exported(short, images_for(net, 2, 32))
    assert inference.operators(program)["conv2d"] == 7
    images = images_for(net, 5, 32, seed=1)  # another number of them
    with torch.no_grad():
        due = net(images)
    path = inference.to_onnx(program, tmp_path / "net.onnx")
    assert [*tmp_path.iterdir()] == [path]
    assert torch.allclose(inference.Session(path)(images), due, atol=1e-4)
    small = inference.to_int8_file(path, images_for(net, 128, 32, seed=2), tmp_path / "small.onnx")
    off = (inference.Session(small)(images) - due).abs().max() / due.abs().max()
    assert 1e-5 < off < 0.2, off  # it computes with whole numbers, and well
    import onnx

    kinds = {each.data_type for each in onnx.load(small).graph.initializer if len(each.dims) == 4}
    assert kinds == {onnx.TensorProto.INT8}


def test_without_onnx_it_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert inference.has_onnx() and inference.installed()["onnxruntime"] != ""
    monkeypatch.setattr(export, "WANTED", ("onnx", "no-such-package"))
    assert not inference.has_onnx() and inference.installed()["no-such-package"] == ""


def test_tensorrt_is_said_to_be_missing_or_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Here it never is: a script in its place shows what it is asked, and what is read."""
    images = torch.zeros(4, 3, 32, 32)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert inference.tensorrt(tmp_path / "a.onnx", images).startswith("No TensorRT on this machine")
    tool = tmp_path / "trtexec"
    tool.write_text('#!/bin/sh\necho "[I] built"\necho "[I] Throughput: 9 qps, $*"\n')
    tool.chmod(0o755)
    told = inference.tensorrt(tmp_path / "a.onnx", images)
    assert told.startswith("[I] Throughput: 9 qps, --onnx=") and "images:4x3x32x32" in told
    tool.write_text('#!/bin/sh\necho "no GPU" >&2\nexit 3\n')
    assert inference.tensorrt(tmp_path / "a.onnx", images) == "trtexec ended with 3: no GPU"


def test_pictures_say_what_they_show(net: nn.Module) -> None:
    frame = inference.latency.pd.DataFrame
    table = latency.rates(
        frame({"batch": [1, 2, 4], "p50_s": [1e-3, 1.1e-3, 2.2e-3], "p99_s": [2e-3] * 3})
    )
    drawn = inference.plot_knees({"fp32": table}, "a machine")
    assert "knee, fp32: 2: 1.1; images per second" in drawn.alt
    rows = frame({"way": ["fp32", "+ bf16"], "batch": [1, 1], "p50_s": [4e-3, 1e-3]})
    drawn = inference.plot_ladder(inference.measurements.compared(rows))
    assert "images at once: 1: fp32: 1, + bf16: 4" in drawn.alt
    weight = torch.ones(2, 3, 1, 1)
    weight[1] /= 8
    assert "channel 1 has 16 of 127 steps" in inference.plot_channels(weight).alt
    told = frame({"bits": [8, 4], "scales": ["a channel"] * 2, "top1": [0.5, 0.25], "fp32": 0.5})
    assert "a scale for each channel: from 0.5 to 0.25" in inference.plot_bits(told).alt
