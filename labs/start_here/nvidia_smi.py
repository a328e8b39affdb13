"""What nvidia-smi reports about the GPUs of this node, and about a recorded GPU."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from io import StringIO
from pathlib import Path

import pandas as pd

RECORDED = Path(__file__).parent / "recorded_nvidia_smi"  # written by research/nvidia_smi.py
GPUS_IDLE, GPUS_BUSY = "gpus_idle.csv", "gpus_busy.csv"
# Columns of the files of GPUs, as nvidia-smi names them, and what they mean.
GPU_FIELDS = {
    "index": "its number on this node",
    "name": "the model, with its form and memory",
    "driver_version": "PyTorch needs a build that this driver can run",
    "persistence_mode": "Enabled: the driver stays loaded between jobs, so that they start faster",
    "mig.mode.current": "Enabled: the GPU is divided, and a job gets a slice of it",
    "compute_mode": "Default: several processes may use the GPU; Exclusive_Process: one at a time",
    "ecc.mode.current": "Enabled: the memory corrects flipped bits",
    "ecc.errors.corrected.volatile.total": "flipped bits since the driver was loaded: harmless",
    "ecc.errors.uncorrected.volatile.total": "above 0: report the GPU to your site",
    "pstate": "P0: full performance; a higher number: it saves power",
    "clocks.current.sm": "clock rate of the units that compute, now",
    "clocks.max.sm": "its maximum",
    "clocks.current.memory": "clock rate of the memory, now",
    "clocks.max.memory": "its maximum",
    "temperature.gpu": "in °C; GPUs slow down when they get too hot",
    "power.draw": "the power that it draws",
    "power.limit": "the power that it may draw",
    "utilization.gpu": "share of the time in which at least one kernel ran, however small",
    "memory.used": "memory in use, of all processes together",
    "memory.total": "memory that it has",
    "clocks_event_reasons.gpu_idle": "Active: clocks are low because there is no work",
    "clocks_event_reasons.sw_power_cap": "Active: clocks are lower to stay below the power limit",
    "clocks_event_reasons.hw_slowdown": "Active: the board slows the GPU down: too hot, or too "
    "little power. Report it to your site",
    "clocks_event_reasons.sw_thermal_slowdown": "Active: the driver slows it down: too hot",
}
# A newer driver names the reasons for lower clocks like this, an older one like that.
RENAMED = ("clocks_event_reasons", "clocks_throttle_reasons")


def gpu_status() -> pd.DataFrame:
    """Return what nvidia-smi reports about each GPU of this node, a row per field.

    Then about a recorded GPU, idle and busy.
    """
    columns = {}
    if nvidia_smi():
        rows = _read(query(GPU_FIELDS)).to_dict("records")
        columns = {f"GPU {row['index']} now": row for row in rows}
    for state, name in (("idle", GPUS_IDLE), ("busy", GPUS_BUSY)):
        columns[f"recorded, {state}"] = _read((RECORDED / name).read_text()).iloc[0].to_dict()
    meaning = pd.Series(GPU_FIELDS, name="meaning")
    return pd.concat([pd.DataFrame(columns, index=meaning.index), meaning], axis=1)


def _read(text: str) -> pd.DataFrame:
    """Read nvidia-smi's CSV; column names lose their units, and values keep theirs."""
    table = pd.read_csv(StringIO(text), skipinitialspace=True, dtype=str)
    names = (name.partition(" [")[0].replace(*reversed(RENAMED)) for name in table.columns)
    return table.set_axis(list(names), axis=1)


def query(fields: Iterable[str]) -> str:
    """Query fields of the GPUs as CSV, without those that this driver does not know."""
    known = []
    for field in fields:
        for name in dict.fromkeys((field, field.replace(*RENAMED))):
            if nvidia_smi(f"--query-gpu={name}", "--format=csv"):
                known.append(name)
                break
    return nvidia_smi(f"--query-gpu={','.join(known)}", "--format=csv")


def nvidia_smi(*options: str) -> str:
    """Return the output, or "" if nvidia-smi is missing or fails."""
    try:
        done = subprocess.run(["nvidia-smi", *options], capture_output=True, text=True)
    except OSError:
        return ""
    return "" if done.returncode else done.stdout
