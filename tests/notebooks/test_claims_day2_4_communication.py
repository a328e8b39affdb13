"""What lab 2.4 and its quiz say about numbers, held against the recorded runs."""

import pandas as pd
import pytest
from claims import network, text_of, text_of_quiz

from course.config import rung
from course.labs.quizzes import FOLDER, load
from course.runs.recordings import recorded_runs
from course.runs.run import Run
from course.topics import communication
from course.topics.communication.report import computing
from course.traces import tables
from course.training import models

MACHINE = "nvidia-h200-x4"
TEXT = text_of("day2_4_communication")
QUIZ = text_of_quiz("day2_4")
VARIANTS = [run for run in recorded_runs(MACHINE, "variant")]
BUCKET = "channels_last-bucket_mb-{}"
ALONE = BUCKET.format("25.0")


def says(*sentences: str) -> None:
    for sentence in sentences:
        assert sentence in TEXT, sentence


def variant(part: str, **settings: object) -> Run:
    """The recorded small run of two ranks whose added lines contain this."""
    found = [
        run
        for run in VARIANTS
        if part in str(run.launched["added"])
        and all(getattr(run.config, name) == value for name, value in settings.items())
    ]
    assert len(found) == 1, part
    return found[0]


@pytest.fixture(scope="module")
def two() -> dict[str, Run]:
    return communication.recorded_runs(MACHINE, gpus=2)


@pytest.fixture(scope="module")
def four() -> dict[str, Run]:
    return communication.recorded_runs(MACHINE, gpus=4)


def step_ms(run: Run) -> float:
    return run.record.step_s * 1e3


def computing_ms(run: Run) -> float:
    return sum(end - begin for begin, end in computing(tables.of_run(run))) * 1e3


def test_gradients_have_four_bytes_a_weight(two: dict[str, Run]) -> None:
    says("4 a weight and step", "The batch is not in that product")
    weights = models.parameter_count(network("resnet50"))
    for run in two.values():
        sent = communication.comm_report(run).query("operation == 'all_reduce'")["bytes"].sum()
        assert sent == pytest.approx(weights * 4, rel=1e-3)  # NCCL's are padded
    small = variant("masked_depth")  # another batch
    sent = communication.comm_report(small).query("operation == 'all_reduce'")["bytes"].sum()
    assert sent == pytest.approx(models.parameter_count(network("resnet18", 16)) * 4, rel=1e-3)


def test_forward_broadcasts_and_backward_reduces(two: dict[str, Run]) -> None:
    says("In `forward` rank 0 broadcasts BatchNorm's running statistics")
    for run in two.values():
        report = communication.comm_report(run)
        kinds = report.groupby("phase")["operation"].unique().map(list).to_dict()
        assert kinds == {"forward": ["broadcast"], "backward": ["all_reduce"]}


def test_buckets(two: dict[str, Run]) -> None:
    says(
        "by default 25 MB",
        "With one bucket of 100 MB nothing is sent before backward is over, so next to nothing is "
        "hidden. With smaller buckets sending begins earlier.",
        "the smallest need not be the best",
        "so a bucket can be larger than its name",
    )
    assert rung("device").bucket_mb == 25
    reports = {run.config.bucket_mb: communication.comm_report(run) for run in two.values()}
    sent = {size: each.query("phase == 'backward'") for size, each in reports.items()}
    assert len(sent[100]) == 1 and sent[100]["overlapped_ms"].sum() == 0
    first = {size: each["start_ms"].min() for size, each in sent.items()}
    assert first[1] < first[100] and first[25] < first[100]
    exposed = {size: each.attrs["exposed_ms"] for size, each in reports.items()}
    assert min(exposed, key=exposed.get) == 25
    assert sent[25]["bytes"].max() > 25 * 2**20 and sent[1]["bytes"].max() > 2**20


def test_the_last_bucket_is_exposed(two: dict[str, Run]) -> None:
    says("The last bucket is full only when backward ends, so nothing is left to hide it.")
    last = communication.comm_report(two[ALONE]).query("phase == 'backward'").iloc[-1]
    assert last["exposed_ms"] == pytest.approx(last["duration_ms"], rel=0.01)


def test_the_first_step_has_one_all_reduce(two: dict[str, Run], four: dict[str, Run]) -> None:
    says("There is one all-reduce, whatever the size.")
    for runs in (two, four):
        for size in ("1.0", "25.0", "100.0"):
            assert runs[BUCKET.format(size)].record.evidence["collectives"]["allreduce"] == 1


def test_two_gpus_and_what_their_traces_say(two: dict[str, Run]) -> None:
    says(
        "two H200s in one machine: ResNet-50, `channels_last`, 256 images for each",
        "between these GPUs 30 MB take 150 µs",
        "In the picture the GPU often idles.",
        "`exposed_ms` differs by milliseconds, and `step_ms` by less than a tenth of one",
    )
    config = two[ALONE].config
    assert (config.model, config.channels_last, config.batch_size) == ("resnet50", True, 512)
    largest = communication.comm_report(two[ALONE]).nlargest(1, "bytes").iloc[0]
    assert round(largest["bytes"] / 1e6) == 30
    assert round(largest["duration_ms"] * 1e3, -1) == 150
    (traced,) = tables.steps(tables.of_run(two[ALONE])).itertuples()
    assert computing_ms(two[ALONE]) < 0.8 * (traced.end_s - traced.start_s) * 1e3
    table = communication.compared(
        {name: communication.comm_report(run) for name, run in two.items()}
    )
    assert table["exposed_ms"].max() - table["exposed_ms"].min() > 2
    steps = [step_ms(run) for run in two.values()]
    assert max(steps) - min(steps) < 0.1


def test_metric() -> None:
    says(
        "This copy calls `compute()` in steps 2, 10 and 11, and step 2 is traced.",
        "The metric has four counts of 8 bytes",
        "For each it waits at a barrier, gathers the *shapes* of all ranks, and then gathers the "
        "numbers. That makes twelve collectives.",
        "With `compute()` the phase takes many times as long. On a GPU step 0 is slow, too",
    )
    run = variant("MulticlassAccuracy")
    sent = communication.comm_report(run).query("phase == 'loss'")
    assert [*sent["operation"]] == 4 * ["barrier", "all_gather", "all_gather"]
    assert set(sent["bytes"]) == {0, 8} and set(sent["step"]) == {2}
    loss_s = run.steps.set_index("step")["loss_s"]
    assert run.config.steps == 12 and [s for s in range(12) if s % 8 == 2 or s == 11] == [2, 10, 11]
    quiet = loss_s.drop([0, 2, 10, 11])
    assert loss_s[[2, 10, 11]].min() > 10 * quiet.max()
    assert loss_s[0] == loss_s.max()


def test_running_statistics() -> None:
    says(
        "With BatchNorm they differ in every layer.",
        "moves them by a tenth of the way",
        "**SyncBatchNorm** takes the sums of all ranks, so the statistics are alike.",
    )
    assert models.create("resnet18", 16).bn1.momentum == 0.1
    plain = variant("{'profiler.stop()': 'sync_batchnorm.save_statistics(net)'}")
    apart = communication.spread(communication.statistics(plain))
    assert (apart["spread"] > 0).all()
    alike = communication.spread(communication.statistics(variant("sync_batchnorm.convert")))
    assert alike["largest"].max() == 0


def test_two_collectives_for_each_batchnorm() -> None:
    says(
        "There are two small collectives for each of the 20 BatchNorm layers: one in forward with "
        "the sums, and one in backward"
    )
    report = communication.comm_report(variant("sync_batchnorm.convert"))
    small = report[report["operation"].eq("all_reduce") & (report["bytes"] < 1e5)]
    assert small["phase"].value_counts().to_dict() == {"forward": 20, "backward": 20}
    assert small["exposed_ms"].sum() / small["duration_ms"].sum() > 0.95


def test_sync_batchnorm_on_four_gpus(four: dict[str, Run]) -> None:
    says(
        "ResNet-50 with 53 BatchNorms and 256 images a rank takes 56 ms a step",
        "With 0.4 MB more, the step takes 2.3 times as long.",
        "compute for nearly the same time, 55 and 54 ms",
        "At 106 places all ranks wait for the slowest.",
    )
    plain, synced = four[ALONE], four["sync_batchnorm"]
    assert plain.config.batch_size == synced.config.batch_size == 4 * 256
    assert round(step_ms(plain)) == 56
    assert round(step_ms(synced) / step_ms(plain), 1) == 2.3
    table = communication.compared(
        {"plain": communication.comm_report(plain), "synced": communication.comm_report(synced)}
    )
    assert round(table["megabytes"].diff().iloc[-1], 1) == 0.4
    assert table["collectives"].diff().iloc[-1] == 106 == 2 * 53
    assert [round(computing_ms(run)) for run in (synced, plain)] == [55, 54]


def test_a_head_that_is_not_used() -> None:
    says(
        "Which step failed",
        "In the next forward pass DDP notices it",
        "The message of `int32` says which weights *any* rank used.",
        "The first step has as many all-reduces as the traced one",
    )
    failed = variant("stochastic_depth.Heads", find_unused=False)
    assert failed.record.status == "failed" and len(failed.steps) == 1
    names = [
        name for name, _ in communication.Heads(models.create("resnet18", 16)).named_parameters()
    ]
    assert len(names) == 64 and all(name.startswith("heads.") for name in names[60:])
    looking = variant("stochastic_depth.Heads", find_unused=True)
    sent = communication.comm_report(looking).query("operation == 'all_reduce'")
    assert len(sent) == looking.record.evidence["collectives"]["allreduce"]
    assert [*sent["type"]].count("int32") == 1


def test_find_unused_costs_little(four: dict[str, Run]) -> None:
    says("It costs less than a tenth of a millisecond")
    assert 0 < step_ms(four["find_unused"]) - step_ms(four[ALONE]) < 0.1


def test_accumulation_sends_once_in_four_steps() -> None:
    says(
        "Four steps were traced, and the gradients were sent in one of them. The broadcast, too, "
        "happens only after an update.",
        "`depth` above has the same buckets.",
    )
    run = variant("require_backward_grad_sync")
    assert run.config.profile_steps == 4
    sent = communication.comm_report(run)
    kinds = sent.groupby("operation")["step"].unique().map(list).to_dict()
    assert kinds == {"all_reduce": [4], "broadcast": [5]}  # the update is step 4's
    depth = communication.comm_report(variant("masked_depth")).query("operation == 'all_reduce'")
    reduced = sent.query("operation == 'all_reduce'")
    assert [*depth["bytes"]] == [*reduced["bytes"]]


def test_quiz_about_bytes_and_buckets(two: dict[str, Run]) -> None:
    assert "ResNet-50 has 25.6 million weights in fp32." in QUIZ
    assert "About 102 MB, 4 bytes for each weight." in QUIZ
    weights = models.parameter_count(network("resnet50"))
    assert round(weights / 1e6, 1) == 25.6 and round(weights * 4 / 1e6) == 102
    assert "About 51 MB" in QUIZ and round(weights * 2 / 1e6) == 51
    assert "with `bucket_cap_mb=100` ResNet-50's gradients are one message" in QUIZ
    assert "A bucket of gradients is millions of times as large." in QUIZ  # as a few bytes
    reduced = [
        communication.comm_report(two[BUCKET.format(size)]).query("operation == 'all_reduce'")
        for size in ("100.0", "25.0")
    ]
    assert len(reduced[0]) == 1
    assert reduced[1]["bytes"].max() / 8 > 2e6


def test_length_does_not_give_the_quiz_away() -> None:
    questions = load(FOLDER / "day2_4.toml").questions
    says("While they run, six questions. Questions 3 to 6 reach ahead, to sections 3, 4 and 5:")
    assert len(questions) == 6
    longest = [max(each.choices, key=lambda choice: len(choice.text)) for each in questions]
    assert sum(choice.right for choice in longest) <= 2
    assert pd.Series([len(c.explanation) for q in questions for c in q.choices]).max() < 200
