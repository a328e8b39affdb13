"""What nvidia-smi reports about the GPUs of this node, or about a recorded GPU."""

from __future__ import annotations

import subprocess

GPUS_IDLE, GPUS_BUSY, PROCESSES = "gpus_idle.csv", "gpus_busy.csv", "processes.csv"
# Columns of the two files of GPUs, and of the file of processes.
GPU_FIELDS = (
    "index",
    "name",
    "driver_version",
    "persistence_mode",
    "mig.mode.current",
    "compute_mode",
    "ecc.mode.current",
    "ecc.errors.corrected.volatile.total",
    "ecc.errors.uncorrected.volatile.total",
    "pstate",
    "clocks.sm",
    "clocks.max.sm",
    "clocks.mem",
    "clocks.max.mem",
    "temperature.gpu",
    "power.draw",
    "power.limit",
    "power.max_limit",
    "utilization.gpu",
    "memory.used",
    "memory.total",
    "clocks_event_reasons.active",
    "clocks_event_reasons.gpu_idle",
    "clocks_event_reasons.sw_power_cap",
    "clocks_event_reasons.hw_slowdown",
    "clocks_event_reasons.sw_thermal_slowdown",
)
PROCESS_FIELDS = ("pid", "process_name", "used_gpu_memory")
# A newer driver names the reasons for lower clocks like this, an older one like that.
RENAMED = ("clocks_event_reasons", "clocks_throttle_reasons")


def query(kind: str, fields: tuple[str, ...]) -> str:
    """Query fields as CSV, without those that this driver does not know.

    Args:
        kind: gpu or compute-apps.
    """
    known = []
    for field in fields:
        for name in dict.fromkeys((field, field.replace(*RENAMED))):
            if nvidia_smi(f"--query-{kind}={name}", "--format=csv"):
                known.append(name)
                break
    return nvidia_smi(f"--query-{kind}={','.join(known)}", "--format=csv")


def nvidia_smi(*options: str) -> str:
    """Return the output, or "" if nvidia-smi is missing or fails."""
    try:
        done = subprocess.run(["nvidia-smi", *options], capture_output=True, text=True)
    except OSError:
        return ""
    return "" if done.returncode else done.stdout
