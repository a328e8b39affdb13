"""The command `trainspeed`."""

from __future__ import annotations

import argparse
import json
import secrets
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
    except (ValueError, OSError) as error:
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
        text = json.dumps(values, indent=1)
        shown = text if options.json else page.text_of(values)
        print(shown, flush=True, file=sys.stdout if options.json else sys.stderr)
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            write(options.out / "page.json", text.encode())
            write(options.out / "page.html", html.html_of(values, profiles[0].trace).encode())
            for profiled in profiles:
                if name := profiled.values["trace"]:
                    content = (profiled.folder / name).read_bytes()
                    write(options.out / f"rank{profiled.values['rank']}.json.gz", content)

    return profile.profile(
        command,
        show,
        stop=options.stop,
        timed=options.steps,
        timed_s=options.seconds,
        warm_up=options.warm_up,
    )


def write(path: Path, content: bytes) -> None:
    """Write a file as a new one, which replaces the old one: a link is not followed."""
    draft = path.with_name(f".{secrets.token_hex(8)}")
    try:
        with draft.open("xb") as file:
            file.write(content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
