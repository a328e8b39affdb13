"""Record what nvidia-smi prints about a GPU, for the first lab: idle, then busy.

    python -m research.nvidia_smi labs/start_here/recorded_nvidia_smi

While the busy GPU is recorded, two processes use it: one multiplies matrices, and the other holds
memory and does nothing, like a notebook that someone forgot. Names of hosts and folders, serial
numbers, UUIDs and PCI addresses are replaced, and the script prints what it wrote.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import time
from pathlib import Path

from labs.start_here.nvidia_smi import GPU_FIELDS, GPUS_BUSY, GPUS_IDLE, nvidia_smi, query

IDLE_S, BUSY_S = 20, 25  # before a recording: clocks and temperature need a while to settle
GPU_PROGRAM = """
import sys, time, torch
kept = torch.ones(int(float(sys.argv[2]) * 2**30), dtype=torch.uint8, device="cuda")
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
end = time.monotonic() + 600
while time.monotonic() < end:
    if sys.argv[1] == "busy":
        for _ in range(100):
            b = a @ a
        torch.cuda.synchronize()
    else:
        time.sleep(1)
"""
SECRETS = {
    r"GPU-[0-9a-f-]{8,}": "GPU-(uuid)",
    r"MIG-[0-9a-f/-]{8,}": "MIG-(uuid)",
    r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]": "(pci address)",
    r"(?<![\w.])/(?:[^\s/,|]+/)+": "",  # the folders of a program's path
}


def main(folder: Path) -> None:
    """Write the outputs into a folder."""
    if not nvidia_smi():
        raise SystemExit("nvidia-smi is missing or fails: record on a machine with an NVIDIA GPU")
    folder.mkdir(parents=True, exist_ok=True)
    time.sleep(IDLE_S)
    _write(folder / GPUS_IDLE, query(GPU_FIELDS))
    programs = [
        subprocess.Popen([sys.executable, "-c", GPU_PROGRAM, mode, gib])
        for mode, gib in (("busy", "4"), ("holding", "20"))
    ]
    try:
        time.sleep(BUSY_S)
        _write(folder / GPUS_BUSY, query(GPU_FIELDS))
        died = [program.args[3] for program in programs if program.poll() is not None]
        if died:
            raise SystemExit(f"these programs had ended, so record again: {', '.join(died)}")
    finally:
        for program in programs:
            program.kill()
            program.wait()


def without_secrets(text: str) -> str:
    """Replace whatever identifies a machine, a card or a user's folder."""
    for pattern, word in SECRETS.items():
        text = re.sub(pattern, word, text)
    host = re.escape(platform.node().split(".")[0])
    return re.sub(rf"\b{host}(\.\S+)?", "(host)", text) if host else text


def _write(path: Path, text: str) -> None:
    path.write_text(without_secrets(text))
    print(f"== {path}\n{path.read_text()}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
