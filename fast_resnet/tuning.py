"""Choosing among equal kernels: each shape's candidates are timed once, and the fastest is kept.

No tile is best for all: which one wins depends on the shape, and by how much it wins on the GPU.
A choice is kept under a name without the batch, such as "conv3 784 128 512 True" (pixels of an
image, depth, columns, joins). tuned_h100.json holds those that were measured on an H100. Other
GPUs begin with them: a good guess, and only one kernel for each shape is compiled. A file beside
it, tuned_GPU.json, goes before it on GPUs with that in their name. What a run adds lies in the
user's cache; `benchmarks/fast_step/measure.py --tune` tries all, and --choices writes such a file.
"""

import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from triton.runtime.errors import OutOfResources

from fast_resnet.kernels.compiling import Launch

ROW_TILES = [(4096, 8, 4), (2048, 4, 8), (4096, 8, 8), (2048, 4, 16)]  # elements, warps, per SM
STEM_TILES = [(32, 4), (64, 4)]  # pixels, warps
# rows, columns, depth, warps, stages
PRODUCT_TILES = [
    (64, 128, 64, 4, 3),
    (128, 64, 64, 4, 4),
    (128, 128, 64, 8, 3),
    (128, 128, 64, 4, 3),
    (64, 128, 128, 4, 2),
    (128, 64, 64, 8, 3),
]
REPEATS = 6  # calls of a candidate that are timed
SPLITS = (8, 64)  # parts that a product over very many rows is cut into, and then added

Candidates = dict[str, Callable]
FIRST = "h100"  # whose choices all others begin with


def shipped(folder: Path) -> dict[str, Path]:
    """The files of choices there, by the GPU that they are of, FIRST before the others."""
    found = {path.stem.removeprefix("tuned_"): path for path in folder.glob("tuned_*.json")}
    return dict(sorted(found.items(), key=lambda item: (item[0] != FIRST, item[0])))


SHIPPED = shipped(Path(__file__).parent)


def seconds(run: Callable, repeats: int = REPEATS) -> float:
    """Device time of one call, the mean of some, after two that compile and warm up."""
    for _ in range(2):
        run()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / repeats


class Choices:
    """The tiles that may be tried on a device, and those that were chosen.

    On a CPU (Triton's interpreter) an element costs nearly nothing and a program much: there is
    one large tile for each kind, and nothing is timed. The dict `chosen` is added to. On the meta
    device launches are noted, not made: that of the tile that was chosen, or of all to be tried.
    """

    def __init__(self, device: torch.device, chosen: dict[str, str]) -> None:
        self.batch = 1  # images of the step under way
        self.interpreted = device.type == "cpu"
        self.chosen = chosen
        self.noted: list[Launch] | None = [] if device.type == "meta" else None
        self.processors = 1
        if device.type == "cuda":
            self.processors = torch.cuda.get_device_properties(device).multi_processor_count

    def run(
        self, kind: str, rows: int, shape: tuple, candidates: Candidates, touched: tuple = ()
    ) -> torch.Tensor | None:
        """Run the fastest candidate for this shape, and return what it returns.

        touched: what a candidate adds to; timing, which runs it many times, leaves no trace there.
        """
        name = " ".join(map(str, (kind, rows // self.batch, *shape)))
        if self.noted is not None:
            known = self.chosen.get(name)
            noted = [known] if known in candidates else candidates
            return [candidates[each]() for each in noted][-1]
        if self.chosen.get(name) in candidates:
            try:
                return candidates[self.chosen[name]]()
            except OutOfResources:  # another GPU's choice: it has not run, so choose among ours
                pass
        self.chosen[name] = self._fastest(candidates, touched)
        return candidates[self.chosen[name]]()

    def _fastest(self, candidates: Candidates, touched: tuple) -> str:
        first = next(iter(candidates))
        if len(candidates) == 1 or self.interpreted or torch.cuda.is_current_stream_capturing():
            return first
        before = [tensor.clone() for tensor in touched]
        times = {}
        for name, run in candidates.items():
            try:
                times[name] = seconds(run)
            except OutOfResources:  # a tile that this GPU's shared memory cannot hold
                times[name] = math.inf
        for tensor, values in zip(touched, before):
            tensor.copy_(values)
        return min(times, key=times.__getitem__)

    def launch(self, kernel: Any, grid: tuple, *arguments: Any, **options: Any) -> None:
        """kernel[grid](*arguments, **options), or a note of it."""
        launch = Launch(kernel, grid, arguments, options)
        if self.noted is None:
            launch.run()
        else:
            self.noted.append(launch)

    def row_grid(self, rows: int, columns: int, elements: int, per_sm: int) -> tuple:
        """Grid, rows and columns of a block, of a kernel that walks over [rows, columns]."""
        BC = min(columns, 256)
        BR = max(elements // BC, 1)
        strips = columns // BC
        walkers = max(1, min(triton.cdiv(rows, BR), self.processors * per_sm // strips))
        return (walkers, strips), BR, BC

    def small_tile(self, weights: torch.Tensor) -> tuple[int, int]:
        """Rows and columns of a block, of a kernel that passes over weights [N, K] once."""
        rows, depth = (64, 256) if self.interpreted else (16, 64)
        return rows, min(weights.shape[1], depth)

    def row_candidates(self, rows: int, columns: int, launch: Callable) -> Candidates:
        """launch(grid, BR, BC, warps) with every tile."""

        def candidate(elements: int, warps: int, per_sm: int) -> Callable:
            grid, BR, BC = self.row_grid(rows, columns, elements, per_sm)
            return lambda: launch(grid, BR, BC, warps)

        tiles = [(1 << 16, 8, 8)] if self.interpreted else ROW_TILES
        return {str(tile): candidate(*tile) for tile in tiles}

    def stem_candidates(self, launch: Callable) -> Candidates:
        """launch(pixels, warps) with every tile."""
        tiles = [(1024, 8)] if self.interpreted else STEM_TILES
        return {str(tile): (lambda tile=tile: launch(*tile)) for tile in tiles}

    def product_candidates(self, depth: int, columns: int, launch: Callable) -> Candidates:
        """launch(BM, BN, BK, options) with every tile that divides depth and columns."""
        tiles = (
            [(1024, min(columns, 256), min(depth, 256), 4, 1)]
            if self.interpreted
            else [
                tile
                for tile in PRODUCT_TILES
                if columns % tile[1] == 0 and depth % min(tile[2], depth) == 0
            ]
        )

        def candidate(BM: int, BN: int, BK: int, warps: int, stages: int) -> Callable:
            options = {"num_warps": warps, "num_stages": stages}
            return lambda: launch(BM, BN, min(BK, depth), options)

        return {f"t{tile}": candidate(*tile) for tile in tiles}


class Saved:
    """Choices of a GPU of this name: those that are shipped, and those that runs here add."""

    def __init__(self, gpu: str) -> None:
        name = re.sub(r"\W+", "-", gpu.lower()).strip("-")
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self._file = cache / "fast_resnet" / f"{name}.json"
        self._known: dict[str, str] = {}
        for type_of_gpu, file in SHIPPED.items():
            if type_of_gpu == FIRST or type_of_gpu in name:
                self._known |= _read(file)
        self._known |= _read(self._file)
        self.chosen = dict(self._known)

    def write(self) -> None:
        """Keep what was chosen since, for the next run; a disk that is full keeps nothing."""
        if self.chosen == self._known:
            return
        self._known = _read(self._file) | self.chosen  # another run may have added some
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._file.parent) as folder:
                draft = Path(folder) / self._file.name
                draft.write_text(json.dumps(self._known, indent=1))
                draft.replace(self._file)  # complete, or as it was
        except OSError as error:
            print(f"{self._file.name} could not be written: {error}", file=sys.stderr)


def _read(file: Path) -> dict[str, str]:
    """What a file holds; nothing of one that is missing or damaged."""
    try:
        values = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}
