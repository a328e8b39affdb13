"""Write what README and docs show of the recorded runs: python -m tools.pages [--check]."""

import sys

from tools.pages import readme


def main(*, check: bool) -> str:
    """Write the pages, or with `check` only look at them: in a sentence, what was found.

    Raises:
        SystemExit: `check`, and a page does not show what was recorded.
    """
    stale = ", ".join(readme.write(check=check))
    if check and stale:
        sys.exit(f"not what the recorded runs say any more: {stale}. Run: python -m tools.pages")
    return f"written: {stale}" if stale else "the pages show what was recorded"


if __name__ == "__main__":
    print(main(check="--check" in sys.argv[1:]))
