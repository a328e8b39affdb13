"""IDRIS's library under its own names: jobs that are submitted, that run, or are refused."""

import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from job_helpers import (
    SCRIPTS,
    end_all_runs,
    eventually,
    expect_no_process,
    launch_running,
    release,
    slurm_says,
    start_python,
)
from typer.testing import CliRunner

import idr_pytools
from course.__main__ import app
from course.jobs import launch
from course.jobs.processes import alive
from course.runs.run import Run, all_jobs, all_runs, runs_root
from idr_pytools import (
    display_slurm_queue,
    gpu_jobs_submitter,
    local,
    search_log,
    slurm_file_creator,
)
from idr_pytools.script import minutes

GOLDEN = Path(__file__).parent.parent / "golden" / "idr-a100.sh"
TELLS = "idr_tells.py"
SLEEPS = "bash -c 'exec sleep 300'"


@pytest.fixture(autouse=True)
def folder(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Create the current folder, with the scripts of these tests; end its processes afterwards."""
    root = tmp_path_factory.mktemp("jobs")
    work = tmp_path / "a notebook's folder"
    work.mkdir()
    for script in SCRIPTS.glob("idr_*.py"):
        shutil.copy(script, work)
    monkeypatch.chdir(work)
    monkeypatch.setenv("COURSE_RUNS", str(root))
    monkeypatch.setenv("COURSE_SITES", str(tmp_path / "sites.toml"))
    monkeypatch.setenv("PATH", os.environ["PATH"])  # the library may add a folder
    for name in ("COURSE_SITE", "IDRPROJ"):
        monkeypatch.delenv(name, raising=False)
    yield work
    if any(root.iterdir()):
        end_all_runs(root)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let jobs run on this machine."""
    monkeypatch.setenv("COURSE_SITE", "local")


@pytest.fixture
def jean_zay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variables of Jean Zay's login node."""
    monkeypatch.setenv("IDRPROJ", "xyz")


def job(number: str) -> Run:
    (run,) = (run for run in all_jobs() if run.launched["job_id"] == number)
    return run


def status(number: str) -> str:
    """Wait for a job of this machine, and return how it ended."""
    eventually(lambda: launch.refresh(job(number)) not in ("queued", "running"), "it is over")
    return job(number).status


def output(number: str) -> str:
    (path,) = search_log(contains=number)
    return Path(path).read_text()


def errors(number: str) -> str:
    return Path(search_log(contains=number, with_err=True)[0]).read_text()


def tasks(number: str) -> list[dict]:
    """Return what the tasks of idr_tells.py printed, by rank."""
    lines = [json.loads(line) for line in output(number).splitlines() if line.startswith("{")]
    return sorted(lines, key=lambda line: int(line["SLURM_PROCID"]))


def new_files() -> list[str]:
    """Return the files in and next to the current folder, except scripts and those in slurm/."""
    paths = [path for path in Path.cwd().parent.rglob("*") if path.is_file()]
    return [str(path) for path in paths if "slurm" not in path.parts and path.suffix != ".py"]


# Arguments


def test_the_signatures_are_those_of_the_original() -> None:
    def signature(function: Callable) -> str:
        parameters = inspect.signature(function).parameters.values()
        return ", ".join(
            str(parameter.replace(annotation=inspect.Parameter.empty)) for parameter in parameters
        )

    common = (
        "qos=None, partition=None, constraint=None, cpus_per_task=None, exclusive=False, "
        "account=None, verbose=0, email=None, slurm_addon=None, script_addon=None"
    )
    assert signature(gpu_jobs_submitter) == (
        "srun_commands, n_gpu=1, module=None, singularity=None, name=None, n_gpu_per_task=1, "
        f"time_max='02:00:00', {common}"
    )
    assert signature(slurm_file_creator) == (
        "srun_command, n_nodes=1, n_tasks_per_node=1, n_gpu_per_node=0, module=None, name=None, "
        f"singularity=None, time='02:00:00', {common}"
    )
    assert signature(display_slurm_queue) == "name=None, timestep=5"
    assert signature(search_log) == "name='*', contains='', with_err=False"
    assert idr_pytools.display_slurm_queue_jupyter is display_slurm_queue


def test_the_whole_script_for_an_a100_of_jean_zay(jean_zay: None) -> None:
    options = {
        "module": "pytorch-gpu/py3/1.11.0",
        "account": "xyz@a100",
        "email": "me@home.org",
        "qos": "qos_gpu-dev",
        "slurm_addon": "#SBATCH --reservation=dlojz",
        "script_addon": "unset http_proxy",
    }
    command = "dlojz.py --batch-size 128"
    path = slurm_file_creator(
        command, 2, 4, 8, time="5:00:00", exclusive=True, verbose=1, **options
    )
    assert path == "slurm/dlojz.slurm"
    text = re.sub(r"\d{4}-\d\d-\d\d_\d\d\.\d\d\.\d\d", "DATE", Path(path).read_text())
    expected = GOLDEN.read_text()
    assert text.replace(str(Path(sys.executable).parent), "BIN") == expected


@pytest.mark.parametrize(
    "options, gpus, expected",
    [
        ({"account": "xyz@v100", "n_gpu_per_task": 4}, 8, ("jean-zay-v100", 2, 1, 40)),
        ({"constraint": "v100-16g|v100-32g"}, 3, ("jean-zay-v100", 1, 3, 10)),
        ({"constraint": "h100"}, 4, ("jean-zay-h100", 1, 4, 24)),
        ({"cpus_per_task": 5}, 1, ("jean-zay-v100", 1, 1, 5)),
        ({"partition": "gpu_p2l"}, 8, ("jean-zay-v100-octo", 1, 8, 3)),
        ({"account": "xyz@a100"}, 16, ("jean-zay-a100", 2, 8, 8)),
        ({"partition": "gpu_p4"}, 8, ("jean-zay-a100-40g", 1, 8, 6)),
        ({"partition": "gpu_p6"}, 8, ("jean-zay-h100", 2, 4, 24)),
    ],
)
def test_jean_zays_nodes(jean_zay: None, options: dict, gpus: int, expected: tuple) -> None:
    arguments = {"srun_commands": "train.py", "n_gpu": gpus, **options}
    parameters = inspect.signature(gpu_jobs_submitter).parameters.values()
    (job,) = idr_pytools._jobs(
        **{parameter.name: parameter.default for parameter in parameters} | arguments
    )
    assert (job.site.name, job.nodes, job.tasks, job.cpus) == expected


@pytest.mark.parametrize(
    "option, value, message",
    [
        ("n_gpu", 6, "gpus=6.*1 to 4, or a multiple of 4"),
        ("n_gpu", 0, "n_gpu=0: .*above 0"),
        ("n_gpu", [], "nothing to submit"),
        ("n_gpu_per_task", 2, "n_gpu=1.*multiples of 2 per task"),
        ("cpus_per_task", -1, "cpus_per_task=-1"),
        ("srun_commands", [], "nothing to submit"),
        ("singularity", "b.sif", "one of them"),
        ("account", "a\n#SBATCH --x", "account=.*one line"),
        ("module", "a\ntouch x", "module="),
        ("time_max", "1:00\ntouch x", "time_max="),
        ("time_max", "soon", "time_max='soon'"),
        ("time_max", "00:00:00", "above 0"),
        ("partition", "gpu_p7", "'gpu_p7' is unknown .*gpu_p5"),
        ("account", "xyz@gh200", "'gh200' is unknown .*v100"),
        *(("name", name, "name=") for name in ("$(touch x)", "../up", "a\nb", "a%j", "漢" * 70)),
        *(("srun_commands", text, "command") for text in ("", "a 'b", "--chdir=/ a", "a\0b", None)),
        *(
            ("srun_commands", f"a.py --x {signs}", "would act in a shell")
            for signs in ("; x", "> x", "$(x)", '"`x`"', "${A:-x}", "$'x'", "~/x", "{a,b}", "*.py")
        ),
    ],
)
def test_an_invalid_argument_is_refused_before_anything_is_submitted(
    jean_zay: None, option: str, value: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        gpu_jobs_submitter(**{"srun_commands": TELLS, "module": "a", option: value})
    assert not Path("slurm").exists() and new_files() == []


def test_text_that_a_shell_or_sbatch_would_read_is_quoted(jean_zay: None) -> None:
    path = slurm_file_creator(
        "a.py", singularity="$(touch x).sif", qos="a b", account="&$(touch x)"
    )
    text = Path(path).read_text()
    assert """exec --nv "$SINGULARITY_ALLOWED_DIR"/'$(touch x).sif' python -u a.py\n""" in text
    assert "#SBATCH --qos='a b'\n" in text and "#SBATCH --account='&$(touch x)'\n" in text


# Commands


def test_a_command_keeps_its_arguments_and_only_variables_act(
    here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A", "1 *;$B")
    written = """ 'a b; touch y' "|" '>' '$(touch y)' \\; a#b a~ ! [0.9,0.9] 'x
y' \\
      --long $A/x ${A}y "$A z" --o=$A '$A' \\$A "\\$A" "it's" '' é \n"""
    (number,) = gpu_jobs_submitter(TELLS + written)
    assert status(number) == "ok", errors(number)
    a = "1 *;$B"
    arguments = ["a b; touch y", "|", ">", "$(touch y)", ";", "a#b", "a~", "!", "[0.9,0.9]", "x\ny"]
    arguments += ["--long", f"{a}/x", f"{a}y", f"{a} z", f"--o={a}", "$A", "$A", "$A", "it's", ""]
    assert tasks(number)[0]["arguments"] == [*arguments, "é"]
    assert new_files() == []


def test_the_name_is_the_scripts(jean_zay: None) -> None:
    for command, name in {
        "python -u my_script.py -b 1.5": "my_script",
        "$WORK/a/b.c.py": "b",
        "'a b;.py' x.py": "a_b_",
    }.items():
        assert slurm_file_creator(command) == f"slurm/{name}.slurm"


# Logs


def test_logs_are_found_by_their_names(folder: Path) -> None:
    assert search_log() == []
    log = folder / "slurm" / "log"
    log.mkdir(parents=True)
    for name in (
        "a@JZ_12_1nodes_1tasks_2021-02-12_22.05.09",
        "pseudo@JZ_9_1nodes_1tasks_x",
        "a@JZ_123_2nodes_4tasks_2021-02-12_22.06.00",
        "b@JZ_7_1nodes_12tasks_2022-01-01_00.00.00",
        "../../secret@JZ_1_",
    ):
        (log / f"{name}.out").touch()
        (log / f"{name}.err").touch()
    (log / "note.txt").touch()

    def ids(*arguments: Any) -> list[int]:
        paths, both = search_log(*arguments), search_log(*arguments, with_err=True)
        assert both == {"stdout": paths, "stderr": [path[:-3] + "err" for path in paths]}
        assert all(path.startswith("./slurm/log/") for path in paths)
        return [int(re.search(r"JZ_(\d+)_", path)[1]) for path in paths]

    assert ids() == [123, 12, 7, 9]
    assert ids("a*") == [123, 12]
    assert ids("[ab]") == [123, 12, 7]
    assert ids("*", "12") == ids("*", 12) == ids("*", ["12"]) == [12]
    assert ids("*", ["7", "123"]) == [123, 7]
    assert ids("*", "2nodes*2021-02-12") == [123]
    assert ids("*", []) == ids("*", "88") == ids("b", ["12"]) == ids("../../*") == []
    both = search_log(with_err=True)
    assert both[0] == both["stderr"][0]
    with pytest.raises(KeyError):
        both["out"]


# This machine


@pytest.mark.slow
def test_without_a_slurm_it_is_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setenv("SLURM_BOX", str(tmp_path / "none"))
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "sh", "date"):
        (programs / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(programs))
    code = "from idr_pytools import *; print('torch' in __import__('sys').modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done  # it would take seconds
    (number,) = gpu_jobs_submitter(TELLS)
    assert status(number) == "ok" and tasks(number)[0]["SLURM_JOB_ID"] == number
    for command in ("squeue --me", "scancel -u me"):
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        assert done.returncode == 1 and "no Slurm runs here" in done.stderr
    monkeypatch.setattr(shutil, "which", lambda _: None)  # nor the messages' programs
    monkeypatch.setenv("COURSE_SITE", "slurm")
    for call in (lambda: gpu_jobs_submitter(TELLS), display_slurm_queue):
        with pytest.raises(ValueError, match="login node, or set COURSE_SITE=local"):
            call()


def test_a_job_for_each_pair_in_order(here: None, capsys: pytest.CaptureFixture) -> None:
    ids = gpu_jobs_submitter([f"{TELLS} a", f"{TELLS} b"], [1, 4096, 2], name="pairs")
    assert re.search(r"n_gpu=4096: this machine has .* is left out\.", capsys.readouterr().out)
    assert [status(number) for number in ids] == ["ok"] * 4 and len(set(ids)) == 4
    arguments = [[task["arguments"] for task in tasks(number)] for number in ids]
    assert arguments == [[["a"]], [["b"]], [["a"], ["a"]], [["b"], ["b"]]]
    assert len(search_log("pairs", contains=ids)) == 4
    assert re.fullmatch(
        rf"\./slurm/log/pairs@JZ_{ids[2]}_1nodes_2tasks_[\d-]{{10}}_\d\d\.\d\d\.\d\d\.out",
        search_log(contains=ids[2])[0],
    )


def test_tasks_have_slurms_variables(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "77")  # of a job that the notebook itself runs in
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "77")
    monkeypatch.setattr(local, "gpu_count", lambda: 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,3,1,0,2,4,6,7")
    (number,) = gpu_jobs_submitter(TELLS, 4, n_gpu_per_task=2, cpus_per_task=3, verbose=1)
    assert status(number) == "ok", errors(number)
    first, second = tasks(number)
    assert (first["SLURM_PROCID"], first["SLURM_LOCALID"]) == ("0", "0")
    expected = (
        "PROCID=1 LOCALID=1 NODEID=0 NTASKS=2 NPROCS=2 NNODES=1 JOB_NUM_NODES=1 NTASKS_PER_NODE=2 "
        "TASKS_PER_NODE=2 CPUS_PER_TASK=3 JOB_NODELIST=localhost NODELIST=localhost "
        f"JOB_NAME=idr_tells GPUS_ON_NODE=4 STEP_GPUS=0,1,2,3 LAUNCH_NODE_IPADDR=127.0.0.1 "
        f"JOB_ID={number} JOBID={number}"
    )
    variables = dict(f"SLURM_{pair}".split("=") for pair in expected.split())
    variables |= {"SLURM_SUBMIT_DIR": os.getcwd(), "SLURMD_NODENAME": "localhost"}
    variables |= {"CUDA_VISIBLE_DEVICES": "5,3,1,0", "NCCL_DEBUG": "INFO", "python": sys.executable}
    assert variables.items() <= second.items()
    assert "SLURM_ARRAY_TASK_ID" not in first


@pytest.fixture
def for_forks(folder: Path) -> None:
    """Let forks execute the training scripts: importing PyTorch in each task takes seconds."""
    script = folder / "idr_ddp.py"
    script.write_text(script.read_text())


def check_ddp(number: str, state: str, tasks: int, nodes: int, address: str) -> None:
    # PyTorch at times aborts once all is done: github.com/pytorch/pytorch/issues/190489
    aborted = "terminate called without an active exception" in errors(number)
    assert state in ("ok", "COMPLETED") or aborted, errors(number)
    place = f"{address}:{10000 + int(number) % 20000}"
    assert sorted(line for line in output(number).splitlines() if line.startswith("rank")) == [
        f"rank {rank} of {tasks}, {rank % (tasks // nodes)} on a node, met at {place}, "
        f"1 kind of weights"
        for rank in range(tasks)
    ]


def test_modules_are_loaded_where_there_are_some(
    here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = gpu_jobs_submitter(TELLS, module="pytorch-gpu/py3/1.11.0")
    monkeypatch.setenv("BASH_FUNC_module%%", '() { echo module-was-called "$@"; }')
    (second,) = gpu_jobs_submitter(TELLS, module="a/1 b;c", script_addon="echo an-addon; ADDED=1")
    assert [status(first), status(second)] == ["ok", "ok"]
    assert "No module command here: went on without pytorch-gpu/py3/1.11.0" in output(first)
    assert output(second).splitlines()[:3] == [
        "module-was-called purge",
        "module-was-called load a/1 b;c",
        "an-addon",
    ]


def test_a_task_that_fails_ends_the_others_and_the_job(here: None) -> None:
    numbers = gpu_jobs_submitter(["idr_fails.py", "no_such_program x"], 3)
    assert [status(number) for number in numbers] == ["failed", "failed"]
    assert "task 1 has a mistake" in errors(numbers[0])
    assert "srun: task 1 failed with exit code 1" in errors(numbers[0])
    assert "real" in errors(numbers[0]) and "+ srun python -u idr_fails.py" in errors(numbers[0])
    assert "srun: cannot start 'no_such_program'" in errors(numbers[1])
    expect_no_process(runs_root())


def test_the_time_limit_is_kept(here: None) -> None:
    limits = ("02:00:00", 30, "1:30", "1-0", "1-2:30", "0-0:0:6")
    assert [minutes(limit) for limit in limits] == [120, 30, 1.5, 1440, 1590, 0.1]
    (number,) = gpu_jobs_submitter(SLEEPS, time_max="0:1")
    assert status(number) == "timeout"
    assert "is ended: still running after its" in errors(number)
    expect_no_process(runs_root())


def test_cancelling_ends_all_of_a_job_and_no_tasks_outlive_its_supervisor(here: None) -> None:
    ids = gpu_jobs_submitter([SLEEPS, "bash -c 'trap : TERM; sleep 300; sleep 300'", SLEEPS], 2)
    first, second, third = ids
    eventually(lambda: search_log(contains=first, with_err=True)["stderr"], "it has a log")
    eventually(lambda: "+ srun" in errors(first), "it runs")
    result = CliRunner().invoke(app, ["cancel", f"bash-{third}", f"bash-{first}"])
    assert result.exit_code == 0, result
    assert f"course: job bash-{first} is ended: cancelled on request" in errors(first)
    eventually(lambda: job(second).started, "the next one runs")
    alive(job(second).started["supervisor"]).kill()
    assert [status(number) for number in ids] == ["cancelled", "lost", "cancelled"]
    expect_no_process(runs_root())
    assert not all_runs()  # none counts as a training run


def test_jobs_and_runs_wait_in_one_queue(
    here: None, folder: Path, capsys: pytest.CaptureFixture
) -> None:
    site = idr_pytools._site()  # it adds to PATH: later, the jobs would need a second supervisor
    run = launch_running("holds.py")
    (first, last) = gpu_jobs_submitter([TELLS, "bash -c 'sleep 2'"])
    waiting = idr_pytools._queue(site, "idr_tells")
    assert f"{first} idr_tells-{first} local pending one job at a time: {run.name}" in waiting
    display_slurm_queue("nobody")
    assert capsys.readouterr().out.endswith("No job named nobody waits or runs any more.\n")
    release(run)
    display_slurm_queue(timestep=0)
    text = capsys.readouterr().out
    assert re.search(rf"bash-{last} +local +running", text)
    assert text.endswith("No job waits or runs any more.\n")
    assert [status(first), status(last), launch.refresh(run)] == ["ok"] * 3


# The slides of DLO-JZ

SLIDES = [
    "from idr_pytools import gpu_jobs_submitter, display_slurm_queue, search_log",
    "jobid = gpu_jobs_submitter('dlojz.py --image-size 176', 8, 'pytorch-gpu/py3/1.11.0', "
    "name='dlojz', account='xyz@v100', time_max='05:00:00')",
    "display_slurm_queue('dlojz')",
    "search_log(contains=jobid)[0]",
    "search_log(contains=jobid, with_err=True)[0]",
]


def run_slides(folder: Path) -> list[dict]:
    """Execute the slides as a notebook in this folder, and return what the tasks printed."""
    from nbclient import NotebookClient

    shutil.copy(folder / TELLS, folder / "dlojz.py")
    notebook = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, SLIDES)])
    place = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=200, kernel_name="python3", resources=place).execute()
    _, submitted, queue, out, err = [
        "".join(output.get("text", "") or output.data["text/plain"] for output in cell.outputs)
        for cell in notebook.cells
    ]
    number = re.search(r"Submitted batch job (\d+): dlojz", submitted)[1]
    assert queue == "No job named dlojz waits or runs any more.\n"  # in place of the table
    assert re.fullmatch(rf"'\./slurm/log/dlojz@JZ_{number}_.*\.out'", out)
    assert re.fullmatch(rf"'\./slurm/log/dlojz@JZ_{number}_.*\.err'", err)
    ranks = tasks(number)
    assert [rank["SLURM_PROCID"] for rank in ranks] == [*map(str, range(8))]
    assert ranks[0]["arguments"] == ["--image-size", "176"]
    return ranks


# Slurm


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
class TestOnSlurm:
    def state(self, number: str) -> str:
        def now() -> str:
            return slurm_says("sacct", "-X", "-n", "-P", "-j", number, "-o", "State")

        eventually(lambda: now() not in ("", "PENDING", "RUNNING"), f"job {number} is over")
        return now()

    @pytest.fixture(autouse=True)
    def nothing_left(self, slurm: Path) -> Iterator[None]:
        yield
        slurm_says("scancel", "--me")
        eventually(lambda: not slurm_says("squeue", "--me", "-h"), "the queue is empty")

    def test_every_count_of_gpus_that_the_cluster_has(
        self, folder: Path, capsys: pytest.CaptureFixture
    ) -> None:
        ids = gpu_jobs_submitter(f'{TELLS} --x "a b; touch y" $SLURM_JOB_ID [1]', [1, 2, 4, 8])
        display_slurm_queue(timestep=1)
        table = r"JOBID +NAME .*\n +\d+ +idr_tells +(RUNNING|PENDING)"
        assert re.search(table, capsys.readouterr().out)
        for number, count, nodes in zip(ids, (1, 2, 4, 8), (1, 1, 1, 2), strict=True):
            assert self.state(number) == "COMPLETED"
            ranks = tasks(number)
            assert [rank["SLURM_PROCID"] for rank in ranks] == [*map(str, range(count))]
            assert ranks[0]["SLURM_NNODES"] == str(nodes)
            assert ranks[0]["arguments"] == ["--x", "a b; touch y", number, "[1]"]
            assert f"_{nodes}nodes_{count // nodes}tasks_" in search_log(contains=[number])[0]
        assert new_files() == []

    def test_a_ddp_script_with_idr_torch_trains_on_two_nodes(
        self, user_sites: Path, for_forks: None
    ) -> None:
        user_sites.write_text('[slurm]\ngpus_per_node = 2\nsbatch = ["time=99", "comment=a b"]\n')
        (number,) = gpu_jobs_submitter("idr_ddp.py --steps 3", [4, 8], name="ddp")
        # Two such nodes do not have 8 GPUs.
        assert slurm_says("squeue", "-h", "-j", number, "-o", "%l %k") == "2:00:00 a b"
        display_slurm_queue("ddp", timestep=1)
        state = self.state(number)
        assert "_2nodes_" in search_log("ddp", contains=number)[0]
        address = re.search(r"met at (127\.0\.0\.[12]):", output(number))[1]
        check_ddp(number, state, tasks=4, nodes=2, address=address)

    def test_what_slurm_refuses_is_raised_in_its_words(self) -> None:
        with pytest.raises(ValueError, match=r"refused.*[Ii]nvalid partition.*before it: none"):
            gpu_jobs_submitter(TELLS, partition="moon")
        with pytest.raises(ValueError, match=r"n_gpu=2.*not available.*before it: \d+\)$") as error:
            gpu_jobs_submitter(TELLS, [1, 2], cpus_per_task=10)
        assert self.state(re.search(r"(\d+)\)$", str(error.value))[1]) == "COMPLETED"

    def test_jean_zays_names_are_left_out(self, capsys: pytest.CaptureFixture) -> None:
        names = {"account": "x@v100", "qos": "qos_gpu-dev", "email": "a@b.org"}
        (number,) = gpu_jobs_submitter(
            TELLS, name="réseau", constraint="v100-32g", partition="gpu_p2", **names
        )
        assert "partition=gpu_p2 is left out" in capsys.readouterr().out
        assert self.state(number) == "COMPLETED"
        assert search_log("réseau", contains=number)

    def test_interrupting_the_display_leaves_the_jobs(self) -> None:
        (number,) = gpu_jobs_submitter(SLEEPS)
        display = start_python("idr_shows_queue.py", stdout=subprocess.PIPE)
        while "RUNNING" not in (line := display.stdout.readline()):
            assert line, "the display ended"
        os.killpg(display.pid, signal.SIGINT)
        text = display.communicate(timeout=30)[0]
        assert text.endswith("Stopped looking: the jobs continue.\nand the program goes on\n"), text
        assert slurm_says("squeue", "-h", "-j", number, "-o", "%T") == "RUNNING"

    def test_the_slides_run(self, folder: Path) -> None:
        assert {task["SLURMD_NODENAME"] for task in run_slides(folder)} == {"node1", "node2"}
