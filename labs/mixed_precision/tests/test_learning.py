"""fp16 fails without loss scaling where gradients are tiny, and only there."""

import pytest

from labs import mixed_precision as lab

# They depend on the 16-bit hardware of the CPU: make test-formats.
pytestmark = pytest.mark.formats

PIXELS = 64 * 224 * 224


@pytest.mark.slow
def test_fp16_with_tiny_gradients_learns_only_with_a_loss_scale() -> None:
    table = lab.digit_accuracy(PIXELS)
    assert table.eq(table["fp32"], axis="index").iloc[0].all()  # the same weights, the same batch
    accuracy = table.tail(20).mean()
    assert accuracy["fp16"] <= 0.2  # guessing: 0.1
    assert accuracy["fp32"] > 0.88
    assert abs(accuracy["fp16, loss scaled"] - accuracy["fp32"]) < 0.03
    assert f"{PIXELS:,}" in lab.plot_digit_accuracy(table, PIXELS).axes[0].get_title("left")


@pytest.mark.slow
def test_scale_halves_and_grows() -> None:
    table = lab.loss_scale_history(steps=40)
    ratio = (table["scale"].shift(-1) / table["scale"])[:-1]
    assert set(ratio) == {0.5, 1.0, 2.0}
    assert ((ratio == 0.5) == table["skipped"][:-1]).all()
    (axes,) = lab.plot_loss_scale(table).axes
    legend = axes.get_legend().get_texts()[1].get_text()
    assert f"({table['skipped'].sum()} of 40)" in legend
    assert not lab.loss_scale_history(steps=4, init_scale=1.0)["skipped"].any()
