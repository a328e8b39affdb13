"""Day 2's check of loading: solution, untouched exercise and mistakes, trained on real files."""

from pathlib import Path

import pytest
from check_helpers import SOLVED, TEXT, verdicts
from job_helpers import prepared, train_together

from course.config import Config, rung
from course.days.day2 import DAY2
from course.labs import exercises
from course.labs.checks import FAILED, PASSED, UNMEASURABLE, Checked, check
from course.runs.run import Run

NAME = "day2.dataloader"
WANTED = DAY2[NAME]
# Of 32 files; the crops are others in every worker, so a small step keeps the losses together.
TINY = dict(
    quick=True,
    precision="fp32",
    model="resnet18",
    data="imagenet",
    image_px=32,
    batch_size=16,
    steps=2,
    val_steps=0,
    warmup_steps=1,
    lr=0.0003,
)
# All that TODO 6 is about, none of it at PyTorch's default.
LOADING = dict(workers=2, persistent_workers=True, prefetch_factor=3, pin_memory=True)

# {name of the mistake: (part that must fail, text to replace, replacement, words of the evidence)}
MISTAKES = {
    "workers forgotten": ("mechanism", '"num_workers": cfg.workers, "persistent_workers": cfg.persistent_workers,\n               "prefetch_factor": cfg.prefetch_factor if cfg.workers else None,\n', "", "num_workers=0, and the config asks 2"),
    "pin_memory forgotten": ("mechanism", ',\n               "pin_memory": cfg.pin_memory}', "}", "pin_memory=False, and the config asks True"),
    "persistent workers forgotten": ("mechanism", ' "persistent_workers": cfg.persistent_workers,', "", "persistent_workers=False"),
    "prefetch factor of its own": ("mechanism", "cfg.prefetch_factor if", "4 if", "prefetch_factor=4, and the config asks 3"),
    "workers hard-coded": ("mechanism", '"num_workers": cfg.workers, "persistent_workers": cfg.persistent_workers,\n               "prefetch_factor": cfg.prefetch_factor if cfg.workers else None,', '"num_workers": 2, "persistent_workers": cfg.persistent_workers,\n               "prefetch_factor": cfg.prefetch_factor,', "the channels_last run has 2 workers too"),
    "prefetch without workers": ("correct", " if cfg.workers else None", "", "prefetch_factor"),
    "not handed on": ("mechanism", "val_sampler=val_sampler, **loading", "val_sampler=val_sampler", "num_workers=0"),
}  # fmt: skip
# These change the run of the step before, too; for the others the solution's serves.
MOVES_THE_STEP_BEFORE = ("workers hard-coded", "prefetch without workers")


def configs(root: Path) -> dict[str, Config]:
    tiny = {**TINY, "data_root": str(root)}
    return {"against": rung(WANTED.against, **tiny), "run": rung(WANTED.rung, **tiny, **LOADING)}


def scripts() -> dict[str, str]:
    """The texts to train: solution, untouched exercise, and the mistakes."""
    found = {"solution": SOLVED, "untouched": exercises.render(TEXT, WANTED.todo - 1)}
    for mistake, (_, old, new, _) in MISTAKES.items():
        assert SOLVED.count(old) == 1, f"{mistake}: {old!r}"
        found[mistake] = SOLVED.replace(old, new)
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_set: Path) -> Path:
    """A folder for each script and config, trained."""
    root = tmp_path_factory.mktemp("trained")
    every = [
        prepared(root / label / which, text, config)
        for label, text in scripts().items()
        for which, config in configs(tiny_set).items()
        if which == "run" or label in ("solution", *MOVES_THE_STEP_BEFORE)
    ]
    train_together(every, CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    return root


@pytest.fixture
def checked(trained: Path, runs_root: Path, narrow_model: None):
    def of(label: str) -> Checked:
        before = label if label in MOVES_THE_STEP_BEFORE else "solution"
        return check(NAME, Run(trained / label / "run"), against=Run(trained / before / "against"))

    return of


@pytest.mark.slow
def test_solution_passes_and_a_cpu_cannot_show_the_effect(checked) -> None:
    done = checked("solution")
    assert list(verdicts(done).values()) == [PASSED, PASSED, UNMEASURABLE], done
    assert "num_workers=2" in repr(done) and "the very cores" in repr(done)


@pytest.mark.slow
def test_untouched_exercise_fails_and_names_its_line(checked) -> None:
    done = checked("untouched")
    assert list(verdicts(done).values()) == [PASSED, FAILED, UNMEASURABLE], done
    (part,) = [part for part in done.parts if part.part == "mechanism"]
    assert "TODO 6 is still open" in part.evidence
    assert part.look_at.startswith("exercises/train.py, line ") and "TODO 6" in part.look_at


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda value: value.replace(" ", "-"))
def test_mistake_fails_in_the_right_part(checked, mistake: str) -> None:
    done, (part, _, _, words) = checked(mistake), MISTAKES[mistake]
    assert verdicts(done)[part] == FAILED and not done.passed, done
    assert words in repr(done), done
    if part == "mechanism":
        assert verdicts(done)["correct"] == PASSED, done
    assert any(each.look_at for each in done.parts if each.verdict == FAILED), done
