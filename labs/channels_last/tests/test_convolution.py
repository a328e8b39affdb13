"""Recorded convolutions: speed over channels."""

import pytest

from labs.channels_last.convolution import recorded_convolution


def test_recorded_convolution_is_fast_with_multiples_of_8() -> None:
    table = recorded_convolution("nvidia-h100")
    ms = table.pivot(index="channels", columns="layout", values="ms")
    # The notebook's prose, and the quiz's.
    assert ms.at[65, "NHWC"] > 3 * ms.at[64, "NHWC"]
    assert ms.at[72, "NHWC"] < min(ms.at[71, "NHWC"], ms.at[65, "NHWC"])
    assert (ms["NCHW"] / ms["NHWC"])[[56, 64, 72]].min() > 1.15
    with pytest.raises(ValueError, match="'fp8' is recorded for 'nvidia-h100': nvidia-h100 has"):
        recorded_convolution("nvidia-h100", "fp8")
