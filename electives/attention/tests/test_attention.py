"""Attention from tiles: right answers pass, also unlike ones, and wrong ones hear what is wrong."""

import inspect
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from job_helpers import SCRIPTS, run_forked
from torch.nn.functional import scaled_dot_product_attention
from written_helpers import cell_of, defined, filled

from course.checks.functions import check_written
from electives.attention import figures, gpu_timing, masks, measurements, memory, tiles

IMPORTS = "import math\nimport torch\n"
SCORES = (
    "(q @ k[:, :, key].transpose(-1, -2) / math.sqrt(width))"
    ".masked_fill(key > torch.arange(tokens)[:, None], -math.inf)"
)
UPDATE = """new = torch.maximum(top, scores.amax(-1, keepdim=True))
        shrink, powers = (top - new).exp(), (scores - new).exp()
        total = total * shrink + powers.sum(-1, keepdim=True)
        out = out * shrink + powers @ v[:, :, key]
        top = new"""
RESULT = "out / total"
BASE_2 = """new = torch.maximum(top, scores.amax(-1, keepdim=True) * 1.4426950408889634)
        shrink, powers = (top - new).exp2(), (scores * 1.4426950408889634 - new).exp2()
        total.mul_(shrink).add_(powers.sum(-1, keepdim=True))
        out.mul_(shrink).add_(powers @ v[:, :, key])
        top = new"""
LOG_SUM_EXP = """new = torch.logaddexp(top, scores.logsumexp(-1, keepdim=True))
        out = out * (top - new).exp() + (scores - new).exp() @ v[:, :, key]
        top = new"""
SOFTMAX_OF_A_TILE = """lse = scores.logsumexp(-1, keepdim=True)
        share = torch.nan_to_num(scores.softmax(-1)) @ v[:, :, key]
        new = torch.logaddexp(top, lse)
        out = out * (top - new).exp() + share * (lse - new).exp()
        top = new"""
ONLY_LATER_QUERIES = """rows = slice(begin, None)
        scores = scores[:, :, rows]
        new = torch.maximum(top[:, :, rows], scores.amax(-1, keepdim=True))
        shrink, powers = (top[:, :, rows] - new).exp(), (scores - new).exp()
        total[:, :, rows] = total[:, :, rows] * shrink + powers.sum(-1, keepdim=True)
        out[:, :, rows] = out[:, :, rows] * shrink + powers @ v[:, :, key]
        top[:, :, rows] = new"""
TWO_LOOPS = """new = torch.zeros_like(out), torch.zeros_like(total), torch.full_like(top, -math.inf)
        for first in range(0, tokens, block) if begin == 0 else ():
            rows = slice(first, first + block)
            for start in range(0, first + 1, block):
                part = q[:, :, rows] @ k[:, :, start : start + block].mT / math.sqrt(width)
                at = torch.arange(start, start + part.shape[-1])
                hidden = at > torch.arange(first, first + part.shape[-2])[:, None]
                part = part.masked_fill(hidden, -math.inf)
                most = torch.maximum(new[2][:, :, rows], part.amax(-1, keepdim=True))
                shrink, powers = (new[2][:, :, rows] - most).exp(), (part - most).exp()
                values = powers @ v[:, :, start : start + block]
                new[0][:, :, rows] = new[0][:, :, rows] * shrink + values
                new[1][:, :, rows] = new[1][:, :, rows] * shrink + powers.sum(-1, keepdim=True)
                new[2][:, :, rows] = most
        out, total = (new[0], new[1]) if begin == 0 else (out, total)"""
RIGHT_TILES = [
    (SCORES, UPDATE, RESULT),
    (SCORES, BASE_2, RESULT),
    (SCORES, LOG_SUM_EXP, "out"),
    (SCORES, SOFTMAX_OF_A_TILE, "out"),
    (SCORES, ONLY_LATER_QUERIES, RESULT),
    ("None", TWO_LOOPS, RESULT),
]
NO_MAXIMUM = """powers = scores.exp()
        total = total + powers.sum(-1, keepdim=True)
        out = out + powers @ v[:, :, key]"""
TILE_MAXIMUM = UPDATE.replace(
    "torch.maximum(top, scores.amax(-1, keepdim=True))", "scores.amax(-1, keepdim=True)"
)
WHOLE = """full = q @ k.transpose(-1, -2) / math.sqrt(width)
        later = torch.ones(tokens, tokens).triu(1).bool()
        out = full.masked_fill(later, -math.inf).softmax(-1) @ v"""
WHOLE_BY_HAND = WHOLE.replace(
    "out = full.masked_fill(later, -math.inf).softmax(-1) @ v",
    "p = full.masked_fill(later, -math.inf)\n        p = (p - p.amax(-1, keepdim=True)).exp()\n"
    "        out = p @ v / p.sum(-1, keepdim=True)",
)
BY_QUERIES = """for first in range(0, tokens if begin == 0 else 0, block):
            rows = slice(first, first + block)
            part = q[:, :, rows] @ k.transpose(-1, -2) / math.sqrt(width)
            later = torch.arange(tokens) > torch.arange(tokens)[rows, None]
            part = part.masked_fill(later, -math.inf)
            powers = (part - part.amax(-1, keepdim=True)).exp()
            out[:, :, rows] = powers @ v / powers.sum(-1, keepdim=True)"""
FULL_MASK = SCORES.replace(
    "key > torch.arange(tokens)[:, None]", "torch.ones(tokens, tokens).triu(1).bool()[:, key]"
)
AGAIN = UPDATE.replace(
    "top = new", "top = new + 0 * (" + SCORES + ").amax(-1, keepdim=True).clamp(0, 0)"
)
KEPT = (
    "kept = [*locals().get('kept', []), (key, " + SCORES + ")]; scores = kept[-1][1]",
    UPDATE,
    RESULT,
)
WRONG_TILES = {
    (SCORES, NO_MAXIMUM, RESULT): r"not finite: exp\(89\) is infinite.*subtract the largest",
    (SCORES, TILE_MAXIMUM, RESULT): "12 tokens in tiles of 4|not finite",
    (SCORES, UPDATE.replace("total * shrink", "total"), RESULT): "multiply `total` by exp.old",
    (SCORES, UPDATE.replace("out * shrink", "out"), RESULT): "multiply `out` by exp.old",
    (SCORES, UPDATE.replace(" * shrink", ""), RESULT): "multiply the old `total` and `out` by",
    (SCORES.replace(" / math.sqrt(width)", ""), UPDATE, RESULT): "not divided by √D",
    (SCORES.replace("math.sqrt(width)", "width"), UPDATE, RESULT): "divided by D instead of √D",
    (SCORES.replace("key > ", "key >= "), UPDATE, RESULT): "does not attend to its own key",
    (SCORES.replace("key > ", "key - 1 > "), UPDATE, RESULT): "attends to the key after it",
    (SCORES.partition(".masked_fill")[0], UPDATE, RESULT): "there is no causal mask",
    (SCORES, UPDATE, "out"): "is not divided by the sum",
    (SCORES, f"if len(key) < block: continue\n        {UPDATE}", RESULT): "the last tile, which is",
    (SCORES, UPDATE, "(out / total).sum(1)"): r"shape \(2, 8, 4\), expected that of q",
    (SCORES, WHOLE, "out"): "takes the softmax of complete rows",
    (SCORES, WHOLE_BY_HAND, "out"): "takes the softmax of complete rows",
    ("None", BY_QUERIES, "out"): "takes the softmax of complete rows",
    (FULL_MASK, UPDATE, RESULT): "MiB exist at once.*Scores, exponentials and masks may have",
    KEPT: "MiB exist at once",
    (SCORES, AGAIN, RESULT): "take 1.5 times the operations of one pass over the keys",
    (
        "key = tokens - 1 - key; scores = " + SCORES,
        UPDATE,
        RESULT,
    ): "NaN is −∞ − .−∞., of a query whose keys so far were all masked",
    (SCORES, "pass", "torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)"): (
        "calls PyTorch's own attention"
    ),
    (SCORES, "q *= 2", RESULT): "changes its argument `q`",
    (SCORES, UPDATE, "None"): "returns NoneType, not a tensor",
}
MASK = "(document[query] == document[key]) & (key <= query) & (query - key < window)"
RIGHT_MASKS = [
    (MASK,),
    ("~((document[query] != document[key]) | (key > query) | (key <= query - window))",),
    ("(document[key] == document[query]) & (query - key >= 0) & (query < key + window)",),
]
WRONG_MASKS = {
    (MASK.replace("< window", "<= window"),): "a window of 4 begins 3 tokens before the query",
    (MASK.replace("< window", "< window - 1"),): "may attend to key .* and in the window",
    (MASK.replace("key <= query", "key < query"),): "may attend to key 0, because it is in the sa",
    (MASK.replace("(key <= query) & ", ""),): "query 0 may not attend to key 1.*key is later",
    (MASK.partition(" & ")[2],): "they are in different documents",
    (MASK.rpartition(" & ")[0],): "a window of .* begins",
    (MASK.replace(" & ", " and "),): "it raised RuntimeError: Boolean value",
    ("(key <= query).float()",): "returns torch.float32, expected a tensor of truth values",
}


@pytest.fixture
def define(tmp_path: Path, runs_root: Path) -> Callable[..., Callable]:
    """Return a function that defines a function of the notebook with its blanks filled."""

    def make(function: str, *answers: str) -> Callable:
        return defined(
            filled(cell_of("attention", function), *answers), function, tmp_path, IMPORTS
        )

    return make


@pytest.mark.parametrize(
    "name, function, right",
    [
        ("attention.tiles", "online_softmax_attention", RIGHT_TILES),
        ("attention.mask", "in_window", RIGHT_MASKS),
    ],
)
def test_right_answers_pass(name: str, function: str, right: list, define: Callable) -> None:
    untouched = check_written(name, define(function))
    assert untouched.failed and "a blank is left" in untouched.parts[0].evidence
    for answers in right:
        checked = check_written(name, define(function, *answers))
        assert checked.passed, checked


@pytest.mark.parametrize("answers", WRONG_TILES)
def test_a_wrong_loop_over_tiles_hears_what_is_wrong(answers: tuple, define: Callable) -> None:
    checked = check_written("attention.tiles", define("online_softmax_attention", *answers))
    assert checked.failed and re.search(WRONG_TILES[answers], repr(checked), re.DOTALL), checked


@pytest.mark.parametrize("answers", WRONG_MASKS)
def test_a_wrong_mask_hears_what_is_wrong(answers: tuple, define: Callable) -> None:
    checked = check_written("attention.mask", define("in_window", *answers))
    text = " ".join(repr(checked).split())
    assert checked.failed and re.search(WRONG_MASKS[answers], text), checked


NEW_TOP = "tl.maximum(top, tl.max(scores, 1))"
STEP = """shrink = tl.exp(top - new_top)
    powers = tl.exp(scores - new_top[:, None])
    total = total * shrink + tl.sum(powers, 1)
    result = result * shrink[:, None] + tl.dot(powers.to(values.dtype), values)"""
STEP_BASE_2 = STEP.replace("tl.exp(", "tl.exp2(1.4426950408889634 * (").replace(
    "new_top)", "new_top))"
)
STEP_BASE_2 = STEP_BASE_2.replace("[:, None])", "[:, None]))", 1)
RIGHT_STEPS = [
    (NEW_TOP, STEP),
    (NEW_TOP, STEP_BASE_2),
    (
        NEW_TOP,
        STEP.replace("result * shrink[:, None] + tl.dot(powers.to(values.dtype), values)", (
            "tl.dot(powers.to(values.dtype), values, result * shrink[:, None])"
        )),
    ),
]  # fmt: skip
WRONG_STEPS = {
    ("top * 0.0", STEP): "not finite: subtract|results are wrong",
    ("tl.max(scores, 1)", STEP): "not finite|results are wrong",
    (NEW_TOP, STEP.replace("total * shrink", "total")): "multiply `total` by exp.old",
    (NEW_TOP, STEP.replace("result * shrink[:, None]", "result")): "multiply `result` by exp.old",
    (NEW_TOP, STEP.replace("shrink = tl.exp(top - new_top)", "shrink = tl.exp(new_top - top)")): (
        "not finite|results are wrong"
    ),
    (NEW_TOP, STEP.replace("tl.sum(powers, 1)", "tl.sum(powers, 0)")): (
        "results are wrong|it raised|not finite"
    ),
    (NEW_TOP, STEP.replace(".to(values.dtype)", "")): "must be same dtype|same dtype",
    (
        NEW_TOP,
        STEP.replace(
            "tl.dot(powers.to(values.dtype), values)",
            "tl.sum(powers[:, :, None] * values.to(tl.float32)[None, :, :], 1)",
        ),
    ): "60 times `tl.dot` for 60 pairs of tiles, expected two for each",
}


@pytest.mark.slow
def test_right_steps_of_the_kernel_pass_and_wrong_ones_hear_why(tmp_path: Path) -> None:
    """All in one process that interprets."""
    pytest.importorskip("triton", reason="Triton is missing: PyTorch installs it only on Linux")
    answers = [(), *RIGHT_STEPS, *WRONG_STEPS]
    cell = cell_of("attention", "add_tile")
    cases = [("attention.kernel", "add_tile", filled(cell, *each)) for each in answers]
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    (printed := tmp_path / "printed").mkdir()
    arguments = [str(tmp_path / "cases.json"), str(tmp_path / "out.json"), str(tmp_path)]
    env = os.environ | {"COURSE_RUNS": str(tmp_path / "runs"), "OMP_NUM_THREADS": "1"}
    process = run_forked(SCRIPTS / "check_kernels.py", *arguments, folder=printed, env=env)
    assert process.returncode == 0, process.stderr
    results = iter(json.loads((tmp_path / "out.json").read_text())["results"])
    message, passed = next(results)
    assert not passed and "a blank is left" in message
    for _ in RIGHT_STEPS:
        message, passed = next(results)
        assert passed, message
    for step, words in WRONG_STEPS.items():
        message, passed = next(results)
        assert not passed and re.search(words, message), f"{step}: {message}"


def test_a_kernel_for_the_gpu_has_the_step_of_the_learner(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton is missing: PyTorch installs it only on Linux")
    imports = "import triton\nimport triton.language as tl\n"
    cell = filled(cell_of("attention", "add_tile"), NEW_TOP, STEP_BASE_2)
    file = tmp_path / "kernels.py"
    file.write_text(measurements.kernels_with(defined(cell, "add_tile", tmp_path, imports)))
    kernels = gpu_timing.load_kernels(file)
    assert "exp2" in inspect.getsource(kernels.add_tile.fn)
    assert kernels.launch.__globals__["attend"].fn.__globals__["add_tile"] is kernels.add_tile


def test_a_learners_times_are_a_row_per_context(monkeypatch: pytest.MonkeyPatch) -> None:
    def time_kernels(command: list[str], **_: object) -> SimpleNamespace:
        rows = [
            {"step": "forward", "method": method, "tokens": tokens, "seconds": seconds} | tile
            for tokens in (1024, 512)
            for method, seconds, tile in (
                ("SDPA, FlashAttention", 2e-4, {}),
                ("Triton", 9e-4, {"queries": 128, "keys": 128}),
                ("Triton", 3e-4, {"queries": 64, "keys": 64}),
            )
        ]
        Path(command[2]).write_text("\n".join(map(json.dumps, rows)))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(measurements.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(measurements.subprocess, "run", time_kernels)
    monkeypatch.setattr(measurements, "kernels_with", lambda step: "")
    table = measurements.time_on_gpu(None)
    assert list(table.index) == [512, 1024] and not table.isna().any().any()
    assert list(table["Triton, ms"]) == pytest.approx([0.3, 0.3])


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_nothing_is_timed() -> None:
    assert measurements.time_on_gpu(None) is None


def test_methods_agree() -> None:
    q, k, v = torch.randn(3, 1, 2, 40, 8)
    expected = scaled_dot_product_attention(q, k, v, is_causal=True)
    assert torch.allclose(gpu_timing.written_out(q, k, v), expected, atol=1e-5)
    assert torch.allclose(tiles.online_softmax_attention(q, k, v, 16), expected, atol=1e-5)


def test_only_fused_attention_grows_slower_than_the_square_when_it_trains() -> None:
    table = memory.predict_by_context([4096, 8192])
    growth = table.loc[8192] / table.loc[4096]
    assert (growth[["written out", "in tiles"]] > 3.4).all() and growth["SDPA"] < 2


@pytest.mark.slow
def test_a_predicted_step_is_what_a_process_grows_by() -> None:
    table = memory.compare_with_process(["written out"], 2048)
    predicted, measured = table.loc["written out"]
    assert predicted == pytest.approx(measured, rel=0.1 if sys.platform == "linux" else 0.5)


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(ValueError, match="method='flash': choose written out, in tiles, SDPA"):
        memory.compare_with_process(["flash"], 16)


def test_blocks_are_counted_in_the_alternative_text() -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    document = masks.pack([300, 212])
    mask = create_block_mask(
        lambda b, h, q, k: masks.in_window(document, 512, q, k), None, None, 512, 512, device="cpu"
    )
    assert "8 skipped, 7 masked in part, 1 computed" in figures.plot_blocks(mask).alt


def test_the_record_of_a_gpu_runs_each_method_and_mask_once() -> None:
    plan = [json.dumps(row) for row in gpu_timing.plan()]
    assert len(plan) == len({*plan})
    for mask in gpu_timing.MASKS:
        allowed = gpu_timing.mask_function(mask, 4096, "cpu")
        at = torch.arange(4096)
        share = float(allowed(0, 0, at[:, None], at).float().mean())
        assert share == pytest.approx(0.5, abs=0.01) if mask == "causal" else share < 0.45


def test_figures_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[dict[str, Any]] = [
        row | {"seconds": 1e-3 * row["tokens"] / 512, "machine": "a GPU"}
        for row in gpu_timing.plan()
        if row["part"] == "time"
    ]
    slow = {**rows[5], "seconds": 9.0}
    times = pd.DataFrame([*rows, slow])
    assert rows[5]["method"] == "Triton"
    assert measurements.fastest(times)["seconds"].max() < 1
    assert "written out: from 1 to 32" in (picture := figures.plot_times(times)).alt
    styles = {line.get_label(): line.get_linestyle() for line in picture.axes[0].lines}
    assert styles["Triton"] != styles["SDPA, FlashAttention"]  # which have nearly the same times
