"""Report which operators could use Tensor Cores, which did, and what the rest costs.

A kernel's verdict depends on its name only (`trainspeed.tensor_cores.rules.classify`).
"""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

from trainspeed.tensor_cores.counters import labelled, read_commented  # noqa: F401
from trainspeed.tensor_cores.rules import NOT, UNKNOWN, USED, classify
from trainspeed.traces.tables import LAYOUT, Trace

# Operators that compute a matrix product, with any library: Tensor Cores could do that.
PRODUCT = re.compile(
    r"::_?(\w+_)?conv(?!ert)\w*|::(\w+_)?(linear|b?mm|addb?mm|baddbmm|matmul|einsum|bilinear)(_\w+)?$"
    r"|attention|_attn_|::_?(\w+_)?(lstm|gru|rnn)(_\w+)?$|ConvolutionBackward|MmBackward"
)
NO_PRODUCT = re.compile(r"upsample|interpolate|im2col|depthwise")  # although `PRODUCT` matches
TYPES = {
    "c10::Half": "fp16",
    "c10::BFloat16": "bf16",
    "float": "fp32",
    "double": "fp64",
    "signed char": "int8",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
}
# Input types of a GPU's Tensor Cores, by a pattern for its name; fp32 runs as TF32 if that is on.
INPUT_TYPES = (
    (r"\b[KMP]\d{1,4}\b|GTX|capability [2-6]\.", ()),
    (r"V100|TITAN V\b|GV100|capability 7\.[02]", ("fp16",)),
    (r"\bT4\b|RTX 20\d\d|TITAN RTX|Quadro RTX|capability 7\.5", ("fp16", "int8")),
    ("", tuple(TYPES.values())),
)
NO_OPERATOR = "(none known)"
NO_KERNELS = "This trace has no GPU kernel, and a CPU has no Tensor Cores."
PARTS = {USED: "tensor_core", NOT: "other", UNKNOWN: "unknown"}  # columns of a verdict's kernels


def _kernels(source: Trace | pd.DataFrame) -> pd.DataFrame:
    kernels = source.kernels if isinstance(source, Trace) else source
    if missing := {"kernel", "duration_s"} - set(kernels.columns):
        raise ValueError(f"no column {sorted(missing)}: expected a Trace, or its table `kernels`")
    defaults = {"operator": "", "input_types": None}
    return kernels.assign(**{name: v for name, v in defaults.items() if name not in kernels})


def tensor_core_report(source: Trace | pd.DataFrame) -> pd.DataFrame:
    """Report the use of Tensor Cores, one row per operator, longest first (DLProf's columns).

    operator; types, of its inputs after autocast; eligible: "yes" for a matrix product or
    convolution of a type that this GPU's Tensor Cores take (fp32 as TF32), "unknown" if the
    trace has no operator; uses_tensor_cores: "used", "not", or "unknown" if no rule decides
    one of its kernels and none used them; calls; gpu_s and gpu_share; tensor_core_s, other_s and
    unknown_s, its kernels' time by verdict, layout_s the part of other_s that only rewrites
    layouts; tensor_core_share of gpu_s.

    Args:
        source: a trace, or a table with kernel and duration_s like `Trace.kernels`.

    Raises:
        ValueError: there are no GPU kernels.
    """
    kernels = _kernels(source)
    if kernels.empty:
        raise ValueError(NO_KERNELS)
    kernels = kernels.assign(
        verdict=[classify(name).verdict for name in kernels["kernel"]],
        operator=kernels["operator"].replace("", NO_OPERATOR),
        layout_s=kernels["duration_s"].where(kernels["kernel"].str.contains(LAYOUT), 0.0),
        types=kernels["input_types"].map(_types),
    )
    device, calls = "", {}
    if isinstance(source, Trace):
        device, calls = source.device, _calls(source.operators)
    rows = [
        _operator_row(operator, group, device, calls.get(operator, pd.NA))
        for operator, group in kernels.groupby("operator")
    ]
    table = pd.DataFrame(rows).astype({"calls": "Int64"})
    table.insert(6, "gpu_share", table["gpu_s"] / table["gpu_s"].sum())
    table = table.sort_values("gpu_s", ascending=False, kind="stable", ignore_index=True)
    table.attrs["device"] = device
    return table


def _operator_row(operator: str, kernels: pd.DataFrame, device: str, calls: Any) -> dict[str, Any]:
    by_verdict = kernels.groupby("verdict")["duration_s"].sum()
    used, gpu_s = USED in by_verdict, kernels["duration_s"].sum()
    seconds = {part: by_verdict.get(verdict, 0.0) for verdict, part in PARTS.items()}
    times = kernels[["types", "duration_s"]].explode("types").groupby("types")["duration_s"].sum()
    types = list(times.sort_values(ascending=False).index)
    return {
        "operator": operator,
        "types": ", ".join(types),
        "eligible": _eligible(operator, types, device, used),
        "uses_tensor_cores": USED if used else UNKNOWN if UNKNOWN in by_verdict else NOT,
        "calls": calls,
        "gpu_s": gpu_s,
        **{f"{part}_s": value for part, value in seconds.items()},
        "layout_s": kernels["layout_s"].sum(),
        "tensor_core_share": seconds["tensor_core"] / gpu_s if gpu_s else 0.0,
    }


def _calls(operators: pd.DataFrame) -> pd.Series:
    """Count each operator's calls; under autocast some call themselves, which counts as one."""
    rows = operators.sort_values("start_s")
    keys = [rows["name"], rows["thread"]]
    latest = (rows["start_s"] + rows["duration_s"]).groupby(keys).cummax()
    is_inner = rows["start_s"] < latest.groupby(keys).shift()
    return rows.loc[~is_inner, "name"].value_counts()


def _types(value: Any) -> tuple[str, ...]:
    """Return the distinct types of an operator's tensors: ("bf16",)."""
    names = value if isinstance(value, tuple) else ()
    return tuple(dict.fromkeys(TYPES[name] for name in names if name in TYPES))


def _eligible(operator: str, types: list[str], device: str, used: bool) -> str:
    if operator == NO_OPERATOR:
        return UNKNOWN
    inputs = next(names for pattern, names in INPUT_TYPES if re.search(pattern, device))
    is_product = PRODUCT.search(operator) and not NO_PRODUCT.search(operator)
    fits = any(name in inputs for name in types) if types else bool(inputs)
    return "yes" if used or (is_product and fits) else "no"


def tensor_core_summary(**sources: Trace | pd.DataFrame) -> pd.DataFrame:
    """Compare traces or reports: `tensor_core_summary(fp32=trace, amp=report)`.

    Columns: name, gpu_s, and shares of it: tensor_core_share, in kernels that used them;
    eligible_share, in other kernels of eligible operators (products on ordinary cores, and
    their helper kernels), layout_share, the part of that which rewrites layouts;
    not_eligible_share, in all other kernels; unknown_share, where no rule decides. All but
    layout_share add up to 1.
    """
    rows = []
    for name, source in sources.items():
        is_report = isinstance(source, pd.DataFrame) and "eligible" in source
        report = source if is_report else tensor_core_report(source)
        rows.append({"name": name, **_summary(report)})
    return pd.DataFrame(rows)


def _summary(report: pd.DataFrame) -> dict[str, float]:
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
