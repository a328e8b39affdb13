"""Recorded machines: what is shipped is whole and small, and a site that answers from it."""

import json
from pathlib import Path

import pytest

from course import jobs, readme, recorded, recordings, report, rung, runs, sites, trace
from course.runs import RECORDED

SMALL, ALL_OF_IT = 300_000, 8_000_000  # bytes: of a trace, and of everything
MACHINES = recordings.machines()
BUSY = {"data": "synthetic", "batch_size": 256, "val_steps": 0, "epochs": 1}


def of(machine: str, name: str, **wanted: object) -> runs.Run:
    """The one untraced recorded run of a rung with these settings, at batch 256."""
    settings = {"rung": name, "batch_size": 256, "data": "synthetic", "tf32": False, **wanted}
    found = [run for run in recordings.runs(machine)
             if settings.items() <= vars(run.config).items()]  # fmt: skip
    assert found
    return found[0]


def test_the_machines() -> None:
    assert {"nvidia-h100", "nvidia-h200"} <= set(MACHINES)


@pytest.mark.parametrize("machine", MACHINES)
def test_every_run_is_whole_and_says_where_it_ran(machine: str) -> None:
    saved = json.loads((RECORDED / machine / "index.json").read_text())
    for key in ("machine", "date", "versions", "git_sha", "command"):
        assert saved[key]
    for run in recordings.runs(machine):
        assert run.is_recorded and run.script.is_file()
        assert run.record.site == run.launched["site"] == f"recorded-{machine}"
        assert run.record.machine and run.record.versions["torch"]
        assert run.record.config == json.loads((run.folder / "config.json").read_text())


def test_it_stays_small_and_names_no_place() -> None:
    files = [path for path in RECORDED.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".json", ".jsonl", ".py", ".gz"}
    assert sum(path.stat().st_size for path in files) < ALL_OF_IT
    for path in files:
        if path.suffix in (".json", ".jsonl", ".py"):
            assert not any(word in path.read_text() for word in ("/work/", "/tmp/", "/root"))


@pytest.mark.parametrize("machine, least", [("nvidia-h100", 4)])
def test_every_trace_is_small_and_is_of_a_gpu(machine: str, least: int) -> None:
    traced = [run for run in recordings.runs(machine) if run.record.trace]
    assert len(traced) >= least
    for run in traced:
        assert (run.folder / run.record.trace).stat().st_size < SMALL
        found = trace.of_run(run)
        assert found.device.startswith("NVIDIA") and len(found.kernels) > 100


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(ValueError, match="no trace 'ampp': there are .*amp, .*channels_last"):
        recordings.trace_path("nvidia-h100", "ampp")
    for call in (recorded, recordings.load, lambda name: recordings.trace_path(name, "amp")):
        with pytest.raises(ValueError, match="nothing is recorded for 'abacus': .*nvidia-h100"):
            call("abacus")
    with pytest.raises(
        ValueError, match="no site 'recorded-abacus': choose .*recorded-nvidia-h100"
    ):
        sites.get("recorded-abacus")


def test_the_ladder_names_machine_and_date() -> None:
    table = recorded("nvidia-h200")
    assert table["machine"][1].startswith("NVIDIA H200 (recorded 20")


def test_a_launch_is_answered_at_once_and_nothing_is_written(runs_root: Path, capsys) -> None:
    known = of("nvidia-h100", "amp", precision="bf16")
    run = jobs.launch("exercises/train.py", known.config, site="recorded-nvidia-h100")
    assert run.folder == known.folder and run.status == "ok"
    assert "NVIDIA H100" in (said := capsys.readouterr().out) and "nothing runs here" in said
    assert jobs.wait(run) is run and jobs.cancel(run).status == "ok"
    assert not runs_root.exists()


def test_a_name_alone_makes_no_other_run() -> None:
    known = of("nvidia-h100", "amp", precision="bf16")
    renamed = rung("amp", **{**vars(known.config), "rung": "mine"})
    assert (
        jobs.launch("exercises/train.py", renamed, site="recorded-nvidia-h100").name == known.name
    )


def test_what_was_not_recorded_names_what_comes_nearest(runs_root: Path) -> None:
    known = of("nvidia-h100", "amp", precision="bf16")
    asked = rung("amp", **{**vars(known.config), "batch_size": 250, "lr": 7})
    with pytest.raises(
        ValueError, match=r"not recorded on nvidia-h100.*\n +amp: batch_size=256, lr="
    ):
        jobs.launch("solutions/train.py", asked, site="recorded-nvidia-h100")
    with pytest.raises(ValueError, match="amp: gpus=1"):
        jobs.launch("solutions/train.py", known.config, gpus=4, site="recorded-nvidia-h100")


def test_a_report_of_recorded_runs_names_the_machine() -> None:
    amp, device = of("nvidia-h100", "amp", precision="bf16"), of("nvidia-h100", "device")
    text = repr(report(amp, against=device))
    assert "NVIDIA H100" in text and "recorded" in text


def test_the_readme_shows_the_recorded_ladder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert readme.write(check=True)
    page = tmp_path / "README.md"
    page.write_text(readme.PAGE.read_text().replace("| amp | bf16 | 2", "| amp | bf16 | 3"))
    monkeypatch.setattr(readme, "PAGE", page)
    assert not readme.write(check=True) and "| amp | bf16 | 3" in page.read_text()
    assert not readme.write() and readme.write(check=True)
    page.write_text("no place for it")
    with pytest.raises(ValueError, match="needs the lines"):
        readme.write()
