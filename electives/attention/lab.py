"""The lab's function checks, and what the course shows about the lab."""

from __future__ import annotations

from course.lab import Function, FunctionCheck, Lab


def _tiles() -> FunctionCheck:
    from electives.attention import tiles, verify

    return FunctionCheck(
        tiles.online_softmax_attention, verify.check_tiles, verify.check_tile_memory
    )


def _add_tile() -> FunctionCheck:
    from electives.attention import solutions, verify

    return FunctionCheck(solutions.add_tile, verify.check_add_tile, verify.check_kernel_traffic)


def _mask() -> FunctionCheck:
    from electives.attention import masks, verify

    return FunctionCheck(masks.in_window, verify.check_mask, verify.check_block_mask)


LAB = Lab(
    title="attention, tile by tile",
    minutes=60,
    functions={
        "attention.tiles": Function("attention from tiles of keys", _tiles),
        "attention.kernel": Function("a running softmax in Triton", _add_tile),
        "attention.mask": Function("documents and a window in one mask", _mask),
    },
    prepare="Linux: Triton is unavailable elsewhere; a C++ compiler for FlexAttention on a CPU",
    stuck="what is rescaled when the largest score grows; the last tile, which is not full",
)
