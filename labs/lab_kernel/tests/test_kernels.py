"""Four kernels, interpreted: right ones pass, wrong ones hear why; what is moved is counted."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from job_helpers import SCRIPTS, run_forked
from written_helpers import cell_of, filled

from course.checks import discovery
from labs import lab_kernel as kernels
from labs.lab_kernel import cuda, launch
from labs.lab_kernel import gpu_timing as timed

pytest.importorskip("triton", reason="Triton is not there: PyTorch brings it on Linux alone")
FUNCTIONS = {
    "kernel.add": "add",
    "kernel.softmax": "softmax",
    "kernel.norm": "norm_relu",
    "kernel.matmul": "matmul",
}
AT, INSIDE = "tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)", "at < size"
ROW, LEAST, POWERS = (
    "tl.program_id(0) * columns",
    '-float("inf")',
    "tl.exp(numbers - tl.max(numbers, 0))",
)
PLACES = "row[:, None] * channels + channel[None, :]"
NUMBERS = "tl.load(x + at, inside)"
RESULT = f"tl.maximum({NUMBERS} * factor[None, :] + offset[None, :], 0.0)"
INNER, TOTAL = "begin + tl.arange(0, SIDE)", "tl.dot(left, right, total)"
RIGHT = {
    "kernel.add": [(AT, INSIDE), ("tl.arange(0, BLOCK) + BLOCK * tl.program_id(0)", "size > at")],
    "kernel.softmax": [(ROW, LEAST, POWERS)],
    "kernel.norm": [
        (PLACES, RESULT),
        ("channel[None, :] + channels * row[:, None]", RESULT.replace("0.0", "0")),
    ],
    "kernel.matmul": [(INNER, TOTAL), (INNER, "total + tl.dot(left, right)")],
}
WRONG = {
    "kernel.add": {
        (AT, "at < size + 1"): "reads 1 numbers that are none of its tensors', the first 1 beyond",
        (AT, "at >= 0"): "is a place wrong, or does a mask let it through",
        ("tl.arange(0, BLOCK)", INSIDE): "are NaN, or never written",
        (AT, "at < size - 1"): "1000 numbers: 1 of 1000 results are NaN, or never written",
        ("tl.program_id(0) + tl.arange(0, BLOCK)", INSIDE): "or never written",
        (AT, "at < sise"): "it raised NameError: name 'sise' is not defined",
    },
    "kernel.softmax": {
        (ROW, "0.0", POWERS): "instead of 1: what stands in the block beyond the row",
        (ROW, LEAST, "tl.exp(numbers)"): "subtract the row's largest number first",
        ("0", LEAST, POWERS): "rows of 100: 1900 of 2000 results are NaN, or never written",
        (
            "tl.program_id(0) * BLOCK",
            LEAST,
            POWERS,
        ): "is a place wrong, or does a mask let it through",
        (ROW, LEAST, f"{POWERS} + 0 * tl.load(x + row + at, inside, 0.0)"): (
            "16,000 bytes are read, and 8,000 are enough"
        ),
    },
    "kernel.norm": {
        (PLACES, RESULT.replace("tl.maximum(", "(").replace(", 0.0)", ")")): "results are negative",
        ("channel[:, None] + row[None, :]", RESULT): "it raised ValueError: .* 128 and 8",
        (
            "row[:, None] * BLOCK + channel[None, :]",
            RESULT,
        ): "is a place wrong, or does a mask let it through",
        (PLACES, f"tl.maximum(({NUMBERS} + offset[None, :]) * factor[None, :], 0.0)"): (
            "a number is scaled .before. it is shifted"
        ),
        (PLACES, f"{RESULT} + 0 * {NUMBERS}"): "bytes are read, and .* are enough",
    },
    "kernel.matmul": {
        (INNER, "tl.dot(left, right)"): "the product of the last tiles alone: add to what `total`",
        ("tl.arange(0, SIDE)", TOTAL): "is wrong: `inner` goes on with `begin`",
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
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the checks say of all answers, from one process that interprets."""
    folder = tmp_path_factory.mktemp("kernels")
    keys, cases = [], []
    for name, function in FUNCTIONS.items():
        cell = cell_of("lab_kernel", function)
        for answers in [(), *RIGHT[name], *WRONG[name]]:
            keys.append((name, answers))
            cases.append((name, function, filled(cell, *answers)))
    (folder / "cases.json").write_text(json.dumps(cases))
    (printed := folder / "printed").mkdir()
    arguments = [str(folder / "cases.json"), str(folder / "out.json"), str(folder)]
    env = os.environ | {"COURSE_RUNS": str(folder / "runs"), "OMP_NUM_THREADS": "1"}
    done = run_forked(SCRIPTS / "check_kernels.py", *arguments, folder=printed, env=env)
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "out.json").read_text())
    return found | {"told": dict(zip(keys, found["told"], strict=True))}


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
class TestAnswers:
    def test_an_untouched_cell_says_where_its_blank_is(self, name: str, found: dict) -> None:
        told = found["told"][name, ()]
        assert told["failed"] and "a blank is left" in told["said"]
        assert "ours, until yours is right" in told["said"]

    def test_right_answers_pass(self, name: str, found: dict) -> None:
        for answers in RIGHT[name]:
            assert found["told"][name, answers]["passed"], found["told"][name, answers]["said"]

    def test_wrong_answers_hear_what_is_wrong(self, name: str, found: dict) -> None:
        for answers, words in WRONG[name].items():
            told = found["told"][name, answers]
            assert told["failed"] and re.search(words, told["said"]), f"{answers}: {told['said']}"


@pytest.mark.slow
def test_larger_tiles_read_less(found: dict) -> None:
    table = pd.DataFrame(found["tiles"])
    assert table["read"].tolist() == [2 * 2 * 64 * 64 * 4, 2 * 2 * 64 * 64 * 2]
    assert table["written"].tolist() == [2 * 64 * 64] * 2
    assert table["programs"].tolist() == [16, 4] and table["dots"].tolist() == [64, 8]


@pytest.mark.slow
def test_tiles_in_another_order_are_all_computed(found: dict) -> None:
    assert found["tuned_error"] < 1e-3  # NaN, where one is left out


def test_every_check_of_the_lab_is_tried() -> None:
    (lab,) = [lab for lab in discovery.labs() if lab.name == "lab_kernel"]
    assert list(lab.functions) == list(FUNCTIONS) == list(RIGHT) == list(WRONG)


def test_blocks_hold_all() -> None:
    assert [launch.blocks(size, 256) for size in (1, 256, 257, 1000)] == [1, 1, 2, 4]
    assert [launch.power_of_two(size) for size in (1, 2, 3, 100, 128)] == [1, 2, 4, 128, 128]


def test_steps_move_more_than_one_kernel() -> None:
    apart = kernels.steps("softmax", 1000)
    assert apart[["read", "written"]].sum().tolist() == [5 * 4000, 3 * 4000]
    assert kernels.steps("norm_relu", 10, bytes_each=2)["read"].tolist() == [20, 20]
    with pytest.raises(ValueError, match="what='gelu': choose softmax or norm_relu"):
        kernels.steps("gelu", 1)


def test_pictures_say_what_they_show() -> None:
    alt = kernels.plot_grid(size=22, block=8).alt
    assert alt.endswith("program 2: 2·8 + 0 … 7: 16, 17, 18, 19, 20, 21, ✗, ✗")
    table = pd.DataFrame({"way": ["one"], "read": [2**21], "written": [2**20]})
    assert kernels.plot_moved(table).alt.endswith("read: one: 2; written: one: 1; total: one: 3")


@pytest.mark.skipif(cuda.nvcc() is None, reason="nvcc is not here")
@pytest.mark.slow
def test_the_kernel_in_cuda_compiles(tmp_path: Path) -> None:
    library = cuda.compiled(tmp_path, "-shared", "-Xcompiler=-fPIC", "-arch=sm_90")
    assert library.stat().st_size > 0
    lines = "\n".join(cuda.instructions())
    assert lines.count("ld.global.f32") == 2 and lines.count("st.global.f32") == 1
    assert lines.count("add.f32") == 1 and "setp" in lines


def test_without_nvcc_or_gpu_it_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cuda.shutil, "which", lambda name: None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(FileNotFoundError, match="nvcc is not on the PATH"):
        cuda.compiled(tmp_path)
    assert cuda.loaded() is None and timed.on_gpu(None) is None


def test_words_of_both_languages_stand_in_their_sources() -> None:
    table = kernels.words()
    for word in ("blockIdx.x", "threadIdx.x", "blockDim.x"):
        assert word in cuda.source() and table["CUDA C++"].str.contains(word).any()


def test_what_a_gpu_measured_is_read_and_drawn() -> None:
    table = kernels.recorded("nvidia-h100")
    assert table["share"].between(0, 1.15).all() and (table["seconds"] > 0).all()
    moving, computing = table[table["flop"].isna()], table[table["flop"].notna()]
    assert moving["gb_per_s"].notna().all() and computing["tflop_per_s"].notna().all()
    assert {*computing["kernel"]} == {"matmul"}
    assert "Triton: from 0.379 to 101" in kernels.plot_adding(table).alt
    assert "rows of 1,024; ms; Triton: 0.0499" in kernels.plot_fused(table).alt
    assert "Triton, tiles of 16: from 13.7 to 20" in kernels.plot_products(table).alt
