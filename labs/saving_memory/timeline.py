"""The memory of a training step over time: the bytes of live tensors after each operator."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import pandas as pd
import torch

from course import Config
from course._compat import TorchDispatchMode, tensors_in
from course.training import memory_prediction
from trainspeed.memory import update_once


class MemoryTimeline(TorchDispatchMode):
    """Record the live bytes after each operator that runs in this context.

    Storages count once, from the operator that creates them until they are freed. Tensors on the
    device "meta" do not count: that is how fake tensors move to the host.
    """

    def __init__(self) -> None:
        super().__init__()
        self.phase = "forward"  # set it when the next phase begins
        self.points: list[tuple[str, str, int]] = []  # (phase, operator, live bytes)
        self._live: dict[int, int] = {}  # bytes by storage

    def track(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count tensors, unless they are counted already."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if tensor.device.type != "meta" and id(storage) not in self._live:
                self._live[id(storage)] = storage.nbytes()
                weakref.finalize(storage, self._live.pop, id(storage), None).atexit = False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None):
        result = func(*args, **(kwargs or {}))
        self.track(tensors_in(result))
        self.points.append((self.phase, str(func), sum(self._live.values())))
        return result

    def table(self) -> pd.DataFrame:
        """Return a row per operator: phase, operator, bytes."""
        return pd.DataFrame(self.points, columns=["phase", "operator", "bytes"])


def memory_timeline(config: Config) -> pd.DataFrame:
    """Return the memory of a config's training step on a GPU, after each operator.

    The step runs on fake tensors, so it needs no GPU and computes nothing. Columns: phase
    ("forward", "backward" or "optimizer"), operator, gib.

    Raises:
        ValueError: a step that PyTorch refuses.
    """
    with memory_prediction.fake_step(config) as step:
        update_once(step.optimizer)  # creates the optimizer's state
        model = step.model
        with MemoryTimeline() as timeline:
            state = [value for values in step.optimizer.state.values() for value in values.values()]
            lasting = [*model.parameters(), *model.buffers(), *state]
            timeline.track([*lasting, *step.tensors])
            for samples in step.passes():
                timeline.phase = "forward"
                loss = step.forward(samples)
                timeline.phase = "backward"
                loss.backward()
                del loss
            timeline.phase = "optimizer"
            step.optimizer.step()
    table = timeline.table()
    return table.assign(gib=table.pop("bytes") / 2**30)
