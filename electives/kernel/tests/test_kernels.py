"""Four kernels, interpreted: right ones pass, wrong ones hear why; traffic is counted."""

import json
import os
import re
from typing import Any

import pandas as pd
import pytest
from job_helpers import SCRIPTS, run_forked
from written_helpers import cell_of, filled

from course.training import Recorder
from electives.kernel import gpu_timing

pytest.importorskip("triton", reason="Triton is missing: PyTorch installs it only on Linux")
FUNCTIONS = {
    "kernel.add": "add",
    "kernel.softmax": "softmax",
    "kernel.norm": "norm_relu",
    "kernel.matmul": "matmul",
}
AT, INSIDE = "tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)", "at < size"
ROW, LEAST = "tl.program_id(0) * columns", '-float("inf")'
POWERS = "tl.exp(numbers - tl.max(numbers, 0))"
MEAN = "tl.sum(tl.where(inside, numbers, 0.0), 0) / columns"
PLACES = "row[:, None] * channels + channel[None, :]"
NUMBERS = "tl.load(x + at, inside)"
RESULT = f"tl.maximum({NUMBERS} * factor[None, :] + offset[None, :], 0.0)"
INNER, TOTAL = "begin + tl.arange(0, SIDE)", "tl.dot(left, right, total)"
ADD = """at = {}
    inside = {}
    tl.store(out + at, tl.load(x + at, inside) + tl.load(y + at, inside), inside)"""
RIGHT = {
    "kernel.add": [(ADD.format(AT, INSIDE),)],
    "kernel.softmax": [(ROW, LEAST, POWERS)],
    "kernel.norm": [(PLACES, RESULT)],
    "kernel.matmul": [(INNER, "total + tl.dot(left, right)")],
}
WRONG = {
    "kernel.add": {
        (ADD.format(AT, "at < size + 1"),): "reads 1 number outside .* first 1 beyond",
        (ADD.format(AT, "at >= 0"),): "is an offset wrong, or does a mask let it through",
        (ADD.format("tl.arange(0, BLOCK)", INSIDE),): "never written, the first of them number 256",
        (ADD.format(AT.replace("BLOCK", "256"), INSIDE),): "600 numbers in .* 512: 88 of 600",
        (ADD.format(AT.replace("BLOCK +", "256 +"), INSIDE),): "513 numbers .* never written",
    },
    "kernel.softmax": {
        (ROW, "0.0", POWERS): "instead of 1: what is in the block beyond the row",
        (ROW, "-1e4", POWERS): "so load −∞ there",
        (ROW, "-30000.0", POWERS): "what is in the block",
        (ROW, LEAST, POWERS.replace("tl.max(numbers, 0)", MEAN)): "NaN",
        (ROW, 'float("inf")', POWERS): "results are NaN, for instance from ∞ − ∞",
        (ROW, LEAST, "tl.exp(numbers)"): "subtract the row's largest number first",
        ("0", LEAST, POWERS): "rows of 100: 1900 of 2000 results are never written",
        (ROW, LEAST, f"{POWERS} + 0 * tl.load(x + row + at, inside, 0.0)"): (
            "16,000 bytes are read, and 8,000 are enough"
        ),
    },
    "kernel.norm": {
        (PLACES, RESULT.replace("tl.maximum(", "(").replace(", 0.0)", ")")): "results are negative",
        (PLACES, f"tl.maximum({NUMBERS}, 0.0) * factor[None, :] + offset[None, :]"): (
            "ReLU comes last"
        ),
        ("channel[:, None] + row[None, :]", RESULT): "it raised ValueError: .* 128 and 8",
        (PLACES, f"tl.maximum(({NUMBERS} + offset[None, :]) * factor[None, :], 0.0)"): (
            "a number is scaled .before. it is shifted"
        ),
    },
    "kernel.matmul": {
        ("tl.arange(begin, begin + SIDE)", TOTAL): "on a GPU its bounds must be constants",
        ("tl.arange(0, SIDE)", TOTAL): "product of two single tiles is right: in each step",
        (INNER, "total + tl.dot(left, right, total)"): "one product is added to `total`",
        (INNER, "tl.dot(right, left, total)"): "so is the product of two single tiles",
        (INNER, "tl.dot(left, right)"): "of the last tiles only: add to the value of `total`",
        (
            INNER,
            "total + tl.sum(left.to(tl.float32)[:, :, None] * right[None, :, :], 1)",
        ): "no `tl.dot`",
        (INNER, "tl.dot(left, right, total.to(tl.float16), out_dtype=tl.float16)"): (
            "sums beyond 65,504 are infinite: add up in fp32"
        ),
        (INNER, f"{TOTAL} + 0 * tl.dot(left, right)"): "120 times `tl.dot`, for 60 pairs of tiles",
    },
}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Check all answers in one process that interprets."""
    folder = tmp_path_factory.mktemp("kernels")
    cases = [
        (name, function, filled(cell_of("kernel", function), *answers))
        for name, function in FUNCTIONS.items()
        for answers in [(), *RIGHT[name], *WRONG[name]]
    ]
    (folder / "cases.json").write_text(json.dumps(cases))
    (printed := folder / "printed").mkdir()
    arguments = [str(folder / "cases.json"), str(folder / "out.json"), str(folder)]
    env = os.environ | {"COURSE_RUNS": str(folder / "runs"), "OMP_NUM_THREADS": "1"}
    process = run_forked(SCRIPTS / "check_kernels.py", *arguments, folder=printed, env=env)
    assert process.returncode == 0, process.stderr
    return json.loads((folder / "out.json").read_text())


@pytest.mark.slow
def test_right_kernels_pass_and_wrong_ones_hear_why(outcome: dict[str, Any]) -> None:
    results = iter(outcome["results"])
    for name in FUNCTIONS:
        message, passed = next(results)
        assert not passed and "a blank is left" in message
        for _ in RIGHT[name]:
            message, passed = next(results)
            assert passed, message
        for answers, words in WRONG[name].items():
            message, passed = next(results)
            assert not passed and re.search(words, message), f"{answers}: {message}"


@pytest.mark.slow
def test_larger_tiles_read_less(outcome: dict[str, Any]) -> None:
    reads = [2 * 2 * 64 * 64 * 4, 2 * 2 * 64 * 64 * 2]
    assert outcome["tiles"] == {"read": reads, "written": [2 * 64 * 64] * 2}


def test_products_are_ranked_by_their_share_of_cublas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_timing, "time_on_gpu", lambda _: None)
    recorded = gpu_timing.leaderboard(None)
    assert recorded["product"].iloc[0] == "cuBLAS" and recorded["of_cublas"].iloc[0] == 1
    columns = ["kernel", "by", "block", "seconds", "tflop_per_s"]
    times = [("matmul", "PyTorch", None, 2.0, 0.1), ("matmul", "Triton", 64, 2.5, 0.08)]
    timed = pd.DataFrame(times, columns=columns)
    monkeypatch.setattr(gpu_timing, "time_on_gpu", lambda _: timed)
    monkeypatch.setattr(Recorder, "describe", lambda *_: {"machine": "a slow GPU"})
    board = gpu_timing.leaderboard(None).set_index(["machine", "product"])["of_cublas"]
    assert board["a slow GPU, here", "yours, tiles of 64"] == 0.8
    assert board.is_monotonic_decreasing and len(board) == len(recorded) + 2
