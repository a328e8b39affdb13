"""Checks of the lab's functions: each returns its evidence or asserts what is wrong."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from course.lab import results
from course.training import operator_calls
from electives.attention.masks import Mask, in_window, pack
from electives.attention.tiles import Attend
from labs.saving_memory.timeline import MemoryTimeline

# Of a softmax over complete rows.
ROW_OPERATORS = r"softmax|logsumexp|a?max\b|\bexp2?_?\b"

# Tokens, block, width of a head: one tile; full tiles; a last tile that is not full; few tokens.
SIZES = ((8, 8, 4), (12, 4, 8), (10, 4, 8), (33, 16, 16), (5, 16, 4), (1, 1, 4))
LARGE = 40.0  # factor of queries whose exponentials overflow unless the maximum is subtracted
LONG, NARROW, WIDTH = 2048, 32, 8  # tokens, block and width of a head, for the memory
CAUSES = {  # changes of a right answer, and what to say to an answer that equals one of them
    "scale=1": "the scores are not divided by √D",
    "scale=width": "the scores are divided by D instead of √D",
    "ahead=1": "a query attends to the key after it: mask where key > query",
    "ahead=tokens": "there is no causal mask: mask where key > query",
    "ahead=-1": "a query does not attend to its own key: mask only where key > query",
    "only_full=True": "the last tile, which is not full, is left out: go on up to the last token",
    "rescale_sum=False": "when the largest score grows, multiply `total` by exp(old − new), too",
    "rescale_out=False": "when the largest score grows, multiply `out` by exp(old − new), too",
    "rescale_sum=False, rescale_out=False": (
        "when the largest score grows, multiply the old `total` and `out` by exp(old − new)"
    ),
    "divide=False": "the result is not divided by the sum of the exponentials",
}


def _variant(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    block: int,
    *,
    scale: float,
    ahead: int = 0,
    only_full: bool = False,
    rescale_sum: bool = True,
    rescale_out: bool = True,
    divide: bool = True,
) -> torch.Tensor:
    """Compute attention as a learner might, with the mistakes that the options name."""
    tokens = q.shape[-2]
    top = q.new_full((*q.shape[:-1], 1), -math.inf)
    total, out = torch.zeros_like(top), torch.zeros_like(q)
    query = torch.arange(tokens)[:, None]
    for begin in range(0, tokens - tokens % block if only_full else tokens, block):
        key = torch.arange(begin, min(begin + block, tokens))
        scores = (q @ k[..., key, :].transpose(-1, -2) / scale).masked_fill(
            key > query + ahead, -math.inf
        )
        new_top = torch.maximum(top, scores.amax(-1, keepdim=True))
        shrink, powers = (top - new_top).exp(), (scores - new_top).exp()
        total = total * (shrink if rescale_sum else 1) + powers.sum(-1, keepdim=True)
        out = out * (shrink if rescale_out else 1) + powers @ v[..., key, :]
        top = new_top
    return out / total if divide else out


def _cause(result: torch.Tensor, inputs: tuple, block: int) -> str:
    """Return what to say about a wrong result; "" if it is none of the known ones."""
    tokens, width = inputs[0].shape[-2:]
    known = {"width": width, "tokens": tokens, "scale": math.sqrt(width)}
    for changes, words in CAUSES.items():
        options = eval(f"dict({changes})", {}, known)
        wrong = _variant(*inputs, block, **{"scale": known["scale"], **options})
        if torch.allclose(result, wrong, atol=1e-4, rtol=1e-3, equal_nan=True):
            return f": {words}"
    if result.isnan().any():
        return ": NaN is −∞ − (−∞), of a query whose keys so far were all masked"
    return ""


def _inputs(tokens: int, width: int, factor: float = 1.0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(tokens)
    q, k, v = (torch.randn(2, 3, tokens, width, generator=generator) for _ in range(3))
    return factor * q, k, v


def _attend(attend: Attend, inputs: tuple[torch.Tensor, ...], block: int) -> torch.Tensor:
    result = results.call(attend, *inputs, block)
    assert isinstance(result, torch.Tensor), f"it returns {type(result).__name__}, not a tensor"
    expected = tuple(inputs[0].shape)
    assert tuple(result.shape) == expected, (
        f"it returns a tensor of shape {tuple(result.shape)}, expected that of q, {expected}"
    )
    return result


def check_tiles(attend: Attend) -> str:
    """Check the results, with tiles of any size, and scores whose exponentials would overflow."""
    for tokens, block, width in SIZES:
        inputs = _inputs(tokens, width)
        result = _attend(attend, inputs, block)
        expected = scaled_dot_product_attention(*inputs, is_causal=True)
        if not torch.allclose(result, expected, atol=1e-4):
            raise AssertionError(
                f"{tokens} tokens in tiles of {block}: the results are wrong, by up to "
                f"{float((result - expected).abs().max()):.2g}" + _cause(result, inputs, block)
            )
    inputs = _inputs(48, 16, LARGE)
    result = _attend(attend, inputs, 16)
    bad = int((~result.isfinite()).sum())
    assert not bad, (
        f"with scores of several hundred, {bad} of {result.numel()} results are not finite: "
        f"exp(89) is infinite in fp32, so subtract the largest score so far"
    )
    expected = scaled_dot_product_attention(*inputs, is_causal=True)
    assert torch.allclose(result, expected, atol=1e-3), (
        "with scores of several hundred, the results are wrong: subtract the largest score so far, "
        "of each query, before you take exponentials"
    )
    return "all results are right, in tiles of 1 to 16 keys, also with scores of several hundred"


def check_tile_memory(attend: Attend) -> str:
    """Check that scores exist for one tile at a time, and that no softmax has all keys."""
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(1, 1, LONG, WIDTH, generator=generator) for _ in range(3)]
    with torch.no_grad():
        with MemoryTimeline() as timeline:
            attend(*inputs, NARROW)
        narrow = [tensor[:, :, : 8 * NARROW] for tensor in inputs]
        with FlopCounterMode(display=False) as counter:
            calls = operator_calls(lambda: attend(*narrow, NARROW), _last_side)
    table = timeline.table()
    assert not calls["operator"].str.contains("scaled_dot").any(), (
        "it calls PyTorch's own attention, and this one should be yours"
    )
    softmaxes = calls[calls["operator"].str.contains(ROW_OPERATORS)]
    assert not (softmaxes["inputs"].astype(int) > NARROW).any(), (
        "it takes the softmax of complete rows, which needs all scores of a query at once: keep a "
        "running maximum and a running sum"
    )
    peak, square = int(table["bytes"].max()), LONG**2
    assert peak < square, (
        f"{LONG:,} tokens in tiles of {NARROW}: {peak / 2**20:.0f} MiB exist at once, at least one "
        f"byte for each of the {LONG:,} × {LONG:,} pairs. Scores, exponentials and masks may have "
        f"only the keys of a tile"
    )
    # Of both products, with masked pairs.
    share = counter.get_total_flops() / (4 * narrow[0].shape[2] ** 2 * WIDTH)
    assert share <= 1, (
        f"its products take {share:.3g} times the operations of one pass over the keys: compute "
        f"the scores of a tile once, and correct the sums so far by a factor"
    )
    whole = LONG**2 * 4
    return f"at most {peak / 2**20:.1f} MiB at once; all scores would take {whole / 2**20:.0f} MiB"


def _last_side(tensors: list[torch.Tensor]) -> str:
    """Return the longest last side of inputs that have several rows."""
    sides = (tensor.shape[-1] for tensor in tensors if tensor.dim() > 1 and tensor.shape[-2] > 1)
    return str(max(sides, default=0))


def check_add_tile(step: Any) -> str:
    """Check the kernel's results with the learner's step, on Triton's interpreter."""
    for tokens, rows, block, factor in ((48, 16, 16, 1.0), (40, 16, 32, 1.0), (40, 16, 16, LARGE)):
        inputs = _inputs(tokens, 16, factor)
        result, _ = run_kernel(step, *inputs, rows=rows, block=block)
        expected = scaled_dot_product_attention(*inputs, is_causal=True)
        if torch.allclose(result, expected, atol=1e-3):
            continue
        large = " with scores of several hundred" * (factor > 1)
        nans = int((~result.isfinite()).sum())
        assert not nans, (
            f"{tokens} tokens{large}: {nans} of {result.numel()} results are not finite: subtract "
            f"the largest score so far, `new_top[:, None]`, and rescale with exp(top − new_top)"
        )
        raise AssertionError(
            f"{tokens} tokens in tiles of {block} keys{large}: the results are wrong, by up to "
            f"{float((result - expected).abs().max()):.2g}"
            + _cause(result, inputs, block).replace("`out`", "`result`")
        )
    return "all results are right, also with a last tile that is not full, and large scores"


def check_kernel_traffic(step: Any) -> str:
    """Check that no tile is read twice, and that `tl.dot` multiplies exponentials by values."""
    # In 16 bits, as on a GPU: there, both factors of a product must have one type.
    inputs = tuple(tensor.half() for tensor in _inputs(64, 16))
    _, traffic = run_kernel(step, *inputs, rows=16, block=16)
    pairs = 6 * (1 + 2 + 3 + 4)  # heads, and tiles of keys for each tile of queries
    assert traffic.dots == 2 * pairs, (
        f"{traffic.dots} times `tl.dot` for {pairs} pairs of tiles, expected two for each: the "
        f"kernel's for the scores, and yours for exponentials and values"
    )
    return f"{traffic.dots} products of tiles; {traffic.read + traffic.written:,} bytes moved"


def run_kernel(
    step: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **tile: int
) -> tuple[torch.Tensor, Any]:
    """Run the lab's kernel with this step, interpreted; return its result and its traffic."""
    from electives.attention.gpu_timing import SOLUTIONS, load_kernels
    from electives.kernel.interpreter import count_traffic

    kernels = load_kernels(SOLUTIONS)  # a copy of our own, which gets the learner's step
    kernels.add_tile = step
    out = torch.full_like(q, math.nan)
    with np.errstate(all="ignore"), count_traffic(q=q, k=k, v=v, out=out) as traffic:
        kernels.launch(q, k, v, out, **tile)
    return out, traffic


def check_mask(mask: Mask) -> str:
    """Check each pair of a query and a key, for several documents and windows."""
    for lengths, window in (([7], 16), ([5, 1, 9], 4), ([3, 4, 3], 1)):
        document = pack(lengths)
        query, key = torch.meshgrid(*[torch.arange(len(document))] * 2, indexing="ij")
        result = results.call(lambda d, q, k: mask(d, window, q, k), document, query, key)  # noqa: B023
        assert isinstance(result, torch.Tensor) and result.dtype == torch.bool, (
            f"it returns {getattr(result, 'dtype', type(result).__name__)}, expected a tensor of "
            f"truth values: combine comparisons with `&`"
        )
        expected = in_window(document, window, query, key)
        wrong = (result.expand_as(expected) != expected).nonzero().tolist()
        case = f"documents of {lengths} tokens, a window of {window}"
        for q, k in wrong[:1]:
            reason = next(words for words, holds in _reasons(document, window, q, k) if holds)
            may = "may" if expected[q, k] else "may not"
            raise AssertionError(
                f"{case}: query {q} {may} attend to key {k}, because {reason}; {len(wrong)} of "
                f"{expected.numel()} pairs are wrong"
            )
    return "all pairs are right, with one document and several, and windows of 1, 4 and 16"


def _reasons(document: torch.Tensor, window: int, q: int, k: int) -> Iterator[tuple[str, bool]]:
    yield "the key is later", k > q
    yield "they are in different documents", bool(document[q] != document[k])
    yield f"a window of {window} begins {window - 1} tokens before the query", q - k >= window
    yield "it is in the same document, not later, and in the window", True


def check_block_mask(mask: Mask) -> str:
    """Check that FlexAttention can evaluate the mask, and gets the right result from it."""
    document, window = pack([300, 84]), 100
    tokens = len(document)
    mask_mod = as_mask_mod(mask, document, window)
    block_mask = create_block_mask(mask_mod, None, None, tokens, tokens, device="cpu")
    inputs = _inputs(tokens, 16)
    query, key = torch.meshgrid(*[torch.arange(tokens)] * 2, indexing="ij")
    allowed = in_window(document, window, query, key)
    expected = scaled_dot_product_attention(*inputs, attn_mask=allowed)
    with warnings.catch_warnings():  # it is not compiled, because that takes half a minute
        warnings.filterwarnings("ignore", message="flex_attention called without")
        result = flex_attention(*inputs, block_mask=block_mask)
    assert torch.allclose(result, expected, atol=1e-4), "FlexAttention's results are wrong with it"
    return f"FlexAttention skips {block_mask.sparsity():.0f} % of the blocks, and is right"


def as_mask_mod(mask: Mask, document: torch.Tensor, window: int) -> Callable[..., torch.Tensor]:
    """Return a mask as FlexAttention calls it: of the batch's row, the head, a query and a key."""
    return lambda b, h, query, key: mask(document, window, query, key)
