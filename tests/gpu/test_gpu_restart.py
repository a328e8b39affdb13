"""A training on one GPU that is killed, and one that is asked to end, go on to the bit."""

import pytest

from course import launch, rung, wait
from course.checks.verdict import check
from course.jobs.launch import explain
from labs.day4_5_practice.restart_checks import CHECKS

pytestmark = pytest.mark.gpu
STOPPED = [name for name, wanted in CHECKS.items() if wanted.gpus == 1]


@pytest.mark.parametrize("name", STOPPED)
@pytest.mark.parametrize("how", [{}, {"async_save": True}], ids=["torch.save", "async_save"])
def test_it_goes_on_to_the_bit(name: str, how: dict) -> None:
    wanted = CHECKS[name]
    if how and name == "day4.restart":
        pytest.skip("the kill is planted in torch.save")
    size = wanted.settings | {"data": "synthetic", "image_px": 64}
    whole = launch("solutions/train_restarted.py", rung(wanted.against, quick=True, **size))
    changed = rung(wanted.rung, quick=True, **size | wanted.changes | how)
    run = wait(launch("solutions/train_restarted.py", changed), check=False)
    wait(whole, check=False)
    assert run.status == whole.status == "ok", explain(run) + explain(whole)
    ends = [(each.record.evidence["at_end"], each.record.val_loss) for each in (run, whole)]
    assert ends[0] == ends[1]
    done = check(name, run, against=whole)
    print(done)
    assert done.passed, done
