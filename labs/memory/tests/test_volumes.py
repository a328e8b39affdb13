"""Memory of volumes: the lab's sum against fake tensors, and planted wrong answers."""

from math import prod

import pytest

from course import check_written
from labs.memory.figures import plot_memory_by_side
from labs.memory.volumes import activation_gib, saved_outputs, unet_memory


def messages(function) -> str:
    return repr(check_written("memory.activations", function))


def summed(numbers, bytes_each=4, unit=2**30):
    """Return an answer that sums a formula of (channels, stride, batch, side, dims)."""
    return lambda layers, *sizes: (
        sum(numbers(*layer, *sizes) for layer in layers) * (bytes_each / unit)
    )


def right(channels, stride, batch, side, dims):
    return batch * channels * (side // stride) ** dims


def test_the_solution_and_an_unusual_answer_pass() -> None:
    assert check_written("memory.activations", activation_gib).passed
    unusual = summed(
        lambda channels, stride, batch, side, dims: prod([batch, channels, *[side / stride] * dims])
    )
    assert check_written("memory.activations", unusual).passed


def test_the_untouched_exercise_fails() -> None:
    def untouched(layers, batch, side, dims):
        return ...

    assert "a blank is left" in messages(untouched)


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (summed(lambda c, s, b, side, d: c * (side // s) ** d), "the batch is not counted"),
        (summed(lambda c, s, b, side, d: b * c * side**d), "the stride is not counted"),
        (summed(lambda c, s, b, side, d: b * c * side**d / s), "shortens *each* side"),
        (summed(lambda c, s, b, side, d: b * c * (side // s) ** 2), "volumes are counted like im"),
        (summed(lambda c, s, b, side, d: b * c * (side // s) * d), "expected a power of the side"),
        (summed(right, bytes_each=1), "a number in fp32 has 4"),
        (summed(right, unit=2**20), "are MiB"),
        (summed(right, unit=1e9), "are GB"),
        (summed(right, bytes_each=2), "multiply images, channels, 4 bytes"),
        (lambda layers, *sizes: activation_gib(saved_outputs(), *sizes), "only the argument"),
    ],
)
def test_a_wrong_answer_gets_its_hint(answer, hint: str) -> None:
    assert hint in messages(answer)


def test_memory_grows_with_the_cube_of_the_side() -> None:
    for dims, factor in ((2, 4), (3, 8)):
        (small, _), (large, peak) = unet_memory(dims, 64), unet_memory(dims, 128)
        assert large / small == pytest.approx(factor, rel=0.01)
        assert peak > large
    picture = plot_memory_by_side(
        lambda side, dims: activation_gib(saved_outputs(), 1, side, dims), limit_gib=79.2
    )
    labels = [text.get_text() for text in picture.axes[0].get_legend().texts]
    assert "79.2 GiB" in labels
    (saved, peak), (plain, plain_peak) = (unet_memory(3, 64, inplace=value) for value in (1, 0))
    assert saved == plain and peak > plain_peak  # as docs/behind-the-labs.md says


def test_a_side_that_the_network_cannot_halve_is_refused() -> None:
    with pytest.raises(ValueError, match="side=100: expected a multiple of 32, at least 64"):
        unet_memory(3, 100)
