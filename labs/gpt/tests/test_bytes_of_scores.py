"""The lab's table of bytes has a row for the conversion to fp32, and counts the mask's copy."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode


class Operators(TorchDispatchMode):
    """Record the names of operators, and the types of their tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.namespace == "aten":
            self.calls.append((function.__name__, args[0].dtype, result.dtype))
        return result


def test_an_fp32_softmax_converts_bf16_scores_in_an_operator_of_its_own() -> None:
    with FakeTensorMode():  # a GPU's operators, without a GPU
        scores = torch.empty(1, 2, 8, 8, dtype=torch.bfloat16, device="cuda")
        with Operators() as operators:
            scores.softmax(dim=-1, dtype=torch.float32)  # as under autocast
    assert operators.calls == [
        ("_to_copy.default", torch.bfloat16, torch.float32),
        ("_softmax.default", torch.float32, torch.float32),
    ]


def test_masking_copies_the_scores_in_forward_and_in_backward() -> None:
    scores = torch.zeros(1, 2, 8, 8, requires_grad=True)
    with profile(acc_events=True) as profiler:
        scores.masked_fill(torch.ones(8, 8, dtype=torch.bool), 0).backward(torch.ones(1, 2, 8, 8))
    counts = {row.key: row.count for row in profiler.key_averages()}
    assert counts["aten::masked_fill_"] == 2
    assert counts["aten::clone"] == 2
