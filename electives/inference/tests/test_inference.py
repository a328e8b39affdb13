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


def test_a_curve_has_a_knee(net: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "BATCHES", (1, 4))
    table = lab.latency_curve(net, lab.Variant())
    assert table["batch"].tolist() == [1, 4] and (table["p99_s"] >= table["p50_s"]).all()
    assert (table["calls"] >= latency.MIN_CALLS).all()
    table = pd.DataFrame({"batch": [1, 2, 4, 8], "images_per_s": [100.0, 190.0, 271.0, 300.0]})
    assert lab.find_knee(table) == 4


def test_folded_networks_give_the_same_scores(net: nn.Module) -> None:
    images, folded = torch.randn(4, 3, 32, 32), lab.fold_batchnorms(net)
    with torch.no_grad():
        scores = net(images)
        assert lab.count_batchnorms(net) > 0 == lab.count_batchnorms(folded)
        assert torch.allclose(folded(images), scores, atol=1e-4 * scores.abs().max())


def test_a_variant_has_its_settings(net: nn.Module) -> None:
    images = variants.random_images(net, 4, 32)
    variant = lab.Variant("bf16", channels_last=True, folded=True)
    network = variants.prepare(net, variant)
    weights = [weight for weight in network.parameters() if weight.ndim == 4]
    assert all(w.is_contiguous(memory_format=torch.channels_last) for w in weights)
    assert lab.count_batchnorms(network) == 0 and lab.count_batchnorms(net) == 7
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
    folded = lab.fold_batchnorms(net)
    program = lab.export_program(folded, variants.random_images(net, 2, 32))
    images = variants.random_images(net, 5, 32, seed=1)  # a different number
    with torch.no_grad():
        scores = net(images)
    path = lab.write_onnx(program, tmp_path / "net.onnx")
    assert [*tmp_path.iterdir()] == [path]
    assert torch.allclose(lab.OnnxSession(path)(images), scores, atol=1e-4)
    calibration = variants.random_images(net, 128, 32, seed=2)
    small = lab.write_int8_onnx(path, calibration, tmp_path / "small.onnx")
    error = (lab.OnnxSession(small)(images) - scores).abs().max() / scores.abs().max()
    assert 1e-5 < error < 0.2
    assert small.stat().st_size < path.stat().st_size


def test_missing_tools_are_named_and_trtexec_is_called(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(export, "ONNX_PACKAGES", ("onnx", "no-such-package"))
    assert not lab.has_onnx() and lab.installed_versions()["no-such-package"] == ""
    images = torch.zeros(4, 3, 32, 32)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert lab.time_with_tensorrt(tmp_path / "a.onnx", images).startswith("TensorRT is missing")
    tool = tmp_path / "trtexec"
    tool.write_text('#!/bin/sh\necho "[I] built"\necho "[I] Throughput: 9 qps, $*"\n')
    tool.chmod(0o755)
    report = lab.time_with_tensorrt(tmp_path / "a.onnx", images)
    assert report.startswith("[I] Throughput: 9 qps, --onnx=") and "images:4x3x32x32" in report


def test_figures_describe_what_they_draw() -> None:
    h100 = lab.load_measurements("nvidia-h100")
    eager = h100.query("part == 'batch' and variant == 'eager'")
    assert f"knee, eager: {lab.find_knee(eager)}: " in lab.plot_latency({"eager": eager}).alt
    columns = {"bits": [8, 4], "scales": ["per channel"] * 2, "top1": [0.5, 0.25], "fp32": 0.5}
    alt = lab.plot_accuracy_by_bits(pd.DataFrame(columns)).alt
    assert "one scale per channel: from 0.5 to 0.25" in alt


def test_a_served_gpu_is_fast_until_it_is_full() -> None:
    h100 = lab.load_measurements("nvidia-h100")
    graph = h100.query("part == 'batch' and variant == 'CUDA graph'")
    table = lab.latency_by_rate(serving.serve, {"graph": graph}, (4000, 16000), 64, 0.0)
    assert (table["p99_s"] > table["p50_s"]).all() and table["p99_s"].iloc[1] > 0.1
    assert (
        "target: 5 ms" in lab.plot_service(table, 0.005, 8000).legends[0].get_texts()[1].get_text()
    )
    policies = lab.policy_table(serving.serve, graph, 4000, (1, 64), (0.0, 0.005))
    assert policies.loc[1, "wait 0 ms"] > 1000 > policies.loc[64, "wait 5 ms"] > 5
