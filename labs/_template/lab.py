"""This lab's entry: what the course lists, checks and records for it."""

from course.checks.lab import FULL_SIZE, Lab, Mechanism, Recording
from course.config import rung
from course.runs.run import Run


def _evidence(run: Run) -> str:
    """Say what the run showed, for a check that passed."""
    return f"it computed in {run.config.precision}"


CHECKS = {
    # A check compares the run of the learner's script with a run of the previous rung.
    "template.amp": Mechanism(
        title="the forward pass runs under autocast",
        todo=2,  # the number of its seam in solutions/
        rung="amp",
        against="device",
        seen=_evidence,
        word="autocast",
    ),
}

LAB = Lab(
    number="T",
    title="a template",
    minutes=30,
    checks=CHECKS,
    recordings=(Recording("throughput", [rung("amp", **FULL_SIZE)]),),
    jobs="2",
    prepare="nothing",
    stuck="nothing yet",
)
