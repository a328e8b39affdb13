"""Warm starts: a forked script is as one started anew; the server comes and goes as it should."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace

import psutil
import pytest
from job_helpers import (
    eventually,
    expect_no_process,
    is_warm,
    launch,
    launch_running,
    narrow_solution,
    nothing_left,  # noqa: F401 (pytest runs it around each test)
    only,
    over,
    release,
    signals_of_a_terminal,
    start_python,
)

from course.config import rung
from course.jobs import launch as jobs
from course.jobs import processes
from course.jobs.warm import client, forks
from course.jobs.warm import start as warm

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a warm start forks")
SHOW_ALL = """
import os, signal, sys, multiprocessing, tempfile
print(sorted(vars()), __name__, __file__, __spec__, __doc__, __builtins__, __annotations__)
print(type(__loader__).__name__, __loader__.get_source("__main__") == open(__file__).read())
print(sys.argv, sys.orig_argv, sys.path, sys.flags, os.getcwd(), tempfile.gettempdir())
print({s: signal.getsignal(s) for s in signal.valid_signals()}, signal.pthread_sigmask(0, []))
print(sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:-1], os.getsid(0) == os.getpid())
print(sys.stdout, sys.stdout.write_through, type(sys.stdout.buffer).__name__, sys.stdin.read())
print(open("/proc/self/cmdline").read().split(chr(0)))
print(dict(e.split("=", 1) for e in open("/proc/self/environ").read().split(chr(0)) if e)
      == dict(os.environ), sys.getrecursionlimit(), multiprocessing.current_process())
print([t.name for t in __import__("threading").enumerate()])
print(sys.modules["__main__"].__dict__ is globals())
"""
DEEP = """def f(x):
    return {}[x]
try:
    f(1)
except KeyError as error:
    raise ValueError("deep") from error
"""
AT_EXIT = """import atexit, threading, time, weakref
class Last:
    def __del__(self): print("finalized")
last = Last()
file = open(__file__ + ".left", "w")
file.write("not flushed by hand")
weakref.finalize(Last, print, "finalizer")
atexit.register(print, "at exit")
threading.Thread(target=lambda: (time.sleep(0.3), print("thread"))).start()
print("end of the text", end="")
"""
# A module of the learner's own, with a file that nobody closes; and what is no module.
IMPORTS = """import sys
from pathlib import Path
text = "log = open(__file__ + '.left', 'w'); log.write('not flushed either')"
Path(__file__).with_name("helper.py").write_text(text)
import helper
sys.modules["odd"] = None
"""
PROGRAMS = {
    "shows": SHOW_ALL,
    "raises": DEEP,
    "syntax": "x = (1\n\n",
    "latin": b"# -*- coding: latin-1 -*-\nprint(ascii('\xff'))\n",
    "says": "import sys\nsys.exit('so it ends')",
    "code": "raise SystemExit(3)",
    "large_code": "raise SystemExit(-1)",
    "none": "import sys\nsys.exit()",
    "at_exit": AT_EXIT,
    "imports": IMPORTS,
    "os_exit": "import os\nos._exit(7)",
    "interrupted": "import atexit\natexit.register(print, 'tidy')\nraise KeyboardInterrupt",
    "ctrl_c": "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nprint('not here')",
    "terminated": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nprint('not here')",
    "aborts": "import os\nos.abort()",
    "hook": "import sys\nsys.excepthook = lambda *a: print('mine', a[0], a[2].tb_lineno)\n1 / 0",
    "future": "def f(x: 1): pass\nprint(f.__annotations__)",
    "recursion": "def f(): f()\ntry:\n    f()\nexcept RecursionError as e:\n    print(e)",
}


THREADS = """
import sys, threading
import numpy, torch
from threadpoolctl import threadpool_info
own, other = torch.get_num_threads(), []
thread = threading.Thread(target=lambda: other.append(torch.get_num_threads()))
thread.start(); thread.join()
print(own, other, torch.get_num_interop_threads())
print(sorted((each["prefix"], each["num_threads"]) for each in threadpool_info()))
print(torch.__config__.parallel_info())
torch.rand(64, 3, 64, 64).sum(); numpy.ones((500, 500)) @ numpy.ones((500, 500))
print(sorted((each["prefix"], each["num_threads"]) for each in threadpool_info()))
"""
ASKED = {
    "no_number": {},
    "one": {"OMP_NUM_THREADS": "1"},
    "many": {"OMP_NUM_THREADS": "64", "OPENBLAS_NUM_THREADS": "1"},
}
# Which no fork can be given: it starts anew, so it need not import PyTorch to be alike.
NESTED = {"OMP_NUM_THREADS": "2,1"}


# torch and scikit-learn set these where they are not set, as soon as they are imported.
SET_LATE = {
    "KMP_DUPLICATE_LIB_OK": "True",
    "KMP_INIT_AT_FORK": "FALSE",
    "TORCHINDUCTOR_CACHE_DIR": f"{tempfile.gettempdir()}/cache",
    "KINETO_LOG_LEVEL": "6",  # by the lab of layouts, before the first profile
}


def write(folder, programs):
    folder.mkdir()
    paths = {name: folder / f"{name}.py" for name in programs}
    for name, text in programs.items():
        paths[name].write_bytes(text if isinstance(text, bytes) else text.encode())
    return paths


def start_warm(paths, envs):
    """How the scripts end, by name: exit code, standard output, standard error.

    And how often garbage was looked for while their parent imported PyTorch.
    """
    asked = json.dumps({str(path): envs[name] for name, path in paths.items()})
    # libgomp reads it when it is loaded; the server does not have it either.
    env = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"} | SET_LATE
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
    process = start_python("starts_warm.py", asked, env=env, **streams)
    looked, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    ended = {
        name: (
            int(path.with_suffix(".code").read_text()),
            path.with_suffix(".out").read_text(),
            path.with_suffix(".err").read_text(),
        )
        for name, path in paths.items()
    }
    return ended, looked


def start_cold(paths, envs):
    ended = {}
    for name, path in paths.items():
        with signals_of_a_terminal():
            done = subprocess.run(
                [sys.executable, "-u", path],
                cwd=path.parent,
                env=envs[name],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=300,
            )
        ended[name] = (done.returncode, done.stdout, done.stderr)
    return ended


DRAWS = "import random, numpy, torch\n"
DRAWS += "print(random.random(), numpy.random.rand(), torch.initial_seed())\n"


def test_a_forked_script_does_and_says_what_a_new_process_would(tmp_path):
    paths = write(
        tmp_path / "scripts", PROGRAMS | dict.fromkeys(ASKED, THREADS) | {"nested": SHOW_ALL}
    )
    by_chance = write(tmp_path / "by_chance", {"one_draws": DRAWS, "two_draws": DRAWS})
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    plain = {key: value for key, value in os.environ.items() if key not in names} | SET_LATE
    asked = ASKED | {"nested": NESTED}
    envs = {name: plain | {"COURSE_ODD": "a b\n=ü"} | asked.get(name, {}) for name in paths}
    cold = start_cold(paths, envs)
    left = taken(tmp_path / "scripts")
    forked, looked = start_warm(paths | by_chance, envs | dict.fromkeys(by_chance, plain))
    differ = {
        name: (cold[name], forked[name])
        for name in paths
        if [*map(same_places, cold[name])] != [*map(same_places, forked[name])]
    }
    assert not differ
    assert taken(tmp_path / "scripts") == left == ["not flushed by hand", "not flushed either"]
    drawn = [number for name in by_chance for number in forked[name][1].split()]
    assert len(set(drawn)) == 6  # chance is each one's own
    # What the parent imports is not searched for garbage, and what comes after that is.
    found, is_on = looked.split()
    assert int(found) < 20 and is_on == "True"  # some come once all is imported


def taken(folder):
    """What files that nobody closed hold; they are gone afterwards."""
    found = sorted(folder.glob("*.left"))
    texts = [path.read_text() for path in found]
    for path in found:
        path.unlink()
    return texts


def same_places(text):
    """Without the addresses of objects, which differ from process to process."""
    return re.sub(r"0x[0-9a-f]{6,}", "0x", text) if isinstance(text, str) else text


def test_what_finalizes_the_parent_is_left_to_it():
    program = """
import os, sys, weakref
from functools import partial
from pathlib import Path
from course.jobs.warm import forks
from course.jobs.warm.fresh import Process
weakref.finalize(sys, print, "the parent's", flush=True)
own = partial(weakref.finalize, sys, print, "the fork's", flush=True)
forks.fork(own, Process(sys.argv, dict(os.environ), Path.cwd())).wait()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["the fork's", "the parent's"], done.stderr


def test_an_environment_that_libraries_have_read_otherwise_starts_a_new_process(monkeypatch):
    env = {"OMP_NUM_THREADS": "3", "LD_PRELOAD": "", "HOME": "/"}
    late = {"KMP_DUPLICATE_LIB_OK": "True"}
    prepared = {"variables": warm.early_variables(env), "set": late}
    monkeypatch.setattr(warm, "_prepared", prepared)
    assert warm.suits(env) and warm.suits(env | late)
    read_late = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "1", "KINETO_LOG_LEVEL": "6"}
    assert warm.suits(env | read_late)
    for other in ({"LD_PRELOAD": "x"}, {"MKL_DYNAMIC": "no"}, {"OMP_NUM_THREADS": "4,2"}):
        assert not warm.suits(env | other)


def test_what_imports_set_leads_to_no_other_server(monkeypatch):
    """A notebook has imported PyTorch, a terminal has not: one server takes the jobs of both."""
    for variable in SET_LATE:
        monkeypatch.delenv(variable, raising=False)
    before = client.name()
    for variable, value in SET_LATE.items():
        monkeypatch.setenv(variable, value)
    assert client.name() == before
    monkeypatch.setenv("KMP_DUPLICATE_LIB_OK", "False")  # somebody's wish
    assert client.name() != before


def test_a_library_that_handles_signals_changes_no_name() -> None:
    """LLVM does, once Triton has compiled: a server would have another name, and never come."""
    before = client.name()
    known = signal.signal(signal.SIGXFSZ, lambda *_: None)
    try:
        assert client.name() == before
    finally:
        signal.signal(signal.SIGXFSZ, known)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # which a job would ignore as well
    try:
        assert client.name() != before
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def test_a_script_in_a_folder_that_is_gone_is_an_error_of_its_parent(tmp_path, monkeypatch):
    for prepared in ({}, {"variables": {}, "set": {}, "path": []}):
        monkeypatch.setattr(warm, "_prepared", prepared)
        with pytest.raises(FileNotFoundError):
            warm.start_script(tmp_path / "x.py", cwd=tmp_path / "gone", env={})


def test_a_forked_process_is_watched_like_a_started_one():
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    child = forks.Forked(pid)
    assert child.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.05)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == child.poll() == -signal.SIGKILL
    child.send_signal(signal.SIGKILL)  # nobody is there to have it


# The server. One that imports no PyTorch is there in an instant; its jobs start cold.
LIGHT = "from course.jobs.warm import server as s; s.import_all = lambda: None; {}; s.main()"


@pytest.fixture
def light_server(monkeypatch, tmp_path, runs_root):
    """A place for servers of this test's own; call it with a line that changes the server."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.delenv("COURSE_WARM", raising=False)
    monkeypatch.setattr(client, "_started", [])  # or the end would stop the one of other tests, too
    servers = []

    def start(change="pass"):
        monkeypatch.setattr(client, "SERVER", LIGHT.format(change))
        client.start_server()
        eventually(is_warm, "the server answers")
        servers.append(server())
        return servers[-1]

    yield start
    client.stop_all()
    eventually(lambda: not any(map(lives, servers)), "the servers end", 10)


def server():
    """The process of the server that would take a job of this one."""
    with client.connected(client.name()) as connection:
        return psutil.Process(client.ask(connection, {"look": True})["pid"])


def lives(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def ends(process):
    eventually(lambda: not lives(process), "the server ends", 20)


def parent_of(run):
    return psutil.Process(run.launched["controller"][0]).ppid()


def test_the_server_has_no_threads_and_no_device(runs_root, monkeypatch):
    only("warm", monkeypatch)
    found = server()
    assert found.num_threads() == 1 and not found.net_connections("inet")
    files = [
        os.readlink(f"/proc/{found.pid}/fd/{each}") for each in os.listdir(f"/proc/{found.pid}/fd")
    ]
    assert not [path for path in files if "nvidia" in path or "dri/" in path]
    assert "COURSE_RUNS" not in found.environ()


def test_a_warm_run_is_as_a_cold_one(tmp_path, runs_root, monkeypatch):
    small = {"model": "resnet18", "data": "synthetic", "steps": 3, "warmup_steps": 1}
    config = rung("baseline", quick=True, **small)
    records, seconds = [], []
    for how in ("warm", "cold"):
        with monkeypatch.context() as patch:
            only(how, patch)
            began = time.monotonic()
            run = jobs.launch(narrow_solution(tmp_path), replace(config), rerun=True)
            eventually((run.folder / "steps.jsonl").exists, "a step")
            seconds.append(time.monotonic() - began)
            records.append(over(run).record)
    first, second = records
    assert first.status == second.status == "ok"
    assert (first.hardware, first.versions) == (second.hardware, second.versions)
    assert first.last_loss == pytest.approx(second.last_loss, rel=1e-4)
    assert first.peak_gib == pytest.approx(second.peak_gib, abs=0.4)  # pages of libraries
    assert first.host_gib == pytest.approx(second.host_gib, abs=0.05)
    assert seconds[0] < seconds[1]


def test_the_first_launch_is_cold_and_starts_a_server_that_takes_the_next(
    light_server, runs_root, monkeypatch
):
    monkeypatch.setattr(client, "SERVER", LIGHT.format("pass"))
    first = launch_running("holds.py")
    assert parent_of(first) == os.getpid()
    eventually(is_warm, "a server")
    second = launch("ok_light.py")
    assert parent_of(second) == server().pid
    release(first)
    assert over(first).status == over(second).status == "ok"


def test_course_warm_0_asks_nobody(light_server, monkeypatch):
    light_server()
    monkeypatch.setenv("COURSE_WARM", "0")
    run = launch("holds.py")
    assert parent_of(run) == os.getpid()


def test_a_server_of_other_source_ends_and_makes_room(light_server, monkeypatch):
    old = light_server()
    held = launch_running("holds.py")
    assert parent_of(held) == old.pid
    monkeypatch.setattr(client, "signature", lambda: "another")
    assert parent_of(launch("ok_light.py")) == os.getpid()
    ends(old)
    assert jobs.refresh(held) == "running"  # though its parent's parent is gone
    release(held)
    assert over(held).status == "ok"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_does_not_answer_is_done_without(light_server, how):
    process = light_server()
    held = launch_running("holds.py")
    process.send_signal(how)
    run = launch("ok_light.py")
    assert parent_of(run) == os.getpid()
    assert jobs.refresh(held) == "running"
    release(held)
    assert over(held).status == over(run).status == "ok"
    if lives(process):
        process.kill()


def test_a_stopped_server_that_goes_on_starts_no_job_twice(light_server):
    process = light_server()
    process.suspend()
    run = launch("ok_light.py")
    process.resume()
    assert over(run).status == "ok"
    assert parent_of(launch("holds.py")) == process.pid  # by now it has seen the other request
    assert len(list((run.folder / "logs").glob("*.out"))) == 1


@pytest.mark.parametrize("spoil", ["mode", "link", "file"])
def test_a_folder_that_others_may_write_to_is_not_trusted(light_server, tmp_path, spoil):
    light_server()
    folder = tmp_path / f"make-training-fast-{os.getuid()}"
    if spoil == "mode":
        folder.chmod(0o755)
    else:
        folder.rename(tmp_path / "moved")
        folder.symlink_to("moved") if spoil == "link" else folder.touch()
    with pytest.raises(jobs.JobError, match="chmod 700"):
        launch("holds.py")
    if spoil != "mode":
        folder.unlink()
        (tmp_path / "moved").rename(folder)
    folder.chmod(0o700)


def test_an_idle_server_ends(light_server):
    ends(light_server("s.IDLE_S = 0.5"))


def test_a_server_whose_socket_was_removed_ends(light_server, tmp_path):
    process = light_server()
    for path in tmp_path.glob("make-training-fast-*/*.socket"):
        path.unlink()
    ends(process)


def test_a_server_ends_with_its_last_user_but_not_before_its_jobs(light_server, monkeypatch):
    sleeper = subprocess.Popen(["sleep", "300"])
    user = processes.identity(sleeper.pid)
    monkeypatch.setattr(client, "user", lambda: user)
    process = light_server("s.LOOK_S = 0.1")
    held = launch_running("holds.py")
    sleeper.kill()
    sleeper.wait()
    time.sleep(1)
    assert is_warm()
    release(held)
    assert over(held).status == "ok"
    ends(process)


def test_servers_of_other_environments_stand_side_by_side(light_server, monkeypatch):
    first = light_server()
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    second = light_server()
    assert lives(first) and first != second


def test_a_launcher_that_gives_up_leaves_no_job(light_server, runs_root, tmp_path):
    light_server()
    env = dict(os.environ) | {"COURSE_RUNS": str(runs_root)}
    job = {"folder": str(tmp_path / "logs"), "env": env, "cwd": "/", "user": client.user()}
    with client.connected(client.name()) as connection:
        request = {"job": job | {"tasks": 1}, "signature": client.signature()}
        pid, _ = client.ask(connection, request)["controller"]
        assert psutil.Process(pid).environ() == env
    expect_no_process(runs_root)
    assert not (tmp_path / "logs").exists()


def test_runs_are_told_apart_by_their_folders_whole_name(runs_root, monkeypatch):
    only("warm", monkeypatch)
    first = launch_running("holds.py")
    other = launch("holds.py", rerun=True)
    assert other.name == f"{first.name}.2"
    processes.kill_left(first)
    eventually(lambda: jobs.refresh(first) == "lost", "a dead job is seen")
    eventually(lambda: jobs.refresh(other) == "running", "the other goes on")
