"""What can be taken elsewhere: the compiler's cache, and a network for inference in one file."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pandas as pd
import torch
from torch import nn

from course.runs import isolated
from course.text import wrap_text
from labs.day3_4_compile.compiler_output import anew, middle_ms, told

CACHE = "TORCHINDUCTOR_CACHE_DIR"


def carried(function: Callable, *inputs: torch.Tensor) -> pd.DataFrame:
    """Seconds of a first call with an empty cache, with a copy of it, and with an empty one again.

    The cache is the folder that `TORCHINDUCTOR_CACHE_DIR` names. Columns: cache, seconds, found
    (graphs that were in it). What PyTorch's compiler itself takes to be loaded is not counted.

    Raises:
        RuntimeError: this machine has no C++ compiler; the message says where to get one.
    """
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        first, copy, other = (Path(folder) / name for name in ("first", "copy", "other"))
        with told():
            _first_call(function, inputs, Path(folder) / "unseen")
            rows.append({"cache": "empty"} | _first_call(function, inputs, first))
            shutil.copytree(first, copy)
            rows.append({"cache": "copied"} | _first_call(function, inputs, copy))
            rows.append({"cache": "empty again"} | _first_call(function, inputs, other))
    return pd.DataFrame(rows)


def _first_call(function: Callable, inputs: tuple, folder: Path) -> dict[str, float]:
    counters = torch._dynamo.utils.counters["inductor"]
    with _cache_in(folder), anew(), torch.no_grad():
        before, begin = counters["fxgraph_cache_hit"], time.perf_counter()
        torch.compile(function)(*inputs)
        seconds = time.perf_counter() - begin
        return {"seconds": seconds, "found": counters["fxgraph_cache_hit"] - before}


@contextmanager
def _cache_in(folder: Path) -> Iterator[None]:
    """The compiler's cache lies in this folder, and what it keeps in memory is forgotten."""
    from torch._inductor.utils import clear_caches

    with mock.patch.dict(os.environ, {CACHE: str(folder)}):
        clear_caches()
        try:
            yield
        finally:
            clear_caches()


@torch.no_grad()
def inferred(net: nn.Module, images: torch.Tensor) -> pd.DataFrame:
    """Milliseconds of a network's answer: as it is, and as a file that was exported and loaded.

    torch.export writes down the graph, AOTInductor compiles it, and the file needs neither the
    Python class nor a compiler where it is loaded. Columns: way, ready_s (until the first
    answer, of the file from its loading on), ms, mib (of the file), differs (largest difference
    of an answer).

    A process of its own compiles and loads the file, because a fault in compiled code ends the
    process. Then a sentence says so, and the table has no row for the file.

    Raises:
        RuntimeError: this machine has no C++ compiler; the message says where to get one.
    """
    net = net.eval()
    _, ready_s = _timed(lambda: net(images))
    rows = [{"way": "as it is", "ready_s": ready_s, "ms": middle_ms(net, images)}]
    try:
        rows.append(isolated.call(exported, net, images))
    except isolated.Crash as crash:
        print(wrap_text(f"{crash}\nThis PyTorch cannot run the exported network on this machine."))
    return pd.DataFrame(rows)


@torch.no_grad()
def exported(net: nn.Module, images: torch.Tensor) -> dict[str, str | float]:
    """The row of `inferred` for the exported file."""
    due = net(images)
    with tempfile.TemporaryDirectory() as folder, told():
        path = f"{folder}/network.pt2"
        program = torch.export.export(net, (images,))
        _, made_s = _timed(
            lambda: torch._inductor.aoti_compile_and_package(
                # Precompiled headers would be in a folder that others may have created first.
                program,
                package_path=path,
                inductor_configs={"aot_inductor.precompile_headers": False},
            )
        )
        loaded, loaded_s = _timed(lambda: torch._inductor.aoti_load_package(path))
        found, answer_s = _timed(lambda: loaded(images))
        return {
            "way": "exported, from its file",
            "made_s": made_s,
            "ready_s": loaded_s + answer_s,
            "ms": middle_ms(loaded, images),
            "mib": os.path.getsize(path) / 2**20,
            "differs": float((found - due).abs().max()),
        }


def _timed(work: Callable) -> tuple:
    """What it gives, and the seconds that it takes."""
    begin = time.perf_counter()
    given = work()
    return given, time.perf_counter() - begin
