"""Example output of profilers: a few kernels in Nsight's formats."""

from collections.abc import Callable
from pathlib import Path

import pytest

from trainspeed.traces.reader import TraceError

CONV = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64"
WGRAD = "sm90_xmma_wgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc"
HEAD = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",'
    '"Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"'
)
DURATION = "gpu__time_duration.sum"
SHARE = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"


def ncu_row(number: int, name: str, metric: str, unit: str, value: str) -> str:
    cells = (
        number,
        512,
        "python",
        "127.0.0.1",
        name,
        1,
        7,
        "(128, 1, 1)",
        "(8, 1, 1)",
        0,
        "9.0",
        "Command line profiler metrics",
        metric,
        unit,
        value,
    )
    return ",".join(f'"{cell}"' for cell in cells)


def ncu_text(*rows: str) -> str:
    noise = ["==PROF== Connected to process 512 (/usr/bin/python3)", "step 1, loss 6.9"]
    return "\n".join([*noise, HEAD, *rows, "==PROF== Disconnected from process 512", ""])


def message_of(reader: Callable, path: Path) -> str:
    """Return the message of the `TraceError` that a reader raises; it must name the file."""
    with pytest.raises(TraceError) as caught:
        reader(path)
    assert path.name in str(caught.value)
    return str(caught.value)
