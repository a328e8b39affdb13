"""Objects that ranks send each other are signed: ranks load only what one of them has sent.

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


def sign_objects(is_wanted: bool = True) -> None:
    """Use a secret that ranks share: that of their Slurm job, or of the process that forks them."""
    key = os.environ.get(OBJECT_KEY, secrets.token_hex(32)).encode()

    def pickler(file: io.BytesIO) -> SimpleNamespace:
        return SimpleNamespace(dump=lambda value: write(file, pickle.dumps(value)))

    def write(file: io.BytesIO, data: bytes) -> None:
        file.write(hmac.digest(key, data, "sha256") + data)

    def unpickler(file: io.BytesIO) -> pickle.Unpickler:
        signature, data = file.read(32), file.read()
        if not hmac.compare_digest(signature, hmac.digest(key, data, "sha256")):
            raise RuntimeError("an object is not from a rank of this run: someone took its place")
        return pickle.Unpickler(io.BytesIO(data))

    # Private, and read at each call; there is no public way to choose how objects are sent.
    chosen = (pickler, unpickler) if is_wanted else (pickle.Pickler, pickle.Unpickler)
    distributed_c10d._pickler, distributed_c10d._unpickler = chosen
