"""Checks of the lab's `forward`: its outputs, its graph breaks and its recompilations.

They compile with a backend that only counts graphs, so no C++ compiler is needed.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import pandas as pd
import torch

from course.analysis import fresh_compiler
from course.lab import results
from labs.compile.compiler import BlockEnd, breaks, time_versions

Forward = Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]

CALLS = 5  # with inputs of the same shape, so that nothing has to be compiled again
REASONS = {
    "print(": "print needs its text now, so Python must run",
    "generic_jump": "Python needs the number to choose a branch",
    "Tensor.item": ".item() fetches a number from the device for Python",
}


def original_forward(self: Any, images: torch.Tensor, shortcut: torch.Tensor) -> torch.Tensor:
    """Compute the end of a residual block, clamped and normalised, with three graph breaks."""
    self.calls += 1
    out = self.norm(images)
    print(f"batch {self.calls}: mean {out.mean():.2f}")
    out = out + shortcut
    if out.max() > 100:
        out = out.clamp(max=100)
    out = torch.relu(out)
    return out / out.std().item()


def forward(self: Any, images: torch.Tensor, shortcut: torch.Tensor) -> torch.Tensor:
    """Compute the same in one graph, which is compiled once."""
    out = self.norm(images) + shortcut
    out = torch.relu(out.clamp(max=100))
    return out / out.std()


def make_model(function: Forward, channels: int = 8) -> BlockEnd:
    """Create a block's end with this `forward`, for inference."""
    model = type("Block", (BlockEnd,), {"forward": function})(channels)
    model.calls = 0
    for number, values in enumerate(model.state_dict().values()):  # a default norm does nothing
        if values.ndim:
            values.copy_(torch.linspace(0.5, 1.5 + number, channels))
    return model.eval()


def find_breaks(function: Forward) -> pd.DataFrame:
    """Return the lines of a `forward` at which the graph breaks: line, code, reason."""
    return breaks(make_model(function), *_inputs())


def time_forward(function: Forward) -> pd.DataFrame:
    """Compile and time the original `forward` and yours, for 8 images of 64 channels, 56 × 56.

    Columns: version, graphs, ms (per call, after compiling).
    """
    versions = {"original": original_forward, "yours": function}
    models = {name: make_model(version, channels=64) for name, version in versions.items()}
    layout = {"memory_format": torch.channels_last}
    return time_versions(models, *(x.to(**layout) for x in _inputs(1.0, 8, 64, 56, 56)))


def _inputs(scale: float = 1.0, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    images, shortcut = scale * torch.randn(2, *(shape or (4, 8, 6, 6)), generator=generator)
    return images, shortcut


def check_outputs(function: Forward) -> str:
    """Check that it returns the original's numbers, also where these are clamped."""
    for scale, values in ((1.0, "between −5 and 5"), (100.0, "up to several hundred")):
        _compare(make_model(function), _inputs(scale), f"values {values}")
    _compare(make_model(function, 5), _inputs(40.0, 3, 5, 7, 4), "3 images of 5 channels, 7 × 4")
    with redirect_stdout(io.StringIO()):
        is_trained = make_model(function)(*_inputs()).requires_grad
    assert is_trained, "its output has no graph for backward: leave out `no_grad` and `detach`"
    return "the same outputs as the original's, with small values and with values above 100"


def _compare(model: Callable, inputs: tuple[torch.Tensor, ...], case: str) -> None:
    """Compare a model's output with that of the original code."""
    with redirect_stdout(io.StringIO()), torch.no_grad():
        expected = make_model(original_forward, inputs[0].shape[1])(*inputs)
        out = results.call(lambda images, shortcut: model(images, shortcut), *inputs)
    assert isinstance(out, torch.Tensor), (
        f"forward returns {type(out).__name__}, expected one tensor, as the original does"
    )
    assert out.shape == expected.shape, f"shape {(*out.shape,)}, expected {(*expected.shape,)}"
    if torch.allclose(out, expected, rtol=1e-4, atol=1e-5):
        return
    spread = float(out.std())
    assert abs(spread - 1) < 1e-3, (
        f"{case}: the outputs have a standard deviation of {spread:.3g}, expected 1: divide by "
        f"the deviation after ReLU, as a tensor"
    )
    difference = float((out - expected).abs().max())
    hint = (
        "clamp values above 100 before the division"
        if "hundred" in case
        else "compare line by line"
    )
    raise AssertionError(f"{case}: outputs differ by up to {difference:.3g}: {hint}")


def check_graph(function: Forward) -> str:
    """Check that the compiler makes one graph without a break, and compiles it once."""
    rows = find_breaks(function).values
    found = [f"line {line}, `{code}`: {_explain(code, why)}" for line, code, why in rows]
    assert not found, f"{len(found)} graph break{'s' * (len(found) > 1)}: {'; '.join(found)}"
    graphs, inputs = [], _inputs()

    def count_graphs(module: torch.fx.GraphModule, example_inputs: list) -> Callable:
        graphs.append(module)
        return module.forward

    with fresh_compiler():
        compiled = torch.compile(make_model(function), fullgraph=True, backend=count_graphs)
        _compare(compiled, inputs, "compiled")
        try:
            with torch.no_grad(), torch.compiler.set_stance("fail_on_recompile"):
                for _ in range(CALLS - 1):
                    compiled(*inputs)
        except RuntimeError as error:
            raise AssertionError(_explain_recompilation(str(error))) from error
    assert len(graphs) == 1, f"{len(graphs)} graphs, expected 1"
    return f"one graph without a break, compiled once and used in {CALLS} calls"


def _explain(code: str, reason: str) -> str:
    """Explain a graph break; PyTorch's own reason, if the course has no better one."""
    known = (text for sign, text in REASONS.items() if sign in f"{reason} {code}")
    return next(known, reason)


def _explain_recompilation(message: str) -> str:
    """Name the guard and the line in PyTorch's message about a recompilation."""
    guard = re.search(r"- \d+/\d+: (.+?)\s+# (.+?)\s+#", message)
    cause = f"`{guard[2]}` (the guard: {guard[1]})" if guard else message.splitlines()[0]
    return (
        f"the second call with the same shapes compiles again, because of {cause}. A Python number "
        f"is a constant of the graph: change it outside of forward, or keep it in a tensor"
    )
