"""Day 2's checks of data parallelism: solution, untouched exercise and mistakes, on two ranks.

All scripts are trained for real, by two processes that meet through gloo.
"""

from pathlib import Path
from types import SimpleNamespace

import pytest
from check_helpers import SOLVED, TEXT, train_ranks, verdicts
from job_helpers import prepared

from course import days
from course.config import Config, rung
from course.days.day2 import DAY2
from course.labs import exercises
from course.labs.checks import FAILED, PASSED, UNMEASURABLE, UNTIMED, Checked, check
from course.runs.run import Run

PARALLEL = [name for name in DAY2 if DAY2[name].gpus > 1]
# 32 images to train on, 15 to validate on: each rank's share is 8 or 7, more than two batches of 4
# of one process hold.
TINY = dict(
    quick=True,
    data="imagenet",
    image_px=64,  # at 32 a narrow network's last BatchNorms see four numbers, and losses jump
    batch_size=8,
    steps=4,
    warmup_steps=1,
    val_steps=2,
    val_images=15,
    collective_timeout_s=30,
)

SAMPLER = "    sampler = DistributedSampler(sets.train, run.world_size, run.rank, seed=cfg.seed)\n"
SET_EPOCH = "        sampler.set_epoch(epoch)\n"
WRAP = """        model = DDP(model, bucket_cap_mb=cfg.bucket_mb, gradient_as_bucket_view=True,
                    find_unused_parameters=cfg.find_unused)  # fmt: skip
"""
BACKWARD = "            scaler.scale(loss).backward()\n"
VAL_SAMPLER = "    val_sampler = range(run.rank, len(sets.val), run.world_size)\n"
# check: {name of the mistake: (part that must fail, {text to replace: replacement})}
MISTAKES = {
    "day2.ranks": {
        "no process group": ("mechanism", {"        distributed.init_process_group(timeout=timedelta(seconds=cfg.collective_timeout_s))\n": ""}),
        "only on a GPU": ("mechanism", {"    if run.world_size > 1:\n        if device.type": '    if run.world_size > 1 and device.type != "cpu":\n        if device.type'}),
    },
    "day2.data_parallel": {
        "no sampler": ("mechanism", {SAMPLER: "    sampler = None\n", SET_EPOCH: ""}),
        "no wrapper": ("mechanism", {WRAP: "        pass\n"}),
        "gradients divided by the ranks too": ("mechanism", {BACKWARD: BACKWARD.replace("(loss)", "(loss / run.world_size)")}),
        "gradients summed": ("mechanism", {BACKWARD: BACKWARD.replace("(loss)", "(loss * run.world_size)")}),
        "summed by hand": ("mechanism", {WRAP: "        pass\n", BACKWARD: BACKWARD + "            if run.world_size > 1:\n                for weight in model.parameters():\n                    distributed.all_reduce(weight.grad)\n"}),
    },
}  # fmt: skip
CASES = [(name, mistake) for name in MISTAKES for mistake in MISTAKES[name]]


def config(name: str, which: str, data_root: Path) -> Config:
    """The config of a check's run, or of the one it is compared with, small."""
    wanted = DAY2[name]
    values = {**wanted.settings, **TINY, "data_root": str(data_root)}
    return rung(wanted.against if which == "against" else wanted.rung, **values)


def scripts(name: str) -> dict[str, str]:
    """The texts to train: solution, untouched exercise, and the mistakes."""
    found = {"solution": SOLVED, "untouched": exercises.render(TEXT, DAY2[name].todo - 1)}
    for mistake, (_, edits) in MISTAKES.get(name, {}).items():
        text = SOLVED
        for old, new in edits.items():
            assert text.count(old) == 1, f"{mistake}: {old!r}"
            text = text.replace(old, new)
        found[mistake] = text
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_set: Path) -> Path:
    """A folder for each check and script, trained; and what one process makes of the same."""
    root = tmp_path_factory.mktemp("trained")
    alone = config(PARALLEL[0], "against", tiny_set)
    train_ranks([prepared(root / "against", SOLVED, alone)], 1, 29500)
    every = [
        prepared(root / name / label, text, config(name, "run", tiny_set), gpus=2)
        for name in PARALLEL
        for label, text in scripts(name).items()
    ]
    train_ranks(every, 2, 29510)
    return root


@pytest.fixture
def checked(trained: Path, runs_root: Path, narrow_model: None):
    def of(name: str, label: str) -> Checked:
        return check(name, Run(trained / name / label), against=Run(trained / "against"))

    return of


@pytest.mark.slow
@pytest.mark.parametrize("name", PARALLEL)
def test_solution_passes(checked, name: str) -> None:
    done = checked(name, "solution")
    found = verdicts(done)
    assert (found["correct"], found["mechanism"]) == (PASSED, PASSED), done
    assert found["effect"] == (UNMEASURABLE if DAY2[name].timed else UNTIMED)


@pytest.mark.slow
@pytest.mark.parametrize("name", PARALLEL)
def test_untouched_exercise_fails_and_names_its_line(checked, name: str) -> None:
    done = checked(name, "untouched")
    found = verdicts(done)
    assert found["mechanism"] == FAILED
    # Several processes that join no group are refused, so that no one takes them for one run.
    assert found["correct"] == (FAILED if name == "day2.ranks" else PASSED), done
    (part,) = [part for part in done.parts if part.part == "mechanism"]
    assert part.look_at.startswith("exercises/train.py, line ")
    assert f"TODO {DAY2[name].todo}" in part.look_at


def test_what_ddp_has_and_the_config_does_not_ask_is_named() -> None:
    seen = {
        "share": 8,
        "labels": [[1]],
        "weights_sum": 1.0,
        "collectives": {"allreduce": 1},
        "gradient_norm": 1.0,
        "ddp": {"bucket_mb": 0.2999, "find_unused": False},
    }
    cfg = rung("device", batch_size=16, bucket_mb=0.3, find_unused=True)
    record = SimpleNamespace(gpus=2, evidence=seen)
    ranks = [{"evidence": seen | {"labels": [[rank]]}} for rank in (0, 1)]
    run = SimpleNamespace(record=record, config=cfg, ranks=ranks)
    (found,) = DAY2["day2.data_parallel"].faults(run, run)
    assert found == (
        "DDP has find_unused_parameters=False, and the config asks True: cfg.find_unused"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name, mistake", CASES, ids=lambda value: value.replace(" ", "-"))
def test_mistake_fails_in_the_right_part(checked, name: str, mistake: str) -> None:
    done = checked(name, mistake)
    part = MISTAKES[name][mistake][0]
    assert verdicts(done)[part] == FAILED, done
    if part == "mechanism" and name != "day2.ranks" and mistake != "no sampler":  # other images
        assert verdicts(done)["correct"] == PASSED, done
    assert any(each.look_at for each in done.parts if each.verdict == FAILED), done


def test_every_todo_of_the_script_has_a_check() -> None:
    todos = sorted(wanted.todo for wanted in days.checks().values())
    assert todos == [*range(1, exercises.count(TEXT) + 1)]


def ranks_on(*devices: tuple[str, str]) -> SimpleNamespace:
    ranks = [
        {"rank": rank, "host": host, "evidence": {"world_size": 2, "device": device}}
        for rank, (host, device) in enumerate(devices)
    ]
    return SimpleNamespace(record=SimpleNamespace(gpus=2), ranks=ranks)


@pytest.mark.parametrize("devices, said", [
    ((("a", "cuda:0"), ("a", "cuda:0")), "several ranks computed on cuda:0: take run.local_rank's"),
    ((("a", "cuda:0"), ("a", "cuda:1")), ""),
    ((("a", "cuda:0"), ("b", "cuda:0")), ""),
    ((("a", "cpu"), ("a", "cpu")), ""),
])  # fmt: skip
def test_two_ranks_on_one_device_are_noticed(devices, said: str) -> None:
    found = list(DAY2["day2.ranks"].faults(ranks_on(*devices), None))
    assert [text[: len(said)] for text in found] == ([said] if said else [])


def test_a_number_of_validation_images_that_shows_nothing_is_refused() -> None:
    record = SimpleNamespace(val_images=64, val_loss=2.3, gpus=2)
    run = SimpleNamespace(record=record, ranks=[{"rank": 0, "weights_by": [0]}])
    (found,) = DAY2["day2.once"].faults(run, run)
    assert "launch both runs with val_images=61" in found
