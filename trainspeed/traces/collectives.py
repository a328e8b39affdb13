"""Find the collectives in a PyTorch trace: gloo's ranges on a CPU, NCCL's kernels on a GPU.

gloo marks each collective with a range `gloo:all_reduce` on one of gloo's threads, whose
arguments are the types and shapes of what is sent. NCCL's are kernels, `ncclDevKernel_AllReduce_…`,
to which PyTorch attaches the fields of its operator `record_param_comms`: `Collective name`,
`In msg nelems`, `dtype`, `Group size`.
"""

from __future__ import annotations

import math
import re
from typing import Any

GLOO = "gloo:"
NCCL = re.compile(r"nccl(?:Dev)?Kernel_([A-Za-z]+)")
FIELDS = ("Collective name", "In msg nelems", "Out msg nelems", "dtype", "Group size")
# Operations have different names in PyTorch and gloo.
OPERATIONS = {
    "allreduce": "all_reduce",
    "allreducecoalesced": "all_reduce",
    "allgather": "all_gather",
    "allgatherbase": "all_gather",
    "allgatherintotensorcoalesced": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescatterbase": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallbase": "all_to_all",
    "sendrecv": "send_recv",
}
TYPES = {  # a type's name in a trace, in lower case: PyTorch's name and its bytes
    "float": ("float32", 4),
    "double": ("float64", 8),
    "half": ("float16", 2),
    "bfloat16": ("bfloat16", 2),
    "long": ("int64", 8),
    "long int": ("int64", 8),
    "int": ("int32", 4),
    "short": ("int16", 2),
    "byte": ("uint8", 1),
    "unsigned char": ("uint8", 1),
    "char": ("int8", 1),
    "signed char": ("int8", 1),
    "bool": ("bool", 1),
}


def collectives(
    events: list[dict[str, Any]], origin: float, group: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return each collective of a Chrome trace as a row of `reader.COLUMNS`.

    `bytes` is what one rank sends. A row of NCCL has the kernel's `correlation`, by which its
    launch is found; a row of gloo is dated by its begin.

    Args:
        events: the trace's complete events, with ts and dur in microseconds.
        origin: the time that counts as 0.
        group: the trace's "distributedInfo", which has the number of ranks.
    """
    parameters = {
        event["args"]["External id"]: event["args"]
        for event in events
        if event["name"] == "record_param_comms" and "External id" in event["args"]
    }
    rows = []
    for event in events:
        category, name, args = event.get("cat"), event["name"], event["args"]
        if category == "user_annotation" and name.startswith(GLOO):
            row = _gloo_row(name, args, group)
        elif category == "kernel" and NCCL.match(name):
            if FIELDS[0] not in args:  # older PyTorch attaches the fields to the operator only
                args = parameters.get(args.get("External id"), {}) | args
            row = _nccl_row(name, args)
        else:
            continue
        times = {"start_s": (event["ts"] - origin) / 1e6, "duration_s": event["dur"] / 1e6}
        rows.append({"name": name, **row, **times})
        if category == "kernel":
            rows[-1]["device"] = args.get("device", event.get("pid"))
    return rows


def _gloo_row(name: str, args: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
    shapes, types = args.get("Input Dims") or [[]], args.get("Input type") or [""]
    elements = sum(math.prod(shape) for shape in shapes if shape)
    return {
        "operation": _operation(name.removeprefix(GLOO)),
        **_size(elements, types[0]),
        "group_size": group.get("world_size"),
    }


def _nccl_row(name: str, args: dict[str, Any]) -> dict[str, Any]:
    return {
        "operation": _operation(args.get("Collective name") or NCCL.match(name)[1]),
        **_size(args.get("In msg nelems", 0), args.get("dtype", "")),
        "group_size": args.get("Group size"),
        "correlation": args.get("correlation"),
        "external": args.get("External id"),
    }


def _operation(name: str) -> str:
    return OPERATIONS.get(name.lower().replace("_", ""), name.lower().strip("_"))


def _size(elements: int, type_name: str) -> dict[str, Any]:
    if not elements:  # a barrier sends nothing
        return {"type": "", "bytes": 0}
    name = type_name.lower().removeprefix("c10::")
    dtype, size = TYPES.get(name, (name or "unknown", 0))
    return {"type": dtype, "bytes": elements * size}
