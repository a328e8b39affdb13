"""Check the lab's sharded layer on three processes: its gradients, its messages, its memory."""

from __future__ import annotations

import torch

from labs.fsdp.by_hand import (
    FULL_BYTES,
    IMAGES,
    LAYERS,
    RANKS,
    WIDTHS,
    Layer,
    Observed,
    collectives,
    observe,
    sharded_linear,
)

SEVERAL = LAYERS // 2  # full weights: gloo may release one or two late


def check_gradients(function: Layer) -> str:
    """Check that losses and gradients are those of full layers."""
    for rank, observed in enumerate(_observe(function)):
        loss, expected = observed.loss, observed.expected_loss
        assert abs(loss - expected) <= 1e-4 * expected, (
            f"rank {rank}: the loss is {loss:.4g}, expected {expected:.4g}. `forward` returns "
            f"images @ weight.T, and `gather` the rows of all ranks: are they all filled?"
        )
        for layer in reversed(range(LAYERS)):  # the order of backward
            problem = _gradient_problem(observed, layer)
            assert not problem, f"rank {rank}, gradient of layer {layer + 1} of {LAYERS}: {problem}"
    return f"{RANKS} ranks, {IMAGES} images each: losses and gradients are those of full layers"


def _gradient_problem(observed: Observed, layer: int) -> str:
    """Describe how a layer's gradient differs from that of a full layer; "" if it does not."""
    gradient, expected = observed.gradients[layer], observed.expected[layer]
    if gradient is None:
        return "`backward` returns None for the shard"
    if _is_near(gradient, expected):
        return ""
    if layer < LAYERS - 1:
        return (
            "the layers after it are right, so the gradient of their images is wrong: multiply "
            "`gradient` by the full weight"
        )
    if _is_near(gradient, RANKS * expected):
        return "it is the sum over the ranks, expected the mean: divide by their number"
    if _is_near(gradient, expected / RANKS):
        return f"it is 1/{RANKS} of the mean: divide by the number of ranks only once"
    if _is_near(gradient, observed.local[layer]) or _is_near(
        gradient, observed.local[layer] / RANKS
    ):
        return (
            "it is that of this rank's images only: `distributed.reduce_scatter_tensor` adds up "
            "the ranks' gradients"
        )
    at = (gradient - expected).abs().argmax()
    return (
        f"number {at} is {gradient.flatten()[at]:.3g}, expected {expected.flatten()[at]:.3g}: "
        f"average this rank's rows of gradient.T @ images"
    )


def check_memory(function: Layer) -> str:
    """Check which collectives each pass sends, and that gathered weights are freed."""
    observed, ours = _observe(function)[0], observe(sharded_linear)[0]
    kept, peak = (
        round((measure(observed) - measure(ours)) / FULL_BYTES) for measure in (_end, _peak)
    )
    assert kept < SEVERAL, (
        f"when backward begins, {kept} full weights are still in memory, expected none: save "
        f"`shard` for backward, not the gathered weight, and gather again there"
    )
    counts = collectives(observed)
    assert not counts["all-reduce"].any(), (
        "it sends all-reduces, which give each rank the full sum: reduce_scatter_tensor sends "
        "half as much, and gives each rank its rows"
    )
    gathers = [*counts["all-gather"]]
    assert gathers == [LAYERS, LAYERS], (
        f"all-gathers: {gathers[0]} in forward and {gathers[1]} in backward, expected {LAYERS} in "
        f"each: gather a layer's weight once per pass"
    )
    assert peak < SEVERAL, (
        f"the peak is {peak} full weights higher than necessary: is a gathered weight kept in a "
        f"global name, or on ctx?"
    )
    return (
        f"gathered once per pass, and freed after each layer; peak {_peak(observed) / 2**10:,.0f} "
        f"KiB"
    )


def _end(observed: Observed) -> int:
    """Return the bytes in use when forward ends."""
    return [size for phase, _, size in observed.points if phase == "forward"][-1]


def _peak(observed: Observed) -> int:
    return max(size for *_, size in observed.points)


def _observe(function: Layer) -> list[Observed]:
    try:
        return observe(function)
    except RuntimeError as error:
        hint = ""
        if "imed out" in str(error) or "closed by peer" in str(error):
            hint = ". Hint: do all ranks call the same collectives, in the same order?"
        if "tensor size" in str(error) or "outputShape" in str(error):
            hint = (
                f". Hint: here {RANKS} ranks have parts of weights that are not square, such as "
                f"{WIDTHS[1]} × {WIDTHS[0]}. How many rows and columns has the result?"
            )
        if "cannot be multiplied" in str(error):
            hint = (
                f". Hint: the first weight is {WIDTHS[1]} × {WIDTHS[0]}, the second {WIDTHS[0]} × "
                f"{WIDTHS[1]}. `forward` returns images @ weight.T; `backward` needs gradient @ "
                f"weight, and gradient.T @ images"
            )
        raise AssertionError(f"{error}{hint}".replace("AssertionError: ", "")) from None


def _is_near(value: torch.Tensor, expected: torch.Tensor) -> bool:
    return value.shape == expected.shape and torch.allclose(value, expected, rtol=1e-3, atol=1e-7)
