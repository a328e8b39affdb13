"""Lab I: checks, recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from course.checks.lab import Function, FunctionCheck, Lab


def _latencies() -> FunctionCheck:
    from labs.lab_inference import latency
    from labs.lab_inference import verify as written

    return FunctionCheck(latency.latencies, written.times_calls, written.waits_each_time)


def _fold() -> FunctionCheck:
    from labs.lab_inference import fold
    from labs.lab_inference import verify as written

    return FunctionCheck(fold.fold, written.folds, written.folds_a_network)


def _int8() -> FunctionCheck:
    from labs.lab_inference import int8
    from labs.lab_inference import verify as written

    return FunctionCheck(int8.to_int8, written.rounds_to_int8, written.keeps_to_its_bits)


FUNCTIONS = {
    "inference.latencies": Function("each answer is timed until it is there", _latencies),
    "inference.fold": Function("BatchNorm becomes part of the convolution", _fold),
    "inference.int8": Function("numbers become steps of eight bits", _int8),
}

LAB = Lab(
    number="I",
    title="a network answers",
    minutes=60,
    functions=FUNCTIONS,
    prepare="the crops, 240 MB, as 3.3; for ONNX the extra `inference`",
    stuck="BatchNorm's mean, scaled or not; what is cast before it is clamped",
)
