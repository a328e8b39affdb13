"""Search the machine code of kernels for Tensor Core products: disassemble libraries, no GPU.

    python -m research.machine_code OUT.jsonl FOLDER ncu.csv     # also writes sass.csv next to it

FOLDER contains the libraries that the recorded machine used, PyTorch, cuDNN and cuBLAS, as `pip
install --no-deps --target FOLDER` leaves them: every .so below it is searched for the kernels of
ncu.csv (research/tensor_cores.py). It needs NVIDIA's cuobjdump and nvdisasm on the PATH, which are
wheels too. Kernels that are compiled while the program runs, like Triton's, are in no library.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections import Counter
from functools import partial
from importlib.metadata import distributions
from pathlib import Path

import pandas as pd

from research.sweep import as_part, sweep
from research.tensor_cores import demangled, origin, write
from trainspeed.tensor_cores.counters import read_commented

SASS_COLUMNS = ["kernel", "library", "instructions", "mma", "hfma2_mma", "constants"]
NOTES = """\
What the machine code of ncu.csv's kernels contains: those in a library, read without a GPU.
instructions  in the kernel's code
mma           which of them multiply matrices on Tensor Cores; empty: none
hfma2_mma     how many are HFMA2.MMA: two ordinary multiply-adds in fp16, which go through the
              Tensor Cores' pipe and are no product
constants     how many of these multiply 0 by 0 and add a constant: they only set a register"""
FUNCTION = re.compile(r"^\s*Function : (\S+)")
# An address, an optional predicate, then the instruction with its dots: /*00a0*/ @P0 HFMA2.MMA R1,
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")
CONSTANT = re.compile(r"HFMA2\.MMA\S* R\d+, -?RZ, -?RZ, ")  # RZ reads as 0
SETS = " of a constant"


def cuobjdump(*arguments: str | Path, folder: Path | None = None) -> str:
    """Return what cuobjdump prints; it writes files into `folder`. Without code in it: "".

    Raises:
        FileNotFoundError: cuobjdump is missing.
    """
    command = ["cuobjdump", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=900).stdout


def symbols(cubin: Path, wanted: set[str]) -> dict[str, str]:
    """Return the kernels of `wanted` in a file of machine code: the profiler's names, by symbol."""
    lines = cuobjdump("-symbols", cubin).splitlines()
    # By version: "STT_FUNC STB_GLOBAL STO_ENTRY name" or "FUNC GLOBAL DEFAULT ENTRY name".
    entry = re.compile(r"\b(?:STO_)?ENTRY\s+(\S+)$")
    entries = [match[1] for line in lines if (match := entry.search(line.rstrip()))]
    names = {symbol: demangled(symbol) for symbol in entries}
    return {symbol: name for symbol, name in names.items() if name in wanted}


def instructions(text: str) -> dict[str, Counter]:
    """Count the instructions per symbol in the output of `cuobjdump -sass`.

    Those that match `CONSTANT` are counted separately, with the suffix `SETS`.
    """
    counts: dict[str, Counter] = {}
    for line in text.splitlines():
        if function := FUNCTION.match(line):
            current = counts.setdefault(function[1], Counter())
        elif (instruction := INSTRUCTION.match(line)) and instruction[1] != "NOP":  # padding
            current[instruction[1] + SETS * bool(CONSTANT.search(line))] += 1
    return counts


def row(kernel: str, library: str, counts: Counter) -> dict:
    """Return a line of sass.csv: matrix products by instruction, and separately HFMA2.MMA."""
    first = {name.partition(".")[0] for name in counts}  # HMMA.16816.F32.BF16 is an HMMA
    hfma2 = {name: count for name, count in counts.items() if name.startswith("HFMA2.MMA")}
    return {
        "kernel": kernel,
        "library": library,
        "instructions": counts.total(),
        "mma": " ".join(sorted(name for name in first if name.endswith("MMA"))),
        "hfma2_mma": sum(hfma2.values()),
        "constants": sum(count for name, count in hfma2.items() if name.endswith(SETS)),
    }


def disassemble(file: str, arch: str, wanted: set[str]) -> list[dict]:
    """Return a line for each wanted kernel in a library's code for an architecture."""
    rows, library = [], Path(file)
    with tempfile.TemporaryDirectory() as folder:
        cuobjdump("-xelf", f".{arch}", library.resolve(), folder=Path(folder))  # sm_90a too
        for cubin in sorted(Path(folder).iterdir()):
            names = symbols(cubin, wanted)
            options = [option for symbol in names for option in ("-fun", symbol)]
            code = instructions(cuobjdump("-sass", *options, cubin)) if names else {}
            rows += [row(names[symbol], library.name, counts) for symbol, counts in code.items()]
    return rows


def unique_kernels(rows: list[dict]) -> pd.DataFrame:
    """Keep one line per kernel; SASS_COLUMNS.

    Raises:
        ValueError: copies of one kernel differ in whether they multiply matrices.
    """
    table = pd.DataFrame(rows, columns=SASS_COLUMNS)
    kinds = table["mma"].ne("").groupby(table["kernel"]).nunique()
    if (kinds > 1).any():
        raise ValueError(f"different machine code by one name: {list(kinds.index[kinds > 1])}")
    return table.drop_duplicates("kernel")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT.jsonl")
    parser.add_argument("folder", type=Path)
    parser.add_argument("counters", type=Path, metavar="ncu.csv")
    parser.add_argument("--arch", default="sm_90", help="of the recorded machine's GPU")
    arguments = parser.parse_args()
    wanted = {*read_commented(arguments.counters)["kernel"]} - {""}  # as in the line above
    plan = [{"file": str(path)} for path in sorted(arguments.folder.rglob("*.so*"))]
    known = sweep(arguments.out, plan, partial(disassemble, arch=arguments.arch, wanted=wanted))
    part = as_part(known)
    table = unique_kernels(part["rows"])
    wheels = sorted(f"{w.name} {w.version}" for w in distributions(path=[str(arguments.folder)]))
    head = [*NOTES.splitlines(), ", ".join(wheels), f"code for {arguments.arch}", *origin(part)]
    write(arguments.counters.with_name("sass.csv"), table.sort_values("kernel"), head)
    print(f"{len(table)} of {len(wanted)} kernels")


if __name__ == "__main__":
    main()
