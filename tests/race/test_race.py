"""The race: what counts, ways to fail, boards that many write to, the page."""

import json
import shutil
import subprocess
import threading
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from cases import for_all
from job_helpers import SCRIPTS, prepared, train_together
from race_helpers import WELL, of
from typer.testing import CliRunner

import race
from course.__main__ import app
from course.config import Config
from course.data import crop_set
from course.data.crop_set import Crops
from course.runs.run import PROJECT, RACE_CLOCK, Run
from course.training import models
from course.training.racing import network
from course.training.racing.watch import ON_THE_WAY
from race import board, entry, page, referee, tracks
from race.board import Entry, Trial

FEW = 512  # crops are enough to see what is refused
LIGHT = SCRIPTS / "race_light.py"
QUICK = tracks.get("quick")


# Each way in which the light script goes wrong, and what the board says of it.
WAYS = {
    "crashes": "failed: RuntimeError: this script was not finished",
    "diverges": "training diverged: 10.weight holds values that are no numbers",
    "other_shapes": "the weights are not those of resnet8_patches, which SETTINGS names",
    "pickles": "cannot be read as tensors alone",
    "leaves_none": "it left no weights: call run.save_weights",
    "learns_nothing": "",
    "own_network": "",
}


def light(folder: Path, way: str) -> Run:
    """A run of the light script that is ready to be trained."""
    config = QUICK.config(entry.settings_of(LIGHT.read_text(), "quick"), way, seed=1)
    made = prepared(folder / way, LIGHT.read_text(), config)
    asked = json.loads((made.folder / "launch.json").read_text())
    (made.folder / "launch.json").write_text(json.dumps(asked | {"race": {"track": "quick"}}))
    return made


@pytest.fixture(scope="module")
def went(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trial]:
    """What became of a run in each way, in one process after another's fork."""
    place = tmp_path_factory.mktemp("ways")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        runs = {way: light(place, way) for way in WAYS}
        train_together(runs.values(), narrow=False, COURSE_DATA=str(crop_set.ensure_blind()))
        rest = [run for way, run in runs.items() if way != "crashes"]
        few = Crops(crop_set.ensure(), "val").first(FEW)
        for run in rest:
            referee.write_verdict(run.folder, few)
            (run.folder / RACE_CLOCK).write_text('{"seconds": 0}')  # no supervisor watched it
        assert not (place / "opened").exists()  # what was pickled did not run
        trials = {way: entry._trial(run, QUICK) for way, run in runs.items()}
        short = replace(QUICK, budget_s=1e-6)
        trials["too_slow"] = entry._trial(runs["learns_nothing"], short)
        return trials


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.slow
def test_what_goes_wrong_is_told(went: dict[str, Trial], way: str) -> None:
    assert WAYS[way] in went[way].failure and bool(went[way].failure) == bool(WAYS[way])


@pytest.mark.slow
def test_a_run_over_its_budget_is_told(went: dict[str, Trial]) -> None:
    assert "took" in went["too_slow"].failure and "the budget is 1e-06" in went["too_slow"].failure


@pytest.mark.slow
def test_own_networks_are_judged(went: dict[str, Trial]) -> None:
    assert went["own_network"].top1 < 0.25  # untrained, and its seed is a random one
    assert went["learns_nothing"].way[0][2] == went["learns_nothing"].top1  # nothing came between


@for_all(
    "accuracies, why",
    [
        ([0.20, 0.21, 0.19], ""),
        ([0.151, 0.16, 0.145], "not surely above the target of 15%"),
        ([0.13, 0.14, 0.12], "is below the target of 15%"),
        ([0.9, 0.9], "2 of 3 runs were made"),
        ([0.16, 0.16, 0.16], "not surely above"),  # without a spread nothing is sure
        ([0.14, 0.14, 0.14], "below"),
    ],
)
def test_what_counts(accuracies: list[float], why: str) -> None:
    assert why in of(accuracies).verdict and of(accuracies).counts == (not why)


def test_an_entry_whose_seed_changes_nothing_ends() -> None:
    made = of(WELL)
    assert made.counts
    alike = [replace(each, weights=digest) for each, digest in zip(made.trials, "aba")]
    assert replace(made, trials=tuple(alike)).failure == (
        "the seed changes nothing: two runs left the same weights"
    )


def test_how_far_above_the_target_a_mean_must_be() -> None:
    least = race.margin(0.01, 3)
    above = [0.15 + least * 1.01 + each for each in (-0.01, 0, 0.01)]
    below = [0.15 + least * 0.99 + each for each in (-0.01, 0, 0.01)]
    assert of(above).counts and not of(below).counts


@for_all(
    "settings, words",
    [
        ({"seed": 3}, "the race decides"),
        ({"data": "default"}, "the race decides"),
        ({"val_steps": 4}, "the race decides"),
        ({"epochz": 4}, "did you mean 'epochs'"),
    ],
)
def test_settings_that_are_refused(settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        QUICK.config(settings, "x", 0)


@for_all(
    "text, words",
    [
        ("x = 1", "needs SETTINGS"),
        ("SETTINGS = dict(lr=1)", "plain dictionary"),
        ('SETTINGS = {"gpu": {}}', "no 'quick'"),
    ],
)
def test_scripts_without_settings_are_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        entry.settings_of(text, "quick")


@for_all("name", board.SHIPPED_ENTRIES)
def test_shipped_entries_have_settings_for_each_track(name: str) -> None:
    text = entry.shipped(name).read_text()
    for track in ("quick", "cpu", "gpu"):
        config = tracks.get(track).config(entry.settings_of(text, track), name, 1)
        assert isinstance(config, Config) and config.data == "crops" and config.save_weights
    assert len(text.splitlines()) <= 200


def test_entries_that_cannot_begin(tmp_path: Path) -> None:
    for arguments, words in (
        ({"track": "fun"}, "choose quick, cpu, gpu, node"),
        ({"seeds": 2}, "asks for 3 or more"),
        ({"gpus": 2}, "takes 1 at most"),
        ({"script": "nothing.py"}, "no script"),
    ):
        with pytest.raises(ValueError, match=words):
            race.enter(**{"track": "quick", "script": "plain", "to": tmp_path} | arguments)
    assert not [*tmp_path.rglob("*.py")]  # nothing was stored


def test_many_write_to_a_board_at_once(tmp_path: Path) -> None:
    """Whoever looks meanwhile sees whole entries alone."""
    seen: list[int] = []

    def write(number: int) -> None:
        for _ in range(5):
            made = of(WELL, name=f"w{number}")
            board.post(board.begin(tmp_path, made, "x = 1"), made)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for each in writers:
        each.start()
    while any(each.is_alive() for each in writers):
        seen.append(len(board.entries(tmp_path, shipped=False)))  # raises if one is in parts
    found = board.entries(tmp_path, shipped=False)
    assert len({each.id for each in found}) == 30 and seen == sorted(seen)
    assert all(board.script_of(each, tmp_path) == "x = 1" for each in found)


def test_boards_are_filtered_and_ranked(tmp_path: Path) -> None:
    slow = replace(of(WELL, name="slow", machine="A GPU", joules=5.0), entered_at="2026-01-01")
    quick = of([*WELL, 0.33], name="four", machine="a processor")
    wrong = of([0.1] * 3, name="wrong", machine="A GPU")
    for each in (slow, quick, wrong):
        board.post(board.begin(tmp_path, each, f"# {each.name}"), each)
    gpus = board.entries(tmp_path, machine="gpu", shipped=False)
    assert [each.name for each in gpus] == ["slow", "wrong"]
    assert board.ranked([quick, slow, wrong]) == [slow, quick]
    assert board.ranked([quick, slow, wrong], "joules") == [slow]
    missed = replace(slow, id="missed", trials=[replace(each, top1=0.5) for each in slow.trials])
    assert not missed.counts and not missed.failure
    assert board.judged([missed, slow]) == [slow, missed]
    assert board.judged([missed, wrong, quick], "joules") == [missed]
    assert board.get("four", tmp_path) == quick
    with pytest.raises(ValueError, match="no entry is called 'fun'"):
        board.get("fun", tmp_path)
    text = json.dumps(asdict(slow) | {"new_field": 1})
    assert Entry.from_json(text, "quick", slow.id) == slow
    table = race.table("quick", to=tmp_path)
    assert [*table[table["by"] == "me"]["entry"]] == ["slow", "four", "wrong"]
    assert "joules" in race.ways("quick", over="joules", to=tmp_path).alt


@pytest.mark.slow
def test_a_page_needs_nothing_but_itself(tmp_path: Path) -> None:
    for number, name in enumerate(("first", "second")):
        made = of([0.3, 0.31, 0.32 + number / 100], name=name)
        board.post(board.begin(tmp_path, made, f"SETTINGS = {{'lr': {number}}}\n"), made)
    written = race.board_page(tmp_path, machine="made up", live=True)
    text = written.read_text()
    assert 'http-equiv="refresh"' in text and "No board of joules" in text
    assert "-SETTINGS = {&#39;lr&#39;: 0}" in text and "+SETTINGS = {&#39;lr&#39;: 1}" in text
    assert 'src="data:image/png;base64,' in text and "prefers-color-scheme: dark" in text
    assert "http-equiv" not in page.text(tmp_path)  # which has the shipped entries as well
    for anchor in race.anchors().itertuples():
        assert anchor.time in text and anchor.source in text
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if not chromium:
        pytest.skip("no chromium here to open the page")
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    (tmp_path / "home").mkdir()
    done = subprocess.run(
        [*command, f"--user-data-dir={tmp_path / 'home'}", written.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.count("<details") == 2 and "The race" in done.stdout


def test_hidden_numbers_and_pickled_ones_are_refused(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Flatten(), Hides())
    network.write(net, 32, tmp_path)
    with pytest.raises(referee.Refused, match="49,152 numbers beside its weights"):
        referee._exported(tmp_path / network.NETWORK, net.state_dict())
    (tmp_path / network.NETWORK).write_bytes(b"no archive")
    with pytest.raises(referee.Refused, match="is no exported network"):
        referee._exported(tmp_path / network.NETWORK, {})


class Hides(torch.nn.Module):
    """A layer whose weights are none: they would have been learned without the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.ones(3 * 32 * 32, 16)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images @ self.hidden


def test_a_draft_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.py"
    race.draft(mine, of="one_cycle")
    assert mine.read_text() == (PROJECT / "solutions/race/one_cycle.py").read_text()
    mine.write_text("# mine")
    race.draft(mine)
    assert mine.read_text() == "# mine" and "stays as it is" in capsys.readouterr().out


def test_the_small_network_is_one_of_the_course() -> None:
    net = models.create("resnet8_patches", 16)
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 16)
    assert models.parameter_count(net) < 200_000


@pytest.mark.slow
def test_the_command_shows_a_board(tmp_path: Path) -> None:
    made = of(WELL)
    board.post(board.begin(tmp_path, made, "x = 1"), made)
    asked = ["race", "quick", "--board", str(tmp_path), "--json"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    assert made.id in [each["id"] for each in json.loads(done.stdout)]
    assert (tmp_path / page.PAGE).exists()
    refused = CliRunner().invoke(app, ["race", "quick", "--script", "a.py", "--entry", "plain"])
    assert isinstance(refused.exception, ValueError) and "choose one" in str(refused.exception)
    refused = CliRunner().invoke(app, ["race", "mars", "--board", str(tmp_path)])
    assert "no track 'mars': choose quick, cpu, gpu, node" in str(refused.exception)


@pytest.mark.slow
def test_weights_kept_on_the_way_are_whole(went: dict[str, Trial]) -> None:
    assert len(went["learns_nothing"].way) == 2 and ON_THE_WAY.endswith(".pt")
