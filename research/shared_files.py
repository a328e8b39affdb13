"""Measure reading images over a network: many files, a tar file, raw bytes and a SquashFS image.

    apt-get install sshfs squashfuse squashfs-tools openssh-sftp-server
    python -m research.shared_files labs/formats/shared_files.jsonl

sshfs mounts a folder of this machine, and `sftp_relay` delays its requests and answers, so the
file system is real and the network is not. The server is this machine: its files come from memory.
Mounting again before each reading empties the client's caches.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from course.data import default_set
from research.sweep import command

ROUND_TRIP_MS = 0.6  # what Amazon reports for EFS: most reads take 0.6 ms on average
IMAGES, PIXELS = 512, 256 * 256 * 3
ROUNDS = 5
# Types of SFTP: lstat, fstat and stat ask for a file's attributes.
REQUESTS = {"attributes": (7, 8, 17), "opens": (3,), "reads": (5,), "closes": (4,)}
ORDER = np.random.default_rng(0).permutation(IMAGES)


def plan() -> Iterator[dict[str, Any]]:
    """List the ways to store the images."""
    for way in READERS:
        yield {"way": way, "images": IMAGES, "round_trip_ms": ROUND_TRIP_MS}


@cache
def stored() -> Path:
    """Write the same images in four ways; return their folder."""
    folder = Path(tempfile.mkdtemp(prefix="shared-files-"))
    (folder / "files").mkdir()
    sources = sorted(default_set.ensure().glob("train/[!.]*/[!.]*.jpg"))[:: 1024 // IMAGES]
    for number, source in enumerate(sources):
        shutil.copyfile(source, folder / "files" / f"{number:05d}.jpg")
    with tarfile.open(folder / "shard.tar", "w") as tar:
        tar.add(folder / "files", "")
    (folder / "raw").write_bytes(np.random.default_rng(0).bytes(IMAGES * PIXELS))
    plain = ["-noI", "-noD", "-noF", "-noX"]  # JPEG files do not get smaller
    image = [folder / "files", folder / "squashfs", *plain, "-quiet", "-no-progress"]
    subprocess.run(["mksquashfs", *image], check=True)
    return folder


def read_files(folder: Path) -> int:
    """Read image by image, in random order."""
    return sum(len((folder / "files" / f"{number:05d}.jpg").read_bytes()) for number in ORDER)


def read_shard(folder: Path) -> int:
    """Read a tar file from its beginning."""
    with tarfile.open(folder / "shard.tar", "r|") as members:
        return sum(len(members.extractfile(item).read()) for item in members if item.isfile())


def read_raw(folder: Path) -> int:
    """Copy image by image out of the mapped file, in random order."""
    mapped = np.memmap(folder / "raw", np.uint8, "r", shape=(IMAGES, PIXELS))
    return sum(len(np.array(mapped[number])) for number in ORDER)


def read_squashfs(folder: Path) -> int:
    """Mount the image, and read it like files."""
    with mounted(["squashfuse", folder / "squashfs"]) as place:
        return sum(len((place / f"{number:05d}.jpg").read_bytes()) for number in ORDER)


READERS: dict[str, Callable[[Path], int]] = {
    "files": read_files,
    "tar file": read_shard,
    "raw": read_raw,
    "SquashFS": read_squashfs,
}


@contextmanager
def mounted(mount: list[Any], *options: str) -> Iterator[Path]:
    """Mount a FUSE file system on a new folder."""
    with tempfile.TemporaryDirectory(prefix="mounted-") as place:
        subprocess.run([*mount, place, *options], check=True)
        try:
            yield Path(place)
        finally:
            subprocess.run(["fusermount3", "-u", place], check=True)


@contextmanager
def shared(folder: Path, log: Path) -> Iterator[Path]:
    """Mount a folder with the delay; `log` gets a byte for each request."""
    relay = Path(__file__).with_name("sftp_relay.py")
    ssh = f"{sys.executable} {relay} {ROUND_TRIP_MS} {log}"
    with mounted(["sshfs", f"localhost:{folder}"], "-o", f"ssh_command={ssh}") as place:
        yield place


def timed(read: Callable[[Path], int], folder: Path) -> float:
    """Return the seconds of a reading."""
    begin = time.perf_counter()
    read(folder)
    return time.perf_counter() - begin


def look_up(folder: Path) -> int:
    """Look up files that do not exist, which is one request each."""
    return sum((folder / f"absent-{number}").exists() for number in range(IMAGES))


def measure(way: str, images: int, round_trip_ms: float) -> dict[str, float]:
    """Read the images from this machine's memory, and over the delayed network."""
    read, folder, times = READERS[way], stored(), {"look_up": [], "local": [], "shared": []}
    with tempfile.TemporaryDirectory() as logs:
        log = Path(logs, "requests")
        for _ in range(ROUNDS):
            times["local"].append(timed(read, folder))
            with shared(folder, log) as place:
                times["look_up"].append(timed(look_up, place))
            with shared(folder, log) as place:
                times["shared"].append(timed(read, place))
        counts = Counter(log.read_bytes())
    requests = {
        name: round(sum(counts[kind] for kind in kinds) / images, 3)
        for name, kinds in REQUESTS.items()
    }
    return requests | {
        "kb": read(folder) / images / 1e3,
        "request_ms": 1e3 * min(times["look_up"]) / images,
        "images_per_s": images / min(times["shared"]),  # other programs only make it longer
        "local_images_per_s": images / min(times["local"]),
    }


if __name__ == "__main__":
    try:
        command(__doc__, plan(), measure)
    finally:
        shutil.rmtree(stored())
