"""Every view of the training script really runs, and an open TODO changes nothing."""

import os
import re

import pytest
from job_helpers import SCRIPTS, run_forked

from course.checks import exercises

# They depend on the 16-bit hardware of the CPU: make test-formats.
pytestmark = pytest.mark.formats

TEXT = (exercises.SOLUTIONS / "train.py").read_text()
TOTAL = exercises.count(TEXT)

# One process for all views, since importing torch takes longer than running them.
DRIVER = """
import importlib.util, sys
sys.path.insert(0, {scripts!r})
import narrow, torch
from course.config import rung
from course.training.recorder import Recorder

def note_layout(layer, inputs):
    if layer.training and isinstance(layer, torch.nn.Conv2d) and layer.in_channels == 3:
        tensors = layer.weight, inputs[0]
        layouts.append([t.is_contiguous(memory_format=torch.channels_last) for t in tensors])

narrow.use()
torch.nn.modules.module.register_module_forward_pre_hook(note_layout)
TINY = dict(data="synthetic", image_px=32, batch_size=2, steps=2, warmup_steps=0, val_steps=1)
TINY["lr"] = 1.0  # with which the second loss shows what vanished in the first step
NEXT = dict(device="auto", channels_last=True)
for path in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("view", path)
    view = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(view)
    for changes in dict(), dict(NEXT, precision="bf16"), dict(NEXT, precision="fp16"):
        layouts, run = [], Recorder(None)
        run.config = rung("baseline", quick=True, model="resnet18", **TINY, **changes)
        view.main(run)
        print("layouts=" + str(layouts))
        run.finish("ok")
"""


@pytest.fixture(scope="module")
def output_of_views(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return what the views print, each trained in fp32, then in bf16 and fp16 in channels last."""
    folder = tmp_path_factory.mktemp("views")
    views = [folder / f"view_{solved}.py" for solved in range(TOTAL + 1)]
    for solved, path in enumerate(views):
        path.write_text(exercises.render(TEXT, solved))
    # Losses must be equal, so one CPU thread computes all of them.
    alone = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "RANK": "0", "WORLD_SIZE": "1"}
    (folder / "driver.py").write_text(DRIVER.format(scripts=str(SCRIPTS)))
    env = os.environ | alone
    done = run_forked(folder / "driver.py", *map(str, views), folder=folder, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def losses(output_of_views: str) -> list[list[str]]:
    """Return the last loss of each view in fp32, bf16 and fp16."""
    losses = re.findall(
        r"^ok .*last_loss=([0-9.]+) val_top1=[0-9.]+$", output_of_views, re.MULTILINE
    )
    assert len(losses) == 3 * (TOTAL + 1), output_of_views
    return [losses[i : i + 3] for i in range(0, len(losses), 3)]


@pytest.mark.slow
def test_every_view_trains_the_baseline_alike(losses: list[list[str]]) -> None:
    assert len({fp32 for fp32, _, _ in losses}) == 1


@pytest.mark.slow
def test_precision_counts_from_the_second_todo_on(losses: list[list[str]]) -> None:
    for solved, (fp32, bf16, fp16) in enumerate(losses):
        assert ((bf16 == fp32), (fp16 == fp32)) == ((solved < 2), (solved < 2))


@pytest.mark.slow
def test_scaling_touches_fp16_alone(losses: list[list[str]]) -> None:
    (_, bf16, fp16), (_, bf16_scaled, fp16_scaled) = losses[2], losses[3]
    assert bf16_scaled == bf16
    assert fp16_scaled != fp16


@pytest.mark.slow
def test_layout_counts_from_the_fourth_todo_on(output_of_views: str) -> None:
    layouts = re.findall(r"^layouts=(.+)$", output_of_views, re.MULTILINE)
    nchw, nhwc = (str([[last, last]] * 2) for last in (False, True))  # weights, images; 2 steps
    assert layouts == [nchw] * 3 * 4 + [nchw, nhwc, nhwc] * (TOTAL - 3)
