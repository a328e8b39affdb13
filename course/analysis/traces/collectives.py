"""Collectives in a PyTorch trace: gloo's ranges on a CPU, NCCL's kernels on a GPU, as one table.

gloo marks each collective with a range `gloo:all_reduce` on one of its own threads, whose
arguments are the types and shapes of what is sent. NCCL's are kernels, `ncclDevKernel_AllReduce_…`,
to which PyTorch attaches the fields that its operator `record_param_comms` has: `Collective name`,
`In msg nelems`, `dtype`, `Group size`.
"""

from __future__ import annotations

import math
import re
from typing import Any

GLOO = "gloo:"
NCCL = re.compile(r"nccl(?:Dev)?Kernel_([A-Za-z]+)")
FIELDS = ("Collective name", "In msg nelems", "Out msg nelems", "dtype", "Group size")
# PyTorch's and gloo's words for one thing.
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
TYPES = {  # a type's name in a trace, here in small letters: PyTorch's name and its bytes
    "float": ("float32", 4),
    "double": ("float64", 8),
    "half": ("float16", 2),
    "bfloat16": ("bfloat16", 2),
    "c10::half": ("float16", 2),
    "c10::bfloat16": ("bfloat16", 2),
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
    """Every collective of a Chrome trace as a row of `reader.COLUMNS`.

    `bytes` is what one rank puts in. A row of NCCL has the kernel's `correlation`, by which its
    launch is found; gloo's are dated by their begin.

    Args:
        events: the trace's complete events, with ts and dur in microseconds.
        origin: the time that counts as 0.
        group: the trace's "distributedInfo", which knows how many ranks there are.
    """
    told = {
        event["args"]["External id"]: event["args"]
        for event in events
        if event["name"] == "record_param_comms" and "External id" in event.get("args", {})
    }
    rows = []
    for event in events:
        category, name, args = event.get("cat"), event["name"], event.get("args", {})
        if category == "user_annotation" and name.startswith(GLOO):
            row = _of_gloo(name, args, group)
        elif category == "kernel" and NCCL.match(name):
            if FIELDS[0] not in args:  # an older PyTorch, which tells the operator alone
                args = told.get(args.get("External id"), {}) | args
            row = _of_nccl(name, args)
        else:
            continue
        times = {"start_s": (event["ts"] - origin) / 1e6, "duration_s": event["dur"] / 1e6}
        rows.append({"name": name, **row, **times})
    return rows


def _of_gloo(name: str, args: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
    shapes, types = args.get("Input Dims") or [[]], args.get("Input type") or [""]
    elements = sum(math.prod(shape) for shape in shapes if shape)
    operation = name.removeprefix(GLOO)
    return {
        "operation": _operation(operation),
        **_size(elements, types[0]),
        "group_size": group.get("world_size"),
        "lane": "gloo",
    }


def _of_nccl(name: str, args: dict[str, Any]) -> dict[str, Any]:
    said = args.get("Collective name") or NCCL.match(name)[1]
    stream = args.get("stream")
    return {
        "operation": _operation(said),
        **_size(args.get("In msg nelems", 0), args.get("dtype", "")),
        "group_size": args.get("Group size"),
        "lane": f"stream {stream}",
        "correlation": args.get("correlation"),
        "external": args.get("External id"),
    }


def _operation(name: str) -> str:
    bare = name.lower().replace("_", "")
    return OPERATIONS.get(bare, name.lower().strip("_"))


def _size(elements: int, type_name: str) -> dict[str, Any]:
    if not elements:  # a barrier sends nothing
        return {"elements": 0, "type": "", "bytes": 0}
    known, size = TYPES.get(type_name.lower(), (type_name.lower() or "unknown", 0))
    return {"elements": elements, "type": known, "bytes": elements * size}
