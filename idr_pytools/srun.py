"""Replace srun in a job on this machine. Jobs start this file by its path."""

import os
import signal
import sys


def srun(command: list[str]) -> int:
    """Start the command on every task; return the code of the first that fails, or 0 at the end."""
    ranks = {}
    for rank in range(int(os.environ["SLURM_NTASKS"])):
        env = os.environ | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
        try:
            task = os.posix_spawnp(command[0], command, env, setsigdef=[signal.SIGPIPE])
        except OSError as error:
            sys.exit(f"srun: cannot start {command[0]!r}: {error.strerror}")
        ranks[task] = rank
    while ranks:
        task, status = os.wait()
        rank, code = ranks.pop(task), os.waitstatus_to_exitcode(status)
        if code:
            reason = f"exit code {code}" if code > 0 else signal.Signals(-code).name
            print(f"srun: task {rank} failed with {reason}: the job ends", file=sys.stderr)
            return abs(code)
    return 0


sys.exit(srun(sys.argv[1:]))
