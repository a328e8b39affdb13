"""Run other profilers of training scripts on the scripts of own_scripts, and keep what they say.

    python -m research.rivals COPIES --out FOLDER [--way NAME] [--only SCRIPT] [--fault N]

COPIES has the scripts and their stand-in data, as `own_scripts.copy` wrote them (--copy SOURCES
writes them first). Each way of use is documented by its tool: `WAYS` has the command, and the
lines that it wants in the script (`LINES`). What is printed goes to FOLDER/rivals.txt, and a line
for each run to FOLDER/rivals.jsonl. The Python that runs this has the tools. We read the text, and
wrote what it said, and whether that is true, into own_scripts.jsonl by hand.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import trainspeed
from research.own_scripts import (
    FAULTS,
    SCRIPTS,
    Change,
    Script,
    arguments_of,
    copy,
    differences,
    environment,
)


@dataclass(frozen=True)
class Lines:
    """Where a script's step is: its file, first and last line, what numbers the steps, its loop."""

    file: str
    first: str
    last: str
    number: str
    loop: str = ""  # without a DataLoader


LINES = {
    "mnist": Lines("main.py", "data, target = data.to(device)", "optimizer.step()", "batch_idx"),
    "vae": Lines("main.py", "data = data.to(device)", "optimizer.step()", "batch_idx"),
    "bigram": Lines(
        "bigram.py", "logits, loss = model(xb", "optimizer.step()", "iter", "for iter in range(max"
    ),
    "nanogpt": Lines(
        "train.py", "for micro_step in", "optimizer.zero_grad(", "iter_num", "X, Y = get_batch("
    ),
}


def add_lines(folder: Path, at: Lines, imports: str, step: str, loader: str, batches: str) -> None:
    """Add a tool's lines to a script: imports, `with` around its step, and its batches wrapped."""
    path = folder / at.file
    text = path.read_text().replace("import torch\n", f"import torch\n{imports}\n", 1)
    if at.loop:
        made = batches.format("iter(lambda: get_batch('train'), None)")
        text = text.replace(f"\n{at.loop}", f"\nbatches = {made}\n{at.loop}", 1)
        text = text.replace("= get_batch('train')", "= next(batches)")
    lines = text.replace("enumerate(train_loader)", f"enumerate({loader})", 1).splitlines()
    first = next(n for n, line in enumerate(lines) if line.strip().startswith(at.first))
    last = next(n for n in range(first, len(lines)) if lines[n].strip().startswith(at.last))
    indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
    lines[first : last + 1] = [
        f"{indent}with {step.format(number=at.number)}:",
        *(f"    {line}" for line in lines[first : last + 1]),
    ]
    path.write_text("\n".join(lines) + "\n")


def main_function(folder: Path, arguments: list[str]) -> None:
    """Write what slowai wants: a file with a function `main` that takes no arguments."""
    (folder / "workload.py").write_text(
        f"import runpy, sys\nsys.path.insert(0, '.')\nsys.argv = {arguments!r}\n\n"
        f"def main():\n    runpy.run_path({arguments[0]!r}, run_name='__main__')\n"
    )


def traceml_lines(folder: Path, at: Lines) -> None:
    """Add the lines of traceml's README; it finds DataLoaders by itself."""
    imports = "import traceml_ai as traceml\ntraceml.init(mode='auto')"
    batches = "traceml.wrap_dataloader_fetch({})"
    add_lines(folder, at, imports, "traceml.trace_step(model)", "train_loader", batches)


def fournex_lines(folder: Path, at: Lines) -> None:
    """Add the lines that `frx init` prints, and the loader's wrapper."""
    imports = "import fournex as frx\nfrx.init(job_name='run')"
    step, loader = "frx.step_context(step={number}, model=model)", "frx.instrument_dataloader({})"
    add_lines(folder, at, imports, step, loader.format("train_loader"), f"iter({loader})")


@dataclass(frozen=True)
class Way:
    """A way to use a tool: shell commands with {python}, {arguments}, {script}, {rest}."""

    package: str
    command: str
    lines: Callable[[Path, Lines], None] | None = None
    keep: str = ""  # reports to keep, as a pattern
    default: bool = True  # not if it takes minutes


MAIN = '{{python}} -c "import sys; from {} import main; sys.exit(main())"'
SLOWAI = MAIN.format("slowai.cli")
TRACEML = (
    MAIN.format("traceml_ai.launcher.cli") + " run {script}"
    " --logs-dir logs --run-name run --no-save-training-output --args {rest}"
)
FOURNEX = (
    "{python} -m fournex collect --no-zip --run-id run -- {python} {arguments}; code=$?;"
    " {python} -m fournex analyze runs/run; exit $code"
)
WAYS = {
    "plain": Way("torch", "{python} {arguments}"),
    "trainspeed profile": Way(
        "trainspeed", "{python} -m trainspeed profile -- {python} {arguments}", default=False
    ),
    "trainspeed try": Way(
        "trainspeed", "{python} -m trainspeed try --yes -- {python} {arguments}", default=False
    ),
    "train-doctor profile": Way(
        "train-doctor",
        "{python} -m train_doctor profile --out td -- {python} {arguments}",
        keep="td/**/report.md",
    ),
    "train-doctor fix": Way(
        "train-doctor",
        "{python} -m train_doctor fix --no-card --out td -- {python} {arguments}",
        default=False,
    ),
    "traceml run": Way("traceml-ai", TRACEML),
    "traceml run, with its lines": Way("traceml-ai", TRACEML, traceml_lines),
    "frx collect": Way("fournex", FOURNEX),
    "frx collect, with its lines": Way("fournex", FOURNEX, fournex_lines),
    "frx tune": Way(
        "fournex", "{python} -m fournex tune --safe -- {python} {arguments}", default=False
    ),
    "slowai diagnose": Way("slowai", SLOWAI + " diagnose {script}"),
    "slowai diagnose, with its main": Way("slowai", SLOWAI + " diagnose workload.py"),
    "slowai fix, with its main": Way("slowai", SLOWAI + " fix workload.py", default=False),
}


def version(package: str) -> str:
    """Return a package's version; this repository's own is not installed."""
    if package == "trainspeed":
        return trainspeed.__version__
    return importlib.metadata.version(package)


def run(
    name: str, script: Script, copies: Path, arguments: list[str], options: argparse.Namespace
) -> tuple[dict, str, str]:
    """Run a way on a copy; return its row, what it printed and reported, and its output."""
    way = WAYS[name]
    with tempfile.TemporaryDirectory(prefix="own-") as temporary:
        top = script.source.partition("@")[0].split("/")[1]
        shutil.copytree(copies / top, Path(temporary, top))
        folder = Path(temporary, top, script.folder)
        if options.fault is not None:
            change: Change = FAULTS[script.name][options.fault][0]
            for file, old, new in change.edits:
                path = folder / file
                path.write_text(path.read_text().replace(old, new))
        if way.lines:
            way.lines(folder, LINES[script.name])
        main_function(folder, arguments)
        command = way.command.format(
            python=sys.executable,
            arguments=" ".join(arguments),
            script=arguments[0],
            rest=" ".join(arguments[1:]),
        )
        begin = time.perf_counter()
        with subprocess.Popen(
            ["timeout", "-s", "INT", "-k", "10", str(options.timeout), "bash", "-c", command],
            cwd=folder,
            env=environment(script) | {"NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as child:
            try:
                out, err = child.communicate(timeout=options.timeout + 20)
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGKILL)
                out, err = "", "killed"
        seconds = time.perf_counter() - begin
        kept = [path.read_text() for path in sorted(folder.glob(way.keep))] if way.keep else []
    row = {
        "step": "rival",
        "tool": way.package,
        "version": version(way.package),
        "script": script.name,
        "planted": FAULTS[script.name][options.fault][0].title if options.fault is not None else "",
        "way": name,
        "command": command.replace(sys.executable, "python"),
        "seconds": round(seconds, 1),
        "code": child.returncode,
    }
    return row, "\n".join([out, "--- stderr", err, *kept]).replace(temporary, "…"), out


def main() -> None:
    """Run the ways on the scripts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("copies", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--copy", type=Path, metavar="SOURCES", help="copy the scripts from there")
    parser.add_argument("--way", action="append", choices=WAYS)
    parser.add_argument("--only", action="append", choices=LINES)
    parser.add_argument("--fault", type=int, help="number of a fault to plant")
    parser.add_argument("--gpu", action="store_true", help="on a GPU")
    parser.add_argument("--timeout", type=int, default=240, metavar="S", help="of one run")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for script in SCRIPTS:
        if script.name not in (options.only or LINES):
            continue
        if options.copy:
            copy(script, options.copy, options.copies)
            continue
        # Most tools speak when a script ends.
        arguments = [word.replace("=2000", "=250") for word in arguments_of(script)]
        plain = ""
        for name in options.way or [name for name, way in WAYS.items() if way.default]:
            row, text, out = run(name, script, options.copies, arguments, options)
            plain = out if name == "plain" else plain
            row["missing"] = [line for line in differences(plain, out) if line[0] == "-"]
            print(json.dumps(row), flush=True)
            with (options.out / "rivals.txt").open("a") as file:
                print(f"\n{'=' * 30} {row}\n{text}", file=file)
            with (options.out / "rivals.jsonl").open("a") as file:
                print(json.dumps(row), file=file)


if __name__ == "__main__":
    main()
