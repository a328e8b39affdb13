"""Small updates in 16 bits."""

import pytest

from electives import rounding as lab
from electives.rounding import updates

# They depend on the 16-bit hardware of the CPU: make test-formats.
pytestmark = pytest.mark.formats


def test_each_method_keeps_updates() -> None:
    table = lab.accumulate_updates("bf16", updates=500)
    last = table.iloc[-1]
    assert last["plain"] == 1 and last["fp32 master"] == pytest.approx(1.05, abs=1e-4)
    assert last["with a carry"] == pytest.approx(1.05, abs=2**-7)
    assert last["stochastic rounding"] == pytest.approx(1.05, abs=0.03)
    assert "stochastic rounding" not in lab.accumulate_updates("fp16", updates=2)


def test_training_uses_the_learners_functions() -> None:
    table = lab.train_in_bf16(steps=60)
    assert list(table) == list(updates.METHODS) and (table.iloc[0] == table.iloc[0, 0]).all()
    never = lab.train_in_bf16(
        steps=60,
        add=lambda total, carry, update: (total, carry),
        round_to_bf16=lambda number, _: number.bfloat16(),
    )
    assert never["with a carry"].iloc[-1] > table["with a carry"].iloc[-1]
    assert never["fp32 master"].equals(table["fp32 master"])


def test_figures_describe_what_they_draw() -> None:
    tables = {"bf16": lab.accumulate_updates("bf16", updates=5)}
    assert "plain: from 1 to 1" in lab.plot_weights(tables, "updates of 0.0001", "weight").alt
    products = lab.load_products("nvidia-h100")
    alt = lab.plot_fp8_speedup(products).alt
    assert "ViT-B, 256 images: 768 → 3,072: 1.57" in alt and "width 4,096: " in alt
    steps = lab.load_training_steps("nvidia-h100")["ms"]
    assert steps.idxmin() == "bf16" and steps.idxmax() == "fp8, rowwise"
