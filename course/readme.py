"""The ladder on the README, made from the recorded runs, so that no number there is typed."""

from __future__ import annotations

from pathlib import Path

from course import recordings, tensor_cores, trace
from course.config import from_dict
from course.records import Record, digits
from course.runs import PROJECT, Run

PAGE = PROJECT / "README.md"
BEGIN, END = "<!-- ladder: course readme writes it -->\n", "<!-- end of the ladder -->"
MACHINE = "nvidia-h100"
# A rung in its precision, in the order of the ladder; and the lab that teaches it.
RUNGS = {("baseline", "fp32"): "1.1", ("device", "fp32"): "1.1", ("device", "tf32"): "1.2",
         ("amp", "bf16"): "1.2", ("amp", "fp16"): "1.2", ("channels_last", "bf16"): "1.3",
         ("channels_last", "fp16"): "1.3", ("fused", "bf16"): "day 3",
         ("compile", "bf16"): "day 3"}  # fmt: skip
HEAD = ("rung", "precision", "images/s (quartiles)", "× baseline on the GPU", "peak GiB",
        "J/image", "Tensor Cores", "lab")  # fmt: skip


def write(*, check: bool = False) -> bool:
    """Write the recorded ladder into the README. Was it there, the same?

    Args:
        check: change nothing.

    Raises:
        ValueError: the README lacks the two lines between which it stands.
    """
    text = PAGE.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} needs the lines {BEGIN.strip()!r} and {END!r}")
    wanted = f"{before}{BEGIN}{table()}{END}{after}"
    if wanted != text and not check:
        PAGE.write_text(wanted, encoding="utf-8")
    return wanted == text


def table(machine: str = MACHINE) -> str:
    """The ladder of a recorded machine in Markdown, with where and when it was recorded."""
    runs = {_key(run): run for run in recordings.runs(machine) if _belongs(run)}
    first = runs["device", "fp32"].record.images_per_s
    lines = [f"| {' | '.join(HEAD)} |", f"|{'---|' * len(HEAD)}"]
    for key, lab in RUNGS.items():
        lines.append(f"| {' | '.join([*key, *_cells(runs[key].record, first, machine), lab])} |")
    saved = recordings.load(machine)
    setup = runs["device", "fp32"].config.setup
    source = (f"{saved['machine']}: ResNet-50, {setup}; {recordings.origin(saved)}, driver "
              f"{saved['driver']}, by `{saved['command']}`")  # fmt: skip
    return "\n".join([*lines, "", f"*{source}. The baseline ran on the CPU.*", ""])


def _belongs(run: Run) -> bool:
    config = run.config
    return config.batch_size == 256 and config.data == "synthetic" and _key(run) in RUNGS


def _key(run: Run) -> tuple[str, str]:
    return run.config.rung, "tf32" if run.config.tf32 else run.config.precision


def _cells(record: Record, first: float, machine: str) -> list[str]:
    spread = f"({digits(record.images_per_s_q1)} to {digits(record.images_per_s_q3)})"
    joules = f"{record.joules_per_image:.3f}" if record.joules_per_image else "–"
    return [f"{digits(record.images_per_s)} {spread}", f"{record.images_per_s / first:.2f}",
            f"{record.peak_gib:.1f}", joules, _tensor_core_share(record, machine)]  # fmt: skip


def _tensor_core_share(record: Record, machine: str) -> str:
    """The share of a traced step's GPU time in Tensor Core kernels, where one was recorded."""
    name = recordings.trace_name(from_dict(record.config))
    try:
        report = tensor_cores.tensor_core_report(trace.read(recordings.trace_path(machine, name)))
    except ValueError:
        return "–"
    return f"{report['tensor_core_s'].sum() / report['gpu_s'].sum():.0%}"


def picture() -> Path:
    """Draw the recorded ladder beside the README's table: the file."""
    from course import plots

    found = recordings.recorded(MACHINE)
    in_full = found["batch_size"].eq(256) & ~found["tf32"] & found["precision"].ne("fp16")
    shown = found[in_full & found["rung"].isin([rung for rung, _ in RUNGS])]
    path = PROJECT / "docs" / f"ladder-{MACHINE}.png"
    plots.ladder(shown).savefig(path)
    return path
