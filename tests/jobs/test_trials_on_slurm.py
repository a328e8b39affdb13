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
from course.runs.run import all_runs
from course.topics import search
from course.training.trials import FOLDER

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("slurm")]
RATES = [0.01 * 1.6**power for power in range(12)]
KILLED = 3  # the trial whose worker is ended


def test_a_killed_worker_loses_no_trial_and_none_is_made_twice(runs_root: Path) -> None:
    def conduct() -> search.Search:
        config = rung("baseline", quick=True)
        script = SCRIPTS / "trial_light.py"
        return search.search(
            "grid", {"lr": RATES}, config, script=script, site="slurm", workers=8, name="many"
        )

    study = runs_root / FOLDER / "many"
    study.mkdir(parents=True)
    (study / "hold").write_text(str(KILLED))
    with ThreadPoolExecutor() as pool:
        conducted = pool.submit(conduct)
        eventually(lambda: _worker(), "the trial's worker runs", 60)
        _kill(_worker())
        done = conducted.result(timeout=60)
    table = search.trials(done).set_index("trial")
    complete = table[table["state"] == "complete"]
    assert sorted(complete["lr"]) == pytest.approx(RATES)  # all of them, each once
    (killed,) = table.index.difference(complete.index)
    assert killed == KILLED and table.loc[killed, "state"] == "failed"
    assert complete["lr"].iloc[-1] == table.loc[killed, "lr"]  # was taken up again, by another
    jobs = [run.launched["job_id"] for run in done.runs]
    assert len({job.partition("_")[0] for job in jobs}) == 1 and len(set(jobs)) == 8
    array = jobs[0].partition("_")[0]
    words = ("sacct", "-X", "-n", "-P", "-j", array, "-o", "State,NodeList")
    eventually(lambda: slurm_says(*words).count("COMPLETED") == 7, "accounting knows them as over")
    states, nodes = zip(*(line.split("|") for line in slurm_says(*words).splitlines()))
    assert sorted(states) == ["COMPLETED"] * 7 + ["FAILED"] and {*nodes} == {"node1", "node2"}
    again = conduct()  # finds all of it done
    assert again.folder == done.folder and len(again.runs) == len(RATES) + 1


def _worker() -> int:
    """The process that supervises the trial which is to be killed; 0 before it does."""
    for run in all_runs():
        if run.launched["trial"]["number"] == KILLED and run.started:
            return int(run.started["supervisor"][0])
    return 0


def _kill(worker: int) -> None:
    """End a worker so that it can say nothing; a cluster's cgroups would end what it started."""
    started = psutil.Process(worker).children(recursive=True)
    for process in (psutil.Process(worker), *started):
        process.kill()
