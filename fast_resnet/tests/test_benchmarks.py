"""What a step must move and compute, as the benchmarks count it, and what README says of it."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from small import batch, interpreter_problem, network
from torch.autograd import DeviceType
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models import resnet50
from torchvision.models.resnet import Bottleneck

from fast_resnet import convert
from fast_resnet.model import is_interpreted
from fast_resnet.state import ROWS

pytest.importorskip("triton", reason="the kernels are written in Triton, which is not here")
BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
README = BENCHMARKS.parent / "README.md"


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import kernels

    return kernels


def test_forwards_flops_are_torchvisions_and_bytes_are_those_of_its_tensors(kernels) -> None:
    record = kernels.of_shapes("resnet50", 2)
    with torch.device("meta"):
        stock, images = resnet50(), torch.empty(2, 3, 224, 224)
    with FlopCounterMode(display=False) as counter:
        stock(images)
    convolutions = counter.get_flop_counts()["Global"][torch.ops.aten.convolution]
    first = 2 * 2 * 64 * 112**2 * 7**2  # of the fourth channel
    narrow, wide = record.flops["convolution"], record.flops["conv3_kernel"]
    conv1 = sum(2 * 2 * block.conv1.weight.numel() * height**2 for block, height in inputs(stock))
    assert convolutions + first == narrow + wide + conv1
    elements = 2 * sum(
        block.bn1.num_features * height**2 + block.bn2.num_features * (height // block.stride) ** 2
        for block, height in inputs(stock)
    )
    channels = sum(block.bn1.num_features + block.bn2.num_features for block, _ in inputs(stock))
    assert record.bytes["bn_relu_kernel"] == 2 * 2 * elements + 4 * len(ROWS) * channels


def inputs(net):
    """Yield each bottleneck and the height of its input."""
    height = 56
    for layer in (net.layer1, net.layer2, net.layer3, net.layer4):
        for block in layer:
            yield block, height
            height //= block.stride


@pytest.mark.skipif(not is_interpreted(), reason="needs TRITON_INTERPRET=1")
@pytest.mark.skipif(bool(interpreter_problem()), reason=interpreter_problem())
def test_a_training_step_is_recorded_with_its_optimizer(kernels) -> None:
    net, (images, labels) = convert(network()), batch()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, fused=True)
    with kernels.Record() as record:
        cross_entropy(net(images), labels).backward()
        optimizer.step()
    assert net._step is not None and net.conv1.weight.grad.abs().sum() > 0
    blocks = [layer for layer in net.modules() if isinstance(layer, Bottleneck)]
    products = sum(1 + (block.downsample is not None) for block in blocks)
    assert record.calls["conv3_kernel"] == record.calls["dz_kernel"] == products
    weights = sum(weight.numel() for weight in net.parameters())
    assert record.bytes["_fused_sgd_"] == pytest.approx(5 * 4 * weights, rel=1e-3)


def event(
    name: str, above=None, kernels=(), shapes=(), device=DeviceType.CPU, us=0.0, annotation=False
):
    return SimpleNamespace(
        name=name,
        cpu_parent=above,
        input_shapes=list(shapes),
        kernels=[SimpleNamespace(name=name, duration=us) for name, us in kernels],
        device_type=device,
        is_user_annotation=annotation,
        time_range=SimpleNamespace(elapsed_us=lambda: us),
    )


def test_each_kernel_of_a_profile_counts_once(kernels) -> None:
    """For the outermost operator of the list; without one, for itself."""
    convolution = event("aten::convolution_backward", kernels=[("wgrad", 5), ("sm90_dgrad", 7)])
    events = [
        convolution,
        event("aten::copy_", above=convolution, kernels=[("copy", 2)]),
        event("aten::mm", kernels=[("gemm", 3)], shapes=[[64, 49], [49, 64]]),
        event("aten::_unlisted", kernels=[("stray", 4)]),
    ]
    times = {"wgrad": 5, "sm90_dgrad": 7, "copy": 2, "gemm": 3, "stray": 4, "dz_kernel": 11}
    events += [event(name, device=DeviceType.CUDA, us=us) for name, us in times.items()]
    events.append(event("Optimizer.step", device=DeviceType.CUDA, us=9, annotation=True))
    names = ["convolution_backward", "copy_", "mm", "mm over pixels"]
    seconds = kernels.device_seconds(events, names, steps=1)
    assert {name: round(1e6 * value) for name, value in seconds.items()} == {
        "convolution_backward": 7,
        kernels.TO_INPUT: 7,
        "mm over pixels": 3,
        "stray": 4,
        "dz_kernel": 11,
    }


def test_a_row_has_the_share_of_its_limits_and_all_rows_have_a_sum(kernels) -> None:
    record = kernels.Record()
    record.add("dz_kernel", [torch.empty(2, 1000, device="meta")], flops=790)
    row, other, total = record.table({"dz_kernel": 8e3 / 4.3e12 * 2, "stray": 1e-12})
    assert (row["kernel"], row["calls"], other["kernel"]) == ("dz_kernel", 1, "stray")
    assert row["bandwidth"] == pytest.approx(0.5) and other["mb"] == 0
    assert row["peak"] == pytest.approx(1e-12 / (8e3 / 4.3e12 * 2))
    assert total["ms"] == pytest.approx(row["ms"] + other["ms"])


def test_readme_has_what_the_scripts_print(kernels) -> None:
    """The bound counts only tensors between kernels, and leaves out a twentieth."""
    import bound

    text, record = README.read_text(encoding="utf-8"), kernels.of_shapes("resnet50", 256)
    of = {"0.1.0": {}, "0.2.1": {}}
    for row in recorded("kernels_h200"):
        if row["batch"] == 256:
            of[row["fast_resnet"]][row["kernel"]] = row["ms"]
    measured = of["0.2.1"]
    assert f"0.1.0 adds up to {of['0.1.0']['all']:.1f} ms" in text
    assert all(f"| {' | '.join(row)} |" in text for row in bound.table())
    assert f"{1e12 * bound.joules_per_byte():.0f} pJ" in text
    rows = {row["kernel"]: row for row in record.table()}
    for name, row in rows.items():
        if f"`{name}`" in text:
            shown = f"{row['calls']} | {row['mb'] / 1e3:.1f} | {row['gflop'] / 1e3:.2f} |"
            assert f"`{name}`) | {shown} {row['least_ms']:.2f} | {measured[name]:.2f} |" in text
    every = rows["all"]
    shown = re.findall(r"\| (\d+) \| [\d.]+ \| [\d.]+ \| ([\d.]+) \| [\d.–]+ \|", text)
    assert sum(int(calls) for calls, _ in shown) == every["calls"]
    assert sum(float(ms) for _, ms in shown) == pytest.approx(every["least_ms"], abs=0.03)
    assert f"they would take {every['least_ms']:.1f} ms together" in text
    moved, flops = f"{every['mb'] / 1e3:.1f} GB", f"{every['gflop'] / 1e3:.2f} TFLOP"
    assert all(f"{number}" in text for number in (f"{every['calls']} kernel calls", moved, flops))
    between = 256 * 2 * sum(bound.traffic(False).values()) / 1e6
    assert 0.95 < between / every["mb"] < 1
    shown = re.findall(
        r"\| ([\d.]+) \|$", text[text.index("| least, ms |") :].split("\n\n")[0], re.M
    )
    assert sum(map(float, shown)) == pytest.approx(measured["all"], abs=0.05)


def test_readme_has_the_speeds_on_an_h200() -> None:
    """If a setting was measured twice, the table has its first rows."""
    pairs: dict[tuple[str, int, str], list[tuple[dict, dict]]] = defaultdict(list)
    for graphs, fast in pairwise(recorded("measured_h200")):
        if (graphs["way"], fast["way"], fast["fast_resnet"]) == ("graphs", "fast", "0.2.1"):
            pairs[fast["network"], fast["batch"], fast["dtype"]].append((graphs, fast))
    text = README.read_text(encoding="utf-8")
    lines = text[text.index("Version 0.2.1 has faster") :].splitlines()
    settings = dict.fromkeys(setting[:2] for setting in pairs)
    assert len(settings) == 10
    for setting in settings:
        measured = [pairs[*setting, dtype] for dtype in ("fp16", "bf16")]
        shown = [str(setting[1])]
        for pair in measured:
            shown += speeds(*pair[0])
        shown += [f"{row['images_per_s'] * row['joules_per_image']:.0f}" for row in measured[0][0]]
        assert any(line.endswith(f"| {' | '.join(shown)} |") for line in lines), shown
    *_, again = pairs["resnet50", 256, "fp16"]
    _, images_per_s, gain = speeds(*again)
    assert f"gained {gain} ({images_per_s.strip('*')} images/s)" in text


def speeds(graphs: dict, fast: dict) -> list[str]:
    """Return both speeds and their ratio as the table shows them."""
    slow, quick = graphs["images_per_s"], fast["images_per_s"]
    return [f"{slow:,.0f}", f"**{quick:,.0f}**", f"{quick / slow:.2f}"]


def test_readme_has_what_the_host_s_work_costs() -> None:
    steps = defaultdict(list)
    for row in recorded("host_h200"):
        steps[row["fast_resnet"]].append(f"{row['step_ms']:.1f}")
    low, high = min(steps["0.2.0"]), max(steps["0.2.0"])
    (after,) = set(steps["0.2.1"])
    text = f"took {low} to {high} ms per step with 0.2.0, and {after} with 0.2.1"
    readme = README.read_text(encoding="utf-8")
    assert text in readme
    setting = {"way": "fast", "network": "resnet50", "batch": 32, "fast_resnet": "0.2.1"}
    rows = [row for row in recorded("measured_h200") if setting.items() <= row.items()]
    step_ms = {row["dtype"]: f"{1e3 * 32 / row['images_per_s']:.1f}" for row in rows}
    assert f"but {step_ms['fp16']} in the table's run ({step_ms['bf16']} in bf16" in readme


def test_readme_has_how_far_repeated_measurements_differ() -> None:
    texts = {"h200": ("0.2.1", "by up to {} % here"), "h100": ("0.1.0", "by up to {} % with 0.1.0")}
    for machine, (version, text) in texts.items():
        spreads = [
            (row["images_per_s_high"] - row["images_per_s_low"]) / row["images_per_s"]
            for row in recorded(f"measured_{machine}")
            if row["fast_resnet"] == version and row["way"] in {"graphs", "fast"}
        ]
        assert text.format(round(100 * max(spreads))) in README.read_text(encoding="utf-8")


def recorded(name: str) -> list[dict]:
    """Return the rows of a file of measurements."""
    lines = (BENCHMARKS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]
