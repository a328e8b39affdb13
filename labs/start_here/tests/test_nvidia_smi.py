"""Reading nvidia-smi, with a program that answers like it, and without one."""

import os
import re
from pathlib import Path

import pytest

from labs import start_here as lab
from labs.start_here import nvidia_smi
from research.nvidia_smi import without_secrets

# The columns are in the order of the request; this old driver does not know two of the names.
PROGRAM = """#!{python}
import os, sys
kind, _, fields = sys.argv[1].partition("=") if len(sys.argv) > 1 else ("", "", "")
names = fields.split(",")
units = {{"clocks.current.sm": ("MHz", "345"), "power.draw": ("W", "71.20")}}
if any("event_reasons" in name or name == "compute_mode" for name in names):
    sys.exit("Field is not a valid field to query.")
if fields:
    print(", ".join(f"{{n}} [{{units[n][0]}}]" if units.get(n, [""])[0] else n for n in names))
    print(", ".join(" ".join(reversed(units.get(n, ("", "0")))).strip() for n in names))
else:
    print("a table")
"""


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program named nvidia-smi first on the path."""
    import sys

    program = tmp_path / "nvidia-smi"
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def test_a_gpu_of_this_node(gpu: None) -> None:
    table = lab.gpu_status()
    assert list(table.columns) == ["GPU 0 now", "recorded, idle", "recorded, busy", "meaning"]
    assert table.loc["clocks.current.sm", "GPU 0 now"] == "345 MHz"
    assert table.loc["clocks_event_reasons.gpu_idle", "GPU 0 now"] == "0"  # by its old name
    assert table["GPU 0 now"].isna().sum() == 1  # compute_mode


def test_the_recording_is_complete_and_names_no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # no GPU
    table = lab.gpu_status()
    assert list(table.columns) == ["recorded, idle", "recorded, busy", "meaning"]
    assert table.notna().all(axis=None)
    for path in nvidia_smi.RECORDED.iterdir():
        text = path.read_text()
        assert text == without_secrets(text)
        assert not re.search(r"GPU-[0-9a-f]{8}|[0-9A-Fa-f]{2}:00\.0", text)


def test_what_identifies_a_machine_is_replaced() -> None:
    text = "GPU-12345678-abcd | 00000000:1A:00.0 | /home/me/venv/bin/python 4 MiB | 45C P0 / 700W"
    clean = "GPU-(uuid) | (pci address) | python 4 MiB | 45C P0 / 700W"
    assert without_secrets(text) == clean
