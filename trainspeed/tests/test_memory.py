"""Predicted memory: parts calculated by hand, the largest batch, the command, and bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import distributed, nn
from torch.nn.functional import scaled_dot_product_attention  # by name, as scripts do
from torch.nn.parallel import DistributedDataParallel

from trainspeed.__main__ import main
from trainspeed.fake_gpu import fake_tensors
from trainspeed.memory import (
    GIB,
    Prediction,
    PredictionError,
    blocks_of,
    checkpoint_modules,
    largest_batch,
    predict_memory,
    saved_tensors,
)
from trainspeed.memory_command import find, parse_gib

WIDTH, CLASSES = 32, 1000


class ViT(nn.Module):
    """Patches of 8 pixels, PyTorch's encoder layers, and a linear layer."""

    def __init__(self, depth: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 8, stride=8)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 4 * WIDTH, dropout, batch_first=True)
        self.layers = nn.ModuleList(
            [layer, *(nn.TransformerEncoderLayer(WIDTH, 2, 128) for _ in range(depth - 1))]
        )
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        for layer in self.layers:
            tokens = layer(tokens)
        return self.head(tokens.mean(1))


class GPT(nn.Module):
    """A language model whose last layer has the weights of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, WIDTH)
        self.query, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        heads = self.query(self.embedding(tokens)).unflatten(-1, (2, -1)).transpose(1, 2)
        mixed = scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        return self.head(mixed.transpose(1, 2).flatten(2))


class Frozen(nn.Module):
    """A part with BatchNorm that is not trained, and a layer that is."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.Conv2d(3, 8, 8, stride=8), nn.BatchNorm2d(8)).requires_grad_(
            False
        )
        self.part.eval()
        self.scales = [torch.ones(8)]  # neither a weight nor a buffer
        self.head = nn.Linear(8, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.part(images).mean((2, 3)) * self.scales[0])


def on_meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a tensor without memory."""
    return torch.empty(*shape, dtype=dtype, device="meta")


def size(tensors: Any) -> int:
    """Return the bytes of tensors, each counted once."""
    return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in tensors}.values())


def gib(size: float) -> Any:
    """Return bytes as GiB, for a comparison."""
    return pytest.approx(size / GIB, rel=1e-6)


IMAGES = on_meta(2, 3, 32, 32)
MODELS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "vit": (ViT, IMAGES),
    "gpt": (GPT, on_meta(1, 4, dtype=torch.long)),
    "resnet": (torchvision.models.resnet18, IMAGES),
    "frozen": (Frozen, IMAGES),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("optimizer", "states", "steps"), [("adamw", 2, 4), ("sgd", 1, 0)])
def test_weights_gradients_and_state_by_hand(
    name: str, optimizer: str, states: int, steps: int
) -> None:
    """With a small batch, the peak is in the optimizer, where all gradients exist."""
    create, inputs = MODELS[name]
    model = create()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    predicted = predict_memory(create, inputs, optimizer=optimizer)
    assert predicted.weights_gib == gib(size([*model.parameters(), *model.buffers()]))
    assert predicted.optimizer_gib == gib(states * size(trained) + steps * len(trained))
    if optimizer == "adamw" and name != "gpt":  # which adds up two gradients of the embedding
        assert predicted.gradients_gib == gib(size(trained))
        # On a GPU, the square roots of all second moments exist at once.
        assert predicted.other_gib >= size(trained) / GIB


@pytest.mark.parametrize("half", [None, torch.bfloat16, torch.float16])
def test_activations_of_a_chain_by_hand(half: torch.dtype | None) -> None:
    batch, wide, narrow = 2048, 64, 16
    model = nn.Sequential(nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, narrow))
    inputs = torch.zeros(batch, wide)
    predicted = predict_memory(model, inputs, autocast=half)
    number, loss = (4, 4) if half is None else (2, 2)
    kept = number * batch * (wide + narrow) + loss  # ReLU's result, and the output
    if half is not None:  # of the inputs, and of the second layer's weights
        kept += number * (batch * wide + wide * narrow)
        kept += number * (wide * wide + wide + narrow)  # in autocast's cache, until forward ends
    assert predicted.activations_gib == pytest.approx(kept / GIB, rel=0.02)
    # ReLU's backward has two gradients of its size.
    assert predicted.other_gib >= (inputs.nbytes + 2 * number * batch * wide) / GIB
    assert predicted.peak_gib == pytest.approx(sum(vars(predicted).values()) / 2)


def saved_sizes(module: nn.Module, *shape: int, half: torch.dtype | None = None) -> list[int]:
    """Return the bytes of what a module saves for backward, without its weights."""
    with fake_tensors():
        inputs = torch.empty(shape, requires_grad=True)
        with torch.autocast("cpu", half, enabled=half is not None):
            values = inputs if half is None else inputs.to(half)
            saved = saved_tensors(lambda: module(values), [])
    return sorted(tensor.untyped_storage().nbytes() for tensor in saved)


def test_operators_keep_what_they_keep_on_a_gpu() -> None:
    assert saved_sizes(nn.Dropout(0.1), 4, 100) == [400]  # a byte for each number
    assert 4 * 400 in saved_sizes(nn.Softmax(1), 4, 100, half=torch.bfloat16)  # in fp32
    assert saved_sizes(nn.Softmax(1), 4, 100) == [4 * 400]
    real = nn.functional.softmax(torch.ones(2, dtype=torch.bfloat16), 0)
    with torch.autocast("cpu", torch.bfloat16):
        assert nn.functional.softmax(real, 0).dtype == torch.bfloat16  # PyTorch's kernels are back


@pytest.mark.parametrize("mask", [None, "float", "bool", "causal"])
def test_attention_keeps_no_matrix(mask: str | None) -> None:
    class Attention(nn.Module):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            places = values.new_ones(values.shape[-2], values.shape[-2]).tril()
            masks = {"float": places, "bool": places.bool()}
            return scaled_dot_product_attention(
                *[values] * 3, attn_mask=masks.get(mask), is_causal=mask == "causal"
            )

    heads, length = 2, 512
    matrix = 4 * heads * length * length
    sizes = saved_sizes(Attention(), 1, heads, length, 8)
    assert max(sizes) <= matrix / heads  # the mask alone is of this size
    # Without a dimension of heads, there is no fused kernel.
    assert max(saved_sizes(Attention(), heads, length, 8)) == matrix


@pytest.mark.slow
def test_the_peak_grows_linearly_with_the_batch() -> None:
    peaks = [
        predict_memory(ViT, on_meta(batch, 3, 64, 64), autocast=torch.bfloat16).peak_gib
        for batch in (256, 512, 1024)
    ]
    assert peaks[2] - peaks[1] == pytest.approx(2 * (peaks[1] - peaks[0]), rel=1e-3)


@pytest.mark.slow
def test_what_saves_activations() -> None:
    images = on_meta(256, 3, 64, 64)

    def activations(**options: Any) -> float:
        return predict_memory(model, images, **options).activations_gib

    model = ViT()
    plain = activations()
    assert activations(checkpointing="blocks") < activations(checkpointing=["layers.0"]) < plain
    assert activations(checkpointing=[model.layers[0]]) == activations(checkpointing=["layers.0"])
    assert activations(micro_batches=4) == pytest.approx(plain / 4, rel=0.05)
    assert activations(offload=True) < 0.2 * plain


def test_real_weights_are_neither_used_nor_changed() -> None:
    model = Frozen()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    predict_memory(model, torch.ones(2, 3, 32, 32))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())
    assert torch.equal(state, torch.get_rng_state())


def test_kinds_of_inputs_and_losses() -> None:
    class Pair(nn.Linear):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"index": a.argmax(), "sum": super().forward(a + b)}

    one = torch.zeros(6, 4)
    expected = predict_memory(Pair(4, 4), (one, one))
    assert predict_memory(Pair(4, 4), {"a": one, "b": one}) == expected
    assert predict_memory(lambda: Pair(4, 4), (6, lambda batch: (torch.rand(batch, 4),) * 2))
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 4))
    assert predict_memory(model, one) == predict_memory(model.eval(), one)
    assert not model.training
    targets = torch.zeros(6, dtype=torch.long)
    options = {"loss": nn.CrossEntropyLoss(), "targets": targets, "micro_batches": 2}
    assert predict_memory(nn.Linear(4, 4), one, **options).peak_gib > 0

    def fused(weights: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(weights, fused=True)  # without buffers

    large = lambda: nn.Linear(512, 512)  # noqa: E731
    peaks = [predict_memory(large, on_meta(1, 512), optimizer=kind) for kind in ("adamw", fused)]
    assert peaks[0].peak_gib - peaks[1].peak_gib == pytest.approx(4 * 512**2 / GIB, rel=0.02)


@pytest.mark.parametrize("limit_mib", [1, 7, 300])
def test_the_largest_batch(limit_mib: int) -> None:
    def inputs(batch: int) -> torch.Tensor:
        return torch.empty(batch, WIDTH)

    def peak(batch: int) -> float:
        return predict_memory(model, (batch, inputs)).peak_gib

    model = nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, CLASSES))
    limit = limit_mib / 1024
    found = largest_batch(inputs, model, limit)
    if limit_mib == 1:  # less than the weights need
        assert found == 0 and peak(1) > limit
    else:
        assert peak(found) <= limit < peak(found + 1)


def test_a_library_s_line_is_named_without_one_of_the_user() -> None:
    create = torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn
    target = {"boxes": torch.ones(1, 4), "labels": torch.ones(1, dtype=torch.long)}
    with pytest.raises(PredictionError, match=r"needs numbers \(\w+\.py:\d+: .*Instead, measure"):
        predict_memory(
            lambda: create(weights=None, weights_backbone=None),
            {"images": [torch.empty(3, 64, 64)], "targets": [target]},
        )


def test_blocks() -> None:
    model = torchvision.models.resnet18()
    assert [type(block).__name__ for block in blocks_of(model)] == ["BasicBlock"] * 8
    assert blocks_of(vit := ViT()) == [*vit.layers]
    checkpoint_modules([])


@pytest.fixture
def process_group() -> Iterator[None]:
    """A process group of this process only."""
    distributed.init_process_group("fake", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_wrapped_models(process_group: None) -> None:
    with pytest.raises(PredictionError, match="DistributedDataParallel: pass its `.module`"):
        predict_memory(DistributedDataParallel(nn.Linear(4, 4)), on_meta(2, 4))
    sharded = nn.Sequential(distributed.fsdp.fully_shard(nn.Linear(4, 4)))
    with pytest.raises(PredictionError, match="FSDPModule: pass the module before sharding"):
        predict_memory(sharded, on_meta(2, 4))


class Scripted(nn.Module):
    """A part of it is of TorchScript."""

    def __init__(self) -> None:
        super().__init__()
        self.part = torch.jit.trace(nn.Linear(4, 4), torch.ones(1, 4))


LINEAR, ROWS = nn.Linear(4, 4), on_meta(2, 4)
WRONG: list[tuple[Any, Any, dict[str, Any], str]] = [
    (3, ROWS, {}, "model=int: expected a torch.nn.Module"),
    (lambda: 1 / 0, ROWS, {}, "ZeroDivisionError: division by zero"),
    (Scripted, ROWS, {}, "Module: pass the module from which it was compiled"),
    (nn.LazyLinear(4), ROWS, {}, "LazyLinear has weights without a shape: run one batch"),
    (nn.Linear(4, 4).requires_grad_(False), ROWS, {}, "no weight that requires a gradient"),
    (LINEAR, 3, {}, r"inputs=3: expected a tensor, a tuple or dict"),
    (LINEAR, on_meta(2, 5), {}, "RuntimeError: .*5.*4.*, which `trainspeed profile` prints"),
    (LINEAR, ROWS, {"optimizer": "adam2"}, "optimizer='adam2': expected adamw, adam, sgd, or"),
    (LINEAR, ROWS, {"optimizer": torch.optim.LBFGS}, "missing 1 required .* 'closure'"),
    (LINEAR, ROWS, {"loss": lambda out: out}, r"the loss is \(2, 4\): expected a tensor with one"),
    (LINEAR, ROWS, {"loss": lambda out: 1.0}, "the loss is float"),
    (LINEAR, ROWS, {"loss": lambda out: out.detach().sum()}, "no weight on the way to the loss"),
    (LINEAR, ROWS, {"autocast": "bf16"}, "autocast='bf16': expected torch.bfloat16, torch.float16"),
    (LINEAR, ROWS, {"micro_batches": 3}, "micro_batches=3: expected from 1 to the batch, 2"),
    (LINEAR, ROWS, {"checkpointing": "all"}, "checkpointing='all': expected 'blocks', or a list"),
    (LINEAR, ROWS, {"checkpointing": "blocks"}, "Linear has no list of equal blocks"),
    (LINEAR, ROWS, {"checkpointing": ["a"]}, "checkpointing: a is no module of Linear"),
]


@pytest.mark.parametrize(("model", "inputs", "options", "words"), WRONG)
def test_bad_input(model: Any, inputs: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(PredictionError, match=words) as error:
        predict_memory(model, inputs, **options)
    assert "\n" not in str(error.value)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="'optimiser'"):
        predict_memory(LINEAR, ROWS, optimiser="sgd")


NETS = """
import torch
from torch import nn

class Masked(nn.Linear):
    def forward(self, x):
        return super().forward(x[x.sum(1) > 0])

class Branch(nn.Linear):
    def forward(self, x):
        x = super().forward(x)
        return x if x.mean() > 0 else -x

def model():
    return nn.Linear(4, 4)

def tokens():
    return nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10))

def both(batch):
    return nn.Linear(4, 4), torch.ones(batch, 4)

def with_loss(batch):
    return (*both(batch), lambda output: output.square().sum())

def too_many():
    return 1, 2, 3
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # the command does it again; this restores the path
    monkeypatch.delitem(sys.modules, "ts_nets", raising=False)
    (tmp_path / "ts_nets.py").write_text(NETS)
    return "ts_nets.py"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Masked", r"aten\.\S+ needs numbers \(ts_nets.py:7: return super"),
        ("Branch", r"_local_scalar_dense\S+, as in .item.*\(ts_nets.py:12: return x if x.mean"),
    ],
)
def test_operators_that_need_numbers_are_named_with_their_line(
    nets: str, name: str, words: str
) -> None:
    with pytest.raises(PredictionError, match=f"{words}.*Instead, measure the peaks of two small"):
        predict_memory(find(f"{nets}:{name}")(4, 4), on_meta(2, 4))


def predicted(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run the command, and return what it prints."""
    assert main(["memory", *arguments]) == 0
    return capsys.readouterr().out


def test_the_command(nets: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = predicted(capsys, "ts_nets:both", "--batch", "8", "1000000", "--gpu", "16MiB")
    header, small, large = text.splitlines()[1:4]
    assert header.split() == [
        *("batch", "peak", "weights", "gradients", "optimizer", "activations", "other", "fits?")
    ]
    assert small.split()[0] == "8" and small.endswith("yes")
    assert large.split()[0] == "1,000,000" and large.endswith("no")
    assert "Largest batch that fits into 0.0141 of 0.0156 GiB: " in text
    values = json.loads(
        predicted(capsys, f"{nets}:model", "--batch", "8", "--input", "4", "--gpu=16MB", "--json")
    )
    (row,) = values["batches"]
    assert Prediction(**{name: row[name] for name in row if name != "batch"}) == predict_memory(
        nn.Linear(4, 4), on_meta(8, 4)
    )
    assert values["largest_batch"] > 1000
    by_loss = [
        json.loads(predicted(capsys, f"{nets}:tokens", *words, "--json"))["batches"][0]["peak_gib"]
        for words in (
            ("--batch", "64", "--tokens", "64"),
            ("--batch", "64", "--tokens", "64", "--loss", "mean", "--precision", "bf16"),
        )
    ]
    assert by_loss[0] > by_loss[1]
    assert "GiB" in predicted(capsys, f"{nets}:with_loss", "--batch", "2", "--optimizer", "sgd")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("ts_nets:model --batch 8", "add either --input 3x224x224 or --tokens 1024"),
        ("ts_nets:model --batch 8 --input 4 --tokens 4", "add either"),
        ("ts_nets:model --batch 8 --input 4xa", "--input 4xa: expected sizes like 3x224x224"),
        ("ts_nets:model --batch 0 --input 4", "--batch 0: expected at least 1"),
        ("ts_nets:model --batch 8 --input 4 --gpu big", "--gpu big: expected a size such as"),
        ("ts_nets:model --batch 8 --tokens 0", "--tokens 0: expected at least 1"),
        ("ts_nets:both --batch 8 --input 4", "returns the inputs itself"),
        ("ts_nets:too_many --batch 8", "returns 3 values: expected a model"),
        ("ts_nets:none --batch 8", "ts_nets has no function none"),
        ("ts_nets --batch 8", "expected module:function"),
        ("no_such_module:make --batch 8", "no_such_module cannot be imported: ModuleNotFound"),
        ("no_such.py:make --batch 8", "no_such.py cannot be imported: FileNotFoundError"),
    ],
)
def test_bad_commands(
    nets: str, capsys: pytest.CaptureFixture[str], arguments: str, words: str
) -> None:
    assert main(["memory", *arguments.split()]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ts_installed", "ts_here"])
def test_a_module_of_the_current_folder_does_not_hide_an_installed_one(
    name: str, tmp_path: Path
) -> None:
    """It may be others' folder. Only if there is no other one, it is the user's."""
    here, site = tmp_path / "here", tmp_path / "site"
    for folder, module, text in (
        (site, "ts_installed", "import torch, ts_other\nmake = lambda: torch.nn.Linear(4, 4)"),
        (site, "ts_other", ""),
        (here, "ts_installed", "1 / 0"),
        (here, "ts_other", "1 / 0"),
        (here, "ts_here", "from ts_installed import make"),
    ):
        folder.mkdir(exist_ok=True)
        (folder / f"{module}.py").write_text(text)
    command = [sys.executable, "-P", "-m", "trainspeed", "memory", f"{name}:make"]
    path = os.pathsep.join([str(site), str(Path(__file__).parents[2])])
    done = subprocess.run(
        [*command, "--batch", "2", "--input", "4"],
        cwd=here,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_sizes_of_cards() -> None:
    assert [parse_gib(text) for text in ("40GiB", "24", "1536 MiB")] == [40, 24, 1.5]
    assert parse_gib("80GB") == pytest.approx(74.5, rel=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("half", [None, torch.bfloat16])
@pytest.mark.parametrize("name", ["vit", "gpt", "resnet"])
def test_a_measured_peak_is_as_predicted(name: str, half: torch.dtype | None) -> None:
    create, one = MODELS[name]
    inputs = one.new_zeros(4096, *one.shape[1:], device="cuda")
    model = create().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        with torch.autocast("cuda", half, enabled=half is not None):
            output = model(inputs)
            loss = output.mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    measured = torch.cuda.max_memory_allocated() / GIB
    expected = predict_memory(create, inputs, autocast=half).peak_gib
    assert measured == pytest.approx(expected, rel=0.05, abs=0.3)  # workspaces
