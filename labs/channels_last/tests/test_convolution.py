"""One convolution in two layouts: timed on this machine, and as recorded on an H100."""

import pandas as pd
import pytest
import torch

from labs import channels_last as lab
from labs.channels_last import convolution

# They depend on the 16-bit hardware of the CPU: make test-formats.
pytestmark = pytest.mark.formats

CPU = torch.device("cpu")


@pytest.mark.slow
def test_convolution_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "LONGEST_S", 0.0)  # as few rounds as possible
    table = lab.convolution_times(CPU, [60, 64])
    assert list(table["channels"]) == [60, 60, 64, 64]
    assert list(table["layout"]) == ["NCHW", "NHWC"] * 2
    # Nine multiplications and additions for each pixel and pair of channels, three times.
    flop = 3 * 18 * table["channels"] ** 2 * table["image_px"] ** 2 * table["batch_size"]
    assert (flop / table["ms"] / 1e9).tolist() == pytest.approx(table["tflop_per_s"].tolist())
    (axes,) = lab.plot_convolution_times(table).axes
    assert "forward and backward, fp32, batch 4, 28" in axes.get_title(loc="left")
    with pytest.raises(ValueError, match="rows must agree in machine, precision"):
        lab.plot_convolution_times(pd.concat([table, lab.recorded_convolution("nvidia-h100")]))
