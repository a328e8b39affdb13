"""Supervise a batch script in the course's queue: what it starts ends with it."""

import multiprocessing
import os
import signal
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil

from course.jobs.conductor import Conductor
from course.jobs.processes import kill_left, of_runs
from course.jobs.scripts import Surroundings, enter
from course.jobs.supervise import SupervisedRank
from course.runs.record import Record
from course.runs.run import FOLDER_VARIABLE
from course.runs.user_folder import protect_compile_cache

GRACE_S = 5.0  # for the processes of a command, between SIGTERM and SIGKILL


class SupervisedCommand(SupervisedRank):
    """A batch script, which starts its ranks itself."""

    def start(self, conductor: Conductor | None) -> None:
        """Start the script in the folder in which it was submitted, if that is still there."""
        folders = (Path(self.run.launched["cwd"]), self.run.logs[0].parent)
        if gone := [str(folder) for folder in folders if not folder.is_dir()]:
            error = f"{gone[0]}: gone since the job was submitted"
            self.write_verdict(Record("failed", error=error))
        else:
            super().start(conductor)

    def _start_process(self) -> BaseProcess:
        dropped = (FOLDER_VARIABLE, "SLURM")  # it is not a run of the course
        env = {key: value for key, value in self._env.items() if not key.startswith(dropped)}
        surroundings = Surroundings(env, Path(self.run.launched["cwd"]), *self.run.logs)
        process = multiprocessing.get_context("spawn").Process(
            target=run_command, args=(self.run.launched["script"], surroundings)
        )
        process.start()
        return process

    def kill(self) -> None:
        """End the command and what it started, with GRACE_S to do so by itself."""
        if self._child is None:
            return
        processes = of_runs(self.run)
        with suppress(psutil.NoSuchProcess):  # it may not be bash yet, or have sessions of its own
            child = psutil.Process(self._child.pid)
            processes += [child, *child.children(recursive=True)]
        for process in processes:
            with suppress(psutil.Error):
                process.terminate()
        _, left = psutil.wait_procs(processes, timeout=GRACE_S)
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        kill_left(self.run)
        self._child.join()

    def stopped(self, status: str) -> Record:
        """Return the record of a command that must end, and note the reason in its log."""
        record = super().stopped(status)
        if record.error:
            with suppress(OSError), self.run.logs[1].open("a") as err:
                err.write(f"course: job {self.run.name} is ended: {record.error}\n")
        return record


def run_command(script: str, surroundings: Surroundings) -> None:
    """Become bash, which executes the script, in a new session."""
    enter(surroundings)
    protect_compile_cache()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
        signal.signal(number, signal.SIG_DFL)
    os.execvpe("bash", ["bash", script], os.environ)
