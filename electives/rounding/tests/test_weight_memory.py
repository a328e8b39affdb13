"""Autocast's copies of the weights, in predicted peaks."""

import pytest

from electives.rounding.weight_memory import mlp_peaks


def test_autocast_needs_more_memory_where_weights_dominate() -> None:
    small, large = mlp_peaks(1), mlp_peaks(65536)
    # 1 GiB of weights; their copies in bf16 take half of that.
    assert small["forward, fp32"] == pytest.approx(1.0, rel=0.01)
    assert small["forward, bf16"] == pytest.approx(1.5, rel=0.01)
    assert small["step, fp32"] < small["step, bf16"]
    for part in ("forward", "step"):
        assert large[f"{part}, bf16"] < 0.8 * large[f"{part}, fp32"]
