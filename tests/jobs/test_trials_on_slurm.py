"""A search on the real Slurm: one array makes all trials; a worker that is killed loses none."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from job_helpers import (
    SCRIPTS,
    eventually,
    nothing_left,  # noqa: F401 - every test of this file ends its runs
    slurm_says,
)

from course.config import rung
from course.jobs import launch as jobs
from course.runs.run import Run, all_runs
from course.training.trials import FOLDER, open_study
from labs import day4_4_search as search

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("slurm")]
RATES = [0.01 * 1.6**power for power in range(12)]
KILLED, CANCELLED = 3, 5  # the trial whose worker is ended, and one that is ended by hand


def test_a_killed_worker_loses_no_trial_and_none_is_made_twice(runs_root: Path) -> None:
    def conduct() -> search.Search:
        config = rung("baseline", quick=True)
        script = SCRIPTS / "trial_light.py"
        return search.search(
            "grid", {"lr": RATES}, config, script=script, site="slurm", workers=5, name="many"
        )

    study = runs_root / FOLDER / "many"
    study.mkdir(parents=True)
    (study / "hold").write_text(f"{KILLED} {CANCELLED}")
    with ThreadPoolExecutor() as pool:
        conducted = pool.submit(conduct)
        eventually(lambda: _started(KILLED) and _started(CANCELLED), "both trials run", 60)
        _kill(int(_started(KILLED).started["supervisor"][0]))
        eventually(lambda: KILLED in _again(study), "its values wait for a worker", 60)
        jobs.cancel(_started(CANCELLED))  # one is free now, if all others have gone
        done = conducted.result(timeout=60)
    table = search.trials_table(done).set_index("trial")
    complete = table[table["state"] == "complete"]
    ended = table["state"].drop(complete.index)
    assert ended.to_dict() == {KILLED: "failed", CANCELLED: "cancelled"}
    left = [rate for number, rate in enumerate(RATES) if number != CANCELLED]
    assert sorted(complete["lr"]) == pytest.approx(left)  # all others, each once
    assert complete["lr"].iloc[-1] == table.loc[KILLED, "lr"]  # was taken up again, by another
    ids = [run.launched["job_id"] for run in done.runs]
    assert len({each.partition("_")[0] for each in ids}) == 1 and len(set(ids)) > 2
    array = ids[0].partition("_")[0]
    words = ("sacct", "-X", "-n", "-P", "-j", array, "-o", "State,NodeList")
    eventually(lambda: slurm_says(*words).count("COMPLETED") == 4, "accounting knows them as over")
    states, nodes = zip(*(line.split("|") for line in slurm_says(*words).splitlines()))
    assert sorted(states) == ["COMPLETED"] * 4 + ["FAILED"] and {*nodes} == {"node1", "node2"}
    again = conduct()  # finds all of it done
    assert again.folder == done.folder and len(again.runs) == len(RATES) + 1


def _started(number: int) -> Run | None:
    """The run of a trial, once it has begun."""
    found = [run for run in all_runs() if run.launched["trial"]["number"] == number]
    return found[0] if found and found[0].started else None


def _again(study: Path) -> list[int]:
    """The trials that are to be made again."""
    return [each.user_attrs.get("again") for each in open_study(study).get_trials(deepcopy=False)]


def _kill(worker: int) -> None:
    """End a worker so that it can say nothing; a cluster's cgroups would end what it started."""
    started = psutil.Process(worker).children(recursive=True)
    for process in (psutil.Process(worker), *started):
        process.kill()
