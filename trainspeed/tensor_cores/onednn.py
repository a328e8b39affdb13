"""Read the kernels of a CPU from oneDNN's verbose lines, and summarize them in a sentence."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pandas as pd

from trainspeed.traces.reader import TraceError

KEYS = ["primitive", "kernel", "type", "pass"]
LINE = re.compile(r"^(?:onednn|dnnl|mkldnn)_verbose,")
TYPES = re.compile(r"(?:^| )(src|wei|dst|diff_src|diff_wei|diff_dst)(?:_\d)?:(\w+)")
EXPECTED = "expected onednn.csv in the folder of a CPU run with profile_steps above 0"
UNITS = {  # by a mark in a kernel's name
    "amx": "AMX tiles",
    "avx512_core_bf16": "AVX-512 bf16 units",
    "avx512_core_fp16": "AVX-512 fp16 units",
    "avx10": "AVX10",
    "avx512": "AVX-512",
    "avx2_vnni_2": "AVX2 with conversion of bf16",
    "avx2": "AVX2",
}
HALF_UNITS = {"AMX tiles", "AVX-512 bf16 units", "AVX-512 fp16 units", "AVX10"}
NO_TENSOR_CORES = "A CPU has no Tensor Cores"


def onednn(path: str | Path) -> pd.DataFrame:
    """Read oneDNN's account of a run (`course.training.profiling.onednn_log`), longest first.

    Columns: primitive (convolution), kernel (brgconv:avx512_core_amx), type (bf16, or
    f32->bf16 for a conversion), pass (backward_data), count, seconds, share of oneDNN's time.
    The table is empty if oneDNN ran nothing. Its `attrs["isa"]` is the instruction set that
    oneDNN detected.

    Raises:
        TraceError: the file is missing, or has different text.
    """
    path = Path(path)
    times: dict[tuple, list[float]] = defaultdict(list)
    isa, is_empty, has_text = "", True, False
    try:
        with path.open(errors="replace") as lines:
            for line in lines:
                has_text = has_text or bool(line.strip())
                if not LINE.match(line):
                    continue
                is_empty = False
                if row := _row(line):
                    times[tuple(row[:-1])].append(row[-1])
                elif not isa and ",cpu,isa:" in line:
                    isa = line.split("isa:")[1].strip()
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}; {EXPECTED}") from None
    if is_empty and has_text:
        raise TraceError(f"{path} has no line that begins with onednn_verbose: {EXPECTED}")
    rows = [(*key, len(seconds), sum(seconds)) for key, seconds in times.items()]
    table = pd.DataFrame(rows, columns=[*KEYS, "count", "seconds"])
    table = table.sort_values("seconds", ascending=False, ignore_index=True)
    table["share"] = table["seconds"] / table["seconds"].sum()
    table.attrs["isa"] = isa
    return table


def _row(line: str) -> list | None:
    """Parse a line `…,exec,cpu,primitive,kernel,pass,memory,attributes,auxiliary,problem,ms`."""
    fields = line.split(",")
    try:
        primitive, kernel, direction, memory = fields[fields.index("exec") + 2 :][:4]
        seconds = float(fields[-1]) / 1e3
    except ValueError:  # a line about something else, or cut off
        return None
    types = dict(TYPES.findall(memory))
    kind = types.get("src") or types.get("diff_dst") or next(iter(types.values()), "?")
    if primitive == "reorder" and types.get("dst", kind) != kind:
        kind = f"{kind}->{types['dst']}"
    return [primitive, kernel, kind, "" if direction == "undef" else direction, seconds]


def units(kernel: str) -> str:
    """Return the units that a kernel uses, by its name: "AMX tiles", "AVX2", "reference code"…"""
    if kernel.startswith("ref") or "simple" in kernel:
        return "reference code"
    return next((words for mark, words in UNITS.items() if mark in kernel), "general code")


def onednn_summary(table: pd.DataFrame) -> str:
    """Summarize a table of `onednn`: types, units, and whether half precision had units."""
    if table.empty:
        return (
            "oneDNN ran no kernel: PyTorch's own code computed everything, as it does in bf16 and "
            f"fp16 on a CPU without units for them. {NO_TENSOR_CORES}."
        )
    work = table[table["primitive"] != "reorder"]
    work = work if len(work) else table
    groups = work.assign(units=work["kernel"].map(units)).groupby(["type", "units"])["seconds"]
    seconds = groups.sum().sort_values(ascending=False)
    shares = (seconds / seconds.sum()).items()
    parts = ", ".join(f"{share:.0%} in {kind} by {unit}" for (kind, unit), share in shares)
    top = work.iloc[0]
    text = (
        f"oneDNN's time: {parts}; the longest kernel was {top.kernel} "
        f"({top.primitive}, {top.type}, {top.seconds:.2g} s in {top['count']} calls). "
    )
    half = {unit for kind, unit in seconds.index if kind in ("bf16", "f16")}
    if fast := sorted(half & HALF_UNITS):
        return f"{text}{NO_TENSOR_CORES}; {' and '.join(fast)} did their work here."
    if half:
        return f"{text}No units for half precision: it was emulated in f32. {NO_TENSOR_CORES}."
    return f"{text}No kernel of oneDNN ran in half precision. {NO_TENSOR_CORES}."
