"""The GPT script: its network, its text, and that it trains as it should."""

import hashlib
import importlib.util
import math
import shutil
import signal
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from job_helpers import prepared

from course.analysis.mfu import mfu
from course.analysis.roofline import step_cost
from course.checks import exercises
from course.checks.report import describe_speedup, report
from course.config import Config, rung
from course.data import text
from course.jobs import launch
from course.runs.ratio import ratio
from course.runs.record import Record, write_record
from course.runs.run import FOLDER_VARIABLE, PROJECT, Run
from course.training.memory_prediction import predict_memory
from course.training.recorder import recording

EPS = torch.finfo(torch.float32).eps
CPU = torch.device("cpu")
# Of steps that are quick, and of a network whose loss falls in a few of them.
SMALL = {"context": 16, "batch_size": 8, "epochs": 2, "steps": 3, "warmup_steps": 1, "val_steps": 1}
SMALL |= {"device": "cpu", "layers": 2, "heads": 2, "width": 16, "lr_warmup": 0, "lr": 0.02}
Train = Callable[..., Run]


def config(base: str = "gpt", **changes: object) -> Config:
    return rung(base, **SMALL | changes)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpt", PROJECT / "solutions/train_gpt.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def train(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Train]:
    """Return a function that trains a config in this process, perhaps from a checkpoint."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}

    def train(cfg: Config, checkpoint: Path | None = None) -> Run:
        folder = tmp_path / str(len([*tmp_path.iterdir()]))
        prepared(folder, "", cfg, script="solutions/train_gpt.py")
        if checkpoint:
            (folder / "checkpoints").mkdir()
            shutil.copy(checkpoint, folder / "checkpoints")
        monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
        with recording() as run:
            script.main(run)
        return Run(folder)

    yield train
    for number, handler in before.items():
        signal.signal(number, handler)


def test_gpt_2_has_its_published_number_of_weights(script: ModuleType) -> None:
    cfg = rung("gpt").fitted(has_accelerator=True)
    with torch.device("meta"):
        network = script.GPT(cfg)
    weights = sum(weight.numel() for weight in network.parameters())
    assert weights == 124_439_808  # as openai-community/gpt2 has
    assert cfg.weights == weights - 1024 * 768 == 123_653_376
    assert cfg.flop_per_token == 6 * 123_653_376 + 12 * 12 * 768 * 1024 == 855_166_464
    padded = rung("gpt_fused").fitted(has_accelerator=True)
    assert padded.flop_per_token == cfg.flop_per_token  # padding is no use
    with torch.device("meta"):
        assert script.GPT(padded).tokens.weight.shape == (50304, 768)


def test_mfu_is_the_needed_flop_over_the_peak(tmp_path: Path) -> None:
    cfg = rung("gpt_fused").fitted(has_accelerator=True)
    run = prepared(tmp_path / "run", "", cfg)
    values = {"images_per_s": 925.3 / 1.024, "gpus": 2, "config": {}}

    def of(machine: str, device: str = "cuda") -> float | None:
        class Measured(Run):
            record = Record("ok", machine=machine, device=device, **values)
            config = cfg

        return mfu(Measured(run.folder))

    # 925,300 tokens/s on two GPUs need 855.17 MFLOP each; 989 TFLOP/s is the peak.
    by_hand = 925_300 / 2 * 855.166464e6 / 989e12
    assert of("NVIDIA H200") == of("NVIDIA H100 80GB HBM3") == pytest.approx(by_hand)
    assert by_hand == pytest.approx(0.4, abs=1e-4)
    assert of("AMD EPYC, 2 cores", "cpu") is None and of("a new GPU") is None


def test_the_text_is_what_its_licence_says() -> None:
    about = tomllib.loads(text.TEXT.with_suffix(".toml").read_text())
    assert hashlib.sha256(text.TEXT.read_bytes()).hexdigest() == about["sha256"]
    assert "public domain" in about["licence"]
    words, tokens = text.PARTS.findall(text.TEXT.read_text()), text.read_tokens()
    assert "".join(words) == text.TEXT.read_text() and len(words) == len(tokens)
    pairs = {*zip(words, tokens.tolist())}
    assert len(pairs) == len({*words}) == tokens.max() + 1 == 10_232


def test_targets_are_the_next_tokens_and_ranks_share_each_batch() -> None:
    cfg = config().fitted(has_accelerator=False)
    sets = text.text_sets(cfg, CPU)
    inputs, targets = sets.train.__getitems__([3, 0])
    assert inputs.shape == targets.shape == (2, 16)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert torch.equal(inputs[0], text.read_tokens()[48:64])
    batches = {}
    for ranks in (1, 2):
        for rank in range(ranks):
            order = torch.utils.data.DistributedSampler(sets.train, ranks, rank)
            loader, _ = text.text_loaders(sets, cfg, 8 // ranks, order, range(1))
            batches[ranks, rank] = [{*map(tuple, inputs.tolist())} for inputs, _ in loader]
    assert len(batches[1, 0]) == cfg.steps
    assert batches[1, 0] == [a | b for a, b in zip(batches[2, 0], batches[2, 1])]


def networks(script: ModuleType, *configs: Config) -> list[torch.nn.Module]:
    made = []
    for cfg in configs:
        torch.manual_seed(0)
        made.append(script.GPT(cfg))
    return made


def test_fused_attention_equals_the_written_out_one(script: ModuleType) -> None:
    written, fused = networks(script, config(), config(attention="sdpa"))
    tokens = torch.randint(50257, (2, 17), generator=torch.Generator().manual_seed(0))
    for network in (written, fused):
        network(tokens[:, :-1], tokens[:, 1:]).backward()
    # Each result is a sum of at most 64 products (a block's MLP), of 50,257 in the gradient of the
    # scores, whose errors are random: √50,257 = 224 roundings.
    for (name, one), other in zip(written.named_parameters(), fused.parameters()):
        assert torch.equal(one, other)
        difference = float((one.grad - other.grad).norm() / one.grad.norm().clamp(min=1e-6))
        assert difference < 224 * EPS, name
    # It is causal: the last token changes no earlier score.
    changed = tokens.clone()
    changed[:, -2] = 0
    for network in (written, fused):
        scores = []
        hook = network.norm.register_forward_hook(
            lambda _, inputs, output, to=scores: to.append(output)
        )
        for values in (tokens, changed):
            network(values[:, :-1], values[:, 1:])
        hook.remove()
        assert torch.equal(scores[0][:, :-1], scores[1][:, :-1])
        assert not torch.equal(scores[0][:, -1], scores[1][:, -1])


def test_padding_adds_only_scores_of_zero_to_the_loss(script: ModuleType) -> None:
    plain, padded = networks(script, config(), config(vocabulary_multiple=64))
    assert padded.tokens.weight.shape == (50304, 16)
    weights = padded.state_dict() | {"tokens.weight": padded.tokens.weight[:50257]}
    assert all(torch.equal(weights[name], value) for name, value in plain.state_dict().items())
    tokens = torch.randint(50257, (2, 17), generator=torch.Generator().manual_seed(0))
    hidden = []
    plain.norm.register_forward_hook(lambda _, inputs, output: hidden.append(output))
    losses = [network(tokens[:, :-1], tokens[:, 1:]).item() for network in (plain, padded)]
    sums = (hidden[0] @ plain.tokens.weight.T).double().exp().sum(dim=-1)  # of the softmax
    added = torch.log1p(47 / sums).mean().item()  # of 47 rows, each with exp(0) = 1
    # A loss of 10.8 has roundings of 8 EPS; it is the mean of sums of 50,257 terms, by halves.
    assert losses[1] - losses[0] == pytest.approx(added, abs=8 * EPS * math.log2(50257))
    assert added == pytest.approx(math.log(50304 / 50257), rel=0.01)


def test_the_loss_falls_and_micro_batches_train_alike(train: Train) -> None:
    whole = train(config(steps=6))
    assert whole.record.status == "ok"
    assert whole.record.first_loss == pytest.approx(math.log(50257), abs=0.1)  # it knows nothing
    first, last = whole.record.epochs
    assert last["val_loss"] < first["val_loss"] < whole.record.first_loss - 0.5
    for size in (4, 3):  # of eight sequences: two halves; the last of three has two
        parts = train(config(steps=6, micro_batch=size))
        assert parts.steps["loss"].tolist() == pytest.approx(whole.steps["loss"].tolist(), rel=1e-4)
    table = str(report(whole))
    assert "tokens/s (median)" in table and "images" not in table and "validation loss" in table
    assert whole.config.context == 16 and whole.record.data == "text"
    assert whole.evidence(0).is_observed  # else its checks refuse it


def test_every_view_trains_and_only_padding_changes_the_first_loss(
    train: Train, script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open exercise changes nothing; a filled one only what the config requests of it."""
    solution = Path(script.__file__).read_text()
    names = exercises.names(solution)
    cfg = config(attention="sdpa", vocabulary_multiple=64, micro_batch=3)
    losses = []
    for count in range(len(names) + 1):
        view = ModuleType("view")
        exec(exercises.render(solution, names[:count]), vars(view))
        monkeypatch.setattr(script, "main", view.main)
        run = train(cfg)
        losses.append(run.record.first_loss)
        assert bool(run.evidence(0).attention) == ("sdpa" in names[:count])
    added = math.log(50304 / 50257)  # of scores that are nearly zero, the padding's share
    before = names.index("padded_vocabulary") + 1
    assert losses[:before] == pytest.approx([losses[0]] * before, abs=2e-5)
    after = [losses[0] + added] * len(losses[before:])
    assert losses[before:] == pytest.approx(after, abs=2e-5)


def test_it_resumes_bit_for_bit_and_refuses_another_network(train: Train) -> None:
    cfg = config(save_every=2, deterministic=True)
    complete = train(cfg)
    earlier, last = sorted((complete.folder / "checkpoints").glob("step-*.pt"))
    assert (earlier.name, last.name) == ("step-000004.pt", "step-000006.pt")
    resumed = train(cfg, earlier)
    states = [torch.load(run.folder / "checkpoints" / last.name) for run in (complete, resumed)]
    for name, weight in states[0]["model"].items():
        assert torch.equal(weight, states[1]["model"][name]), name
    assert complete.steps["loss"].tolist()[4:] == resumed.steps["loss"].tolist()
    others = [("layers", 3, 2), ("heads", 4, 2), ("width", 32, 16), ("context", 8, 16)]
    for name, value, old in others:
        words = f"{name}={value}: the checkpoint after step 4 was saved with {name}={old}"
        with pytest.raises(ValueError, match=words):
            train(config(save_every=2, **{name: value}), earlier)


def test_a_ratio_counts_tokens_and_not_sequences(train: Train, tmp_path: Path) -> None:
    short, long = train(config()), train(config(context=32))
    speeds = [run.record.images_per_s * run.config.tokens for run in (short, long)]
    assert ratio(long, short).value == pytest.approx(speeds[1] / speeds[0])
    images = prepared(tmp_path / "images", "", rung("baseline"))
    write_record(images.folder, Record("ok", images_per_s=9.0))
    with pytest.raises(ValueError, match="counts tokens, images images"):
        ratio(short, images)
    assert "counts tokens" in " ".join(describe_speedup(short, images))


def test_validation_computes_no_more_at_once_than_training(script: ModuleType) -> None:
    cfg = config(micro_batch=2)
    sets = text.text_sets(cfg, CPU)
    _, batches = text.text_loaders(sets, cfg, 8, range(8), range(8))
    assert {len(inputs) for inputs, _ in batches} == {2}


@pytest.mark.slow
def test_two_ranks_train_like_one(runs_root: Path) -> None:
    cfgs = {ranks: config(micro_batch=2, val_steps=2) for ranks in (1, 2)}
    runs = [launch.launch("solutions/train_gpt.py", cfg, gpus=n) for n, cfg in cfgs.items()]
    one, two = launch.wait(runs)
    assert two.steps["loss"].tolist() == pytest.approx(one.steps["loss"].tolist(), rel=1e-4)
    assert two.record.val_loss == pytest.approx(one.record.val_loss, rel=1e-4)
    for evidence in (two.evidence(0), two.evidence(1)):  # one for a bucket, once per update
        assert evidence.backward_collectives == {"allreduce": 1}


@pytest.mark.slow
@pytest.mark.long
def test_three_ranks_resume_bit_for_bit(runs_root: Path) -> None:
    """They add up gradients in the order in which DDP groups them."""
    cfg = config(batch_size=6, schedule="", save_every=1000, deterministic=True)
    run = launch.launch("solutions/train_gpt.py", cfg, gpus=3)
    half = launch.launch("solutions/train_gpt.py", replace(cfg, epochs=1), gpus=3)
    launch.wait([run, half])
    (resumed,) = launch.wait([launch.resume(half, {"epochs": 2})])
    assert resumed.steps["loss"].tolist() == run.steps["loss"].tolist()
    assert resumed.record.val_loss == run.record.val_loss


def test_validation_has_the_same_sequences_for_any_micro_batch() -> None:
    for size in (0, 1, 3):
        cfg = config(micro_batch=size, val_steps=2)
        sets = text.text_sets(cfg, CPU)
        every, share = range(len(sets.val)), cfg.batch_size
        _, batches = text.text_loaders(sets, cfg, share, every, every)
        assert sum(len(inputs) for inputs, _ in batches) == 2 * cfg.batch_size
        _, batches = text.text_loaders(sets, replace(cfg, val_steps=-1), share, every, every)
        assert sum(len(inputs) for inputs, _ in batches) == len(sets.val)
    cfg = config(context=11_000, batch_size=2, val_steps=1)
    sets = text.text_sets(cfg, CPU)
    with pytest.raises(ValueError, match="context=11000: the text has 1 such seq.*2 ranks share"):
        text.text_loaders(sets, cfg, 1, range(1), range(1))


def test_bad_input_is_named(script: ModuleType) -> None:
    (network,) = networks(script, config())
    tokens = torch.zeros(1, 17, dtype=torch.long)
    with pytest.raises(ValueError, match="sequences of 17 tokens: expected at most 16"):
        network(tokens, tokens)
    with pytest.raises(ValueError, match="vocabulary=0: it must be 1 or more"):
        config(vocabulary=0)
    with pytest.raises(ValueError, match="heads=3 cannot share width=16 evenly: choose 1 or 2 or"):
        config(heads=3)
    with pytest.raises(ValueError, match="heads=5 cannot share width=32 evenly: choose 1 or 2 or"):
        rung("gpt", heads=5)  # which divides the width of no device
    with pytest.raises(ValueError, match="vocabulary=256: the text has 10232 different tokens"):
        text.text_sets(config(vocabulary=256), CPU)
    with pytest.raises(ValueError, match="context=99999: the text to validate on has 21683 tokens"):
        text.text_sets(config(context=99999), CPU)
    with pytest.raises(ValueError, match="batch_size=16: the text has 13 sequences of context=150"):
        text.text_sets(config(context=15_000, batch_size=16), CPU)
    for setting, value in {"image_px": 32, "channels_last": True, "optimizer": "lars"}.items():
        with pytest.raises(ValueError, match=f"train_gpt.py has no setting '{setting}'"):
            config(**{setting: value})
    for refusing in (predict_memory, step_cost):
        with pytest.raises(ValueError, match="train_gpt.py trains with text, and the .* for image"):
            refusing(rung("gpt"))
    with pytest.raises(ValueError, match="attention='flash': choose \"\" or sdpa"):
        config(attention="flash")
