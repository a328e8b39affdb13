"""Inference: latency, variants, files, eight bits."""

from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import pandas as pd
import pytest
import torch
from threadpoolctl import threadpool_limits
from torch import nn

from course.training.models import patches
from electives import inference as lab
from electives.inference import export, latency, serving, variants, verify


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    with threadpool_limits(1):
        yield


@pytest.fixture(scope="module")
def net() -> nn.Module:
    """Return a narrow network with statistics that are not 0 and 1."""
    torch.manual_seed(0)
    network = patches(16, width=4)
    with torch.no_grad():
        network(1 + 2 * torch.randn(64, 3, 32, 32))
    return network.eval()


def test_a_latency_lasts_until_the_device_is_done() -> None:
    with verify.fake_device() as device:
        times = latency.latencies(device.call, device.wait, 3, verify.WARM_UP)
    spans = device.spans[verify.WARM_UP :]
    assert all(measured >= end - begin for measured, (begin, end) in zip(times, spans))


def test_one_wait_ends_the_warm_up_and_each_call_has_its_own_beginning() -> None:
    def measure(call: Any, wait: Any, count: int, warm_up: int, restarts: bool) -> list[float]:
        for _ in range(warm_up):
            call()
        wait()
        times, begin = [], perf_counter()
        for _ in range(count):
            begin = perf_counter() if restarts else begin
            call()
            wait()
            times.append(perf_counter() - begin)
        return times

    right = partial(measure, restarts=True)
    assert verify.check_times(right) and verify.check_waits(right)
    with pytest.raises(AssertionError, match="set `begin` again before each call"):
        verify.check_times(partial(measure, restarts=False))


def count_batchnorms(model: nn.Module) -> int:
    return sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())


def test_a_curve_has_a_knee() -> None:
    table = pd.DataFrame({"batch": [1, 2, 4, 8], "images_per_s": [100.0, 190.0, 271.0, 300.0]})
    assert latency.find_knee(table) == 4


def test_folded_networks_give_the_same_scores(net: nn.Module) -> None:
    images, folded = torch.randn(4, 3, 32, 32), lab.fold_batchnorms(net)
    with torch.no_grad():
        scores = net(images)
        assert count_batchnorms(net) > 0 == count_batchnorms(folded)
        assert torch.allclose(folded(images), scores, atol=1e-4 * scores.abs().max())


def test_a_variant_has_its_settings(net: nn.Module) -> None:
    images = variants.random_images(net, 4, 32)
    variant = lab.Variant("bf16", channels_last=True, folded=True)
    network = variants.prepare(net, variant)
    weights = [weight for weight in network.parameters() if weight.ndim == 4]
    assert all(w.is_contiguous(memory_format=torch.channels_last) for w in weights)
    assert count_batchnorms(network) == 0 and count_batchnorms(net) == 7
    scores = variants.create_call(net, images, variant)()
    assert scores.dtype == torch.bfloat16 and scores.is_inference()
    fp32 = variants.create_call(net, images, lab.Variant())()
    assert 0 < (scores.float() - fp32).abs().max() < 0.05 * fp32.abs().max()


def test_a_quantized_network_computes_with_steps(net: nn.Module) -> None:
    images = variants.random_images(net, 16, 32)
    network = lab.quantize(net, images, bits=4)
    convs = [part for part in network.modules() if isinstance(part, nn.Conv2d)]
    assert len(convs) == 7 and all(len(conv.weight[0].unique()) <= 15 for conv in convs)
    inputs = []
    convs[2].register_forward_hook(lambda layer, args, out: inputs.append(args[0].unique()))
    with torch.no_grad():
        error = (network(images) - net(images)).abs().max()
        error_8_bits = (lab.quantize(net, images)(images) - net(images)).abs().max()
    assert len(inputs[0]) <= 15 and error_8_bits < error / 4


@pytest.mark.slow
def test_unknown_formats_and_too_many_bits_are_refused(net: nn.Module) -> None:
    with pytest.raises(ValueError, match="precision='fp8': choose fp32, bf16 or fp16"):
        lab.Variant("fp8")
    with pytest.raises(ValueError, match="bits=9: choose 2 to 8"):
        lab.quantize(net, torch.zeros(1, 3, 32, 32), bits=9)


def test_a_network_as_a_file(net: nn.Module, tmp_path: Path) -> None:
    import onnxruntime

    def scores_of(path: Path) -> torch.Tensor:
        session = onnxruntime.InferenceSession(path)
        return torch.from_numpy(session.run(None, {export.INPUT_NAME: images.numpy()})[0])

    folded, two = variants.fold_batchnorms(net), variants.random_images(net, 2, 32)
    images = variants.random_images(net, 5, 32, seed=1)  # a different number
    with torch.no_grad():
        scores = net(images)
    path = lab.write_onnx(folded, tmp_path / "net.onnx", two)
    assert [*tmp_path.iterdir()] == [path]
    assert torch.allclose(scores_of(path), scores, atol=1e-4)
    calibration = variants.random_images(net, 128, 32, seed=2)
    small = lab.write_onnx(folded, tmp_path / "small.onnx", two, calibration)
    error = (scores_of(small) - scores).abs().max() / scores.abs().max()
    assert 1e-5 < error < 0.2
    assert small.stat().st_size < path.stat().st_size


def test_figures_describe_what_they_draw() -> None:
    h100 = lab.load_measurements("nvidia-h100")
    eager = h100.query("part == 'batch' and variant == 'eager'")
    alt = lab.plot_latency({"eager": eager}).alt
    assert f"knee, eager: {latency.find_knee(eager)}: " in alt


def test_a_served_gpu_is_fast_until_it_is_full() -> None:
    h100 = lab.load_measurements("nvidia-h100")
    graph = h100.query("part == 'batch' and variant == 'CUDA graph'")
    table = serving.latency_by_rate(serving.serve, {"graph": graph}, (4000, 16000), 64, 0.0)
    assert (table["p99_s"] > table["p50_s"]).all() and table["p99_s"].iloc[1] > 0.1
    picture = lab.plot_service(serving.serve, {"graph": graph}, (4000, 16000), (8000, 0.005))
    assert "target: 5 ms" in picture.legends[0].get_texts()[1].get_text()
