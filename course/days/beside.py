"""The race, which ends the days; and labs beside them, in any order: they launch no job."""

from __future__ import annotations

from course.config import rung
from course.days.lab import FULL_SIZE, Lab, Looks, Recording, Written


def _carry() -> Looks:
    from course.topics.refinement import updates, written

    return Looks(updates.add_carried, written.adds_up, written.keeps_the_rest)


def _chance() -> Looks:
    from course.topics.refinement import updates, written

    return Looks(updates.by_chance, written.is_right_on_average, written.leaves_what_fits)


def _refine() -> Looks:
    from course.topics.refinement import refined, written

    return Looks(refined.correct, written.refines, written.asks_the_factors)


NUMERICS = {
    "numerics.carry": Written("small updates arrive, in 16 bits", _carry),
    "numerics.chance": Written("rounding is right on average", _chance),
    "numerics.refine": Written("fp64's accuracy from factors in fp16", _refine),
}


def _add() -> Looks:
    from course.topics.kernels import given, written

    return Looks(given.add, written.adds, written.adds_once)


def _softmax() -> Looks:
    from course.topics.kernels import given, written

    return Looks(given.softmax, written.is_softmax, written.reads_rows_once)


def _norm_relu() -> Looks:
    from course.topics.kernels import given, written

    return Looks(given.norm_relu, written.normalises, written.reads_channels_once)


def _matmul() -> Looks:
    from course.topics.kernels import given, written

    return Looks(given.matmul, written.multiplies, written.uses_dot)


KERNELS = {
    "kernel.add": Written("a kernel adds, and stays inside", _add),
    "kernel.softmax": Written("a row is read once", _softmax),
    "kernel.norm": Written("two operations in one kernel", _norm_relu),
    "kernel.matmul": Written("tiles are multiplied by Tensor Cores", _matmul),
}


def _names() -> Looks:
    from course.topics.microscope import given, written

    return Looks(given.uses_tensor_cores, written.knows_names, written.knows_others)


def _load() -> Looks:
    from course.topics.microscope import given, written

    return Looks(given.widest_load, written.knows_loads, written.loads_at_most_16)


def _waves() -> Looks:
    from course.topics.microscope import given, written

    return Looks(given.waves, written.counts_waves, written.waves_of_units)


MICROSCOPE = {
    "microscope.names": Written("a kernel's name tells whether Tensor Cores ran", _names),
    "microscope.load": Written("how much of a row one load may take", _load),
    "microscope.waves": Written("tiles, and turns of the multiprocessors", _waves),
}


def _timing() -> Looks:
    from course.topics.networks import written

    return Looks(written.seconds_a_step, written.is_right, written.waits_where_it_must)


NETWORKS = {"networks.timing": Written("a step is timed as a device computes it", _timing)}


def _latencies() -> Looks:
    from course.topics.inference import latency, written

    return Looks(latency.latencies, written.times_calls, written.waits_each_time)


def _fold() -> Looks:
    from course.topics.inference import fold, written

    return Looks(fold.fold, written.folds, written.folds_a_network)


def _int8() -> Looks:
    from course.topics.inference import int8, written

    return Looks(int8.to_int8, written.rounds_to_int8, written.keeps_to_its_bits)


INFERENCE = {
    "inference.latencies": Written("each answer is timed until it is there", _latencies),
    "inference.fold": Written("BatchNorm becomes part of the convolution", _fold),
    "inference.int8": Written("numbers become steps of eight bits", _int8),
}


def _statistics() -> Looks:
    from course.topics.fast_step import written

    return Looks(written.given, written.is_statistics, written.makes_no_y)


FAST_STEP = {"fast_step.statistics": Written("statistics before the convolution", _statistics)}

HALVES = ({}, {"precision": "fp16"})

LABS = (
    Lab(
        number="R",
        notebook="race",
        title="train to an accuracy, in the least time",
        minutes=60,
        quiz="race",
        jobs="3 an entry on track quick, 4 on the others, one after another",
        prepare="the crops, 240 MB, as 3.3; a board's folder that all may write to",
        stuck="a mean above the target that is not surely so; weights saved twice",
    ),
    Lab(
        number="N",
        notebook="lab_numerics",
        title="half precision for science",
        minutes=50,
        quiz="lab_numerics",
        written=NUMERICS,
        prepare="nothing",
        stuck="the carry's sign; bits that are rounded instead of cut",
    ),
    Lab(
        number="K",
        notebook="lab_kernel",
        title="a first GPU kernel",
        minutes=60,
        quiz="lab_kernel",
        written=KERNELS,
        prepare="Linux: Triton is not to be had elsewhere",
        stuck="what stands beyond a row; tables of places from rows and channels",
    ),
    Lab(
        number="M",
        notebook="lab_microscope",
        title="when do Tensor Cores run?",
        minutes=60,
        quiz="lab_microscope",
        written=MICROSCOPE,
        prepare="nothing",
        stuck="words that also stand in names of other kernels; waves rounded down",
    ),
    Lab(
        number="B",
        notebook="lab_networks",
        title="a benchmark of three networks",
        minutes=75,
        quiz="lab_networks",
        written=NETWORKS,
        prepare="images with boxes and volumes, 70 MB, made on first use",
        stuck="a clock that is read while the device still computes; a speed that is the host's",
    ),
    Lab(
        number="I",
        notebook="lab_inference",
        title="a network answers",
        minutes=60,
        quiz="lab_inference",
        written=INFERENCE,
        prepare="the crops, 240 MB, as 3.3; for ONNX the extra `inference`",
        stuck="BatchNorm's mean, scaled or not; what is cast before it is clamped",
    ),
    Lab(
        number="A",
        notebook="lab_fast_step",
        title="the fast step",
        minutes=40,
        quiz="lab_fast_step",
        written=FAST_STEP,
        rungs=(("algebra", "bf16"), ("algebra", "fp16")),
        recordings=(
            Recording("throughput", [rung("algebra", **FULL_SIZE, **half) for half in HALVES]),
        ),
        prepare="nothing",
        stuck="the diagonal of W G W'; the mean's square",
    ),
)
