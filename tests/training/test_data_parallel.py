"""Two real processes train one network: what they compute is what one computes, and a hang ends."""

import json
import os
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess
from threading import Thread

import pytest
import torch
from job_helpers import (
    NARROW,
    by_fork,
    eventually,
    narrow_solution,
    over,
    run_forked,
    runs_root_at,
    slurm_says,
    warm_up,
)

from course.checks.exercises import script_variant
from course.config import Config, rung
from course.jobs import launch
from course.runs.ranks import rank_table
from course.runs.run import FOLDER_VARIABLE, PROJECT, Run, rank_file
from course.training import recorder
from course.training.recorder import Recorder

pytestmark = pytest.mark.slow
# What is random must be the same for any number of ranks: no random crop. The gradients of the
# first step are kept, and which files each rank decodes.
SEEN = """\
    sets.train.transform = sets.val.dataset.transform
    open_image = sets.train.loader
    def noted(path):
        with open(f"taken-{run.rank}.txt", "a") as file:
            file.write(path + "\\n")
        return open_image(path)
    sets.train.loader = noted
"""
KEPT = """\
if meter.step == 0:
    torch.save({name: weight.grad for name, weight in net.named_parameters()},
               f"gradients-{run.rank}.pt")
"""


def config(data: Path, **changes: object) -> Config:
    """32 images to train on, in two epochs of four steps; 15 to validate on, an odd number."""
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
    """Runs on one and on two ranks, without BatchNorm's part (eval) and with it (train)."""
    warm_up()  # or all of them would start cold
    with runs_root_at(tmp_path_factory.mktemp("parallel")):
        kept = {
            "sets = image_sets(cfg)": SEEN,
            'meter.lap("backward")': KEPT,
            "from course.training.recorder import recording": NARROW,
        }
        still = script_variant("still", {**kept, "model.train()": "model.eval()"})
        moving = script_variant("moving", kept)
        found = {
            (name, ranks): launch.launch(script, config(small_set), gpus=ranks)
            for name, script in (("eval", still), ("train", moving))
            for ranks in (1, 2)
        }
        launch.wait([*found.values()])
        yield found


def gradients(run: Run, rank: int = 0) -> dict[str, torch.Tensor]:
    return torch.load(run.folder / f"gradients-{rank}.pt")


def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest distance of two gradients of a weight, in lengths of the first."""
    return max(
        float((one[name] - other[name]).norm() / one[name].norm().clamp(min=1e-8)) for name in one
    )


def test_gradients_are_those_of_one_process_on_the_joined_batch(trained) -> None:
    alone, together = trained["eval", 1], trained["eval", 2]
    assert apart(gradients(alone), gradients(together)) < 1e-4
    assert together.steps["loss"].to_numpy() == pytest.approx(alone.steps["loss"], rel=1e-4)


def test_both_ranks_have_the_same_gradients_and_weights(trained) -> None:
    for kind in ("eval", "train"):
        run = trained[kind, 2]
        assert apart(gradients(run, 0), gradients(run, 1)) == 0
        sums = {rank["evidence"]["weights_sum"] for rank in run.ranks}
        assert len(sums) == 1
    own = [trained["train", 2].rank_steps(rank)["loss"] for rank in (0, 1)]
    assert (own[0] != own[1]).all()  # each on its own images


def test_batchnorm_sees_smaller_batches_and_moves_the_gradients(trained) -> None:
    moved = apart(gradients(trained["train", 1]), gradients(trained["train", 2]))
    assert moved > 0.01


def test_every_image_is_taken_once_an_epoch(trained) -> None:
    run = trained["eval", 2]
    taken = [(run.folder / f"taken-{rank}.txt").read_text().split("\n")[:-1] for rank in (0, 1)]
    assert [len(files) for files in taken] == [32, 32]
    for epoch in (0, 1):
        seen = Counter(file for files in taken for file in files[16 * epoch : 16 * epoch + 16])
        assert len(seen) == 32 and set(seen.values()) == {1}
    assert taken[0][:16] != taken[0][16:]  # shuffled anew


def test_validation_counts_every_image_once_though_they_are_odd(trained) -> None:
    alone, together = trained["eval", 1].record, trained["eval", 2].record
    assert (alone.val_images, together.val_images) == (15, 15)
    assert together.val_loss == pytest.approx(alone.val_loss, rel=1e-4)
    assert together.val_top1 == pytest.approx(alone.val_top1)


def test_rank_0_alone_writes_weights_which_one_process_can_load(trained) -> None:
    run = trained["eval", 2]
    assert [rank["weights_by"] for rank in run.ranks] == [[0], None]
    alone, together = (torch.load(trained["eval", ranks].folder / "weights.pt") for ranks in (1, 2))
    assert list(alone) == list(together)  # no name begins with "module."
    assert all(torch.allclose(alone[name], together[name], atol=1e-4) for name in alone)


def test_two_nodes_of_two_tasks_train_together(
    tmp_path: Path,
    runs_root: Path,
    slurm: Path,
    user_sites: Path,  # noqa: F811
    small_set: Path,
) -> None:
    user_sites.write_text("[slurm]\ngpus_per_node = 2\n")
    script = narrow_solution(tmp_path, first=by_fork())
    run = over(launch.launch(script, config(small_set), site="slurm", gpus=4))
    assert run.status == "ok", launch.explain(run)
    number = run.launched["job_id"]
    seen = [rank["evidence"] for rank in run.ranks]
    assert [each["world_size"] for each in seen] == [4] * 4
    assert [each["share"] for each in seen] == [2] * 4
    assert len({each["weights_sum"] for each in seen}) == 1
    assert sorted(sum((each["taken"][0] for each in seen), [])) == list(range(32))
    assert run.record.val_images == 15
    words = ("sacct", "-X", "-n", "-P", "-j", number, "-o", "State,NNodes")
    eventually(lambda: slurm_says(*words) == "COMPLETED|2", "Slurm says so too")


SKIPS = {
    "rank 0 asks, rank 1 does not answer": (
        0,
        "if run.rank == 0 and meter.step == 3:\n    distributed.all_reduce(loss.detach())",
    ),
    "rank 1 asks, rank 0 does not answer": (
        1,
        "if run.rank == 1 and meter.step == 3:\n    distributed.all_reduce(loss.detach())",
    ),
}


@pytest.mark.parametrize("name", SKIPS)
def test_a_skipped_collective_ends_with_what_to_look_for(
    runs_root: Path, small_set: Path, name: str
) -> None:
    _, lines = SKIPS[name]
    small = {"from course.training.recorder import recording": NARROW}
    script = script_variant("skips", {"optimizer.zero_grad(set_to_none=True)": lines, **small})
    run = over(launch.launch(script, config(small_set, collective_timeout_s=5), gpus=2))
    assert run.status == "failed"
    assert "rank " in run.record.error
    assert any(word in run.record.error for word in ("waited for another", "Another rank ended"))
    table = rank_table(run)
    assert len(table) == 2
    assert table["error"].str.contains("waited for another that did not come").any()
    assert run.record.wall_s is None or run.record.wall_s < 60


def test_the_record_comes_when_the_others_have_written_what_they_know(
    tmp_path: Path, small_set: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"RANK": "0", "WORLD_SIZE": "2", FOLDER_VARIABLE: str(tmp_path)}
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "config.json").write_text(config(small_set).to_json())
    (tmp_path / "launch.json").write_text(json.dumps({"rung": "baseline", "gpus": 2}))
    run, seen = Run(tmp_path), []

    def other() -> None:
        time.sleep(0.5)
        seen.append(run.record)
        (tmp_path / rank_file(1)).write_text(json.dumps({"rank": 1}))

    late = Thread(target=other)
    late.start()
    Recorder(run).finish("ok")
    late.join()
    assert seen == [None] and run.record.status == "ok"
    assert [rank["rank"] for rank in run.ranks] == [0, 1]
    # One that cannot write does not hold the record up for long.
    (tmp_path / rank_file(1)).unlink()
    (tmp_path / "record.json").unlink()
    monkeypatch.setattr(recorder, "ECHO_S", 0.1)
    Recorder(run).finish("ok")
    assert run.record.status == "ok" and len(run.ranks) == 1


BENCHMARK = PROJECT / "benchmarks" / "ddp.py"


def as_by_torchrun(script: Path, *arguments: str, folder: Path) -> list[CompletedProcess]:
    """Two ranks of a script with the variables that torchrun sets; both are forked."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    warm_up()

    def run(rank: str) -> CompletedProcess:
        own = {"RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": "1"}
        (folder / rank).mkdir()
        return run_forked(script, *arguments, folder=folder / rank, env=os.environ | shared | own)

    with ThreadPoolExecutor() as pool:
        return [*pool.map(run, "01")]


def test_the_benchmark_of_ddp_takes_turns_and_tells_of_each_variant(tmp_path: Path) -> None:
    small = "--model resnet18 --image-px 32 --batch-size 2 --steps 1 --turns 2"
    written = str(tmp_path / "out.jsonl")
    script, end = tmp_path / "ddp.py", 'if __name__ == "__main__":'
    script.write_text(BENCHMARK.read_text().replace(end, NARROW + end))
    done, other = as_by_torchrun(script, "--out", written, *small.split(), folder=tmp_path)
    assert [each.returncode for each in (done, other)] == [0, 0], done.stderr + other.stderr
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [json.loads(line) for line in done.stdout.splitlines()] == lines and not other.stdout
    assert [line["variant"] for line in lines][:2] == ["alone", "DDP as it comes"]
    assert {line["ranks"] for line in lines} == {2} and len(lines) == 4
    assert lines[0]["ratio"] == [1, 1, 1] != lines[1]["ratio"]
    assert all(line["step_ms"][0] > 0 for line in lines)
