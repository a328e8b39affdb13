"""Parts of checks: the fake accelerator, the verdict on the effect, the page."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from check_helpers import SOLVED, TEXTS
from torch._subclasses import fake_tensor

from course.checks import discovery, exercises
from course.checks import verdict as checks
from course.checks.fake_accelerator import first_step
from course.checks.lab import Place, Unexpected
from course.checks.verdict import FAILED, NOISY, PASSED, UNMEASURABLE, Checked, check, judge
from course.config import Config, rung
from course.runs.evidence import Evidence
from course.runs.ratio import Ratio

# They depend on the 16-bit hardware of the CPU: make test-formats.
pytestmark = pytest.mark.formats

AS_SOLVED = """    accelerator = torch.accelerator.current_accelerator(check_available=True)
    device = accelerator if cfg.device == "auto" and accelerator else torch.device("cpu")
"""
BY_CUDA = """    wanted = cfg.device == "auto" and torch.cuda.is_available()
    device = torch.device("cuda:0" if wanted else "cpu")
"""
LAP = '            meter.lap("loss")\n'
MODEL = "    model = model.to(device)\n"


@pytest.mark.parametrize(
    "old, new, device",
    [
        ("", "", "cuda"),
        (AS_SOLVED, BY_CUDA, "cuda"),
        (LAP, f"            print(loss.item(), float(loss), loss, meter.step)\n{LAP}", "cuda"),
        (MODEL, '    model = model.cuda() if device.type == "cuda" else model\n', "cuda"),
        (MODEL, f"    import copy\n\n    kept = copy.deepcopy(model)\n{MODEL}", "cuda"),
        (MODEL, "", ""),
    ],
)
def test_a_script_may_reach_the_device_in_any_way(old, new, device, capsys) -> None:
    assert old in SOLVED
    text, cfg = SOLVED.replace(old, new, 1) if old else SOLVED, rung("device", quick=True)
    step = first_step(text, cfg)
    computed_on = step.computed_on.type if step.computed_on else ""
    assert (computed_on, bool(step.error)) == (device, not device), step.error
    step = first_step(text, replace(cfg, device="cpu"))
    assert (step.computed_on.type, step.error) == ("cpu", "")
    assert capsys.readouterr().out == ""


def test_a_fake_accelerator_takes_nothing_of_a_real_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Mock()  # a machine with one GPU would refuse a rank's GPU 1 here
    monkeypatch.setattr(fake_tensor, "init_gpu_context", taken)
    step = first_step(SOLVED, rung("device", quick=True), rank=5, local_rank=1, world_size=8)
    assert (step.error, step.computed_on) == ("", torch.device("cuda", 1))
    taken.assert_not_called()


@pytest.mark.parametrize(
    "speedup, faster, verdict",
    [
        (Ratio(1.5, 1.4, 1.6), True, PASSED),
        (Ratio(1.1, 0.9, 1.3), True, NOISY),
        (Ratio(1.01, 0.99, 1.02), True, UNMEASURABLE),  # it shows that there is no effect
        (Ratio(1.5, 1.4, 1.6, steps=1), True, NOISY),
        (Ratio(1.5, 1.4, 1.6, turns=2), True, NOISY),
        (Ratio(1.5, 1.2, 1.6, turns=5), True, NOISY),
        (Ratio(19.2, 12.2, 21, turns=4), True, PASSED),  # few, and far from 1
        (Ratio(0.1, 0.09, 0.11, turns=3), True, FAILED),
        (Ratio(1.5, 1.4, 1.6, turns=6, steps=1), True, PASSED),
        (Ratio(0.8, 0.7, 0.9), True, FAILED),
        (Ratio(1.0, 0.98, 1.02), False, PASSED),
        (Ratio(0.97, 0.9, 1.1), False, NOISY),
        (Ratio(0.86, 0.84, 0.88), False, FAILED),
    ],
)
def test_effect_is_judged_by_its_interval(speedup: Ratio, faster: bool, verdict: str) -> None:
    assert judge(speedup, faster=faster).verdict == verdict


@pytest.mark.parametrize(
    "held, speedup, verdict",
    [
        ("", Ratio(0.87, 0.8, 0.9), FAILED),
        ("Python sets the pace", Ratio(0.87, 0.8, 0.9), UNMEASURABLE),
        ("Python sets the pace", Ratio(1.5, 1.4, 1.6), PASSED),
    ],
)
def test_a_gpu_that_waited_for_python_fails_nothing(monkeypatch, held, speedup, verdict) -> None:
    monkeypatch.setattr(checks, "ratio", lambda *_: speedup)
    monkeypatch.setattr(checks, "idle_gpu_warning", lambda *_: held)
    monkeypatch.setattr(checks, "why_not", lambda _: "the GPU's memory is too small")
    wanted = replace(discovery.exercises()["amp"], limits=lambda cfg, place: "")
    record = SimpleNamespace(device="cuda", hardware={}, machine="a GPU")
    run = SimpleNamespace(record=record, config=rung("amp"))
    part = checks._effect(wanted, run, None)
    assert part.verdict == verdict
    assert (held in part.evidence) == (verdict == UNMEASURABLE) or not held
    if verdict != UNMEASURABLE:
        assert "one run after the other (the GPU's memory is too small)" in part.evidence


@pytest.mark.parametrize("site, alone", [("local", [["fused"]]), ("jean-zay-a100", [])])
def test_a_check_that_begins_waits_for_the_step_before_where_both_would_share_the_cores(
    site: str, alone: list, monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path
) -> None:
    waited: list[list[str]] = []
    monkeypatch.setattr(checks, "_place", lambda config, site: Place("cpu", ("bf16",), site))
    monkeypatch.setattr(checks, "launch", lambda script, config, **_: config.rung)
    monkeypatch.setattr(checks, "wait", lambda runs, check: waited.append(runs))
    script = tmp_path / "train.py"
    script.write_text(SOLVED)
    assert checks.launch_check("compile", script=str(script), site=site) == ("compile", "fused")
    assert waited == alone and capsys.readouterr().out == ""
    script.write_text(exercises.render(TEXTS["train.py"], ()))
    checks.launch_check("compile", script=str(script), site=site)
    words = "TODO compile is still open. Fill it in, save the file, run this cell again: /"
    assert capsys.readouterr().out.startswith(words)
    with pytest.raises(ValueError, match="no check 'kompile'"):
        checks.launch_check("kompile")


def test_at_full_size_compiling_is_timed_without_a_loader_for_which_a_gpu_would_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checks, "_place", lambda config, site: Place("cuda", ("bf16",), site))
    wanted = discovery.exercises()["compile"]
    for quick, data, epochs in ((True, "default", 2), (False, "synthetic", 2)):
        before, config, is_timed = checks._configs(wanted, "local", quick=quick, small=True)
        assert is_timed and {before.data, config.data} == {data} and config.epochs == epochs
    assert (config.batch_size, config.image_px, before.compile) == (256, 224, "")


@pytest.mark.parametrize(
    "name, script, rungs",
    [
        ("checkpoint", "train_restarted.py", ["restarted"]),
        ("compile", "train.py", ["fused", "compile"]),
    ],
)
def test_a_check_launches_the_step_before_only_to_compare_speeds(
    name: str, script: str, rungs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = []

    def launch(script: str, config: Config, **_: object) -> SimpleNamespace:
        launched.append(config.rung)
        record = SimpleNamespace(machine="a GPU")
        return SimpleNamespace(is_recorded=True, lacks_half=False, record=record)

    monkeypatch.setattr(checks, "launch", launch)
    launch_all = lambda script, configs, **_: [*map(partial(launch, script), configs)]  # noqa: E731
    monkeypatch.setattr(checks, "launch_all", launch_all)
    monkeypatch.setattr(checks, "refresh", lambda run: "ok")
    monkeypatch.setattr(checks, "_parts", lambda *_: ())
    check(name, script=f"solutions/{script}")
    assert launched == rungs


def test_unknown_check_lists_the_known() -> None:
    with pytest.raises(ValueError, match="no check 'amq': there are device, profiler, amp"):
        check("amq")


def test_html_escapes_and_says_the_verdict_in_words() -> None:
    part = checks.Part("effect", UNMEASURABLE, "<nothing>")
    done = Checked("amp", "title", (part,))
    page = done._repr_html_()
    assert "&lt;nothing&gt;" in page and UNMEASURABLE in page
    assert "not measurable here" in repr(done)


@pytest.mark.parametrize("name", ["shards", "worker_shards"])
def test_how_images_are_read_is_checked_in_a_precision_that_no_processor_imitates(name) -> None:
    before, config, _ = checks._configs(
        discovery.exercises()[name], "local", quick=True, small=True
    )
    assert (before.precision, config.precision) == ("fp32", "fp32")
    assert (before.format, config.format) == ("files", "shards")


def test_every_todo_of_the_scripts_has_a_check() -> None:
    names = [name for text in TEXTS.values() for name in exercises.names(text)]
    assert sorted(names) == sorted(discovery.exercises())


def ranks_on(*devices: tuple[str, str]) -> SimpleNamespace:
    ranks = [{"rank": rank, "host": host} for rank, (host, _) in enumerate(devices)]
    evidence = [Evidence(world_size=2, device=device) for _, device in devices]
    return SimpleNamespace(gpus=len(devices), ranks=ranks, evidence=evidence.__getitem__)


@pytest.mark.parametrize(
    "devices, problem",
    [
        (
            (("a", "cuda:0"), ("a", "cuda:0")),
            "several ranks computed on cuda:0: take run.local_rank's",
        ),
        ((("a", "cuda:0"), ("a", "cuda:1")), ""),
        ((("a", "cuda:0"), ("b", "cuda:0")), ""),
        ((("a", "cpu"), ("a", "cpu")), ""),
    ],
)
def test_two_ranks_on_one_device_are_noticed(devices, problem: str) -> None:
    look = discovery.exercises()["process_group"].describe
    if problem:
        with pytest.raises(Unexpected, match=re.escape(problem)):
            look(ranks_on(*devices))
    else:
        assert look(ranks_on(*devices)).startswith("2 ranks in one process group")
