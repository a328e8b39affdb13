"""IDRIS's library by its own names: what is asked for, what runs, and what must not."""

import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import nbformat
import pytest
from job_helpers import (
    CONFIG,
    SCRIPTS,
    by_fork,
    end_all_runs,
    eventually,
    expect_no_process,
    launch_running,
    prepared,
    processes_of,
    release,
    runs_root_at,
    start_python,
    warm_up,
)
from typer.testing import CliRunner

from course.cli.runs import app
from course.idr_pytools import (
    _place,
    batch,
    display_slurm_queue,
    gpu_jobs_submitter,
    instead,
    search_log,
    slurm_file_creator,
)
from course.idr_pytools.script import BatchJob, command_words, job_of_gpus, seconds
from course.jobs import launch, sites
from course.jobs.cluster import control
from course.jobs.processes import COMMAND_VARIABLE, alive
from course.runs.run import Run, all_jobs, all_runs, runs_root
from course.text import clock

TELLS = "idr_tells.py"
SLEEPS = "bash -c 'exec sleep 300'"
DEFAULTS = {
    each.name: each.default for each in inspect.signature(gpu_jobs_submitter).parameters.values()
}


@pytest.fixture(autouse=True)
def folder(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Path]:
    """The current folder, with the scripts of these tests; no process of it outlives the test."""
    root = tmp_path_factory.mktemp("jobs")
    monkeypatch.setenv("COURSE_RUNS", str(root))
    work = tmp_path / "a notebook's folder"
    work.mkdir()
    for script in SCRIPTS.glob("idr_*.py"):
        shutil.copy(script, work)
    monkeypatch.chdir(work)
    monkeypatch.setenv("COURSE_SITES", str(tmp_path / "sites.toml"))
    for name in ("COURSE_SITE", "IDRPROJ"):
        monkeypatch.delenv(name, raising=False)
    yield work
    if any(root.iterdir()):  # to look through all processes takes 10 ms and more
        end_all_runs(root)


@pytest.fixture(scope="module")
def warm() -> None:
    """A server of warm starts is there already."""
    warm_up()


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, warm: None) -> None:
    """Jobs run on this machine."""
    monkeypatch.setenv("COURSE_SITE", "local")


def job(number: str) -> Run:
    """The job of this id on this machine."""
    (found,) = (each for each in all_jobs() if each.launched["job_id"] == number)
    return found


def ended(number: str) -> str:
    """How a job of this machine ended, once it has."""
    eventually(lambda: launch.refresh(job(number)) not in ("queued", "running"), "it is over")
    return job(number).status


def tasks_of(number: str) -> int:
    """How many processes the job's script and its tasks have."""
    found = [process.environ() for process in processes_of(runs_root())]
    return sum(env.get(COMMAND_VARIABLE) == str(job(number).folder) for env in found)


def printed(number: str) -> str:
    (path,) = search_log(contains=number)
    return Path(path).read_text()


def told(number: str) -> list[dict]:
    """What the tasks of idr_tells.py told, by rank."""
    lines = [json.loads(line) for line in printed(number).splitlines() if line.startswith("{")]
    return sorted(lines, key=lambda line: int(line["SLURM_PROCID"]))


def complaints(number: str) -> str:
    (path,) = search_log(contains=number, with_err=True)["stderr"]
    return Path(path).read_text()


def made() -> set[str]:
    """Files that appeared in and beside the current folder, but for its scripts."""
    return {
        str(path.relative_to(Path.cwd().parent))
        for path in Path.cwd().parent.rglob("*")
        if not path.is_dir() and not path.name.startswith("idr_")
    }


# What is asked for


def test_the_signatures_are_those_of_the_original() -> None:
    assert {
        "srun_commands": inspect.Parameter.empty,
        "n_gpu": 1,
        "module": None,
        "singularity": None,
        "name": None,
        "n_gpu_per_task": 1,
        "time_max": "02:00:00",
        "qos": None,
        "partition": None,
        "constraint": None,
        "cpus_per_task": None,
        "exclusive": False,
        "account": None,
        "verbose": 0,
        "email": None,
        "slurm_addon": None,
        "script_addon": None,
    } == DEFAULTS
    assert list(DEFAULTS)[:4] == ["srun_commands", "n_gpu", "module", "singularity"]
    queue, search = inspect.signature(display_slurm_queue), inspect.signature(search_log)
    assert [(each.name, each.default) for each in queue.parameters.values()] == [
        ("name", None),
        ("timestep", 5),
    ]
    assert [(each.name, each.default) for each in search.parameters.values()] == [
        ("name", "*"),
        ("contains", ""),
        ("with_err", False),
    ]


def batch_job(command: str = "dlojz.py --batch-size 128", gpus: int = 1, **asked: Any) -> BatchJob:
    asked = {**DEFAULTS, **asked}
    site = _place(asked["account"], asked["partition"], asked["constraint"])
    return job_of_gpus(site, command, gpus, asked)


@pytest.fixture
def jean_zay(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Jean Zay's login node."""
    monkeypatch.setenv("IDRPROJ", "xyz")


def test_the_whole_script_for_an_a100_of_jean_zay(jean_zay: None) -> None:
    job = batch_job(
        gpus=16,
        module="pytorch-gpu/py3/1.11.0",
        account="xyz@a100",
        time_max="05:00:00",
        n_gpu_per_task=2,
        exclusive=True,
        verbose=1,
        email="me@home.org",
        qos="qos_gpu-dev",
        slurm_addon="#SBATCH --reservation=dlojz",
        script_addon="unset http_proxy",
    )
    text = job.text(job.log(datetime(2021, 2, 12, 22, 5, 9)))
    log = "slurm/log/dlojz@JZ_%j_2nodes_4tasks_2021-02-12_22.05.09"
    assert (
        text.replace(str(Path(sys.executable).parent), "BIN")
        == f"""\
#!/bin/bash
#SBATCH --job-name=dlojz
#SBATCH --output={log}.out
#SBATCH --error={log}.err
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:8
#SBATCH --cpus-per-task=16
#SBATCH --hint=nomultithread
#SBATCH --time=05:00:00
#SBATCH --qos=qos_gpu-dev
#SBATCH --partition=gpu_p5
#SBATCH --constraint=a100
#SBATCH --account=xyz@a100
#SBATCH --exclusive
#SBATCH --mail-user=me@home.org
#SBATCH --mail-type=ALL
#SBATCH --reservation=dlojz

export PATH=BIN:"$PATH"  # of the submitter; a module's comes before it
export SLURM_KILL_BAD_EXIT=1  # a task that fails ends the others
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"  # new versions of srun want it told
export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL
type module > /dev/null 2>&1 && module purge
module load arch/a100
if type module > /dev/null 2>&1; then module load pytorch-gpu/py3/1.11.0
else echo 'No module command here: went on without pytorch-gpu/py3/1.11.0'; fi
unset http_proxy

set -x
time srun python -u dlojz.py --batch-size 128
status=$?
date
exit $status
"""
    )


@pytest.mark.parametrize(
    "asked, site, gpus, shape",
    [
        ({"account": "xyz@v100"}, "jean-zay-v100", 8, (2, 4, 10)),
        ({}, "jean-zay-v100", 3, (1, 3, 10)),
        ({"partition": "gpu_p2l"}, "jean-zay-v100-octo", 8, (1, 8, 3)),
        ({"account": "xyz@a100"}, "jean-zay-a100", 8, (1, 8, 8)),
        ({"partition": "gpu_p5"}, "jean-zay-a100", 4, (1, 4, 8)),
        ({"account": "xyz@v100", "n_gpu_per_task": 4}, "jean-zay-v100", 8, (2, 1, 40)),
        ({"cpus_per_task": 5}, "jean-zay-v100", 1, (1, 1, 5)),
        ({"account": "xyz@h100"}, "jean-zay-h100", 8, (2, 4, 24)),
        ({"constraint": "h100"}, "jean-zay-h100", 2, (1, 2, 24)),
        ({"partition": "gpu_p6"}, "jean-zay-h100", 4, (1, 4, 24)),
        ({"constraint": "v100-32g"}, "jean-zay-v100", 4, (1, 4, 10)),
        ({"constraint": "v100-16g|v100-32g"}, "jean-zay-v100", 4, (1, 4, 10)),
        ({"partition": "gpu_p4"}, "jean-zay-a100-40g", 8, (1, 8, 6)),
    ],
)
def test_jean_zays_nodes(
    jean_zay: None, asked: dict, site: str, gpus: int, shape: tuple[int, int, int]
) -> None:
    job = batch_job(gpus=gpus, **asked)
    assert (job.place.name, (job.nodes, job.tasks, job.cpus)) == (site, shape)
    wanted = asked.get("partition") or sites.get(site).partition
    assert (f"--partition={wanted}" in job.text("log")) == bool(wanted)


def test_a_site_that_is_named_comes_first(
    jean_zay: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "sites.toml").write_text(
        '[ours]\nexecutor = "slurm"\ngpus_per_node = 2\nnodes = 2\naccount = "team"\nqos = "long"\n'
        'sbatch = ["time=99", "requeue"]\nsetup = ["ulimit -n 4096"]\n'
    )
    monkeypatch.setenv("COURSE_SITE", "ours")
    lines = batch_job(gpus=4, qos="short").text("log").splitlines()
    assert {
        "#SBATCH --nodes=2",
        "#SBATCH --account=team",
        "#SBATCH --qos=short",
        "ulimit -n 4096",
        "#SBATCH --requeue",
        "#SBATCH --time=02:00:00",
    } <= set(lines)
    assert not [line for line in lines if "qos=long" in line or "time=99" in line]


@pytest.mark.slow
def test_without_a_slurm_it_is_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setenv("COURSE_SLURM", str(tmp_path / "none"))
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "date"):
        (programs / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(programs))
    (number,) = gpu_jobs_submitter(TELLS)
    assert _place(None, None).name == "local"
    assert ended(number) == "ok"
    assert told(number)[0]["SLURM_JOB_ID"] == number
    monkeypatch.setenv("COURSE_SITE", "slurm")
    for call in (lambda: gpu_jobs_submitter(TELLS), display_slurm_queue):
        with pytest.raises(ValueError, match="login node, or set COURSE_SITE=local"):
            call()


@pytest.mark.parametrize(
    "asked, says",
    [
        ({"n_gpu": 6, "account": "x@v100"}, r"n?gpus?=6.*1 to 4, or a multiple of 4"),
        ({"n_gpu": 0}, "n_gpu=0: .*above 0"),
        ({"n_gpu": "4"}, "n_gpu='4'"),
        ({"n_gpu": 1.5}, "=1.5"),
        ({"n_gpu": 3, "n_gpu_per_task": 2}, "n_gpu=3 .*multiple of n_gpu_per_task=2"),
        ({"cpus_per_task": -1}, "cpus_per_task=-1"),
        ({"n_gpu": []}, "nothing to submit"),
        ({"module": "a", "singularity": "b.sif"}, "not both"),
        ({"singularity": "b.img"}, "in .sif"),
        ({"singularity": "../b.sif"}, "ends in"),
        ({"singularity": "$(touch x).sif"}, "ends in"),
        ({"module": "a; touch x"}, "module="),
        ({"module": "-h"}, "module="),
        ({"account": "a\n#SBATCH --x"}, "account=.*letters"),
        ({"qos": "a b"}, "qos="),
        ({"partition": "p\ntouch x"}, "partition"),
        ({"constraint": "a$(touch x)"}, "constraint"),
        ({"partition": "gpu_p7"}, "'gpu_p7' is none .*gpu_p5, gpu_p6"),
        ({"constraint": "b200"}, "'b200' is none .*v100-32g, a100, h100"),
        ({"account": "xyz@gh200"}, "'gh200' is none .*v100, a100, h100"),
        ({"email": "a@b\nc"}, "email="),
        ({"time_max": "1:00\ntouch x"}, "time_max="),
        ({"time_max": "soon"}, "days-hours"),
        ({"time_max": "-5"}, "time_max="),
        ({"name": 3}, "=3"),
        ({"time_max": "00:00:00"}, "above 0"),
        ({"srun_commands": []}, "nothing to submit"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_submitted(
    jean_zay: None, asked: dict, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        gpu_jobs_submitter(**{"srun_commands": TELLS, **asked})
    assert made() == set()


def test_a_later_mistake_submits_nothing_either(here: None) -> None:
    with pytest.raises(ValueError, match="quotation"):
        gpu_jobs_submitter([TELLS, 'x.py "'])
    with pytest.raises(ValueError, match=r"n_gpu=4096: this machine has .*choose 1 to \d+"):
        gpu_jobs_submitter(TELLS, [4097, 4096])
    assert made() == set()


@pytest.mark.parametrize(
    "limit, expected",
    [
        ("02:00:00", 7200),
        ("30", 1800),
        ("1:30", 90),
        ("1-0", 86400),
        ("1-2:30", 95400),
        ("0-0:0:5", 5),
        (10, 600),
        ("100:00:00", 360000),
    ],
)
def test_time_limits_are_read_as_slurm_does(limit: str, expected: int) -> None:
    assert seconds(limit) == expected


# Names and commands of people who mean no good


@pytest.mark.parametrize(
    "name",
    [
        "two words",
        "a;touch x",
        "$(touch x)",
        "`touch x`",
        "a'b",
        'a"b',
        "../up",
        "a/b",
        "..",
        ".x",
        "a[1]",
        "a\nb",
        "a@b",
        "-x",
        "a*",
        "a%j",
        "a\\b",
        "a|b",
        "é" * 81,
        "a,b",
        "a#b",
        "a\x00b",
        "漢" * 70,
    ],
)
def test_a_name_that_cannot_be_a_files_is_refused(here: None, name: str) -> None:
    with pytest.raises(ValueError, match="name="):
        gpu_jobs_submitter(TELLS, name=name)
    assert made() == set()


@pytest.mark.parametrize(
    "command, name",
    [
        ("dlojz.py --x", "dlojz"),
        ("python -u my_script.py -b 1.5", "my_script"),
        ("./a/b.c.py", "b"),
        ("$WORK/train.py", "train"),
        ("hostname", "hostname"),
        ("'a b;.py' x.py", "a_b_"),
        ("..", "job"),
    ],
)
def test_the_name_is_the_scripts(jean_zay: None, command: str, name: str) -> None:
    assert batch_job(command).name == name


@pytest.mark.parametrize(
    "command, arguments",
    [
        ("a 'b c' \"d e\"", ["a", "b c", "d e"]),
        ("a 'b; touch x'", ["a", "b; touch x"]),
        ("a '|' '>' '&' '`touch x`' '$(touch x)'", ["a", "|", ">", "&", "`touch x`", "$(touch x)"]),
        ('"a b; touch x"', ["a b; touch x"]),
        ("a b#c a~ =~/x !", ["a", "b#c", "a~", "=~/x", "!"]),
        (
            "a '~' *.x ? [0.9,0.9] '#' '{a,b}' {a:1}",
            ["a", "~", "*.x", "?", "[0.9,0.9]", "#", "{a,b}", "{a:1}"],
        ),
        ("a \\\n  --b 1 \\\n--c\\\nd", ["a", "--b", "1", "--cd"]),
        ("a 'b\\\nc' \"d\\\ne\"", ["a", "b\\\nc", "de"]),
        ("\n a b \n", ["a", "b"]),
        ('$A/x ${A}y "$A z" --o=$A', ["1 *;$B/x", "1 *;$By", "1 *;$B z", "--o=1 *;$B"]),
        ("a '$A' \\$A \"\\$A\" '\"$A\"' \"'$A'\"", ["a", "$A", "$A", "$A", '"$A"', "'1 *;$B'"]),
        ("a $NONE $ '$1' \\$\\$", ["a", "", "$", "$1", "$$"]),
        ('a "\\\\$A" "it\'s $A\'s"', ["a", "\\1 *;$B", "it's 1 *;$B's"]),
        ('a "$A"_run $A"_run" $A\'1\' "$"A', ["a", "1 *;$B_run", "1 *;$B_run", "1 *;$B1", "$A"]),
        ("a ~callbacks $A/[1]", ["a", "~callbacks", "1 *;$B/[1]"]),
        ("a 'b\nc' --d ''", ["a", "b\nc", "--d", ""]),
        ("a \\; é", ["a", ";", "é"]),
    ],
)
def test_a_command_reaches_bash_as_words(command: str, arguments: list[str]) -> None:
    line = f"printf '%s\\0' {' '.join(command_words(command))}"
    env = {"PATH": os.environ["PATH"], "A": "1 *;$B"}
    done = subprocess.run(["bash", "-c", line], env=env, capture_output=True, text=True)
    assert (done.stdout.split("\0")[:-1], done.stderr) == (arguments, "")
    assert made() == set()


@pytest.mark.parametrize(
    "command", ["", "  ", "a 'b", 'a "b', "--chdir=/ a", "a\0b", "''", None, 3]
)
def test_a_command_that_is_none_is_refused(command: object) -> None:
    with pytest.raises(ValueError, match="command"):
        command_words(command)


@pytest.mark.parametrize(
    "sign",
    [";", "|", "> out", "& x", "`x`", "$(x)", "$1", "${A:-x}", "~/x"]
    + ["$'x'", '$"x"', '"${A:-x}"', '"$$"', "$A/*.csv", '"a b"/*.csv', "~", "~+"]
    + ["# x", "{a,b}", "x{1..3}", '"$(x)"', '"`x`"', "\nb", "idr_t*.py"],
)
def test_what_would_act_in_a_shell_is_refused_and_named(sign: str) -> None:
    with pytest.raises(ValueError, match="would act in a shell.*single quotes"):
        command_words(f"a.py --x {sign}")


def test_options_of_srun_are_refused_with_the_place_for_them() -> None:
    with pytest.raises(ValueError, match="options of srun go into slurm_addon"):
        command_words("--mpi=pmix python train.py")


def test_a_hostile_command_is_one_of_arguments(here: None, tmp_path: Path) -> None:
    hostile = f"; touch {tmp_path}/2 | $(touch {tmp_path}/3) > out"
    (number,) = gpu_jobs_submitter(f"{TELLS} --x \"a b; touch {tmp_path}/1\" '{hostile}'")
    assert ended(number) == "ok"
    (task,) = told(number)
    assert task["arguments"] == ["--x", f"a b; touch {tmp_path}/1", hostile]
    assert all("/slurm/" in name for name in made())


# Logs


@pytest.fixture
def logs(folder: Path) -> Path:
    """Logs of four jobs, and files beside them that no pattern may find."""
    log = folder / "slurm" / "log"
    log.mkdir(parents=True)
    for name in (
        "a@JZ_12_1nodes_1tasks_2021-02-12_22.05.09",
        "pseudo@JZ_9_1nodes_1tasks_x",
        "a@JZ_123_2nodes_4tasks_2021-02-12_22.06.00",
        "b@JZ_7_1nodes_12tasks_2022-01-01_00.00.00",
    ):
        for suffix in (".out", ".err"):
            (log / f"{name}{suffix}").write_text("")
    (folder.parent / "secret@JZ_1_.out").write_text("")
    (log / "note.txt").write_text("")
    return log


@pytest.mark.parametrize(
    "asked, jobs",
    [
        ({}, [123, 12, 7, 9]),
        ({"name": "a"}, [123, 12]),
        ({"name": "a*"}, [123, 12]),
        ({"contains": "12"}, [12]),
        ({"contains": 12}, [12]),
        ({"contains": ["12"]}, [12]),
        ({"contains": ["7", "123"]}, [123, 7]),
        ({"contains": []}, []),
        ({"contains": "88"}, []),
        ({"contains": "2021"}, [123, 12]),
        ({"contains": "ps?udo"}, [9]),
        ({"contains": "2022"}, [7]),
        ({"contains": 2022}, []),
        ({"contains": "_1[0-2]_"}, [12]),
        ({"contains": "[!1]nodes*2021"}, [123]),
        ({"contains": "2nodes*2021-02-12"}, [123]),
        ({"contains": "1"}, [123, 12, 7, 9]),
        ({"contains": "2021-02-12_22*1node"}, []),
        ({"contains": "1node*2021-02-12_22"}, [12]),
        ({"contains": "4tasks"}, [123]),
        ({"name": "b", "contains": ["12"]}, []),
        ({"name": "[ab]"}, [123, 12, 7]),
        ({"name": "?"}, [123, 12, 7]),
        ({"name": "../../*"}, []),
        ({"contains": "../../*"}, []),
        ({"name": "*/*"}, []),
        ({"name": "/"}, []),
        ({"contains": "$(touch x)"}, []),
        ({"contains": "*" * 60 + "z"}, []),
        ({"contains": None}, []),
    ],
)
def test_logs_are_found_by_what_their_names_say(logs: Path, asked: dict, jobs: list[int]) -> None:
    found = search_log(**asked)
    assert [int(re.search(r"JZ_(\d+)_", path)[1]) for path in found] == jobs
    assert found == sorted(found) and all(Path(path).is_file() for path in found)
    both = search_log(**asked, with_err=True)
    assert both == {"stdout": found, "stderr": [path[:-3] + "err" for path in found]}
    if found:
        assert both[0] == both["stderr"][0]


def test_no_logs_are_an_empty_list() -> None:
    assert search_log() == []
    with pytest.raises(KeyError):
        search_log(with_err=True)["out"]
    assert made() == set()


# This machine


def test_a_job_for_each_pair_in_order(here: None) -> None:
    ids = gpu_jobs_submitter([f"{TELLS} a", f"{TELLS} b"], [1, 2], name="pairs")
    assert [int(number) - int(ids[0]) for number in ids] == [0, 1, 2, 3]
    assert [ended(number) for number in ids] == ["ok"] * 4
    assert [[task["arguments"] for task in told(number)] for number in ids] == [
        [["a"]],
        [["b"]],
        [["a"], ["a"]],
        [["b"], ["b"]],
    ]
    assert len(search_log("pairs", contains=ids)) == 4
    assert re.fullmatch(
        rf"\./slurm/log/pairs@JZ_{ids[2]}_1nodes_2tasks_[\d-]{{10}}_\d\d\.\d\d\.\d\d\.out",
        search_log(contains=ids[2])[0],
    )
    script = Path("slurm/pairs.slurm").read_text()
    assert script.startswith("#!/bin/bash\n#SBATCH --job-name=pairs\n")


def test_tasks_have_slurms_variables(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "77")  # of a job that the notebook itself runs in
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "77")
    (number,) = gpu_jobs_submitter(TELLS, 4, n_gpu_per_task=2, cpus_per_task=3, verbose=1)
    assert ended(number) == "ok"
    first, second = told(number)
    assert (first["SLURM_PROCID"], first["SLURM_LOCALID"]) == ("0", "0")
    expected = {
        "SLURM_PROCID": "1",
        "SLURM_LOCALID": "1",
        "SLURM_JOB_ID": number,
        "SLURM_JOBID": number,
        "SLURM_NODEID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_NPROCS": "2",
        "SLURM_NNODES": "1",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_TASKS_PER_NODE": "2",
        "SLURM_CPUS_PER_TASK": "3",
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_NODELIST": "localhost",
        "SLURMD_NODENAME": "localhost",
        "SLURM_JOB_NAME": "idr_tells",
        "SLURM_SUBMIT_DIR": os.getcwd(),
        "SLURM_GPUS_ON_NODE": "4",
        "SLURM_STEP_GPUS": "0,1,2,3",
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        "NCCL_DEBUG": "INFO",
        "python": sys.executable,
    }
    assert expected.items() <= second.items()
    assert "SLURM_ARRAY_TASK_ID" not in first


@pytest.mark.parametrize(
    "devices, seen, expected",
    [
        (8, None, "0,1"),
        (8, "5,3,1,0,2,4,6,7", "5,3"),
        (2, None, None),
        (0, None, None),
    ],
)
def test_a_job_sees_as_many_gpus_as_it_asked_for(
    monkeypatch: pytest.MonkeyPatch, devices: int, seen: str, expected: str
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if seen:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    monkeypatch.setattr(batch, "devices", lambda: devices)
    found = batch._variables("1", "x", gpus=2, tasks=2, cpus=1)
    assert found.get("CUDA_VISIBLE_DEVICES") == expected


@pytest.fixture
def for_forks(folder: Path) -> None:
    """Have forks execute what trains: each task would import PyTorch anew, under DDP for 3.5 s."""
    for name in ("idr_ddp.py", "idr_meets.py", "idr_reduces.py"):
        script = folder / name
        script.write_text(by_fork() + script.read_text())


@pytest.mark.slow
def test_a_ddp_script_with_idr_torch_trains_here(here: None, for_forks: None) -> None:
    (number,) = gpu_jobs_submitter("idr_ddp.py --steps 3", 2)
    state = ended(number)
    assert state == "ok" or aborted_at_exit(number), complaints(number)
    check_ddp(number, tasks=2, nodes=1, address="localhost")


def aborted_at_exit(number: str) -> bool:
    """Did PyTorch end a task when all was done, as it does at times with gloo's threads?

    See github.com/pytorch/pytorch/issues/190489. What the ranks said counts, which is checked.
    """
    return "terminate called without an active exception" in complaints(number)


def check_ddp(number: str, tasks: int, nodes: int, address: str) -> None:
    lines = sorted(line for line in printed(number).splitlines() if line.startswith("rank"))
    place = f"{address}:{10000 + int(number) % 20000}"
    assert lines == [
        f"rank {rank} of {tasks}, {rank % (tasks // nodes)} on a node, met at {place}, "
        f"1 kind of weights"
        for rank in range(tasks)
    ]


def test_two_processes_reduce_together(here: None, for_forks: None) -> None:
    (number,) = gpu_jobs_submitter("idr_reduces.py", 2)
    assert ended(number) == "ok", complaints(number)
    assert sorted(line for line in printed(number).splitlines() if line.startswith("rank")) == [
        "rank 0 of 2, 0 on localhost: sum 3",
        "rank 1 of 2, 1 on localhost: sum 3",
    ]


def test_a_task_that_fails_ends_the_others_and_the_job(here: None, folder: Path) -> None:
    (number,) = gpu_jobs_submitter("idr_fails.py", 3)
    assert ended(number) == "failed"
    assert "task 1 has a mistake" in complaints(number)
    assert "srun: task 1 failed with exit code 1: the others are ended" in complaints(number)
    assert "real" in complaints(number) and "+ srun python -u idr_fails.py" in complaints(number)
    expect_no_process(runs_root())


def test_a_program_that_is_not_there_fails(here: None) -> None:
    numbers = gpu_jobs_submitter(["no_such_program x", "no_such.py"])
    assert [ended(number) for number in numbers] == ["failed", "failed"]
    assert "srun: cannot start 'no_such_program'" in complaints(numbers[0])
    assert "can't open file" in complaints(numbers[1])


def test_the_time_limit_is_kept(here: None, folder: Path) -> None:
    (number,) = gpu_jobs_submitter(SLEEPS, time_max="0:1")
    assert ended(number) == "timeout"
    assert "is ended: still running after its" in complaints(number)
    expect_no_process(runs_root())


def running(command: str = SLEEPS, **options: Any) -> str:
    (number,) = gpu_jobs_submitter(command, **options)
    eventually(lambda: job(number).status == "running" and tasks_of(number) > 2, "its tasks run")
    return number


def test_cancelling_ends_all_of_a_job(here: None, folder: Path) -> None:
    first = running(n_gpu=2)
    (second,) = gpu_jobs_submitter(SLEEPS)
    told = CliRunner().invoke(app, ["cancel", f"bash-{second}"])
    assert told.output == f"bash-{second} [cancelled]\n", told
    launch.cancel(job(first))
    assert [ended(first), ended(second)] == ["cancelled", "cancelled"]
    assert f"course: job bash-{first} is ended: cancelled on request" in complaints(first)
    expect_no_process(runs_root())
    assert not all_runs()  # nor is it ever taken for a training run


def test_a_job_whose_supervisor_was_killed_is_lost_and_the_next_runs(
    here: None, folder: Path
) -> None:
    number = running("bash -c 'trap : TERM; sleep 300; sleep 300'")
    (second,) = gpu_jobs_submitter(TELLS)
    alive(job(number).started["supervisor"]).kill()
    assert ended(second) == "ok"
    assert ended(number) == "lost"
    expect_no_process(runs_root())


def test_jobs_and_runs_wait_in_one_queue(
    here: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = launch_running("holds.py")
    notes = "import time\nprint(time.time_ns()); time.sleep(0.2); print(time.time_ns())\n"
    Path("true.py").write_text(notes)
    numbers = gpu_jobs_submitter(["true.py"] * 3)
    rows = [(row.job_id, row.state, row.reason) for row in batch.queue("true")]
    assert rows == [
        (number, "PENDING", f"one job at a time: {run.name} computes") for number in numbers
    ]
    assert [row.name for row in batch.queue()] == [run.name, "true", "true", "true"]
    assert batch.queue("other") == []
    release(run)
    assert [ended(number) for number in numbers] == ["ok"] * 3
    texts = [job(number).logs[0].read_text() for number in numbers]
    times = [[int(each) for each in re.findall(r"^\d{19}$", text, re.M)] for text in texts]
    assert [len(each) for each in times] == [2, 2, 2]
    assert sum(times, []) == sorted(sum(times, []))  # in order, and no two at once
    assert launch.refresh(run) == "ok"


def test_a_folder_that_has_gone_meanwhile_is_named(here: None, folder: Path) -> None:
    run = launch_running("holds.py")
    (number,) = gpu_jobs_submitter(TELLS)
    shutil.rmtree(folder / "slurm")
    release(run)
    assert ended(number) == "failed"
    assert job(number).record.error.endswith("log: gone since the job was submitted")


def test_a_submission_that_fails_names_those_before(
    here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = iter(["7"])

    def submit(*_arguments: object, **_options: object) -> str:
        if number := next(numbers, None):
            return number
        raise launch.JobError("the runs folder is full")

    monkeypatch.setattr(batch, "submit", submit)
    with pytest.raises(ValueError, match=r"is full \(submitted before it: 7\)"):
        gpu_jobs_submitter([TELLS, TELLS])


def test_an_open_run_on_slurm_is_no_job_of_this_machine(here: None) -> None:
    run = prepared(runs_root() / "away", "", CONFIG)
    asked = run.launched | {
        "executor": "slurm",
        "job_id": "7",
        "launched_at": "2026-01-01T00:00:00",
    }
    (run.folder / "launch.json").write_text(json.dumps(asked))
    assert batch.queue() == []
    shutil.rmtree(run.folder)  # or the end of the test would cancel it


def test_a_job_outlives_the_program_that_submitted_it(here: None, folder: Path) -> None:
    code = f"from course.idr_pytools import *\nprint(gpu_jobs_submitter({SLEEPS!r}))\ninput()"
    Path("submits.py").write_text(code)
    submitter = start_python(folder / "submits.py", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    eventually(lambda: [row.state for row in batch.queue()] == ["RUNNING"], "it runs")
    os.killpg(submitter.pid, signal.SIGKILL)
    submitter.wait()
    time.sleep(0.5)
    assert [row.state for row in batch.queue()] == ["RUNNING"]


def test_ids_are_not_given_twice(
    here: None, folder: Path, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by two folders either: scripts derive their ports from them."""
    (first,) = gpu_jobs_submitter(TELLS)
    assert int(first) > 123  # after the log of a job that a Slurm gave
    ended(first)
    for path in logs.glob("*"):
        path.unlink()
    (second,) = gpu_jobs_submitter(TELLS)
    ended(second)
    with runs_root_at(folder.parent / "another's runs"):
        (folder.parent / "another's folder").mkdir()
        monkeypatch.chdir(folder.parent / "another's folder")
        (third,) = gpu_jobs_submitter("bash -c true")
    assert int(first) < int(second) < int(third)


def test_two_who_claim_an_id_at_once_get_two(tmp_path: Path) -> None:
    code = "from course.idr_pytools.commands import _claim\nprint([_claim(1) for _ in range(50)])"
    command = [sys.executable, "-c", code]
    own = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    given = [number for each in own for number in json.loads(each.communicate(timeout=60)[0])]
    assert len(given) == len(set(given)) == 100


def test_members_of_a_list_that_do_not_fit_are_left_out(
    here: None, capsys: pytest.CaptureFixture
) -> None:
    (number,) = gpu_jobs_submitter(TELLS, [1, 4096])
    said = capsys.readouterr().out
    assert re.search(r"n_gpu=4096: this machine has .* That member of n_gpu is left out\.", said)
    assert ended(number) == "ok"


def test_the_original_s_name_needs_no_change(folder: Path) -> None:
    """A module that imports IDRIS's library, as the course's own dlojz_tools.py does."""
    (folder / "dlojz_tools.py").write_text("from idr_pytools import search_log\n")
    code = "import dlojz_tools, idr_pytools, sys; print(sorted(idr_pytools.__all__))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "slurm_file_creator" in done.stdout and "display_slurm_queue_jupyter" in done.stdout


@pytest.mark.slow
def test_to_submit_takes_no_pytorch(here: None, folder: Path) -> None:
    """It would take seconds, on a busy machine half a minute."""
    code = (
        "import sys; from idr_pytools import *; gpu_jobs_submitter('hostname', 1)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False", done


@pytest.mark.skipif(os.geteuid() != 0, reason="a second user takes root")
def test_another_user_cannot_block_ids(here: None) -> None:
    """As whoever first made a folder of the name that all users shared could."""
    shared = Path(tempfile.gettempdir()) / "make-training-fast-ids"
    shared.mkdir(mode=0o700)
    os.chown(shared, 65534, 65534)
    (number,) = gpu_jobs_submitter("bash -c true")
    assert ended(number) == "ok"


def test_a_number_that_cannot_be_kept_is_told(
    here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").touch()  # a file in place of the folder
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with pytest.raises(ValueError, match="state/make-training-fast/last-job-number: cannot be"):
        gpu_jobs_submitter("bash -c true")


def test_a_script_on_two_lines_is_pythons(jean_zay: None) -> None:
    text = batch_job("a.py\\\n --b 1").text("log")
    assert "time srun python -u a.py --b 1\n" in text and "job-name=a\n" in text


def test_a_stand_in_hands_on_to_a_slurm_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tmp_path / "squeue"
    real.write_text("#!/bin/sh\necho real $*\n")
    real.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CONF", "there")
    instead.put_first()
    done = subprocess.run(["squeue", "--me"], capture_output=True, text=True)
    assert done.stdout == "real --me\n", done


@pytest.mark.parametrize("program", ["squeue", "scancel", "sacct", "sbatch"])
def test_slurms_commands_say_what_to_call_instead(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.delenv("SLURM_CONF", raising=False)
    instead.put_first()
    done = subprocess.run(f"{program} --me", shell=True, capture_output=True, text=True)
    assert done.returncode == 1 and f"{program}: no Slurm runs here" in done.stderr
    instead.take_away()
    assert instead.FOLDER not in os.environ["PATH"]


def test_a_batch_script_for_cores_alone(jean_zay: None) -> None:
    path = slurm_file_creator(
        "prepare.py --all",
        2,
        4,
        module="python",
        account="x@cpu",
        partition="cpu_p1",
        time="01:00:00",
    )
    assert path == "slurm/prepare.slurm"
    lines = Path(path).read_text().splitlines()
    assert {"#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=4", "#SBATCH --cpus-per-task=1"} <= {
        *lines
    }
    assert {"#SBATCH --partition=cpu_p1", "#SBATCH --account=x@cpu"} <= {*lines}
    assert not [line for line in lines if "gres" in line or "constraint" in line]


def test_a_batch_script_for_gpus_is_that_of_the_submitter(jean_zay: None) -> None:
    asked = {"module": "pytorch", "account": "x@h100"}
    path = slurm_file_creator("dlojz.py", 2, 4, 4, time="02:00:00", **asked)
    dates = re.compile(r"\d{4}-\d\d-\d\d_[\d.]+")
    job = batch_job("dlojz.py", 8, **asked)
    wanted = job.text(job.log(datetime.now()))
    assert dates.sub("", Path(path).read_text()) == dates.sub("", wanted)
    assert "#SBATCH --cpus-per-task=24" in wanted and "module load arch/h100" in wanted


@pytest.mark.parametrize(
    "shape, says",
    [
        ((0, 1, 0), "n_nodes=0"),
        ((1, 0, 0), "n_tasks_per_node=0"),
        ((1, 1, 5), "nodes of 4 GPUs"),
        ((99, 4, 4), "at most 32 for a job"),
        ((1, 1, -1), "n_gpu_per_node=-1"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(
    jean_zay: None, shape: tuple[int, int, int], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        slurm_file_creator("a.py", *shape)
    assert made() == set()


def test_modules_are_loaded_where_there_are_such(
    here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (number,) = gpu_jobs_submitter(TELLS, module="pytorch-gpu/py3/1.11.0")
    monkeypatch.setenv("BASH_FUNC_module%%", '() { echo module-was-called "$@"; }')
    (second,) = gpu_jobs_submitter(TELLS, module="a/1 b", script_addon="echo an-addon; ADDED=1")
    assert [ended(number), ended(second)] == ["ok", "ok"]
    assert "No module command here: went on without pytorch-gpu/py3/1.11.0" in printed(number)
    assert printed(second).splitlines()[:3] == [
        "module-was-called purge",
        "module-was-called load a/1 b",
        "an-addon",
    ]


def test_an_image_wraps_the_command(
    here: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = folder / "singularity"
    fake.write_text('#!/bin/bash\nprintf "%s|" "$@"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("SINGULARITY_ALLOWED_DIR", "/im ages")
    (number,) = gpu_jobs_submitter("train.py --x 1", singularity="torch.sif")
    assert ended(number) == "ok", complaints(number)
    assert "exec|--nv|/im ages/torch.sif|python|-u|train.py|--x|1|" in printed(number)


# The queue


def test_the_queue_is_shown_until_it_is_empty(here: None, capsys: pytest.CaptureFixture) -> None:
    gpu_jobs_submitter([TELLS, "bash -c 'sleep 3'"])
    capsys.readouterr()
    display_slurm_queue(timestep=0)
    text = capsys.readouterr().out
    assert text.splitlines()[0].split() == ["JOBID", "NAME", "STATE", "TIME", "NODES", "REASON"]
    assert re.search(r"^\d+ +bash +RUNNING +0:\d\d +1 +None$", text, re.MULTILINE)
    assert text.endswith("No job waits or runs any more.\n")
    blocks = text.split("JOBID")[1:]
    assert len(blocks) == len(set(re.sub(r"\d:\d\d", "", block) for block in blocks))
    display_slurm_queue("nobody")
    assert capsys.readouterr().out == "No job named nobody waits or runs any more.\n"


def interrupted_display() -> str:
    """What a display of the queue printed, that was interrupted once it had shown something."""
    display = start_python("idr_shows_queue.py", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    shown = display.stdout.readline() + display.stdout.readline()
    time.sleep(0.3)
    os.killpg(display.pid, signal.SIGINT)
    shown += display.communicate(timeout=30)[0]
    assert display.returncode == 0, shown
    return shown


def test_interrupting_the_display_leaves_the_jobs(here: None) -> None:
    number = running()
    shown = interrupted_display()
    assert "RUNNING" in shown and "Traceback" not in shown
    assert shown.endswith("Stopped looking: the jobs go on.\nand the program goes on\n")
    assert job(number).status == "running"


@pytest.mark.parametrize(
    "passed, shown",
    [
        (7.9, "0:07"),
        (600, "10:00"),
        (3607, "1:00:07"),
        (2 * 86400 + 3607, "2-01:00:07"),
    ],
)
def test_times_are_written_as_squeue_does(passed: float, shown: str) -> None:
    assert clock(passed) == shown


# The slides of DLO-JZ: only the import differs

SLIDES = [
    "from course.idr_pytools import gpu_jobs_submitter, display_slurm_queue, search_log",
    """command = 'dlojz.py --batch-size 128 --image-size 176'
n_gpu = 8
MODULE = 'pytorch-gpu/py3/1.11.0'
name = 'dlojz'

jobid = gpu_jobs_submitter(command, n_gpu, MODULE, name=name, account='xyz@v100', """
    "time_max='05:00:00')",
    "name = 'dlojz'\ndisplay_slurm_queue(name)",
    "search_log(contains=jobid)[0]",
    "search_log(contains=jobid, with_err=True)[0]",
]


def run_slides(folder: Path) -> list[str]:
    """Execute the slides as a notebook in this folder: what each cell gave, or showed at last."""
    from nbclient import NotebookClient

    shutil.copy(folder / TELLS, folder / "dlojz.py")
    cells = [nbformat.v4.new_code_cell(source) for source in SLIDES]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(
        notebook, timeout=200, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    return [
        "".join(output.get("text", "") or output.data["text/plain"] for output in cell.outputs)
        for cell in notebook.cells
    ]


def check_slides(folder: Path, results: list[str]) -> list[dict]:
    _, submitted, queue, out, err = results
    number = re.search(r"Submitted batch job (\d+): dlojz", submitted)[1]
    assert queue == "No job named dlojz waits or runs any more.\n"  # it took the table's place
    assert re.fullmatch(rf"'\./slurm/log/dlojz@JZ_{number}_.*\.out'", out)
    assert re.fullmatch(rf"'\./slurm/log/dlojz@JZ_{number}_.*\.err'", err)
    tasks = told(number)
    assert [task["SLURM_PROCID"] for task in tasks] == [str(rank) for rank in range(8)]
    assert tasks[0]["arguments"] == ["--batch-size", "128", "--image-size", "176"]
    return tasks


@pytest.mark.slow
def test_the_slides_run_here(here: None, folder: Path) -> None:
    tasks = check_slides(folder, run_slides(folder))
    assert {task["SLURM_NNODES"] for task in tasks} == {"1"}


# Slurm


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
class TestOnSlurm:
    def says(self, *words: str) -> str:
        env = os.environ | control.environment()
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def is_running(self, number: str) -> bool:
        return self.says("squeue", "-h", "-j", number, "-o", "%T") == "RUNNING"

    def ended(self, number: str) -> str:
        def state() -> str:
            return self.says("sacct", "-X", "-n", "-P", "-j", number, "-o", "State")

        eventually(lambda: state() not in ("", "PENDING", "RUNNING"), f"job {number} is over")
        return state()

    @pytest.fixture(autouse=True)
    def nothing_left(self, slurm: Path) -> Iterator[None]:
        yield
        self.says("scancel", "--me")
        eventually(lambda: not self.says("squeue", "--me", "-h"), "the queue is empty")

    def test_every_count_of_gpus_that_the_cluster_has(self, folder: Path) -> None:
        ids = gpu_jobs_submitter(f'{TELLS} --x "a b; touch y" $SLURM_JOB_ID', [1, 2, 4, 8])
        assert len(set(ids)) == 4 and all(isinstance(number, str) for number in ids)
        display_slurm_queue(timestep=1)
        for number, count, nodes in zip(ids, (1, 2, 4, 8), (1, 1, 1, 2)):
            assert self.ended(number) == "COMPLETED"
            tasks = told(number)
            assert [task["SLURM_PROCID"] for task in tasks] == [str(rank) for rank in range(count)]
            assert tasks[0]["SLURM_NNODES"] == str(nodes)
            assert tasks[0]["arguments"] == ["--x", "a b; touch y", number]
            assert f"_{nodes}nodes_{count // nodes}tasks_" in search_log(contains=[number])[0]
        assert all("/slurm/" in name for name in made() if name.startswith(folder.name))

    def test_a_ddp_script_with_idr_torch_trains_on_two_nodes(
        self, user_sites: Path, for_forks: None
    ) -> None:
        user_sites.write_text("[slurm]\ngpus_per_node = 2\n")
        (number,) = gpu_jobs_submitter("idr_ddp.py --steps 3", [4, 8], name="ddp")
        # 8 GPUs are more than two such nodes have.
        display_slurm_queue("ddp", timestep=1)
        state = self.ended(number)
        assert state == "COMPLETED" or aborted_at_exit(number), complaints(number)
        assert "_2nodes_" in search_log("ddp", contains=number)[0]
        own = re.search(r"met at (127\.0\.0\.[12]):", printed(number))[1]
        check_ddp(number, tasks=4, nodes=2, address=own)

    def test_torchrun_meets_at_the_first_name_of_the_list(
        self, folder: Path, for_forks: None
    ) -> None:
        start = folder / "start.sh"
        start.write_text(
            "first=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)\n"
            "exec torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-id 1 "
            "--rdzv-endpoint $first:$((10000 + SLURM_JOB_ID % 20000)) idr_meets.py\n"
        )
        path = slurm_file_creator("bash start.sh", 2, 1, 1, name="torchrun")
        number = self.says("sbatch", "--parsable", path)
        self.ended(number)  # PyTorch at times aborts when all is done: what counts is what was said
        found = [line for line in printed(number).splitlines() if line.startswith("rank")]
        assert sorted(found) == ["rank 0 of 2: 3", "rank 1 of 2: 3"], complaints(number)

    def test_a_job_that_is_submitted_in_a_step_of_another_has_its_own_cores(
        self, folder: Path
    ) -> None:
        code = "from idr_pytools import *; gpu_jobs_submitter('bash -c true', name='inner')"
        self.says("srun", "-n1", "-wnode2", sys.executable, "-c", code)
        eventually(lambda: search_log("inner"), "the job begins")
        number = re.search(r"@JZ_(\d+)_", search_log("inner")[0])[1]
        assert self.ended(number) == "COMPLETED", complaints(number)

    def test_what_slurm_refuses_is_raised_in_its_words(self) -> None:
        with pytest.raises(ValueError, match=r"refused.*[Ii]nvalid partition.*before it: none"):
            gpu_jobs_submitter(TELLS, partition="moon")
        with pytest.raises(ValueError, match=r"n_gpu=2.*not available.*before it: \d+\)$") as told:
            gpu_jobs_submitter(TELLS, [1, 2], cpus_per_task=10)
        submitted = re.search(r"(\d+)\)$", str(told.value))[1]
        assert self.ended(submitted) == "COMPLETED"

    def test_jean_zays_names_are_left_out(self, capsys: pytest.CaptureFixture) -> None:
        theirs = {"account": "x@v100", "qos": "qos_gpu-dev", "email": "a@b.org"}
        (number,) = gpu_jobs_submitter(
            TELLS, name="réseau", constraint="v100-32g", partition="gpu_p2", **theirs
        )
        assert "partition=gpu_p2 is left out" in capsys.readouterr().out
        assert self.ended(number) == "COMPLETED"
        assert search_log("réseau", contains=number)

    def test_a_task_that_fails_ends_the_others_and_the_job(self) -> None:
        (number,) = gpu_jobs_submitter("idr_fails.py", 3)
        assert self.ended(number) == "FAILED"
        assert "task 1 has a mistake" in complaints(number)

    def test_interrupting_the_display_leaves_the_jobs(self) -> None:
        (number,) = gpu_jobs_submitter(SLEEPS)
        eventually(lambda: self.is_running(number), "it runs")
        shown = interrupted_display()
        assert shown.endswith("Stopped looking: the jobs go on.\nand the program goes on\n"), shown
        assert self.is_running(number)

    def test_a_controller_that_does_not_answer_is_waited_for(self, slurm: Path) -> None:
        (number,) = gpu_jobs_submitter(SLEEPS)
        display = start_python("idr_shows_queue.py", stdout=subprocess.PIPE)
        assert "JOBID" in display.stdout.readline()
        control._pids(slurm)["slurmctld"].send_signal(signal.SIGTERM)
        while "Slurm does not answer just now" not in (line := display.stdout.readline()):
            assert line, "the display ended"
        control.up()
        self.says("scancel", number)
        text = display.communicate(timeout=100)[0]
        assert "JOBID" in text and "No job waits or runs any more." in text

    def test_a_hostile_name_is_no_job(self, capsys: pytest.CaptureFixture) -> None:
        display_slurm_queue("x; touch y --help\n")
        assert "waits or runs any more" in capsys.readouterr().out
        assert not Path("y").exists()

    def test_the_slides_run(self, folder: Path) -> None:
        tasks = check_slides(folder, run_slides(folder))
        assert {task["SLURMD_NODENAME"] for task in tasks} == {"node1", "node2"}
