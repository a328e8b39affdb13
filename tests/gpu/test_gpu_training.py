"""Training on the GPU: the checks of day 1 in all three parts, its kernels, and finite losses."""

import math
from collections.abc import Callable

import pytest

from course import check
from course.analysis import read_trace
from course.runs.run import Run
from trainspeed.tensor_cores import tensor_core_report
from trainspeed.tensor_cores.rules import NOT, USED

pytestmark = pytest.mark.gpu
Trained = Callable[..., Run]
CHECKED = {  # a check's run, and the one of the step before
    "device": ("few", "few on the CPU"),
    "amp": ("amp", "device"),
    "grad_scaler": ("fp16", "device"),
    "channels_last": ("channels_last", "amp"),
    "profiler": ("traced", "device"),
}
CONVOLUTIONS = ["aten::conv2d", "aten::convolution_backward"]


@pytest.mark.parametrize("name", CHECKED)
def test_the_solution_passes_all_three_parts(trained: Trained, name: str) -> None:
    run, against = map(trained, CHECKED[name])
    done = check(name, run, against=against)
    print(done)
    assert done.passed, done


@pytest.mark.parametrize("name, verdict", [("amp", USED), ("traced", NOT)])
def test_convolutions_use_tensor_cores_in_bf16_alone(
    trained: Trained, name: str, verdict: str
) -> None:
    report = tensor_core_report(read_trace(trained(name))).set_index("operator")
    assert list(report.loc[CONVOLUTIONS, "uses_tensor_cores"]) == [verdict, verdict]


def test_a_compiled_model_trains_as_the_same_without(trained: Trained) -> None:
    compiled, eager = trained("compile"), trained("not compiled")
    kernels = read_trace(compiled).kernels["kernel"]
    assert kernels.str.startswith("triton_").any()  # the compiler's own
    assert list(compiled.steps["loss"]) == pytest.approx(list(eager.steps["loss"]), rel=0.05)


def test_fused_steps_stay_finite_after_a_skipped_first_one(trained: Trained) -> None:
    losses = list(trained("overflows").steps["loss"])
    print(losses)
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)  # it was skipped: no weight changed
    assert all(loss is not None and math.isfinite(loss) for loss in losses)
    assert losses[-1] < 0.9 * losses[0]  # later ones were not
