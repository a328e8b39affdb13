"""The kernels of a CPU: oneDNN's verbose lines as a table, and what they say in a sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from course.analysis.traces.reader import TraceError

COLUMNS = ["primitive", "kernel", "type", "pass", "count", "seconds", "share"]
LINE = re.compile(r"^(?:onednn|dnnl|mkldnn)_verbose,")
TYPES = re.compile(r"(?:^| )(src|wei|dst|diff_src|diff_wei|diff_dst)(?:_\d)?:(\w+)")
UNITS = {  # what a kernel's name tells of its instructions, and what they are called
    "amx": "AMX tiles",
    "avx512_core_bf16": "AVX-512 bf16 units",
    "avx512_core_fp16": "AVX-512 fp16 units",
    "avx10": "AVX10",
    "avx512": "AVX-512",
    "avx2_vnni_2": "AVX2 with conversion of bf16",
    "avx2": "AVX2",
}
HALF_UNITS = ("AMX tiles", "AVX-512 bf16 units", "AVX-512 fp16 units", "AVX10")


def onednn(path: str | Path) -> pd.DataFrame:
    """oneDNN's account of a run (`course.training.profiling.OneDnnAccount`), longest first.

    Columns: primitive (convolution), kernel (brgconv:avx512_core_amx), type (bf16, or
    f32->bf16 for a conversion), pass (backward_data), count, seconds, share of oneDNN's time.
    The table is empty where oneDNN ran nothing. Its `attrs["isa"]` is the instruction set that
    oneDNN found.

    Raises:
        TraceError: no such file, or one that holds other text.
    """
    path = Path(path)
    valid = "the file is onednn.csv in the folder of a CPU run with profile_steps above 0"
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}; {valid}") from None
    ours = [line for line in lines if LINE.match(line)]
    if not ours and any(line.strip() for line in lines):
        raise TraceError(f"{path} has no line that begins with onednn_verbose: {valid}")
    rows = [row for row in map(_row, ours) if row]
    table = pd.DataFrame(rows, columns=["primitive", "kernel", "type", "pass", "seconds"])
    keys = ["primitive", "kernel", "type", "pass"]
    table = table.groupby(keys)["seconds"].agg(["count", "sum"]).reset_index()
    table = table.rename(columns={"sum": "seconds"}).sort_values("seconds", ascending=False)
    table["share"] = table["seconds"] / table["seconds"].sum()
    table = table[COLUMNS].reset_index(drop=True)
    table.attrs["isa"] = next((ln.split("isa:")[1] for ln in ours if ",cpu,isa:" in ln), "")
    return table


def _row(line: str) -> dict[str, object] | None:
    """A line `…,exec,cpu,primitive,kernel,pass,memory,attributes,auxiliary,problem,ms`."""
    fields = line.split(",")
    try:
        primitive, kernel, direction, memory = fields[fields.index("exec") + 2 :][:4]
        seconds = float(fields[-1]) / 1e3
    except ValueError:  # a line about something else, or one that was cut
        return None
    types = dict(TYPES.findall(memory))
    kind = types.get("src") or types.get("diff_dst") or next(iter(types.values()), "?")
    if primitive == "reorder" and types.get("dst", kind) != kind:
        kind = f"{kind}->{types['dst']}"
    direction = "" if direction == "undef" else direction
    return {
        "primitive": primitive,
        "kernel": kernel,
        "type": kind,
        "pass": direction,
        "seconds": seconds,
    }


def units(kernel: str) -> str:
    """What a kernel computes with, by its name: "AMX tiles", "AVX2", "reference code", …"""
    if kernel.startswith("ref") or "simple" in kernel:
        return "reference code"
    return next((words for mark, words in UNITS.items() if mark in kernel), "general code")


def onednn_summary(table: pd.DataFrame) -> str:
    """What the table of `onednn` says: types, units, and whether half precision had any."""
    end = "A CPU has no Tensor Cores"
    if table.empty:
        return (
            "oneDNN ran no kernel: PyTorch's own code computed everything, as it does in bf16 and "
            f"fp16 on a CPU without units for them. {end}."
        )
    work = table[table["primitive"] != "reorder"]
    work = work if len(work) else table
    groups = work.assign(units=work["kernel"].map(units)).groupby(["type", "units"])["seconds"]
    seconds = groups.sum().sort_values(ascending=False)
    parts = [
        f"{share:.0%} in {kind} by {how}"
        for (kind, how), share in (seconds / seconds.sum()).items()
    ]
    top = work.iloc[0]
    text = (
        f"oneDNN's time: {', '.join(parts)}; the longest kernel was {top.kernel} "
        f"({top.primitive}, {top.type}, {top.seconds:.2g} s in {top['count']} calls). "
    )
    half = {how for kind, how in seconds.index if kind in ("bf16", "f16")}
    found = sorted(half & set(HALF_UNITS))
    if found:
        return f"{text}{end}; what stands in for them here is {' and '.join(found)}."
    if half:
        return f"{text}Half precision had no units of its own, so it was emulated in f32. {end}."
    return f"{text}No kernel of oneDNN ran in half precision. {end}."
