"""The guide for instructors, followed by five accounts on a real Slurm: from init to end."""

import grp
import os
import pwd
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

import slurm_box
from course.runs.run import PROJECT
from slurm_box.cluster import SHARED, ports
from slurm_box.tests.fixtures import eventually

pytestmark = pytest.mark.long
TEACHER = "teach"
LEARNERS = {"ann": 0o077, "bob": 0o002, "cy": 0o022, "dee": 0o002}  # with their umasks
GROUP = "class"  # in which all of them are, as on many clusters


@dataclass(frozen=True)
class Account:
    """One of the five accounts; it types in a shell of its own, as after a login."""

    name: str
    umask: int
    start: str = ""  # what it types first

    @property
    def home(self) -> Path:
        return Path(pwd.getpwnam(self.name).pw_dir)

    def types(self, command: str, *, ok: bool = True, within_s: float = 200) -> str:
        """Return what a command prints, both streams; check that it succeeds, or fails."""
        user = pwd.getpwnam(self.name)
        env = {"HOME": user.pw_dir, "USER": self.name, "LOGNAME": self.name, "TERM": "dumb"}
        env |= {"PATH": "/usr/local/bin:/usr/bin:/bin", "OMP_NUM_THREADS": "1", "LANG": "C.UTF-8"}
        begun = time.monotonic()
        with subprocess.Popen(
            ["bash", "-c", f"{self.start}\n{command}"],
            env=env,
            cwd=user.pw_dir,
            user=user.pw_uid,
            group=user.pw_gid,
            extra_groups=os.getgrouplist(self.name, user.pw_gid),
            umask=self.umask,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                said, _ = process.communicate(timeout=within_s)
            except subprocess.TimeoutExpired:
                process.kill()
                said, _ = process.communicate()
        print(f"--- {self.name}, {time.monotonic() - begun:.1f} s: {command}\n{said}")
        assert (process.returncode == 0) == ok, said
        return said


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Return an empty folder that every account can enter."""
    with tempfile.TemporaryDirectory(dir="/var/lib", prefix="make-training-fast-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="module")
def accounts(place: Path) -> Iterator[dict[str, Account]]:
    """Create five accounts: homes of mode 700, and a group that all are in."""
    if os.geteuid() != 0 or not shutil.which("useradd"):
        pytest.skip("only root can create accounts, by useradd")
    names = {name: f"{name}{os.getpid()}" for name in (TEACHER, *LEARNERS)}
    group = f"{GROUP}{os.getpid()}"
    try:
        subprocess.run(["groupadd", group], check=True)
        for name in names.values():
            words = ("-m", "-K", "HOME_MODE=0700", "-b", place, "-G", group, "-s", "/bin/bash")
            subprocess.run(["useradd", *words, name], check=True)
        yield {x: Account(name, LEARNERS.get(x, 0o022)) for x, name in names.items()}
    finally:
        for user in filter(lambda user: user.pw_name in names.values(), pwd.getpwall()):
            for path in Path("/tmp").glob(f"make-training-fast-{user.pw_uid}*"):
                shutil.rmtree(path)
            subprocess.run(["userdel", "-r", user.pw_name], capture_output=True)
        subprocess.run(["groupdel", group])


@pytest.fixture(scope="module")
def cluster(own_ports: None, accounts: dict[str, Account]) -> Iterator[None]:
    """Run a shared Slurm in its usual place, where the course finds it."""
    if SHARED.exists():
        pytest.skip(f"{SHARED} has a Slurm already")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SLURM_BOX", raising=False)
        patch.setenv("SLURM_BOX_PORT", str(ports()["slurmctld"] + 800))
        try:
            slurm_box.up(shared=True, operator=accounts[TEACHER].name)
            yield
        finally:
            slurm_box.down()
            shutil.rmtree(SHARED)


@pytest.fixture(scope="module")
def environment(place: Path) -> Path:
    """Return an environment that all accounts can use: the packages of this one.

    Its Python may be another 3.x.y, if this one is in root's home.
    """
    minor = f"python{sys.version_info.major}.{sys.version_info.minor}"
    pythons = [Path(f"/usr/bin/{minor}"), Path(f"/usr/local/bin/{minor}"), Path(sys.executable)]
    python = next((path.resolve() for path in pythons if is_for_all(path.resolve())), None)
    packages = Path(sysconfig.get_path("purelib"))
    if python is None or not is_for_all(packages):
        pytest.skip(f"no {minor}, or packages, that other accounts can read")
    folder = place / "environment"
    (folder / "bin").mkdir(parents=True)
    (folder / "lib" / minor).mkdir(parents=True)
    (folder / "lib" / minor / "site-packages").symlink_to(packages)
    (folder / "share").symlink_to(Path(sys.prefix, "share"))  # JupyterLab's files
    (folder / "pyvenv.cfg").write_text(f"home = {python.parent}\n")
    for name in ("python", "python3"):
        (folder / "bin" / name).symlink_to(python)
    command = folder / "bin" / "course"
    command.write_text(f"#!{folder}/bin/python\nfrom course.__main__ import main\n\nmain()\n")
    command.chmod(0o755)
    return folder


def is_for_all(path: Path) -> bool:
    return path.exists() and all(parent.stat().st_mode & 0o001 for parent in [path, *path.parents])


def copy_of_the_course(folder: Path) -> Path:
    """Return a copy of this clone's files, as they are now; a clone may lack older commits."""
    names = subprocess.check_output(["git", "-C", PROJECT, "ls-files", "-z"], text=True)
    for name in filter(None, names.split("\0")):
        if (PROJECT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / name, folder / name)
    subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
    return folder


# What learners do in a notebook: six TODOs solved, each with a line of their own.
SOLVE = """
from course.checks.exercises import EXERCISES, names, render

solution = (EXERCISES.parent / "solutions/train.py").read_text()
text = render(solution, chosen := names(solution, "train.py")[:6], "train.py")
for name in chosen:
    text = text.replace(f"# TODO {name}, solved:", f"# in my own words\\n    # TODO {name}:")
(EXERCISES / "train.py").write_text(text)
"""
PREDICT = """
from course import predict, recall
predict("minutes_on_256_gpus", {}, "29 hours on 8 of them")
recall("minutes_on_256_gpus", 60, "minutes", how="Published")
"""
LAB = "notebooks/day0_2_scale.ipynb"
# An edited cell, and an output, as after its execution.
EXECUTE = f"""
import nbformat
book = nbformat.read("{LAB}", as_version=4)
(cell,) = [x for x in book.cells if x.source.startswith('predict("minutes_on_256_gpus"')]
cell.source, cell.execution_count = cell.source.replace("...", "70"), 3
cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text="my output")]
nbformat.write(book, "{LAB}")
"""
AMP = "the forward pass under autocast in the config's precision"


def python(code: str) -> str:
    return f"python -P -c {shlex.quote(code)}"


def test_a_class_of_five(
    place: Path, accounts: dict[str, Account], cluster: None, environment: Path
) -> None:
    teacher, folder = set_up(place, accounts[TEACHER], environment)
    printed = teacher.types(f"course class init {folder} --site slurm")
    first, _, following = (line.strip() for line in printed.splitlines()[-3:])
    refuses_open_folders(place, accounts, first)
    for name in LEARNERS:
        accounts[name].types(first)
        accounts[name] = replace(accounts[name], start=following)
    uses_the_shared_environment(accounts["ann"])
    ann, bob, cy, dee = learners = [accounts[name] for name in LEARNERS]
    with ThreadPoolExecutor() as pool:
        list(pool.map(partial(starts, folder), learners, (40, 60, 75, 300)))
    refuses_an_open_script(place / "shared", bob)
    dee.types("course doctor")
    no_learner_reaches_anothers_file(folder, ann, dee)
    jobs_are_seen_and_cancelled(teacher, folder, ann, bob, dee)
    is_stuck(teacher, folder, cy, dee)
    chart = teacher.types(f"course class {folder} --prediction minutes_on_256_gpus")
    assert "4 predictions" in chart and "measured: 60" in chart
    a_fix_is_handed_out(teacher, folder, bob, dee)
    for learner in learners:  # also those whose umask is 002
        writable = ["find", learner.home / "course", "!", "-type", "l", "-perm", "/022"]
        assert subprocess.check_output(writable) == b""
    cy.types("course class leave")
    assert len([*folder.glob("drop/*.json")]) == 3
    teacher.types(f"course class {folder} --csv class.csv")
    assert ann.name in (teacher.home / "course/class.csv").read_text()
    teacher.types(f"course class end {folder} --yes")
    assert not [*folder.glob("drop/*")]


def set_up(place: Path, teacher: Account, environment: Path) -> tuple[Account, Path]:
    """Give the instructor a clone and an active environment; return the class folder, too."""
    workshop = place / "workshop"
    workshop.mkdir(mode=0o755)
    shutil.chown(workshop, teacher.name)
    source = copy_of_the_course(place / "source")
    who = "git config --global user.name t; git config --global user.email t@localhost"
    commit = "git init -q -b main; git add -A; git commit -qm start"
    teacher.types(f"{who}; cp -r {source} course; cd course; {commit}")
    start = f"export VIRTUAL_ENV={environment} PATH={environment}/bin:$PATH"
    start += ' PYTHONPATH="$HOME/course"; cd course'
    return replace(teacher, start=start), workshop / "class"


def refuses_open_folders(place: Path, accounts: dict[str, Account], first: str) -> None:
    """In a folder of the whole group, start.sh sets nothing, so nothing of classmates' runs."""
    ann, dee = accounts["ann"], accounts["dee"]
    shared, evidence = place / "shared", place / "evidence"
    shared.mkdir()
    (group,) = (x.gr_name for x in grp.getgrall() if {ann.name, dee.name} <= {*x.gr_mem})
    shutil.chown(shared, group=group)
    shared.chmod(0o2775)
    elsewhere = first.removeprefix("cd && ")
    assert "no sticky bit" in dee.types(f"cd {shared}; {elsewhere}", ok=False)
    dee.types(
        f'mkdir {shared}/trap; echo \'open("{evidence}", "w")\' > {shared}/trap/sitecustomize.py'
    )
    ann.types(f"cd {shared}/trap; {first.rpartition('&&')[2]}; python3 -c ''")
    assert not evidence.exists()


def refuses_an_open_script(shared: Path, learner: Account) -> None:
    """What classmates can replace is not launched, unless the learner trusts them."""
    learner.types(f"cp exercises/train.py {shared}/mine.py")
    refused = learner.types(f"course run {shared}/mine.py", ok=False)
    assert "Nothing was launched" in refused and f"--trust-folder {shared}" in refused


def uses_the_shared_environment(learner: Account) -> None:
    """JupyterLab opens from the environment of the class, and no second one is installed."""
    said = learner.types("course lab --version; make --dry-run lab")
    assert said.splitlines()[1].startswith("4.") and "venv" not in said.partition("4.")[2]
    assert not (learner.home / "course/.venv").exists()


def starts(folder: Path, learner: Account, guess: int) -> None:
    """Join the class, solve six TODOs, and predict."""
    open_exercise = learner.types("course check amp", ok=False)
    assert "launched on" not in open_exercise  # its text already shows it
    learner.types("course class join --yes")
    learner.types(python(SOLVE))
    learner.types(python(PREDICT.format(guess)))


def no_learner_reaches_anothers_file(folder: Path, victim: Account, attacker: Account) -> None:
    (path,) = folder.glob(f"drop/{victim.name}-*.json")
    before = path.read_bytes()
    assert oct(path.stat().st_mode)[-3:] == "640"
    for command in (f"ls {folder}/drop", f"cat {path}", f"echo > {path}", f"rm -f {path}"):
        attacker.types(command, ok=False)
    assert path.read_bytes() == before


def jobs_are_seen_and_cancelled(
    teacher: Account, folder: Path, wild: Account, waiting: Account, other: Account
) -> None:
    """A runaway job holds all GPUs: only its owner and the instructor can end it."""
    slurm = f"export SLURM_CONF={SHARED}/slurm.conf"
    greedy = "sbatch --parsable -N2 --gres=gpu:4 --wrap 'sleep 3000'"
    number = wild.types(f"{slurm}; {greedy}").split()[-1]
    with ThreadPoolExecutor() as pool:
        run = pool.submit(waiting.types, "course run exercises/train.py --rung amp")
        try:
            eventually(
                lambda: "(Resources)" in teacher.types(f"course class {folder}"), "it waits visibly"
            )
            assert number not in other.types(f"{slurm}; squeue")
            other.types(f"{slurm}; scancel {number}", ok=False)
            assert number in teacher.types(f"{slurm}; squeue -u {wild.name}")
        finally:
            teacher.types(f"{slurm}; scancel {number}")
        assert "launched on slurm" in run.result()
    assert f"{waiting.name}|COMPLETED" in waiting.types(f"{slurm}; sacct -nPX -o User,State")


def is_stuck(teacher: Account, folder: Path, learner: Account, other: Account) -> None:
    """A wrong answer, a raised hand, and what the instructor sees of them."""
    taken = Path(f"/tmp/make-training-fast-{pwd.getpwnam(learner.name).pw_uid}")
    other.types(f"mkdir {taken}")  # the name of the learner's folder of locks
    learner.types("sed -i 's/enabled=cfg.precision in HALF/enabled=False/' exercises/train.py")
    learner.types("course check amp", ok=False)
    learner.types('course help "what does enabled= do?"')
    seen = teacher.types(f"course class {folder}")
    assert "what does enabled= do?" in seen and "min  amp" in seen


def a_fix_is_handed_out(teacher: Account, folder: Path, merged: Account, edited: Account) -> None:
    """One comment of a solved TODO changes, and a notebook: what learners wrote stays."""
    merged.types(python(EXECUTE))
    edited.types(f'sed -i "s/{AMP}/what I found out/" exercises/train.py')
    kept = (edited.home / "course/exercises/train.py").read_text()
    teacher.types(
        f'sed -i "s/{AMP}/{AMP}, not backward/" solutions/train.py; course exercises --reset; '
        f"sed -i 's/Why would anyone train/Why does anyone train/' {LAB}; "
        f"git commit -qam $'A clearer \\e[31mtask'; course class init {folder}"
    )
    before = (merged.home / "course/exercises/train.py").read_text()
    said = merged.types("course progress; course update")
    assert "\x1b[31m" not in said
    after = (merged.home / "course/exercises/train.py").read_text()
    assert after == before.replace(AMP, f"{AMP}, not backward")
    book = (merged.home / "course" / LAB).read_text()
    assert "my output" in book and 'minutes_on_256_gpus\\", 70' in book
    assert "Why does anyone train" in book
    assert "yours stays in 1 place, TODO amp" in edited.types("course update")
    assert (edited.home / "course/exercises/train.py").read_text() == kept
