"""The Tensor Core report: which operators could use them, which did, and what the rest cost.

The verdict about a kernel is `rules.classify`'s, which only reads the kernel's name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pandas as pd

from course.analysis.traces import tables
from course.analysis.traces.tables import LAYOUT, Trace, onednn, onednn_summary
from course.analysis.traces.tensor_cores.rules import (
    NOT,
    UNKNOWN,
    USED,
    Verdict,
    classify,
    labelled,
    score,
)
from course.text import wrap_text

if TYPE_CHECKING:
    from course.runs.run import Run

__all__ = [
    "Verdict",
    "classify",
    "describe",
    "labelled",
    "kernels_of_run",
    "score",
    "tensor_core_kernels",
    "tensor_core_report",
    "tensor_core_summary",
]

# Operators that are a matrix product inside, by whatever library: Tensor Cores could do them.
PRODUCT = re.compile(
    r"::_?(\w+_)?conv(?!ert)\w*|::(\w+_)?(linear|b?mm|addb?mm|baddbmm|matmul|einsum|bilinear)(_\w+)?$"
    r"|attention|_attn_|::_?(\w+_)?(lstm|gru|rnn)(_\w+)?$|ConvolutionBackward|MmBackward"
)
INTERPOLATION = re.compile(r"upsample|interpolate|im2col|depthwise")  # the words, but no product
TYPES = {
    "c10::Half": "fp16",
    "c10::BFloat16": "bf16",
    "float": "fp32",
    "double": "fp64",
    "signed char": "int8",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
}
# The types that a GPU's Tensor Cores take, by its name; fp32 is taken as TF32, where that is on.
UNITS = (
    (r"\b[KMP]\d{1,4}\b|GTX|capability [2-6]\.", ()),
    (r"V100|TITAN V\b|GV100|capability 7\.[02]", ("fp16",)),
    (r"\bT4\b|RTX 20\d\d|TITAN RTX|Quadro RTX|capability 7\.5", ("fp16", "int8")),
    ("", tuple(TYPES.values())),
)
NO_OPERATOR = "(none known)"


def tensor_core_kernels(source: Trace | pd.DataFrame) -> pd.DataFrame:
    """Every kernel with its verdict, by GPU time: kernel, verdict, generation, formats, count,
    seconds, share, tensor_active (its highest share of cycles by a counter, NaN without), why.
    """
    table = _kernels(source)
    table = (
        table.groupby("kernel")
        .agg(
            count=("duration_s", "size"),
            seconds=("duration_s", "sum"),
            tensor_active=("tensor_active", "max"),
        )
        .reset_index()
    )
    verdicts = [classify(name) for name in table["kernel"]]
    for column in ("verdict", "generation", "formats", "why"):
        table[column] = [getattr(verdict, column) for verdict in verdicts]
    table["share"] = table["seconds"] / table["seconds"].sum()
    table = table.sort_values("seconds", ascending=False, kind="stable").reset_index(drop=True)
    return table[
        [
            "kernel",
            "verdict",
            "generation",
            "formats",
            "count",
            "seconds",
            "share",
            "tensor_active",
            "why",
        ]
    ]


def _kernels(source: Trace | pd.DataFrame) -> pd.DataFrame:
    kernels = source.kernels if isinstance(source, Trace) else source
    missing = {"kernel", "duration_s"} - set(kernels.columns)
    if missing:
        raise ValueError(f"no column {sorted(missing)}: give a Trace, or its table `kernels`")
    defaults = {"operator": "", "tensor_active": float("nan"), "input_types": None}
    return kernels.assign(**{name: v for name, v in defaults.items() if name not in kernels})


def tensor_core_report(source: Trace | pd.DataFrame) -> pd.DataFrame:
    """Who used the Tensor Cores: one row an operator, most GPU time first. DLProf's columns.

    operator; types, of its inputs after autocast; eligible: "yes" for a matrix product or
    convolution of a type that this GPU's Tensor Cores take (fp32 as TF32), "unknown" where the
    trace has no operator; uses_tensor_cores: "used", "not", or "unknown" where no rule decides
    one of its kernels and none used them; calls; gpu_s and gpu_share; tensor_core_s, other_s and
    unknown_s, its kernels' time by verdict, layout_s the part of other_s that only rewrites
    layouts; tensor_core_share of gpu_s; kernels, tensor_core_kernels, other_kernels and
    unknown_kernels, counted by launch; and the names of each, longest first.

    Of a CPU's trace: operator, types, eligible, uses_tensor_cores, calls, cpu_s, cpu_share; the
    kernels of a CPU are in `tables.onednn`, and `describe` says both in words.

    Args:
        source: a trace, or a table with kernel and duration_s, as `Trace.kernels`.
    """
    if isinstance(source, Trace) and source.kernels.empty:
        return _cpu_report(source)
    kernels = _kernels(source)
    kernels = kernels.assign(
        verdict=[classify(name).verdict for name in kernels["kernel"]],
        operator=kernels["operator"].replace("", NO_OPERATOR),
        layout_s=kernels["duration_s"].where(kernels["kernel"].str.contains(LAYOUT), 0.0),
        types=[_types(value) for value in kernels["input_types"]],
    )
    device, calls = "", {}
    if isinstance(source, Trace):
        device, calls = source.device, _calls(source.operators)
    rows = [
        _row(name, group, device) | {"calls": calls.get(name, pd.NA)}
        for name, group in kernels.groupby("operator")
    ]
    table = pd.DataFrame(rows, columns=COLUMNS).astype({"calls": "Int64"})
    table["gpu_share"] = table["gpu_s"] / table["gpu_s"].sum()
    table = table.sort_values("gpu_s", ascending=False, kind="stable").reset_index(drop=True)
    table.attrs["device"] = device
    return table


COLUMNS = [
    "operator",
    "types",
    "eligible",
    "uses_tensor_cores",
    "calls",
    "gpu_s",
    "gpu_share",
    "tensor_core_s",
    "other_s",
    "unknown_s",
    "layout_s",
    "tensor_core_share",
    "kernels",
    "tensor_core_kernels",
    "other_kernels",
    "unknown_kernels",
    "tensor_core_names",
    "other_names",
    "unknown_names",
]
PARTS = {USED: "tensor_core", NOT: "other", UNKNOWN: "unknown"}


def _row(operator: str, kernels: pd.DataFrame, device: str) -> dict[str, Any]:
    """One operator's row, without the columns that need the others."""
    row: dict[str, Any] = {"operator": operator, "gpu_s": kernels["duration_s"].sum()}
    for part in PARTS.values():
        row |= {f"{part}_s": 0.0, f"{part}_kernels": 0, f"{part}_names": ()}
    for verdict, group in kernels.groupby("verdict"):
        seconds = group.groupby("kernel")["duration_s"].sum().sort_values(ascending=False)
        row |= {
            f"{PARTS[verdict]}_s": seconds.sum(),
            f"{PARTS[verdict]}_kernels": len(group),
            f"{PARTS[verdict]}_names": tuple(seconds.index),
        }
    times = kernels[["types", "duration_s"]].explode("types").groupby("types")["duration_s"].sum()
    types = list(times.sort_values(ascending=False).index)
    used = row["tensor_core_kernels"] > 0
    verdict = USED if used else UNKNOWN if row["unknown_kernels"] else NOT
    return row | {
        "types": ", ".join(types),
        "eligible": _eligible(operator, types, device, used),
        "uses_tensor_cores": verdict,
        "kernels": len(kernels),
        "layout_s": kernels["layout_s"].sum(),
        "tensor_core_share": row["tensor_core_s"] / row["gpu_s"] if row["gpu_s"] else 0.0,
    }


def _calls(operators: pd.DataFrame) -> pd.Series:
    """How often each operator was called; under autocast some call themselves: that is one."""
    rows = operators.sort_values("start_s")
    alike = [rows["name"], rows["thread"]]
    latest = (rows["start_s"] + rows["duration_s"]).groupby(alike).cummax()
    inside = rows["start_s"] < latest.groupby(alike).shift()
    return rows.loc[~inside, "name"].value_counts()


def _types(value: Any) -> tuple[str, ...]:
    """The types of an operator's tensors, each once: ("bf16",)."""
    found = value if isinstance(value, tuple) else ()
    return tuple(dict.fromkeys(TYPES[name] for name in found if name in TYPES))


def _eligible(operator: str, types: list[str], device: str, used: bool) -> str:
    if operator == NO_OPERATOR:
        return UNKNOWN
    takes = next(units for pattern, units in UNITS if re.search(pattern, device))
    product = PRODUCT.search(operator) and not INTERPOLATION.search(operator)
    fits = any(name in takes for name in types) if types else bool(takes)
    return "yes" if used or (product and fits) else "no"


def _cpu_report(trace: Trace) -> pd.DataFrame:
    operators = trace.operators.assign(types=[_types(v) for v in trace.operators["input_types"]])
    rows = []
    for name, group in operators.groupby("name"):
        types = list(dict.fromkeys(group["types"].explode().dropna()))
        rows.append(
            [
                name,
                ", ".join(types),
                _eligible(name, types, "", False),
                NOT,
                len(group),
                group["self_s"].sum(),
            ]
        )
    table = pd.DataFrame(rows, columns=[*COLUMNS[:5], "cpu_s"])
    table["cpu_share"] = table["cpu_s"] / table["cpu_s"].sum()
    return table.sort_values("cpu_s", ascending=False, kind="stable").reset_index(drop=True)


def tensor_core_summary(**sources: Trace | pd.DataFrame) -> pd.DataFrame:
    """Traces or reports side by side: `tensor_core_summary(fp32=trace, amp=report)`.

    Columns: name, gpu_s; and of it tensor_core_share, in kernels that used them;
    eligible_share, in other kernels of eligible operators (products on ordinary cores, and
    the helpers beside a product), layout_share, the part of it that rewrites layouts;
    not_eligible_share, in all other kernels; unknown_share, where no rule decides. All but
    layout_share add up to 1. NaN for a CPU's trace.
    """
    rows = []
    for name, source in sources.items():
        report = (
            source if "eligible" in getattr(source, "columns", ()) else (tensor_core_report(source))
        )
        rows.append({"name": name, **_summary(report)})
    return pd.DataFrame(rows)


def _summary(report: pd.DataFrame) -> dict[str, float]:
    report = report.reindex(columns=COLUMNS) if "gpu_s" not in report else report
    eligible = report["eligible"] == "yes"
    seconds = {
        "tensor_core": report["tensor_core_s"].sum(),
        "eligible": report.loc[eligible, "other_s"].sum(),
        "layout": report.loc[eligible, "layout_s"].sum(),
        "not_eligible": report.loc[~eligible, "other_s"].sum(),
        "unknown": report["unknown_s"].sum(),
    }
    total = report["gpu_s"].sum()
    shares = {f"{k}_share": v / total if total else float("nan") for k, v in seconds.items()}
    return {"gpu_s": total, **shares}


def describe(report: pd.DataFrame, cpu: pd.DataFrame | None = None) -> str:
    """The report in two sentences; of a CPU, what oneDNN ran in which type and on what units.

    Args:
        report: of `tensor_core_report`.
        cpu: of `tables.onednn`, where the run was on a CPU.
    """
    if "gpu_s" not in report:
        text = "This trace has no GPU kernel, and a CPU has no Tensor Cores."
        if cpu is None:
            return text
        found = cpu.attrs.get("isa")
        return onednn_summary(cpu) + (f" oneDNN found: {found}." if found else "")
    row = _summary(report)
    blind = NO_OPERATOR in set(report["operator"])
    return (
        f"{row['tensor_core_share']:.1%} of {row['gpu_s'] * 1e3:.1f} ms of GPU time in Tensor Core "
        f"kernels. {row['eligible_share']:.1%} in other kernels of eligible operators "
        f"({row['layout_share']:.1%} only rewrites layouts), {row['not_eligible_share']:.1%} in "
        f"all others, {row['unknown_share']:.1%} in kernels that no rule decides."
        + (" Some kernels have no known operator, and count among the others." if blind else "")
    )


def kernels_of_run(run: Run) -> pd.DataFrame:
    """The table for a run that was traced: the report; of a CPU run oneDNN's kernels instead.

    Its `attrs["text"]` says in words what it shows.

    Raises:
        ValueError: the run has no trace.
    """
    from course.training.profiling import ONEDNN_FILE

    table = tensor_core_report(tables.of_run(run))
    account = run.folder / ONEDNN_FILE
    kernels = onednn(account) if "gpu_s" not in table and account.exists() else None
    text = wrap_text(describe(table, kernels))
    table = kernels if kernels is not None and len(kernels) else table
    table.attrs["text"] = text
    return table
