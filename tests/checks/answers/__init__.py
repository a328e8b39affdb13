"""What learners may write for the TODOs: silently wrong, or right but unusual.

An `Answer` is a list of edits to the solution that has its TODO, all of them filled: each key
occurs there exactly once. Those of wrong_day1, wrong_day2 and right were written without looking at
how answers are checked; each key lies inside one solution block. Unless `why` says otherwise, a
script runs to its end on a CPU.
"""

from answers import (
    compiled,
    day3,
    learning,
    memory,
    named,
    parallel,
    piped,
    restarted,
    right,
    sharded,
    shards,
    wrong_day1,
    wrong_day2,
)

OF_DAYS = (
    *(wrong_day1, wrong_day2, right, shards, day3, learning, compiled, named),
    *(memory, sharded, parallel, piped, restarted),
)
WRONG = {label: each for day in OF_DAYS for label, each in getattr(day, "WRONG", {}).items()}
RIGHT = {label: each for day in OF_DAYS for label, each in getattr(day, "RIGHT", {}).items()}

# What a processor does not show: right there, or the same as right.
UNSEEN = {
    "cuda or cpu, by name": "wrong only where an accelerator has another name",
    "watches the CPU only": "there are no kernels to miss",
    "a mean of means": "with shares that are nearly equal it is nearly right",
}
