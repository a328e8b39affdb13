"""Recorded convolutions: speed over channels, and the algorithms that kernels' names show."""

import pytest

from course.analysis import read_trace
from course.runs.recordings import trace_path
from labs import channels_last as lab
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


def test_algorithms_add_up_to_the_convolutions() -> None:
    table = lab.time_by_algorithm("nvidia-h100", "device", "channels_last")
    for rung in table:
        kernels = read_trace(trace_path("nvidia-h100", rung)).kernels
        is_convolution = kernels["operator"].str.contains("conv")
        total = 1e3 * kernels.loc[is_convolution, "duration_s"].sum()
        assert table[rung].sum() == pytest.approx(total)
        assert table.at["other", rung] < 0.02 * total
    # The notebook's prose: FFT and Winograd only in fp32.
    fewer_multiplications = table.loc[["FFT", "Winograd"]]
    assert (fewer_multiplications["device"] > 1).all()
    assert (fewer_multiplications["channels_last"] == 0).all()
