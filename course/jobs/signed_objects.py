"""Objects that ranks send each other are signed, and no one else's are loaded.

PyTorch sends them as pickles, which run any code when they are loaded, and a group's ports have no
password: another user of the machine can take a rank's place.
"""

import hmac
import io
import os
import pickle
import secrets
from types import SimpleNamespace

from torch.distributed import distributed_c10d

from course.jobs.scripts import OBJECT_KEY


def sign_objects() -> None:
    """Let ranks load only what one of them has sent, in all groups.

    They share a secret: a Slurm job's ranks that of their job, others that of the process from
    which all of them are forked.
    """
    key = os.environ.get(OBJECT_KEY, secrets.token_hex(32)).encode()

    def pickler(file: io.BytesIO) -> SimpleNamespace:
        def dump(value: object) -> None:
            data = pickle.dumps(value)
            file.write(hmac.digest(key, data, "sha256") + data)

        return SimpleNamespace(dump=dump)

    def unpickler(file: io.BytesIO) -> pickle.Unpickler:
        signature, data = file.read(32), file.read()
        if not hmac.compare_digest(signature, hmac.digest(key, data, "sha256")):
            raise RuntimeError("an object is not from a rank of this run: someone took its place")
        return pickle.Unpickler(io.BytesIO(data))

    # Private, and read at each call; there is no public way to choose how objects are sent.
    distributed_c10d._pickler, distributed_c10d._unpickler = pickler, unpickler
