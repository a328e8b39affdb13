"""Two real processes train one network: the same results as one process, and no endless hangs."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from job_helpers import (
    NARROW,
    over,
    runs_root_at,
)

from course.checks.script_variants import script_variant
from course.config import Config, rung
from course.jobs import launch
from course.runs.ranks import rank_table
from course.runs.run import Run
from course.training.evidence import group_and_loader

pytestmark = pytest.mark.slow
# Without random crops, results do not depend on the number of ranks. The scripts store each rank's
# first gradients, and the files that it decodes.
NOTE_FILES = """\
    sets.train.transform = sets.val.dataset.transform
    read = sets.train.read
    def noted(index):
        with open(f"taken-{run.rank}.txt", "a") as file:
            file.write(read(index)[0] + "\\n")
        return read(index)
    sets.train.read = noted
"""
SAVE_GRADIENTS = """\
if meter.step == 0:
    torch.save({name: weight.grad for name, weight in net.named_parameters()},
               f"gradients-{run.rank}.pt")
"""


def config(data: Path, **changes: object) -> Config:
    """Use 32 training images, in two epochs of four steps; 15 validation images, an odd number."""
    values = {
        "model": "resnet18",
        "data": "imagenet",
        "data_root": str(data),
        "image_px": 32,
        "batch_size": 8,
        "steps": 4,
        "epochs": 2,
        "warmup_steps": 1,
        "val_images": 15,
        "save_weights": True,
        "collective_timeout_s": 30,
        "lr": 0.001,
    }
    return rung("baseline", quick=True, **{**values, **changes})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, small_set: Path):
    """Train on one and on two ranks, with BatchNorm in eval and in train mode."""
    with runs_root_at(tmp_path_factory.mktemp("parallel")):
        lines = {
            "sets = image_sets(cfg)": NOTE_FILES,
            'meter.lap("backward")': SAVE_GRADIENTS,
            "from course.training.recorder import recording": NARROW,
        }
        still = script_variant("still", {**lines, "model.train()": "model.eval()"})
        moving = script_variant("moving", lines)
        runs = {
            (name, ranks): launch.launch(script, config(small_set), gpus=ranks)
            for name, script in (("eval", still), ("train", moving))
            for ranks in (1, 2)
        }
        launch.wait([*runs.values()])
        yield runs


def gradients(run: Run, rank: int = 0) -> dict[str, torch.Tensor]:
    return torch.load(run.folder / f"gradients-{rank}.pt")


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return the largest relative distance of two gradients of a weight."""
    return max(
        float((one[name] - other[name]).norm() / one[name].norm().clamp(min=1e-8)) for name in one
    )


def test_gradients_equal_those_of_one_process(trained) -> None:
    one, two = trained["eval", 1], trained["eval", 2]
    assert distance(gradients(one), gradients(two)) < 1e-4
    assert two.steps["loss"].to_numpy() == pytest.approx(one.steps["loss"], rel=1e-4)
    # With smaller batches, BatchNorm changes them.
    assert distance(gradients(trained["train", 1]), gradients(trained["train", 2])) > 0.01


def test_both_ranks_have_the_same_gradients_and_weights(trained) -> None:
    for kind in ("eval", "train"):
        run = trained[kind, 2]
        assert distance(gradients(run, 0), gradients(run, 1)) == 0
        assert len({run.evidence(rank).weights_sum for rank in range(run.gpus)}) == 1
        (norm,) = {run.evidence(rank).gradient_norm for rank in range(run.gpus)}
        assert norm > 0
    losses = [trained["train", 2].rank_steps(rank)["loss"] for rank in (0, 1)]
    assert (losses[0] != losses[1]).all()  # each rank has its own images


def test_every_image_is_used_once_per_epoch(trained) -> None:
    run = trained["eval", 2]
    taken = [(run.folder / f"taken-{rank}.txt").read_text().split("\n")[:-1] for rank in (0, 1)]
    assert [len(files) for files in taken] == [32, 32]
    for epoch in (0, 1):
        counts = Counter(file for files in taken for file in files[16 * epoch : 16 * epoch + 16])
        assert len(counts) == 32 and set(counts.values()) == {1}
    assert taken[0][:16] != taken[0][16:]  # shuffled again


def test_validation_counts_each_of_an_odd_number_of_images_once(trained) -> None:
    alone, together = trained["eval", 1].record, trained["eval", 2].record
    assert (alone.val_images, together.val_images) == (15, 15)
    assert together.val_loss == pytest.approx(alone.val_loss, rel=1e-4)
    assert together.val_top1 == pytest.approx(alone.val_top1)


def test_only_rank_0_writes_weights_which_one_process_can_load(trained) -> None:
    run = trained["eval", 2]
    assert [rank["weights_by"] for rank in run.ranks] == [[0], None]
    alone, together = (torch.load(trained["eval", ranks].folder / "weights.pt") for ranks in (1, 2))
    assert list(alone) == list(together)  # no name begins with "module."
    assert all(torch.allclose(alone[name], together[name], atol=1e-4) for name in alone)


def test_a_skipped_collective_ends_with_advice(runs_root: Path, small_set: Path) -> None:
    lines = "if run.rank == 1 and meter.step == 3:\n    distributed.all_reduce(loss.detach())"
    small = {"from course.training.recorder import recording": NARROW}
    script = script_variant("skips", {"optimizer.zero_grad(set_to_none=True)": lines, **small})
    run = over(launch.launch(script, config(small_set, collective_timeout_s=5), gpus=2))
    assert run.status == "failed"
    assert "rank " in run.record.error
    assert any(word in run.record.error for word in ("waited for another", "different rank ended"))
    table = rank_table(run)
    assert len(table) == 2
    assert table["error"].str.contains("waited for another that did not come").any()
    assert run.record.wall_s is None or run.record.wall_s < 60


def test_nccl_reports_the_hosts_of_the_group_of_all_ranks(tmp_path, monkeypatch) -> None:
    text = "comm 0x1 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0\n"
    text += "comm 0x2 rank 0 nRanks 4 nNodes 2 localRanks 2 localRank 0\n"
    text += "Channel 00/0 : 3[3] -> 0[0] [receive] via NET/Socket/0\n"
    text += "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
    (tmp_path / "nccl.txt").write_text(text)
    monkeypatch.setenv("NCCL_DEBUG_FILE", str(tmp_path / "nccl.txt"))
    monkeypatch.setenv("NCCL_HOSTID", "host0")
    report = group_and_loader.nccl(rung("device", hosts=2))
    assert report.hosts == report.ranks_per_host == 2
    assert report.transports == ["NET/Socket", "P2P/CUMEM"]
