"""The course's own notebooks, executed: on the real Slurm, and answered from recorded runs."""

from collections.abc import Callable
from pathlib import Path

import pytest
from job_helpers import (
    NARROW,
    narrow_solution,
    nothing_left,  # noqa: F401 - every test of this file ends its runs
)

from course.config import QUICK
from course.runs.run import Run
from tools import rehearsal, rehearsal_page
from tools.rehearsal import rehearse

pytestmark = pytest.mark.slow


def passes(
    name: str, script: str = "solutions/train.py", **how: object
) -> list[rehearsal_page.UsedRun]:
    """Execute a notebook against the solution: the runs that it used."""
    done = rehearse(rehearsal.matching(name), script=script, cell_minutes=5, **how)
    (outcome,) = done.outcomes
    assert outcome.status == "ok", f"{outcome.error}\nin cell {outcome.cell}"
    return list(outcome.runs)


# Before a notebook's first cell: it launches and computes what the tests look at, in small.
SMALL = f"from course import config\nconfig.QUICK |= {QUICK!r}\n"
# What a notebook trains of the solution itself, changed or not, has its narrow network.
OF_THIS = """
launched, varied = course.launch, course.script_variant
course.script_variant = lambda name, lines: varied(name, lines, {script!r})
course.launch = lambda what, *how, **where: launched(
    {script!r} if what == "solutions/train.py" else what, *how, **where
)
"""
# A network that is made to be looked at, or for a step that is told: a block where there are more.
FEW_BLOCKS = """
from torchvision.models.resnet import Bottleneck, ResNet
from course.training import models
models.create = lambda name, classes, image_px=224: ResNet(
    Bottleneck, [1] * 4, classes, zero_init_residual=True, width_per_group=16
)
"""
FEW_DIGITS = """
from labs import day1_2_mixed_precision
all_steps = day1_2_mixed_precision.digit_accuracy
day1_2_mixed_precision.digit_accuracy = lambda **options: all_steps(steps=30, **options)
"""
FEW_COSTS = """
from functools import partial
import course
from labs import day3_1_formats as formats
# The notebook's own names are global, too: it imports `rung`.
all_costs, full_rung = formats.core_costs, course.rung
few_steps = {"steps": 12, "val_steps": 2}
formats.core_costs = lambda images: all_costs(images=8)
formats.reader_speeds = partial(formats.reader_speeds, images=32)
formats.epoch_orders = partial(formats.epoch_orders, images=512)
course.rung = lambda name, **how: full_rung(name, **how | few_steps if how.get("quick") else how)
"""
FEW_CROPS = """
from labs.day3_3_large_batch import configs as learning
from labs import day3_3_large_batch as large_batch
learning.QUICK_CROPS = 1024
learning.QUICK |= {"val_images": 64}
crop_batches, state_gib = large_batch.crop_batches, large_batch.optimizer_state_gib
large_batch.crop_batches = lambda count, size: crop_batches(count, min(size, 64))
large_batch.optimizer_state_gib = lambda optimizer, model: state_gib(optimizer, "resnet18")
"""


@pytest.fixture
def in_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have kernels execute these texts as they start."""
    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))

    def execute(*texts: str) -> None:
        (startup / "small.py").write_text("".join(texts))

    return execute


# A run that its time limit ends need not compute for all that time, nor a large network: each step
# waits longer than the one before.
UNHURRIED = """
from time import sleep
narrow.models.create = lambda name, *how: narrow.create("resnet18", *how)
in_no_time = Meter.lap
Meter.lap = lambda meter, *phase, **loss: (
    sleep(0.02 * meter.step) or in_no_time(meter, *phase, **loss)
)
"""


def test_day_0_on_slurm(
    slurm: Path, tmp_path: Path, runs_root: Path, in_kernel: Callable[..., None]
) -> None:
    in_kernel(SMALL)
    script = str(narrow_solution(tmp_path, UNHURRIED))
    used = passes("day0_start_here", script=script, site="slurm", quick=True)
    assert {run.status for run in used} == {"ok", "cancelled", "timeout", "failed"}
    assert all(run.job_id.isdigit() for run in used if run.status == "ok")  # Slurm numbered them


@pytest.mark.parametrize("name", ["day1_1_gpu", "day1_2_mixed_precision", "day1_4_profiler"])
def test_at_full_size_from_recorded_runs(
    name: str, runs_root: Path, in_kernel: Callable[..., None]
) -> None:
    in_kernel(SMALL, FEW_BLOCKS, FEW_DIGITS * (name == "day1_2_mixed_precision"))
    passes(name, site="recorded-nvidia-h100", quick=False)
    assert not list(runs_root.glob("*/launch.json"))  # nothing was launched here


def test_two_ranks_at_full_size_from_recorded_runs(
    tmp_path: Path, runs_root: Path, in_kernel: Callable[..., None]
) -> None:
    script = str(narrow_solution(tmp_path))
    in_kernel(SMALL, NARROW, OF_THIS.format(script=script))
    used = passes("day2_2_data_parallel", site="recorded-nvidia-h200-x4", quick=False)
    assert {run.status for run in used} == {"failed"}  # on purpose
    # The rank that hangs runs here: of NCCL's end there is no record.
    launched = [Run(path.parent) for path in runs_root.glob("*/launch.json")]
    assert launched and not [run for run in launched if run.source == "solutions/train.py"]


@pytest.mark.parametrize("name", ["day2_3_scaling", "day2_4_communication"])
def test_several_gpus_answer_from_recorded_runs(name: str, runs_root: Path) -> None:
    passes(name, site="recorded-nvidia-h200-x4", quick=False)
    assert not [*runs_root.glob("*/launch.json")]  # variants of the script neither


def test_formats_from_recorded_runs(
    tmp_path: Path, runs_root: Path, in_kernel: Callable[..., None]
) -> None:
    script = str(narrow_solution(tmp_path))
    in_kernel(FEW_COSTS, NARROW, OF_THIS.format(script=script))
    used = passes("day3_1_formats", script=script, site="recorded-nvidia-h200", quick=False)
    assert {run.status for run in used} == {"ok"}
    launched = [Run(path.parent) for path in runs_root.glob("*/launch.json")]  # checks and the like
    assert launched and all(run.config.model == "resnet18" for run in launched)


FEW_PHOTOGRAPHS = """
from labs import day2_1_dataloader as dataloader, day3_2_augmentation as augmentation
work_per_image = augmentation.work_per_image
augmentation.work_per_image = lambda images: work_per_image(images=16)
dataloader.loading.ROUNDS = 1
"""


def test_augmentation_answers_from_recorded_runs(
    runs_root: Path, in_kernel: Callable[..., None]
) -> None:
    in_kernel(FEW_PHOTOGRAPHS)
    passes("day3_2_augmentation", site="recorded-nvidia-h200", quick=False)
    assert not [*runs_root.glob("*/launch.json")]


def test_large_batches_from_recorded_runs_and_small_trainings(
    tmp_path: Path, runs_root: Path, in_kernel: Callable[..., None]
) -> None:
    in_kernel(SMALL, FEW_BLOCKS, FEW_CROPS, NARROW)
    script = str(narrow_solution(tmp_path))
    used = passes("day3_3_large_batch", script=script, site="recorded-nvidia-h200", quick=False)
    launched = [Run(path.parent) for path in runs_root.glob("*/launch.json")]  # these are live
    assert {run.status for run in used} == {"ok"} and len(launched) == 8
    assert {run.config.model for run in launched} == {"resnet18"}
    taken = [run.record.evidence["taken"] for run in launched if "mine" in run.config.rung]
    assert len(taken) == 4 and taken.count(taken[0]) == 4  # with few images a batch, and with many


UNWRITTEN = """
import pandas
from labs import day3_4_compile as compilation

compilation.compiler.BACKEND, compilation.compiler.CALLS = "eager", 1
compilation.kernels = lambda *_: [compilation.recorded_kernel("nvidia-h200")]
compilation.measure_cache = lambda *_: pandas.DataFrame({"cache": ["copied"], "seconds": [0.1]})
compilation.measure_export = lambda *_: pandas.DataFrame({"version": ["as it is"], "ms": [0.1]})
"""


def test_compiler_from_recorded_runs_and_small_networks(
    tmp_path: Path, runs_root: Path, in_kernel: Callable[..., None]
) -> None:
    """Compiled graphs run on PyTorch's own kernels: C++ is looked at in tests of the subject."""
    in_kernel(FEW_BLOCKS, UNWRITTEN)
    script = str(narrow_solution(tmp_path, "narrow.leave_kernels()\n"))
    used = passes("day3_4_compile", script=script, site="recorded-nvidia-h200", quick=False)
    launched = [Run(path.parent) for path in runs_root.glob("*/launch.json")]  # the check's two
    assert {run.status for run in used} == {"ok"} and len(launched) == 2
    assert {run.config.model for run in launched} == {"resnet18"}


# Fused as full runs are: otherwise PyTorch derives five operators on shards for each shape. Three
# blocks are as many units as gather two ahead.
FEW_UNITS = """
from labs.day4_2_fsdp.rank_checks import SMALL_VIT_SETTINGS
SMALL_VIT_SETTINGS |= {"fused": True, "steps": 2}
"""
THREE_BLOCKS = "narrow.tiny_networks.DEPTH = 3\n"


def test_shards_from_recorded_runs_and_small_trainings(
    tmp_path: Path, runs_root: Path, in_kernel: Callable[..., None]
) -> None:
    in_kernel(NARROW, FEW_UNITS, THREE_BLOCKS)
    also = THREE_BLOCKS + "narrow.leave_kernels()\n"
    script = str(narrow_solution(tmp_path, also, "train_sharded.py"))
    used = passes("day4_2_fsdp", script=script, site="recorded-nvidia-h200-x2", quick=False)
    assert {run.status for run in used} == {"ok"}
    launched = [Run(path.parent) for path in runs_root.glob("*/launch.json")]  # these are live
    assert {run.launched["gpus"] for run in launched} == {1, 2, 4}
    assert {run.config.model for run in launched} == {"vit_tiny_patch16_224"}


FEW_FEATURES = """
from functools import cache
from labs.day4_3_model_parallel import configs as piped
from labs import day4_3_model_parallel as parallel
piped.LIVE |= {"image_px": 32, "batch_size": 8, "steps": 2, "warmup_steps": 1}
whole = parallel.measure_pieces
parallel.measure_pieces = lambda model, image_px, images: whole(model, 32, 1)
# After each of two TODOs, which are both filled here.
parallel.compare_with_full_mlp = cache(parallel.compare_with_full_mlp)
"""


def test_pipelines_from_recorded_runs_and_small_trainings(
    tmp_path: Path, runs_root: Path, in_kernel: Callable[..., None]
) -> None:
    in_kernel(FEW_FEATURES, NARROW)
    script = str(narrow_solution(tmp_path, name="train_parallel.py"))
    used = passes(
        "day4_3_model_parallel", script=script, site="recorded-nvidia-h100-x2", quick=False
    )
    assert {run.status for run in used} == {"ok"}
    launched = [Run(path.parent) for path in runs_root.glob("*/launch.json")]  # these are live
    piped = [run for run in launched if run.config.pipeline]
    assert {run.launched["gpus"] for run in piped} == {2}
    assert {run.config.pipeline for run in piped} == {"gpipe", "1f1b", "interleaved", "zero_bubble"}
    assert {run.config.cut for run in piped} > {"gflop"}  # and where the notebook cuts


def test_memory_from_recorded_runs_and_small_trainings(
    tmp_path: Path, runs_root: Path, in_kernel: Callable[..., None]
) -> None:
    in_kernel(NARROW)
    script = str(narrow_solution(tmp_path, name="train_sharded.py"))
    used = passes("day4_1_memory", script=script, site="recorded-nvidia-h200", quick=False)
    assert {run.status for run in used} == {"ok"}
    launched = [Run(path.parent) for path in runs_root.glob("*/launch.json")]  # these are live
    assert {Path(run.source).name for run in launched} == {"train_sharded.py"}
    ways = [
        (run.config.micro_batch, run.config.checkpointing, run.config.offload) for run in launched
    ]
    assert sorted(ways) == [
        (0, "", False),
        (0, "", False),
        (0, "", True),
        (0, "every", False),
        (3, "", False),
        (3, "", False),
        (8, "every", False),
    ]


FEW_TRIALS = """
from labs.day4_4_search import configs as tuned
from labs import day4_4_search as search
tuned.QUICK |= {"epochs": 3, "steps": 2, "val_images": 64, "lr_warmup": 1, "warmup_steps": 1}
made, compare = search.search, search.compare_samplers
few = {"seed": [0]}
search.compare_samplers = lambda grid: compare(grid, repeats=2)
search.search = lambda sampler, space, config, trials=None, **how: made(
    sampler, few if "seed" in space else space, config, trials=trials and 2, **how
)
"""


def test_searches_from_recorded_runs_and_small_trials(
    tmp_path: Path, runs_root: Path, in_kernel: Callable[..., None]
) -> None:
    in_kernel(FEW_TRIALS, NARROW)
    script = str(narrow_solution(tmp_path))
    passes("day4_4_search", script=script, site="recorded-nvidia-h100", quick=False)
    launched = [Run(path.parent) for path in runs_root.glob("*/launch.json")]  # these are live
    searches = {run.launched["trial"]["study"] for run in launched}
    # Two trials; then the best's values and the first one's with another seed, if they differ.
    assert len(launched) == len(searches) + 1 and len(searches) in (2, 3)
    assert {run.config.model for run in launched} == {"resnet18"}
    assert {run.status for run in launched} <= {"ok", "cancelled"}  # pruned


# Narrow layers are over before a second thread has begun.
FORGETS = """
import os
from functools import partial
os.environ["OMP_NUM_THREADS"] = "1"
from course.checks import exercises
from labs import day4_5_practice as practice
practice.train_with_threads = partial(practice.train_with_threads, steps=3)
as_ever = exercises.script_variant
exercises.script_variant = lambda name, after, script: as_ever(name, after, {script!r})
"""


def test_a_training_is_stopped_and_goes_on(
    tmp_path: Path, runs_root: Path, in_kernel: Callable[..., None]
) -> None:
    script = str(narrow_solution(tmp_path, name="train_restarted.py"))
    in_kernel(NARROW, FORGETS.replace("{script!r}", repr(script)))
    passes("day4_5_practice", script=script, quick=True)
    launched = [Run(path.parent) for path in runs_root.glob("*/launch.json")]
    outside = [run for run in launched if run.config.steps == 120]
    assert {run.status for run in outside} == {"cancelled", "ok"}
    (last,) = [run for run in outside if run.status == "ok"]
    assert last.record.evidence["began_at"] >= 10 and len(last.steps) == 120
    planted = [run for run in launched if run.config.sigterm_step or run.config.sigkill_step]
    assert sorted(run.record.evidence["began_at"] for run in planted) == [3, 3, 5]
    assert {len(run.record.epochs) for run in planted} == {2}  # the first process's as well


FEW_UPDATES = """
from functools import partial
from labs import lab_numerics as lab
lab.train_in_bf16 = partial(lab.train_in_bf16, steps=150)
lab.solve_by_condition = partial(lab.solve_by_condition, size=50)
"""


def test_half_precision_for_science_with_its_blanks_open(
    runs_root: Path, in_kernel: Callable[..., None]
) -> None:
    """What a learner has not written yet, the lab does with its own function."""
    in_kernel(FEW_UPDATES)
    passes("lab_numerics")
    assert not [*runs_root.glob("*/launch.json")]


FEW_TILES = """
from functools import partial
from labs import lab_kernel as lab
lab.traffic_by_tile = partial(lab.traffic_by_tile, size=64)
"""


def test_a_first_kernel_with_its_blanks_open(
    runs_root: Path, in_kernel: Callable[..., None]
) -> None:
    """Interpreted, in a process that has imported Triton before to compile."""
    in_kernel(FEW_TILES)
    passes("lab_kernel")
    assert not [*runs_root.glob("*/launch.json")]


FEW_PRODUCTS = """
from functools import partial
from labs import lab_microscope as lab
lab.map_this_machine = partial(lab.map_this_machine, reach=1)
"""


def test_the_microscope_with_its_blanks_open(
    runs_root: Path, in_kernel: Callable[..., None]
) -> None:
    """What an H100 did is read from its record; on this machine a few products are timed."""
    in_kernel(FEW_BLOCKS, FEW_PRODUCTS)
    passes("lab_microscope")
    assert not [*runs_root.glob("*/launch.json")]


NARROW_NETWORKS = """
import narrow_networks
import torch
torch.set_num_threads(1)  # two would wait for each other at each of so small layers
narrow_networks.use()
from labs.lab_networks import bench, local
bench.CPU_STEPS |= {"warmup": 1, "iterations": 1}
local.MIN_TURNS = 1
"""


def test_three_networks_with_the_blank_open(
    runs_root: Path, in_kernel: Callable[..., None]
) -> None:
    in_kernel(NARROW, NARROW_NETWORKS)
    passes("lab_networks", quick=True)
    assert not [*runs_root.glob("*/launch.json")]


FEW_ANSWERS = """
import torch
from functools import partial
from labs import lab_inference as lab
from labs.lab_inference import latency
from labs.lab_inference import int8
from course.training import models
torch.set_num_threads(1)
narrow.leave_kernels()
models.patches = partial(models.patches, width=8)
latency.WARM_UP_CALLS, latency.MIN_CALLS = 1, 2
int8.CALIBRATION_CROPS = 64
few = {
    "train_network": {"steps": 8},
    "top1": {"images": 128},
    "accuracy_without_eval": {"batches": (32, 1), "images": 64},
    "latency_curve": {"batches": (1, 4), "budget_s": 0.01},
    "time_ladder": {"batches": (64,), "budget_s": 0.01},
    "accuracy_by_bits": {"bits": (8, 4), "images": 128},
    "accuracy_by_calibration": {"images": 128},
    "compare_formats": {"budget_s": 0.01, "images": 128},
}
for name, how in few.items():
    setattr(lab, name, partial(getattr(lab, name), **how))
"""


def test_a_network_answers_with_its_blanks_open(
    runs_root: Path, in_kernel: Callable[..., None]
) -> None:
    in_kernel(NARROW, FEW_ANSWERS)
    passes("lab_inference")
    assert not [*runs_root.glob("*/launch.json")]


def test_the_fast_step_with_its_blanks_open(runs_root: Path) -> None:
    passes("lab_fast_step")
    assert not [*runs_root.glob("*/launch.json")]
