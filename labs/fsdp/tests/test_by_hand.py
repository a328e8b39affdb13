"""The layer that learners shard by hand: right answers pass, wrong ones learn what is wrong."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from written_helpers import cell_of, defined, filled

from course.checks.functions import check_written
from labs import fsdp as lab
from labs import saving_memory as memory
from labs.fsdp import by_hand

IMPORTS = "from torch import distributed\nimport torch\n"
ANSWERS = {
    "gather": [
        "len(shard) * distributed.get_world_size(), shard.shape[1]",
        "distributed.all_gather_into_tensor(full, shard)",
    ],
    "scatter_mean": [
        "len(gradient) // ranks, gradient.shape[1]",
        "distributed.reduce_scatter_tensor(rows, gradient)",
        "rows / ranks",
    ],
    "forward": ["ctx.save_for_backward(images, shard)\n    return images @ gather(shard).T"],
    "backward": ["gradient @ gather(shard)", "scatter_mean(gradient.T @ images)"],
}
KEPT = """
def forward(ctx, images, shard):
    weight = gather(shard)
    ctx.save_for_backward(images, shard)
    ctx.weight = weight
    return images @ weight.T
"""
LISTS = """
def gather(shard):
    parts = [torch.empty_like(shard) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, shard)
    return torch.cat(parts)
"""
FUNCTIONAL = """
def gather(shard):
    from torch.distributed import _functional_collectives as functional

    return functional.wait_tensor(functional.all_gather_tensor(shard, 0, distributed.group.WORLD))
"""
WRONG = [
    ("gather", [ANSWERS["gather"][0], "full.zero_()"], "the loss is 0, expected .* all filled"),
    ("scatter_mean", [*ANSWERS["scatter_mean"][:2], "rows"], "layer 6 of 6: .*sum over the ranks"),
    (
        "scatter_mean",
        [
            ANSWERS["scatter_mean"][0],
            "rows.copy_(gradient.chunk(ranks)[distributed.get_rank()])",
            "rows",
        ],
        "this rank's images only",
    ),
    ("scatter_mean", [*ANSWERS["scatter_mean"][:2], "rows / ranks / ranks"], "only once"),
    ("forward", KEPT, "[56] full weights are still in memory, expected none: save `shard`"),
    (
        "forward",
        [ANSWERS["forward"][0].removesuffix(".T")],
        r"\(4x240 and 288x240\).*images @ weight.T",
    ),
    (
        "backward",
        ["2 * gradient @ gather(shard)", ANSWERS["backward"][1]],
        "layer 5 of 6: the layers after it are right",
    ),
    (
        "forward",
        ["ctx.save_for_backward(images, shard)\n    return images @ shard.T"],
        r"`forward` returns \(4, 96\), expected a tensor of shape \(4, 288\): .*rows of all ranks",
    ),
    (
        "backward",
        ["gradient @ gather(shard)", "scatter_mean(images.T @ gradient)"],
        r"gradient of `shard`, `backward` returns \(96, 240\), .* \(80, 288\): this rank's rows",
    ),
    (
        "backward",
        ["gradient @ gather(shard)", "scatter_mean(gradient.T @ images.flip(1))"],
        "number .* is",
    ),
    ("backward", ["None", ANSWERS["backward"][1]], "their images is wrong: multiply `gradient`"),
    (
        "scatter_mean",
        [
            ANSWERS["scatter_mean"][0],
            "distributed.all_reduce(gradient)",
            "gradient.chunk(ranks)[distributed.get_rank()] / ranks",
        ],
        "which give each rank the full sum",
    ),
]


@pytest.fixture
def write(tmp_path: Path, runs_root: Path) -> Callable[..., Callable]:
    """Return a function that defines the lab's functions as a learner who fills the cells would."""

    def define(changed: str = "", answers: list[str] | str = "", blank: str = "") -> Callable:
        cells = []
        for name, right in ANSWERS.items():
            given = answers if name == changed else right
            given = [] if name == blank else given
            cell = cell_of("fsdp", name)
            cells.append(given if isinstance(given, str) else filled(cell, *given))
        cells.append(cell_of("fsdp", "sharded_linear"))
        return defined("\n\n".join(cells), "sharded_linear", tmp_path, IMPORTS)

    return define


def test_a_blank_in_a_helper_is_found(write: Callable) -> None:
    for name in ANSWERS:
        (correct, *_) = check_written("fsdp.layer", write(blank=name)).parts
        assert "a blank is left" in correct.evidence and correct.look_at.startswith(name)


@pytest.mark.slow
def test_right_answers_pass(write: Callable) -> None:
    for functions in (write(), write("gather", LISTS), write("gather", FUNCTIONAL)):
        checked = check_written("fsdp.layer", functions)
        assert checked.passed and checked.function is functions, checked


@pytest.mark.slow
@pytest.mark.parametrize(("name", "answers", "words"), WRONG)
def test_wrong_answers_hear_what_is_wrong(
    write: Callable, name: str, answers: list[str] | str, words: str
) -> None:
    checked = check_written("fsdp.layer", write(name, answers))
    text = repr(checked)
    assert checked.failed and re.search(words, text), text


@pytest.mark.slow
def test_each_way_to_keep_weights_has_its_peak() -> None:
    tables = lab.layer_timelines(by_hand.sharded_linear)
    peaks = {name: table["kib"].max() for name, table in tables.items()}
    ddp, zero2, zero3 = peaks.values()
    assert zero3 < zero2 < ddp
    assert "when backward begins" in memory.plot_timelines(tables, "KiB").alt
