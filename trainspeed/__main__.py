"""The command `trainspeed`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from trainspeed import __doc__ as about
from trainspeed.comparison import add_compare
from trainspeed.memory_command import add_memory
from trainspeed.trial import add_try


def main(arguments: list[str] | None = None) -> int:
    """Run a command; an expected error is a message, not a traceback."""
    arguments = sys.argv[1:] if arguments is None else arguments
    own, command = arguments, []
    if "--" in arguments:
        at = arguments.index("--")
        own, command = arguments[:at], arguments[at + 1 :]
    parser = argparse.ArgumentParser("trainspeed", description=about.partition("\n")[0])
    commands = parser.add_subparsers(dest="action", required=True)
    add_profile(commands)
    add_compare(commands)
    add_try(commands)
    add_memory(commands)
    options = parser.parse_args(own)
    try:
        return options.run(options, command)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return getattr(error, "code", 0) or 2


def add_profile(commands: argparse._SubParsersAction) -> None:
    """Add `trainspeed profile`."""
    help_ = "run a training command, unchanged, and show what limits it"
    parser = commands.add_parser("profile", help=help_, usage="trainspeed profile -- COMMAND")
    parser.add_argument("--json", action="store_true", help="print values instead of the page")
    parser.add_argument("--out", type=Path, help="write page.json, page.html and the trace there")
    parser.add_argument("--stop", action="store_true", help="end the command after the page")
    parser.add_argument("--steps", type=int, default=10, help="iterations to time, at least")
    parser.add_argument("--seconds", type=float, default=2.0, help="to time, at least")
    parser.add_argument("--warm-up", type=int, default=3, help="iterations before that")
    parser.set_defaults(run=run_profile)


def run_profile(options: argparse.Namespace, command: list[str]) -> int:
    """Profile a command, print the page, and return the command's exit code."""
    from trainspeed import html, page, profile

    def show(profiles: list[profile.Profile]) -> None:
        values = page.values_of(profiles)
        out = json.dumps(values, indent=1) if options.json else page.text_of(values)
        print(out, flush=True, file=sys.stdout if options.json else sys.stderr)
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / "page.json").write_text(json.dumps(values, indent=1))
            (options.out / "page.html").write_text(html.html_of(values, profiles[0].trace))
            for profiled in profiles:
                if name := profiled.values["trace"]:
                    content = (profiled.folder / name).read_bytes()
                    (options.out / f"rank{profiled.values['rank']}.json.gz").write_bytes(content)

    return profile.profile(
        command,
        show,
        stop=options.stop,
        timed=options.steps,
        timed_s=options.seconds,
        warm_up=options.warm_up,
    )


if __name__ == "__main__":
    sys.exit(main())
