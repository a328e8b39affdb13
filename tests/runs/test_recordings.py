"""Recorded machines: complete and small files, and a site that answers launches from them."""

import json
import shutil
from pathlib import Path

import pytest
from recorded_helpers import copy_row

from course import compare, report, rung
from course.analysis import read_trace
from course.config import DEFAULTS, all_settings, from_dict
from course.jobs import launch
from course.runs import failures, recordings, rows
from course.runs import run as runs
from course.runs.run import RECORDED
from labs.dataloader import loading
from tools import pages, record

SMALL, ALL_OF_IT = 600_000, 10_000_000  # bytes: of a trace, and of everything
MACHINES = recordings.machines()
PURPOSES = {recordings.VARIANT, *(recording.purpose for recording in record.recordings())}


def of(machine: str, name: str, **wanted: object) -> runs.Run:
    """Return the only untraced recorded run of a rung with these settings, at batch 256."""
    settings = {
        "rung": name,
        "batch_size": 256,
        "data": "synthetic",
        "device": "auto",
        **wanted,
    }
    matches = [
        run
        for run in recordings.recorded_runs(machine)
        if settings.items() <= vars(run.config).items()
    ]
    assert matches
    return matches[0]


@pytest.mark.parametrize("machine", MACHINES)
def test_every_run_is_whole_and_says_where_it_ran(machine: str) -> None:
    saved = json.loads((RECORDED / machine / "index.json").read_text())
    for key in ("machine", "date", "versions", "git_sha", "command"):
        assert saved[key]
    for run in recordings.recorded_runs(machine):
        assert run.is_recorded and run.recorded_on == machine and run.script.is_file()
        assert run.purpose in PURPOSES
        assert run.record.site == run.launched["site"] == f"recorded-{machine}"
        assert run.record.machine and run.record.versions["torch"]


@pytest.mark.parametrize("machine", MACHINES)
def test_every_config_is_read_as_it_was_recorded(machine: str) -> None:
    """Also those with the settings of all scripts, from before each script had a class."""
    for text in (RECORDED / machine / rows.RUNS).read_text().splitlines():
        row = json.loads(text)
        config = from_dict(row["config"])
        settings = {"script": config.script} | row["config"]
        assert all_settings(config) == DEFAULTS | settings
        name = Path(row["request"]["script"]).name
        assert config.script == name, "the script that trained"
        assert from_dict(json.loads(config.to_json())) == config


def test_it_stays_small_and_names_no_place() -> None:
    files = [path for path in RECORDED.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".json", ".jsonl", ".py", ".gz", ".csv", ".pt"}
    assert len(files) < 100
    assert sum(path.stat().st_size for path in files) < ALL_OF_IT
    for path in files:
        if path.suffix != ".gz":
            assert not any(word in path.read_bytes() for word in (b"/work/", b"/tmp/", b"/root"))


@pytest.mark.slow
@pytest.mark.parametrize("machine, least", [("nvidia-h100", 4)])
def test_every_trace_is_small_and_is_of_a_gpu(machine: str, least: int) -> None:
    traced = [run for run in recordings.recorded_runs(machine) if run.record.trace]
    assert len(traced) >= least
    for run in traced:
        assert (run.folder / run.record.trace).stat().st_size < SMALL
        trace = read_trace(run)
        assert trace.device.startswith("NVIDIA") and len(trace.kernels) > 100


def test_a_launch_is_answered_at_once_and_nothing_is_written(runs_root: Path, capsys) -> None:
    known = of("nvidia-h100", "amp", precision="bf16")
    run = launch.launch("exercises/train.py", known.config, site="recorded-nvidia-h100")
    assert run.folder == known.folder and run.status == "ok"
    assert "NVIDIA H100" in (output := capsys.readouterr().out) and "(recorded 20" in output
    assert run.wait() is run and run.cancel().status == "ok"
    too_large = of("nvidia-h100", "channels_last", batch_size=2048)
    assert "lower batch_size" in (why := too_large.explain()) and "Logs" not in why
    assert "Slurm" not in why  # which has no part in a GPU's memory
    assert "If Slurm" in failures.what_to_do("oom", "exceeded memory limit", "train.py")
    assert not runs_root.exists()


def test_what_was_not_recorded_names_what_comes_nearest(runs_root: Path) -> None:
    known = of("nvidia-h100", "amp", precision="bf16")
    config = rung("amp", **{**vars(known.config), "batch_size": 250, "lr": 7})
    with pytest.raises(
        ValueError, match=r"not recorded on nvidia-h100.*\n +amp: batch_size=256, lr="
    ):
        launch.launch("solutions/train.py", config, site="recorded-nvidia-h100")
    with pytest.raises(ValueError, match="amp: gpus=1") as error:
        launch.launch("solutions/train.py", known.config, gpus=4, site="recorded-nvidia-h100")
    assert "quick" not in str(error.value)
    with pytest.raises(ValueError, match="quick = False"):
        launch.launch("solutions/train.py", rung("amp", quick=True), site="recorded-nvidia-h100")


def test_a_report_of_recorded_runs_names_the_machine() -> None:
    amp, device = of("nvidia-h100", "amp", precision="bf16"), of("nvidia-h100", "device")
    text = repr(report(amp, against=device))
    assert "NVIDIA H100" in text and "recorded" in text
    both = compare(device, amp)
    assert set(both.settings.index) == {"rung", "precision"}
    for text in (repr(both), both._repr_html_()):
        assert "no script is kept of a recorded run" in text and "2.6" in text


def test_a_comparison_shows_the_lines_that_a_recorded_variant_added() -> None:
    run = recordings.recorded_runs("nvidia-h200-x4", "variant")[0]
    text = repr(compare(of("nvidia-h200", "device"), run))
    assert ":\n import torch\n+from torchmetrics" in text
    assert "\n criterion = nn.CrossEntropyLoss()\n+accuracy = " in text


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace the shipped recordings by a copy of the H100's, which a test may change."""
    shutil.copytree(RECORDED / "nvidia-h100", tmp_path / "nvidia-h100")
    monkeypatch.setattr(recordings, "RECORDED", tmp_path)
    return tmp_path / "nvidia-h100"


def pretend(folder: Path, model: runs.Run, name: str, purpose: str = "", **changed: object) -> None:
    """Add a later run: a copy of a run, with different figures or a different purpose."""
    record, request = changed | {"started_at": "2999"}, {"purpose": purpose or model.purpose}
    copy_row(model, folder, name, record=record, request=request)


def test_a_launch_is_answered_by_the_run_on_the_asked_device() -> None:
    for device, computed_on in (("cpu", "cpu"), ("auto", "cuda")):
        config = of("nvidia-h100", "amp", device=device, precision="bf16").config
        run = launch.launch("exercises/train.py", config, site="recorded-nvidia-h100")
        assert run.record.device == computed_on


def test_of_runs_on_several_gpus_none_is_taken_for_a_rung(copied: Path) -> None:
    known, amp = pages.ladders("nvidia-h100"), of("nvidia-h100", "amp", precision="bf16")
    pretend(copied, amp, "amp-4444", gpus=4, images_per_s=9000.0)
    assert pages.ladders("nvidia-h100") == known
    pretend(copied, amp, "amp-1111", images_per_s=9000.0)
    assert pages.ladders("nvidia-h100")["GPU"]["amp", "bf16"].images_per_s == 9000


def test_runs_are_chosen_by_their_purpose_and_not_by_their_name(copied: Path) -> None:
    ladders, speeds = pages.ladders("nvidia-h100"), loading.training_speeds("nvidia-h100")
    amp, trace = of("nvidia-h100", "amp", precision="bf16"), of("nvidia-h100", "trace-amp")
    pretend(copied, amp, "amp-1111", "notebook", images_per_s=9000.0)
    pretend(copied, trace, "trace-1111", "notebook", images_per_s=9000.0)
    assert pages.ladders("nvidia-h100") == ladders
    assert loading.training_speeds("nvidia-h100").equals(speeds)
    assert recordings.trace_path("nvidia-h100", "amp").parent.name == trace.name
    assert len(recordings.full_batch_ladder("nvidia-h100", ["amp"])) == 1
    assert "amp-1111" in [run.name for run in recordings.recorded_runs("nvidia-h100", "notebook")]
    with pytest.raises(ValueError, match="no purpose 'fun' .*: choose batch sizes, "):
        recordings.recorded_runs("nvidia-h100", "fun")
