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
ANSWERS = {  # the blanks of the cell that learners write, in order
    "forward": "ctx.save_for_backward(images, shard)\n    return images @ gather(shard).T",
    "rows": "torch.empty_like(shard)",
    "scatter": "distributed.reduce_scatter_tensor(rows, gradient.T @ images)",
    "images": "gradient @ gather(shard)",
    "shard": "rows / distributed.get_world_size()",
}
SAVED = "ctx.save_for_backward(images, shard)\n    "
KEPT = f"""{SAVED}ctx.weight = gather(shard)
    return images @ ctx.weight.T"""
EMPTY = """
def gather(shard):
    return shard.new_zeros(len(shard) * distributed.get_world_size(), shard.shape[1])
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
OWN = "[distributed.get_rank()]"
WRONG = [
    ({"gather": EMPTY}, "the loss is 0, expected .* all filled"),
    ({"shard": "rows"}, "layer 6 of 6: .*sum over the ranks"),
    (
        {"scatter": f"rows.copy_((gradient.T @ images).chunk(3){OWN})", "shard": "rows"},
        "this rank's images only",
    ),
    ({"shard": "rows / 3 / 3"}, "only once"),
    ({"forward": KEPT}, "[56] full weights are still in memory, expected none: save `shard`"),
    (
        {"forward": ANSWERS["forward"].removesuffix(".T")},
        r"\(4x240 and 288x240\).*images @ weight.T",
    ),
    ({"images": "2 * gradient @ gather(shard)"}, "layer 5 of 6: the layers after it are right"),
    (
        {"forward": f"{SAVED}return images @ shard.T"},
        r"`forward` returns \(4, 96\), expected a tensor of shape \(4, 288\): .*rows of all ranks",
    ),
    (
        {
            "rows": "shard.new_empty(images.shape[1] // 3, gradient.shape[1])",
            "scatter": "distributed.reduce_scatter_tensor(rows, images.T @ gradient)",
        },
        r"gradient of `shard`, `backward` returns \(96, 240\), .* \(80, 288\): this rank's rows",
    ),
    (
        {"scatter": "distributed.reduce_scatter_tensor(rows, gradient.T @ images.flip(1))"},
        "number .* is",
    ),
    ({"images": "None"}, "their images is wrong: multiply `gradient`"),
    (
        {
            "rows": "gradient.T @ images",
            "scatter": "distributed.all_reduce(rows)",
            "shard": f"rows.chunk(3){OWN} / 3",
        },
        "which give each rank the full sum",
    ),
]
BLANK = "\0"


@pytest.fixture
def write(tmp_path: Path, runs_root: Path) -> Callable[..., Callable]:
    """Return a function that defines the lab's functions as a learner who fills the cell would."""

    def define(gather: str = "", **changes: str) -> Callable:
        blanks = filled(cell_of("fsdp", "forward"), *(ANSWERS | changes).values())
        cells = [gather or cell_of("fsdp", "gather"), blanks.replace(BLANK, "...")]
        cells.append(cell_of("fsdp", "sharded_linear"))
        return defined("\n\n".join(cells), "sharded_linear", tmp_path, IMPORTS)

    return define


def test_a_blank_is_found(write: Callable) -> None:
    for name in ANSWERS:
        (correct, *_) = check_written("fsdp.layer", write(**{name: BLANK})).parts
        assert "a blank is left" in correct.evidence


@pytest.mark.slow
def test_right_answers_pass(write: Callable) -> None:
    for functions in (write(), write(LISTS), write(FUNCTIONAL)):
        checked = check_written("fsdp.layer", functions)
        assert checked.passed and checked.function is functions, checked


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "words"), WRONG)
def test_wrong_answers_hear_what_is_wrong(
    write: Callable, changes: dict[str, str], words: str
) -> None:
    checked = check_written("fsdp.layer", write(**changes))
    text = repr(checked)
    assert checked.failed and re.search(words, text), text


@pytest.mark.slow
def test_each_way_to_keep_weights_has_its_peak() -> None:
    tables = lab.layer_timelines(by_hand.sharded_linear)
    peaks = {name: table["kib"].max() for name, table in tables.items()}
    ddp, zero2, zero3 = peaks.values()
    assert zero3 < zero2 < ddp
    assert "when backward begins" in memory.plot_timelines(tables, "KiB").alt
