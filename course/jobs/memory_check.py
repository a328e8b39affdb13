"""Check that runs that would take turns fit together into the memory of their GPU or host."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing.context import BaseContext

from course.config import GIB, Config
from course.runs.run import Run
from trainspeed.resources import core_count, memory_bytes

LIBRARIES_GIB = 0.8  # of a training process on a CPU, before its first tensor
WORKER_GIB = 0.3  # of a DataLoader worker, which shares its libraries with the training process
CONTEXT_GIB = 1.0  # of a process on a GPU: CUDA's context, and work spaces of its libraries
# Upper bound for an image of 224 px in any network: ResNet-152 in fp32 takes 0.19.
IMAGE_GIB = 0.2


def why_not_together(runs: Sequence[Run], context: BaseContext) -> str:
    """Return why the runs cannot take turns, such as too little memory; "" if they can.

    Small runs pass by an upper bound of their memory, because predicting it takes seconds.
    """
    if len(runs) < 2:
        return "the others were over before it began"
    # In another process, because this one must keep no GPU open.
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        free = None
        if any(run.config.device == "auto" for run in runs):
            free = pool.submit(_gpu_free_gib).result()
        if free == 0:
            return "this site gives each process a different GPU"
        on_gpu = free is not None
        # A GPU has one process of each run; the host's memory has all processes of this node.
        configs = [
            _share(run.config.fitted(on_gpu), run.gpus)
            for run in runs
            for _ in range(1 if on_gpu else run.gpus)
        ]
        free = free if on_gpu else _host_free_gib(runs)
        free -= (CONTEXT_GIB if on_gpu else LIBRARIES_GIB) * len(configs)
        if sum(map(_upper_bound_gib, configs)) <= free:
            return ""
        needed = pool.submit(_peaks_gib, configs).result()
    if needed <= free:
        return ""
    where = "the GPU's memory" if on_gpu else "the host's memory"
    return f"together they need up to {needed:.0f} GiB of {where}, and {max(0, free):.0f} are free"


def _share(config: Config, gpus: int) -> Config:
    """Return the config of what one of several GPUs computes."""
    share = config.batch_size // gpus
    sizes = {"batch_size": share, "micro_batch": min(config.micro_batch, share)}
    sizes = {name: size for name, size in sizes.items() if config.has(name, size)}
    return replace(config, device="auto", **sizes)


def _upper_bound_gib(config: Config) -> float:
    """Return what a step needs at most: of images, without weights, which are small."""
    if not config.tokens:
        return IMAGE_GIB * config.batch_size * (config.image_px / 224) ** 2
    scores = 2 * config.heads * config.context  # written out, as long as the exercise is open
    values = 4 * config.vocabulary + config.layers * (20 * config.width + scores)  # of a token
    sequences = config.micro_batch or config.batch_size
    # Weights, gradients, AdamW's two means and what its update computes; all in fp32.
    return 4 * (6 * config.weights + sequences * config.context * values) / GIB


def _peaks_gib(configs: Sequence[Config]) -> float:
    """Return the sum of the configs' peaks; each different one is predicted once."""
    from course.training.memory_prediction import predict_memory
    from course.training.precision import resolve

    peaks = {
        # The prediction is only of networks for images.
        config: _upper_bound_gib(config)
        if config.tokens
        else predict_memory(resolve(config)).peak_gib
        for config in set(configs)
    }
    return sum(peaks[config] for config in configs)


def _host_free_gib(runs: Sequence[Run]) -> float:
    """Return the free GiB of this machine, container or job, less what DataLoader workers need."""
    counts = [(run.config.workers, run.gpus) for run in runs]
    workers = sum(core_count() if count < 0 else count * gpus for count, gpus in counts)
    return memory_bytes()[1] / GIB - WORKER_GIB * workers


def _gpu_free_gib() -> float | None:
    """Return the free memory of this task's NVIDIA GPU; None without a GPU.

    0 if the site gives each process a different GPU: then no two runs can share one.
    """
    import pynvml
    import torch

    from trainspeed.energy import nvml_handle

    if not torch.cuda.is_available() or not torch.version.cuda:
        return None
    try:
        board = nvml_handle(torch.device("cuda", 0))
        if pynvml.nvmlDeviceGetComputeMode(board) != pynvml.NVML_COMPUTEMODE_DEFAULT:
            return 0.0
        return pynvml.nvmlDeviceGetMemoryInfo(board).free / GIB
    except pynvml.NVMLError:
        return None
