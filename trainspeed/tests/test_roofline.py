"""Rooflines: costs counted by hand, ceilings measured and published, and what can't be counted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torchvision.models import resnet18

from trainspeed import gpus, rates, roofline
from trainspeed.costs import Cost
from trainspeed.formats import set_tf32, tf32_settings
from trainspeed.rates import Ceilings, measure_ceilings, published_ceilings
from trainspeed.roofline_model import Roofline

CPU = torch.device("cpu")
IMAGES = torch.empty(16, 3, 64, 64, device="meta")
H100 = published_ceilings("H100")


def vit() -> nn.Module:
    """Return a small vision transformer: patches of 16 pixels, 64 numbers, two blocks."""
    block = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
    patches = nn.Sequential(nn.Conv2d(3, 64, 16, 16), nn.Flatten(2))
    return nn.Sequential(patches, Transposed(), nn.TransformerEncoder(block, 2), nn.Linear(64, 10))


class Transposed(nn.Module):
    """Swap the last two dimensions."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.mT


def test_a_resnet_by_hand() -> None:
    network = resnet18()
    sizes: list[tuple[int, int]] = []
    convolutions = [part for part in network.modules() if isinstance(part, nn.Conv2d)]
    hooks = [
        part.register_forward_hook(lambda _, x, y: sizes.append((x[0].numel(), y.numel())))
        for part in convolutions
    ]
    with torch.no_grad():
        network(torch.zeros(1, 3, 64, 64))
    for hook in hooks:
        hook.remove()
    roof = roofline(network, IMAGES, optimizer="sgd", gpu="H100")
    numbers = {row.operator: row.bytes / 16 / 4 for row in roof.operators}  # per image
    calls = {row.operator: row.calls for row in roof.operators}
    inputs, outputs = map(sum, zip(*sizes))
    weights = sum(convolution.weight.numel() for convolution in convolutions) / 16
    assert numbers["convolution"] == pytest.approx(inputs + outputs + weights)
    # A BatchNorm per convolution reads its input twice and writes once; its backward reads input
    # and gradient twice and writes one gradient. Weights and statistics are the last per cent.
    assert numbers["native_batch_norm"] == pytest.approx(3 * outputs, rel=0.01)
    assert numbers["native_batch_norm_backward"] == pytest.approx(5 * outputs, rel=0.01)
    # Two kernels, for the gradients of weights and input, both read the output's gradient; the
    # first layer has only the one for weights.
    backward = 2 * outputs - sizes[0][1] + 2 * inputs - sizes[0][0] + 2 * weights
    assert numbers["convolution_backward"] == pytest.approx(backward)
    assert calls["convolution"] == calls["native_batch_norm"] == 20
    assert not network.conv1.weight.is_meta and network.conv1.weight.grad is None


def test_a_transformer_by_hand() -> None:
    roof = roofline(vit, IMAGES, gpu="H100", autocast=torch.bfloat16)
    tokens, width = 16 * 16, 64  # of the batch
    in_blocks = 2 * (4 + 2 * 4) * width**2  # parameters of matrices: attention's 4, the MLP's 8
    flop = 6 * tokens * (in_blocks + 10 * width)
    flop += 4 * tokens * 3 * 16**2 * width  # patches, whose images need no gradient
    flop += 2 * 14 * tokens * 16 * width  # attention: 2 products forward, 5 backward, 2 FLOP each
    assert roof.cost.flop == pytest.approx(flop)
    assert (roof.samples, roof.precision) == (16, "bf16")
    assert roof.step_s == max(roof.compute_s, roof.memory_s)
    assert roof.compute_s == pytest.approx(flop / 989e12, rel=0.01)


class Language(nn.Module):
    """Reads tokens, which are integers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(100, 8), nn.Linear(8, 100)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(ids))


def test_a_language_model_and_its_loss() -> None:
    ids = torch.zeros(4, 16, dtype=torch.long)

    def loss(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())

    roof = roofline(Language(), {"ids": ids}, targets=ids, loss=loss, gpu="A100")
    assert roof.cost.flop == 6 * 4 * 16 * 8 * 100 and roof.samples == 4


@pytest.mark.parametrize(
    "model, settings, gpu, precision",
    [
        (nn.Conv2d(3, 8, 3), (True, False), "H100", "tf32"),  # PyTorch's defaults
        (nn.Conv2d(3, 8, 3), (True, False), "V100", "fp32"),
        (nn.Conv2d(3, 8, 3), (False, True), "H100", "fp32"),
        (nn.Linear(64, 64), (True, False), "H100", "fp32"),
        (nn.Linear(64, 64), (False, True), "H100", "tf32"),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.Linear(62, 8)), (True, False), "H100", "tf32"),
    ],
)
def test_products_that_may_use_tf32_have_its_rate(
    model: nn.Module, settings: tuple[bool, bool], gpu: str, precision: str
) -> None:
    before = tf32_settings()
    set_tf32(*settings)
    try:
        roof = roofline(model, IMAGES, gpu=gpu)
    finally:
        set_tf32(*before)
    assert roof.precision == precision


class Recurrent(nn.Module):
    """Reads tokens with an LSTM, between layers whose FLOP are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(100, 8), nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Linear(8, 100)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embedding(ids))[0])


class Spectral(nn.Linear):
    """Transforms by Fourier before the product."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.fft.fft(values).abs())


@pytest.mark.parametrize(
    "model, inputs, operator",
    [
        (Recurrent(), torch.zeros(4, 16, dtype=torch.long), "mkldnn_rnn_layer_backward"),
        (Spectral(8, 8), torch.empty(4, 8), "_fft_r2c"),
    ],
)
def test_flop_that_are_not_counted_are_no_bound(model, inputs, operator: str) -> None:
    if "mkldnn" in operator and not torch.backends.mkldnn.is_available():
        pytest.skip("without oneDNN, an LSTM is many products, which are counted")
    with pytest.raises(ValueError, match="are not known: PyTorch counts those of") as error:
        roofline(model, inputs, gpu="H100")
    assert operator in str(error.value)


def test_the_roof_by_hand() -> None:
    ceilings = Ceilings("a card", {"fp32": 9e11}, 1e11, "measured")
    low, high = (Roofline(Cost(flop, 1e9), ceilings, "fp32", 8) for flop in (1.8e9, 4.5e10))
    assert (low.compute_s, low.memory_s, low.bound) == (0.002, 0.01, "memory")
    assert (high.step_s, high.bound, high.share(0.1)) == (0.05, "compute", 0.5)
    assert str(low).splitlines() == [
        "A step of 8 samples: 1.8 GFLOP, 1 GB, 1.8 FLOP per byte",
        "a card (measured): 900 GFLOP/s in fp32, 100 GB/s",
        "computing takes at least 2 ms, moving bytes 10 ms",
        "→ memory is the limit: at most 800 samples/s",
    ]


def test_larger_batches_have_more_flop_per_byte() -> None:
    model = nn.Linear(512, 512)
    few, many = (roofline(model, torch.empty(n, 512), gpu="A100") for n in (4, 4096))
    assert few.cost.flop_per_byte < many.cost.flop_per_byte / 10
    assert "samples/s\nmost bytes: " in str(few)


@pytest.mark.slow
def test_a_machine_reaches_what_it_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rates.COPY_BYTES, "cpu", 2**24)
    monkeypatch.setitem(rates.PRODUCT_S, "cpu", 0.001)
    roof = roofline(nn.Linear(8, 8), torch.empty(4, 8))
    assert set(roof.ceilings.flop_per_s) == {"fp32"} and roof.ceilings.source == "measured"
    assert roof.ceilings.flop_per_s["fp32"] > 1e8 and roof.ceilings.bytes_per_s > 1e8
    assert set(measure_ceilings(CPU, ["bf16"]).flop_per_s) == {"bf16"}


@pytest.mark.slow
def test_the_rates_of_a_cpu_are_measured_in_another_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit")  # someone else's, where it is measured
    monkeypatch.chdir(tmp_path)
    assert {"fp32", "bf16"} == set(rates.cpu_rates(1))
    monkeypatch.setattr(rates.subprocess, "run", lambda *_, **__: rates.json.loads("not JSON"))
    assert rates.cpu_rates(1) == {}


def test_data_sheets() -> None:
    assert published_ceilings("NVIDIA H100 80GB HBM3") == H100
    assert H100.flop_per_s["bf16"] == H100.flop_per_s["fp16"] > H100.flop_per_s["tf32"]
    assert "bf16" not in published_ceilings("T4").flop_per_s
    with pytest.raises(ValueError, match="gpu='H1000': not in the tables. Choose one of P100, V"):
        published_ceilings("H1000")


@pytest.mark.parametrize(
    "name, tflops, gb_per_s",
    [
        ("NVIDIA H100 PCIe", 756, 2000),
        ("NVIDIA H100 NVL", 835, 3900),
        ("NVIDIA A100-PCIE-40GB", 312, 1555),
        ("NVIDIA A100-SXM4-40GB", 312, 1555),
        ("NVIDIA A100-SXM4-80GB", 312, 2040),
        ("Tesla V100-PCIE-16GB", 112, 900),
        ("NVIDIA GeForce RTX 4090", 165.2, 1008),
        ("NVIDIA GeForce RTX 2080 Ti", 56.9, 616),
    ],
)
def test_variants_have_their_own_rates(name: str, tflops: float, gb_per_s: float) -> None:
    ceilings = published_ceilings(name)
    assert ceilings.flop_per_s["fp16"] == pytest.approx(1e12 * tflops)
    assert ceilings.bytes_per_s == pytest.approx(1e9 * gb_per_s)


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA H200 NVL",
        "Tesla P100-PCIE-16GB",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA A10-4Q",
    ],
)
def test_variants_without_a_row_have_no_rates(name: str) -> None:
    assert gpus.find(name) is None and gpus.gpu_rates(name) == {}


class Embedded(nn.Module):
    """Adds numbers: it has a weight, but no product."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + self.weight


LABELS = {"targets": 3, "loss": nn.functional.cross_entropy}


@pytest.mark.parametrize(
    "model, inputs, options, words",
    [
        (Embedded(), torch.empty(4, 8), {}, "no FLOP of the model are known: PyTorch counts those"),
        (torch.compile(nn.Linear(8, 8)), torch.empty(4, 8), {}, "is compiled: operators are count"),
        (nn.Linear(8, 8), 4, {}, "inputs=4: expected a tensor, a tuple or dict with one"),
        (nn.Linear(8, 8), torch.zeros(4, 8, dtype=torch.long), {}, "as in inputs.float()"),
        (nn.Linear(8, 8), torch.empty(4, 8), LABELS, "must be Tensor, not int"),
        (nn.Linear(8, 8), torch.empty(4, 9), {}, "trainspeed profile` shows what limits"),
        (nn.Linear(8, 8).double(), torch.empty(4, 8).double(), {}, "weights are torch.float64"),
        (
            nn.Linear(8, 8),
            torch.empty(4, 8),
            {"gpu": "T4", "autocast": torch.bfloat16},
            "T4 has no",
        ),
        (nn.Linear(8, 8), torch.empty(4, 8), {"gpu": "fast"}, "gpu='fast': not in the tables"),
        ("resnet50", torch.empty(4, 8), {}, "model=str: expected a torch.nn.Module"),
    ],
)
def test_what_has_no_roofline(model, inputs, options: dict, words: str) -> None:
    with pytest.raises(ValueError) as error:
        roofline(model, inputs, **{"gpu": "H100"} | options)
    assert words in str(error.value)
