"""Time attention on a GPU, by method, context and mask; this needs only PyTorch and Triton.

    python electives/attention/gpu_timing.py OUT.jsonl [--limit SECONDS]

writes a line of JSON for each row, in the form of research/sweep.py, in less than two minutes on
an H200. `--kernels FILE` times the kernel in a different file than solutions.py; `--only PATTERN`,
the rows whose JSON has this pattern.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import date
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

Row = dict[str, Any]
Method = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
SOLUTIONS = Path(__file__).with_name("solutions.py")
TOKENS, HEADS, WIDTH = 16_384, 12, 64  # of a batch, at any context; as in GPT-2's smallest model
CONTEXTS = (512, 1024, 2048, 4096, 8192, 16_384)
TILES = ((64, 64, 4), (128, 64, 4), (128, 64, 8), (128, 128, 8))  # queries, keys, warps
BACKENDS = {
    "SDPA, math": SDPBackend.MATH,
    "SDPA, memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "SDPA, FlashAttention": SDPBackend.FLASH_ATTENTION,
    "SDPA, cuDNN": SDPBackend.CUDNN_ATTENTION,
}
WINDOW, DOCUMENT = 1024, 1024  # tokens; documents have this length on average
MASKS = ("causal", "window", "documents")
LIMIT_S = 110.0
# Inputs by what is special about them: the type, the width of a head, and further arguments.
INPUTS: dict[str, dict[str, Any]] = {
    "bf16, causal": {},
    "fp32": {"dtype": torch.float32},
    "a mask as a tensor": {"mask": True},
    "heads of 192": {"width": 192},
    "heads of 512": {"width": 512},
    "keys without a batch (3 dimensions)": {"dimensions": 3},
}


def written_out(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute attention with all scores in memory; causal without a mask (True: may attend)."""
    if mask is None:
        tokens = q.shape[-2]
        mask = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).tril()
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v


def plan() -> Iterator[Row]:
    """Yield the rows to measure, the most important first."""
    yield {"part": "limits"}
    for step in ("forward", "training"):
        for tokens in CONTEXTS[::-1]:
            methods = ["written out", *BACKENDS, *["Triton"] * (step == "forward")]
            for method in methods:
                yield {"part": "time", "method": method, "tokens": tokens, "step": step}
    for name in MASKS:
        for method in ("mask as a tensor", "FlexAttention"):
            yield {"part": "mask", "method": method, "mask": name, "tokens": 16_384}
    for inputs in INPUTS:
        yield {"part": "backend", "inputs": inputs}


def measure(part: str, kernels: ModuleType, **row: Any) -> Iterator[Row]:
    """Measure a row of the plan."""
    if part == "time":
        yield from _time_method(kernels=kernels, **row)
    elif part == "mask":
        yield from _time_mask(**row)
    elif part == "limits":
        yield _limits()
    else:
        yield from _try_backends(**row)


def _limits(size: int = 8192) -> Row:
    """Measure what a copy and a product of matrices reach, in bf16."""
    from triton.testing import do_bench

    a, b = torch.randn(2, size, size, device="cuda", dtype=torch.bfloat16)
    copy_s, product_s = (
        do_bench(call, warmup=50, rep=200, return_mode="median") / 1e3
        for call in (lambda: a.copy_(b), lambda: a @ b)
    )
    return {"tb_per_s": 2 * a.nbytes / copy_s / 1e12, "tflop_per_s": 2 * size**3 / product_s / 1e12}


def _tensors(tokens: int, *, width: int = WIDTH, dtype: torch.dtype = torch.bfloat16) -> tuple:
    shape = (TOKENS // tokens, HEADS, tokens, width)
    generator = torch.Generator("cuda").manual_seed(0)
    kind = {"device": "cuda", "dtype": dtype, "generator": generator}
    return tuple(torch.randn(shape, **kind) for _ in range(3))


def _time_method(method: str, tokens: int, step: str, kernels: ModuleType) -> Iterator[Row]:
    q, k, v = _tensors(tokens)
    if method != "Triton":
        yield _timed(_function(method), q, k, v, step)
        return
    expected = scaled_dot_product_attention(q, k, v, is_causal=True)
    out = torch.empty_like(q)
    for rows, block, warps in TILES:

        def run(*qkv: torch.Tensor, tile: tuple = (rows, block, warps)) -> torch.Tensor:
            kernels.launch(*qkv, out, rows=tile[0], block=tile[1], num_warps=tile[2])
            return out

        result = _timed(run, q, k, v, step)
        _assert_near(out, expected)
        yield result | {"queries": rows, "keys": block, "warps": warps}


def _function(method: str) -> Method:
    if method == "written out":
        return written_out

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(BACKENDS[method]):
            return scaled_dot_product_attention(q, k, v, is_causal=True)

    return attend


def _timed(
    attend: Method, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, step: str = "training"
) -> Row:
    """Return the median seconds with a cold cache, and the peak GiB beside the inputs."""
    from triton.testing import do_bench

    call = partial(attend, q, k, v)
    if step == "training":
        inputs = [tensor.requires_grad_() for tensor in (q, k, v)]
        grad = torch.randn_like(q)

        def call() -> Any:
            return torch.autograd.grad(attend(q, k, v), inputs, grad)

    with nullcontext() if step == "training" else torch.no_grad():
        call()  # compiles
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        gib = (torch.cuda.max_memory_allocated() - before) / 2**30
        seconds = do_bench(call, warmup=10, rep=60, return_mode="median") / 1e3
    return {"seconds": seconds, "gib": gib, "batch": len(q), "heads": HEADS, "width": q.shape[-1]}


def _assert_near(result: torch.Tensor, expected: torch.Tensor) -> None:
    error = float((result - expected).float().norm() / expected.float().norm())
    assert error < 0.01, f"the results are wrong: their relative error is {error:.3g}"


def mask_function(name: str, tokens: int, device: torch.device | str = "cuda") -> Callable:
    """Return whether a query may attend to a key, as FlexAttention calls it: (b, h, query, key)."""
    generator = torch.Generator().manual_seed(0)
    ends = torch.rand(tokens, generator=generator) < 1 / DOCUMENT
    document = ends.cumsum(0).to(device)  # of each token

    def causal(b: Any, h: Any, query: Any, key: Any) -> Any:
        return query >= key

    def window(b: Any, h: Any, query: Any, key: Any) -> Any:
        return (query >= key) & (query - key < WINDOW)

    def documents(b: Any, h: Any, query: Any, key: Any) -> Any:
        return (query >= key) & (document[query] == document[key])

    return {"causal": causal, "window": window, "documents": documents}[name]


def _time_mask(method: str, mask: str, tokens: int) -> Iterator[Row]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = _tensors(tokens)
    allowed = mask_function(mask, tokens)
    at = torch.arange(tokens, device="cuda")
    tensor = allowed(0, 0, at[:, None], at[None, :])
    expected = scaled_dot_product_attention(q, k, v, attn_mask=tensor)
    extra = {"attended": float(tensor.float().mean())}
    attend: Method = partial(scaled_dot_product_attention, attn_mask=tensor)
    if method == "FlexAttention":
        del tensor
        block_mask = create_block_mask(allowed, None, None, tokens, tokens, device="cuda")
        extra["skipped_percent"] = float(block_mask.sparsity())
        compiled = torch.compile(flex_attention, dynamic=False)
        attend = partial(compiled, block_mask=block_mask)
    # With gradients, so that FlexAttention compiles only what is timed.
    _assert_near(attend(*(tensor.requires_grad_() for tensor in (q, k, v))).detach(), expected)
    yield _timed(attend, q, k, v) | extra


def _try_backends(inputs: str) -> Iterator[Row]:
    special = INPUTS[inputs]
    q, k, v = _tensors(
        1024, width=special.get("width", WIDTH), dtype=special.get("dtype", torch.bfloat16)
    )
    if special.get("dimensions") == 3:
        q, k, v = (tensor[0] for tensor in (q, k, v))
    tensor = torch.ones(1024, 1024, dtype=torch.bool, device="cuda").tril()
    options = {"attn_mask": tensor} if special.get("mask") else {"is_causal": True}
    for name, backend in {"the default": None, **BACKENDS}.items():
        chosen = sdpa_kernel(backend) if backend is not None else nullcontext()
        with warnings.catch_warnings(record=True) as caught, chosen:
            warnings.simplefilter("always")
            try:
                scaled_dot_product_attention(q, k, v, **options)
                result = {"runs": True, "kernel": _longest_kernel(q, k, v, options)}
            except RuntimeError as error:
                reasons = [str(warning.message).partition(" (Triggered")[0] for warning in caught]
                result = {"runs": False, "reason": "; ".join(reasons) or str(error)[:200]}
        yield {"backend": name} | result


def _longest_kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Row) -> str:
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        scaled_dot_product_attention(q, k, v, **options)
        torch.cuda.synchronize()
    kernels = [e for e in profile.key_averages() if e.device_time_total > 0]
    return max(kernels, key=lambda e: e.device_time_total).key[:120] if kernels else ""


def load_kernels(path: Path) -> ModuleType:
    """Load a file with `launch`, and what it launches."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Measure the plan, and write or print lines of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT.jsonl")
    parser.add_argument("--kernels", type=Path, default=SOLUTIONS)
    parser.add_argument("--only", default="", metavar="PATTERN")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="SECONDS")
    arguments = parser.parse_args()
    begin = time.perf_counter()
    kernels = load_kernels(arguments.kernels)
    origin = {
        "machine": torch.cuda.get_device_name(),
        "date": date.today().isoformat(),
        "torch": torch.__version__,
        "command": "python electives/attention/gpu_timing.py",
    }
    with arguments.out.open("w", encoding="utf-8") as file:
        for row in plan():
            if not re.search(arguments.only, json.dumps(row)):
                continue
            passed_s = time.perf_counter() - begin
            if passed_s > arguments.limit:
                print(f"{passed_s:5.0f} s  no time left for {row}", flush=True)
                continue
            try:
                results = [*measure(kernels=kernels, **row)]
            except Exception as error:  # one row's failure must not end the others
                results = [{"failed": f"{type(error).__name__}: {error}"[:500]}]
            for result in results:
                line = row | result | {"plan": [*row]} | origin
                file.write(json.dumps(line) + "\n")
                file.flush()
                print(f"{time.perf_counter() - begin:5.1f} s  {row} -> {result}", flush=True)
            torch.compiler.reset()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
