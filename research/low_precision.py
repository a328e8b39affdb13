"""Below 16 bits: fp8 in products, training and inference, int8 next to it, and 2:4 sparsity.

    python -m research.low_precision OUT.jsonl [--limit SECONDS]

Needs torchao, and a GPU of compute capability 8.9 or higher for fp8. Products are timed without
and with the conversion of their first matrix to fp8; sparse ones have a pruned weight. Networks
have random weights and images, and are compiled. Launches from Python are included: a product
shorter than about 0.2 ms in fp8, or 0.5 ms sparse, waits for the host. Eight minutes on an H100.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torchvision
from torch import nn
from torch.nn import functional
from torch.utils.benchmark import Timer

from electives.microscope.sparsity import prune
from research.sweep import command, device

# Rows, inputs and outputs of each product: a vision transformer's first linear layer of a block,
# then 1×1 convolutions of ResNet-50 with 256 images, which are the same product.
SHAPES = {
    "ViT-B, 256 images": (50432, 768, 3072),
    "ViT-L, 128 images": (25216, 1024, 4096),
    "width 4,096": (16384, 4096, 16384),
    "ResNet-50, 56 × 56": (802816, 64, 256),
    "ResNet-50, 28 × 28": (200704, 128, 512),
    "ResNet-50, 14 × 14": (50176, 256, 1024),
    "ResNet-50, 7 × 7": (12544, 512, 2048),
}
NETWORKS = {"vit_b_16": 256, "vit_l_16": 128}  # images in a training step
LATENCY_BATCHES = (1, 32)
LOSSES = 10  # of the first steps, to see that fp8 learns alike
LARGEST = torch.finfo(torch.float8_e4m3fn).max


def plan() -> Iterator[dict[str, Any]]:
    """List products, then training steps, then inference."""
    for name in SHAPES:
        yield {"part": "product", "shape": name}
    for network in NETWORKS:
        for how in ("bf16", "fp8, tensorwise", "fp8, rowwise"):
            yield {"part": "training", "network": network, "how": how}
    for batch in LATENCY_BATCHES:
        for how in ("bf16", "int8", "fp8"):
            yield {"part": "inference", "network": "vit_b_16", "batch": batch, "how": how}


def measure(part: str, **row: Any) -> Iterator[dict[str, Any]]:
    """Measure a row of the plan."""
    yield from {"product": products, "training": training, "inference": inference}[part](**row)


def products(shape: str) -> Iterator[dict[str, Any]]:
    """Time a product in bf16, in fp8 and with a 2:4 sparse weight: seconds, flop, bytes."""
    m, k, n = SHAPES[shape]
    a = torch.randn(m, k, device=device(), dtype=torch.bfloat16)
    weight = torch.randn(n, k, device=device(), dtype=torch.bfloat16)
    one = torch.ones((), device=device())
    a8, scale = to_fp8(a)
    weight8, _ = to_fp8(weight)
    convert = torch.compile(to_fp8)

    def in_fp8(left: torch.Tensor, left_scale: torch.Tensor) -> torch.Tensor:
        recipe = functional.ScalingType.TensorWise
        return functional.scaled_mm(
            left, weight8.t(), left_scale, recipe, one, recipe, use_fast_accum=True
        )

    calls: dict[str, Callable[[], Any]] = {
        "bf16": lambda: functional.linear(a, weight),
        "fp8": lambda: in_fp8(a8, scale),
        "fp8 and conversion": lambda: in_fp8(*convert(a)),
        "conversion": lambda: convert(a),
    }
    try:
        sparse = torch.sparse.to_sparse_semi_structured(prune(weight))
        calls["bf16, 2:4 sparse"] = lambda: functional.linear(a, sparse)
    except Exception as error:  # a GPU or build without it: the other rows still count
        yield {"by": "bf16, 2:4 sparse", "error": f"{type(error).__name__}: {error}"[:300]}
    size = {"m": m, "k": k, "n": n, "flop": 2 * m * k * n}
    for by, call in calls.items():
        try:
            yield size | {"by": by, "seconds": seconds(call)}
        except Exception as error:
            yield size | {"by": by, "error": f"{type(error).__name__}: {error}"[:300]}


def to_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a matrix in fp8, scaled so that its largest number fits, and the inverse scale."""
    scale = x.abs().amax().float() / LARGEST
    return (x / scale).to(torch.float8_e4m3fn), scale


def training(network: str, how: str) -> Iterator[dict[str, Any]]:
    """Time a compiled training step with AdamW: seconds (median), images per second, losses."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    batch = NETWORKS[network]
    torch.manual_seed(0)
    net = torchvision.models.get_model(network).to(device(), memory_format=torch.channels_last)
    converted = 0
    if how != "bf16":
        config = Float8LinearConfig.from_recipe_name(how.removeprefix("fp8, "))
        convert_to_float8_training(net, config=config, module_filter_fn=fits)
        converted = sum(type(part).__name__ == "Float8Linear" for part in net.modules())
    net.compile()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    images = torch.randn(batch, 3, 224, 224, device=device())
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(1000, (batch,), device=device())
    losses = []

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device().type, torch.bfloat16):
            loss = functional.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())

    for _ in range(3):
        step()
    took = seconds(step)
    yield {
        "batch": batch,
        "seconds": took,
        "images_per_s": batch / took,
        "layers_in_fp8": converted,
        "linear_layers": sum(isinstance(part, nn.Linear) for part in net.modules()),
        "losses": [round(float(loss), 4) for loss in losses[:LOSSES]],
    }


def inference(network: str, batch: int, how: str) -> Iterator[dict[str, Any]]:
    """Time a compiled forward pass: seconds (median), and error, the scores' distance from bf16."""
    from torchao import quantization

    torch.manual_seed(0)
    net = torchvision.models.get_model(network).to(device(), torch.bfloat16).eval()
    images = torch.randn(batch, 3, 224, 224, device=device(), dtype=torch.bfloat16)
    # The head starts at zero: without noise all scores would be equal.
    nn.init.normal_(net.heads.head.weight, std=0.02)
    with torch.inference_mode():
        reference = net(images)
        if how == "int8":
            config = quantization.Int8DynamicActivationInt8WeightConfig()
            quantization.quantize_(net, config, filter_fn=is_called)
        if how == "fp8":
            config = quantization.Float8DynamicActivationFloat8WeightConfig()
            quantization.quantize_(net, config, filter_fn=is_called)
        call = torch.compile(net, mode="reduce-overhead")
        scores = call(images)
        error = float((scores - reference).float().norm() / reference.float().norm())
        yield {"seconds": seconds(lambda: call(images)), "error": error}


def fits(layer: nn.Module, name: str) -> bool:
    """Tell whether fp8's kernels accept a layer: both sides must be multiples of 16."""
    return isinstance(layer, nn.Linear) and all(side % 16 == 0 for side in layer.weight.shape)


def is_called(layer: nn.Module, name: str) -> bool:
    """Tell whether a fitting layer computes: attention passes its last weight to one operation."""
    return fits(layer, name) and not name.endswith("out_proj")


def seconds(call: Callable[[], Any]) -> float:
    """Return a call's median seconds, of two seconds of calls."""
    call()
    return float(Timer("call()", globals={"call": call}).blocked_autorange(min_run_time=2).median)


if __name__ == "__main__":
    command(__doc__, plan(), measure)
