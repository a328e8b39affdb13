"""Figures of the labs, drawn from recorded runs: each can be drawn and has an alternative text."""

from collections.abc import Callable
from functools import cache

import pandas as pd
import pytest
from facts import run, runs

from course.analysis import read_trace
from course.charts.base import Picture
from course.runs.recordings import recorded_runs, trace_path
from electives import attention as attention
from electives import fast_step as fast_step
from electives import inference as inference
from electives import kernel as kernel
from electives import microscope as microscope
from electives import networks as networks
from labs import channels_last as layout
from labs import communication as communication
from labs import data_parallel as data_parallel
from labs import fsdp as fsdp
from labs import gpu as gpu
from labs import large_batch as large_batch
from labs import memory as memory
from labs import mixed_precision as precision
from labs import profiler as profiler
from labs import scale as scale
from labs import scaling as scaling
from labs import search as search
from labs import start_here as machine
from labs import tensor_parallel as parallel
from labs.scale.counters import energy_kwh
from labs.scale.full_training import full_training
from labs.search.asha import promote
from trainspeed.traces import tables

H100, H200 = "nvidia-h100", "nvidia-h200"


@cache
def learned(name: str):
    """Return a recorded training of the lab on large batches."""
    return run(H200, name, "learning")


def ladder():
    table = inference.load_measurements(H100)
    return table[(table["part"] == "ladder") & table["variant"].isin(inference.LADDER)]


FIGURES: dict[str, Callable[[], Picture]] = {
    "supercomputer": machine.plot_supercomputer,
    "queues of host and GPU": gpu.plot_queues,
    "backfill": machine.plot_backfill,
    "memory of a step": memory.plot_step_memory,
    "limits of a step": profiler.plot_limits_tree,
    "time by operator": lambda: profiler.plot_time_by(
        tables.by_operator(read_trace(trace_path(H100, "amp")))
    ),
    "bits of formats": precision.plot_bits,
    "step of mixed precision": precision.plot_step,
    "step of DDP": data_parallel.plot_ddp,
    "calls of DDP's functions": communication.plot_calls,
    "inside a GPU": kernel.plot_gpu,
    "busy multiprocessors": lambda: layout.plot_busy_multiprocessors(H100, 64, 512),
    "time by part": lambda: layout.plot_time_by_part(H100, "amp", "channels_last"),
    "recorded convolution": lambda: layout.plot_convolution_times(H100),
    "scaling": lambda: scaling.plot_scaling(
        scaling.efficiency_table(runs("nvidia-h200-x4", "scaling")).query("images_per_gpu == 256")
    ),
    "lost time": scaling.plot_lost_time,
    "learning-rate searches": lambda: large_batch.plot_rate_searches(
        {"256 images": learned("find-256-10")}
    ),
    "units of FSDP": fsdp.plot_units,
    "FSDP and DDP": lambda: fsdp.plot_comparison(
        fsdp.compare_with_ddp(fsdp.sharding_runs()).query("limit_gib == 0 and images == 24")
    ),
    "shards of an MLP": parallel.plot_mlp_shards,
    "strips of an image": parallel.plot_strips,
    "sampled points": search.plot_sampled_points,
    "a search's curves": lambda: search.plot_curves(
        search.epochs_table(recorded_runs(H100, "search"))
    ),
    "workers of a search": lambda: search.plot_timelines(promote, search.Replay.of_grid()),
    "held-out images": lambda: search.plot_holdout(
        pd.DataFrame({"validation": [0.5, 0.4], "test": [0.4, 0.4]}), "a GPU"
    ),
    "energy as an area": lambda: scale.plot_energy(
        scale.costs_on_one_gpu(full_training), scale.costs_on_several_gpus(full_training)
    ),
    "errors of a counter": lambda: scale.plot_energy_errors(energy_kwh),
    "time of attention": lambda: attention.plot_times(attention.load_measurements(H200)["time"]),
    "masks of attention": lambda: attention.plot_masks(attention.load_measurements(H200)["mask"]),
    "tensors of the fast step": lambda: fast_step.plot_tensors(),
    "traffic of a block": lambda: fast_step.plot_traffic(fast_step.block_traffic()),
    "limits of the fast step": lambda: fast_step.plot_limits(
        fast_step.load_measurements(),
        fast_step.megabytes_per_image(),
        **fast_step.hardware_limits(),
    ),
    "speed of inference": lambda: inference.plot_speedups(ladder()),
    "blocks of a kernel": lambda: kernel.plot_grid(size=22, block=8),
    "bandwidth of a kernel": lambda: kernel.plot_bandwidth(kernel.load_measurements(H100)),
    "rate of products": lambda: kernel.plot_matmul_rate(kernel.load_measurements(H100)),
    "far map": lambda: microscope.plot_far_map(microscope.load_measurements().far),
    "ladder of networks": lambda: networks.plot_ladder(networks.load_measurements(H100)),
}


LONG = {"limits of networks": pytest.mark.long}  # it counts what three networks compute


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=LONG.get(name, ())) for name in FIGURES])
def test_a_figure_is_drawn_from_records(name: str) -> None:
    picture = FIGURES[name]()
    picture.draw_without_rendering()
    assert len(picture.alt) > 20


def test_no_name_is_on_the_power_limit_of_the_fast_step() -> None:
    picture = FIGURES["limits of the fast step"]()
    picture.draw_without_rendering()
    (axes,) = picture.axes
    power = axes.lines[1].get_window_extent().y0
    extents = [text.get_window_extent() for text in axes.texts]
    near = [box for box in extents if box.y0 - 4 < power < box.y1 + 4]  # pixels
    assert len(extents) == 3 and not near
