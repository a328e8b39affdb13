"""The lab's function checks, and what the course shows about the lab."""

from __future__ import annotations

from course.lab import Function, FunctionCheck, Lab


def _latencies() -> FunctionCheck:
    from electives.inference import latency, verify

    return FunctionCheck(latency.latencies, verify.check_times, verify.check_waits)


def _serve() -> FunctionCheck:
    from electives.inference import serving, verify

    return FunctionCheck(serving.serve, verify.check_cases, verify.check_replay)


LAB = Lab(
    title="inference, with one image or many",
    minutes=60,
    functions={
        "inference.latencies": Function("each answer is timed until it is there", _latencies),
        "inference.serve": Function("requests are answered in batches", _serve),
    },
    prepare="the crops, 230 MB, as for large batches; for ONNX the extra `electives`",
    stuck="a batch can't start before the GPU is free; the last batch never becomes full",
)
