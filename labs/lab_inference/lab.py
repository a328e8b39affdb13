"""Lab I: its function checks, and what the course shows about it."""

from __future__ import annotations

from course.checks.lab import Function, FunctionCheck, Lab


def _latencies() -> FunctionCheck:
    from labs.lab_inference import latency, verify

    return FunctionCheck(latency.latencies, verify.check_times, verify.check_waits)


def _fold() -> FunctionCheck:
    from labs.lab_inference import variants, verify

    return FunctionCheck(variants.fold, verify.check_fold, verify.check_folded_network)


def _int8() -> FunctionCheck:
    from labs.lab_inference import int8, verify

    return FunctionCheck(int8.to_int8, verify.check_int8, verify.check_scales_and_bits)


LAB = Lab(
    number="I",
    title="inference, with one image or many",
    minutes=60,
    functions={
        "inference.latencies": Function("each answer is timed until it is there", _latencies),
        "inference.fold": Function("BatchNorm becomes part of the convolution", _fold),
        "inference.int8": Function("numbers become steps of eight bits", _int8),
    },
    prepare="the crops, 240 MB, as 3.3; for ONNX the extra `electives`",
    stuck="BatchNorm's mean, scaled or not; what is cast before it is clamped",
)
