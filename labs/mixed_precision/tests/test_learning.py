"""fp16 fails without loss scaling where gradients are tiny."""

import pytest

from labs import mixed_precision as lab
from labs.mixed_precision.scaling import scaled_step

# They depend on the 16-bit hardware of the CPU: make test-formats.
pytestmark = pytest.mark.formats

PIXELS = 64 * 224 * 224


@pytest.mark.slow
def test_fp16_with_tiny_gradients_learns_only_with_a_loss_scale() -> None:
    table = lab.digit_accuracy(scaled_step, PIXELS)
    trained = table.drop(columns="scale")
    assert trained.eq(trained["fp32"], axis="index").iloc[0].all()  # same weights, same batch
    accuracy = trained.tail(20).mean()
    assert accuracy["fp16"] <= 0.2  # guessing: 0.1
    assert accuracy["fp32"] > 0.88
    assert abs(accuracy["fp16, loss scaled"] - accuracy["fp32"]) < 0.04
    ratio = (table["scale"].shift(-1) / table["scale"])[:-1]
    assert set(ratio) == {0.5, 1.0, 2.0}
    above, below = lab.plot_digit_accuracy(table, PIXELS).axes
    assert f"{PIXELS:,}" in above.get_title("left")
    assert f"{(ratio == 0.5).sum()} of 200" in below.get_legend().get_texts()[0].get_text()
