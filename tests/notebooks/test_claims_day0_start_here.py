"""What Day 0 and its quiz say of numbers, against the published facts and the records."""

import dataclasses
import json
import re
from pathlib import Path

import pandas as pd
import pytest
from claims import text_of, text_of_quiz

from course import days, recorded, rung
from course.jobs import plan, sites, slurm, slurm_commands, supervise
from course.labs.quizzes import FOLDER, load
from course.runs.run import PROJECT
from course.topics import supercomputer
from course.topics.supercomputer.history import IMAGENET_IMAGES

NOTEBOOK = "day0_start_here"
TEXT, QUIZ = text_of(NOTEBOOK), text_of_quiz("day0_1")
CELLS = json.loads((PROJECT / "notebooks" / f"{NOTEBOOK}.ipynb").read_text())["cells"]
CODE = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]


def cell_with(words: str) -> str:
    """The code cell in which these words stand."""
    (cell,) = [source for source in CODE if words in source]
    return cell


@pytest.fixture(scope="module")
def times() -> pd.DataFrame:
    return supercomputer.training_times().set_index("who")


@pytest.fixture(scope="module")
def watts() -> pd.DataFrame:
    return supercomputer.power().set_index("device")


@pytest.fixture(scope="module")
def full() -> pd.DataFrame:
    """The table of section 8, made by the notebook's own cell."""
    names = {"recorded": recorded, "supercomputer": supercomputer}
    exec(cell_with("full_training").removesuffix("full"), names)
    return names["full"].set_index("rung")


def test_the_notebook_is_short() -> None:
    assert len(re.sub(r"[`*|#\[\]()$>-]", " ", TEXT).split()) <= 2000


def test_time_is_that_of_the_course() -> None:
    (lab,) = [lab for lab in days.LABS if lab.notebook == NOTEBOOK]
    assert f"about {lab.minutes} minutes" in TEXT


def test_a_training_sees_imagenet_90_times(times: pd.DataFrame) -> None:
    assert "with 1.28 million images seen 90 times each" in TEXT
    assert f"{IMAGENET_IMAGES / 1e6:.2f}" == "1.28"
    assert set(times["epochs"].dropna()) == {90}
    assert "90 [epochs]" in TEXT


def test_two_weeks_on_one_gpu(times: pd.DataFrame) -> None:
    assert "In 2017, two weeks on one GPU." in TEXT
    slowest = times.iloc[0]
    assert (slowest["devices"], slowest["minutes"]) == (1, 14 * 24 * 60)
    assert slowest["date"].startswith("2017")


def test_facebook_took_32_times_as_many(times: pd.DataFrame) -> None:
    assert (
        "One node with 8 P100 GPUs took 29 hours. Facebook took 256 of them, 32 times as many."
        in TEXT
    )
    few, many = times.loc["Facebook (one node)"], times.loc["Facebook"]
    assert (few["devices"], few["minutes"]) == (8, 29 * 60)
    assert (many["devices"], many["devices"] / few["devices"]) == (256, 32)
    assert few["device"] == many["device"] == "Tesla P100"


def test_the_columns_of_the_trainings(times: pd.DataFrame) -> None:
    assert "from 14 days to 1.2 minutes" in TEXT
    assert times["minutes"].iloc[[0, -1]].tolist() == [14 * 24 * 60, 1.2]
    assert (
        "8 P100 GPUs needed 232 GPU hours; 256 of them needed 256, and so did 1,024. They were 29 "
        "and 116 times as fast, and cost 10 % more." in TEXT
    )
    p100 = times[times["device"] == "Tesla P100"].set_index("devices")
    assert p100["device_hours"].to_dict() == {8: 232, 256: 256, 1024: 256}
    faster = p100.loc[8, "minutes"] / p100["minutes"]
    assert (faster[256], faster[1024]) == (29, 116)
    assert round(100 * (256 / 232 - 1)) == 10
    assert "Perfect scaling would have taken 54 minutes." in TEXT
    assert round(p100.loc[8, "minutes"] * 8 / 256) == 54


def test_the_last_row_has_the_fastest_devices_and_the_fewest_hours(times: pd.DataFrame) -> None:
    assert "highest in the last row, which needs the fewest hours" in TEXT
    last = times.index[-1]
    assert times["images_per_s_each"].idxmax() == last
    assert times["device_hours"].idxmin() == last


def test_the_first_row_is_the_processor_and_the_others_one_gpu(full: pd.DataFrame) -> None:
    assert "16 CPU cores, then one H100 on the rungs of the ladder" in TEXT
    assert full.index.tolist() == ["baseline", "device", "amp", "channels_last", "compile"]
    machines = full["machine"].tolist()
    assert "16 cores" in machines[0]
    assert len(set(machines[1:])) == 1 and "H100" in machines[1]


def test_hours_of_the_slowest_and_the_fastest_rung(full: pd.DataFrame) -> None:
    assert "37 hours become 5.6" in TEXT
    assert f"{full.loc['device', 'hours']:.0f}" == "37"
    assert f"{full.loc['compile', 'hours']:.1f}" == "5.6"


def test_time_and_energy_of_two_rungs(full: pd.DataFrame) -> None:
    assert "is 4.6 times as fast, and takes 4.8 times less energy" in TEXT
    slow, fast = full.loc["device"], full.loc["channels_last"]
    assert f"{slow['hours'] / fast['hours']:.1f}" == "4.6"
    assert f"{slow['kwh'] / fast['kwh']:.1f}" == "4.8"
    assert "582 W on the slow rung and 562 W on the fast one" in TEXT
    assert (round(slow["watts"]), round(fast["watts"])) == (582, 562)
    assert "The recorded H100 measured its watts" in TEXT
    assert set(full["watts_are"][1:]) == {"measured"}


def test_watts_of_gpus(watts: pd.DataFrame) -> None:
    assert "Each of the GPUs compared here draws at most 250 to 700 W" in TEXT
    assert (watts["max_w"].min(), watts["max_w"].max()) == (250, 700)
    assert "SXM is the faster form; PCIe cards have a lower limit." in TEXT
    assert "an A100 SXM does twice the work of a V100 SXM2 for a third more watts" in TEXT
    new, old, card = watts.loc["A100 SXM"], watts.loc["V100 SXM2"], watts.loc["A100 PCIe"]
    assert new["performance"] == 2 * old["performance"]
    assert new["max_w"] / old["max_w"] == pytest.approx(4 / 3)
    assert "the A100 PCIe does 90 % of the SXM's work with 250 W instead of 400 W" in TEXT
    assert (card["performance"], card["max_w"], new["max_w"]) == (0.9, 250, 400)
    assert "take a V100's 300 W" in TEXT and "cpu_watts, seconds = 300" in "\n".join(CODE)
    assert old["max_w"] == 300


@pytest.mark.parametrize("sxm, pcie", [("V100 SXM2", "V100 PCIe"), ("A100 SXM", "A100 PCIe")])
def test_the_form_that_is_faster_has_the_higher_limit(
    watts: pd.DataFrame, sxm: str, pcie: str
) -> None:
    assert watts.loc[sxm, "performance"] > watts.loc[pcie, "performance"]
    assert watts.loc[sxm, "max_w"] > watts.loc[pcie, "max_w"]


def test_a_new_generation_saves_most(watts: pd.DataFrame) -> None:
    assert "**A new generation saves most**" in TEXT
    work = watts["performance_per_kw"]
    by_form = max(work["A100 PCIe"] / work["A100 SXM"], work["V100 PCIe"] / work["V100 SXM2"])
    by_age = min(work["A100 PCIe"] / work["V100 PCIe"], work["A100 SXM"] / work["V100 SXM2"])
    assert by_age > by_form


def test_what_an_idle_gpu_draws(watts: pd.DataFrame) -> None:
    assert "a GPU with nothing to do draws 12 to 16 % of its maximum" in TEXT
    share = (watts["idle_w"] / watts["max_w"]).dropna()
    assert (round(100 * share.min()), round(100 * share.max())) == (12, 16)


def test_each_prediction_gets_one_of_its_choices_or_a_number(
    capsys: pytest.CaptureFixture[str], runs_root: Path, watts: pd.DataFrame
) -> None:
    from course import predict, recall

    predict("minutes_on_256_gpus", 54)
    predict("most_work_a_joule", "a100 pcie", choices=("a100 pcie", "a100 sxm"))
    names = {"supercomputer": supercomputer, "recall": recall}
    for key in ("minutes_on_256_gpus", "most_work_a_joule"):
        exec(cell_with(f'recall("{key}"'), names)
    hour, card = capsys.readouterr().out.splitlines()
    assert hour.startswith("You: 54. Published: 60 minutes") and hour.endswith("✓")
    assert card.startswith("You: a100 pcie. Published: A100 PCIe, ")
    assert "with 1 kW it does 3.6 times the work of one A100 SXM" in card
    assert card.endswith("✓") and watts["performance_per_kw"].idxmax() == "A100 PCIe"
    assert watts.loc["A100 SXM", "performance"] == 1


def test_the_options_are_those_of_the_batch_script() -> None:
    config = rung("baseline", quick=True)
    text = plan.preview("exercises/train.py", config, site="jean-zay-v100")
    rows = re.search(r"\| option \| meaning \|(.*?) Here is your run", TEXT)[1]
    told = re.findall(r"`([a-z-]+)(?:=[a-z]+)?`", rows)
    assert len(told) == 10
    for option in told:
        assert re.search(rf"^#SBATCH --{option}(=|$)", text, re.M), option
    assert "`hint=nomultithread`" in rows and "--hint=nomultithread" in text
    assert "\nsrun " in text
    assert plan.preview("exercises/train.py", config).count("course.jobs.supervise") == 1


def test_a_site_may_add_a_partition_and_an_account() -> None:
    assert "Your `sites.toml` adds the `partition`, and the account" in TEXT
    site = dataclasses.replace(
        sites.get("jean-zay-v100"), partition="gpu_p13", account="someone", time_min=10
    )
    text = slurm_commands.batch_script(PROJECT / "runs" / "x", {"gpus": 1}, site)
    assert "#SBATCH --partition=gpu_p13" in text and "#SBATCH --account=someone" in text


def test_reasons_that_pass_and_one_that_does_not() -> None:
    for reason in ("Priority", "Resources", "PartitionTimeLimit"):
        assert f"`{reason}`" in TEXT and reason in slurm.REASONS
    assert "will not start" in slurm.REASONS["PartitionTimeLimit"]
    assert "may pass when other jobs end" in TEXT
    for begin in ("QOS", "Assoc"):
        assert [reason for reason in slurm.REASONS if reason.startswith(begin)]


def test_a_job_at_its_limit_ends_with_124() -> None:
    assert "`DUE TO TIME LIMIT`, exit code 124" in TEXT
    assert supervise.EXIT_CODES["timeout"] == 124


def test_a_typo_and_a_greeting_find_their_place_in_the_script() -> None:
    source = (PROJECT / "exercises" / "train.py").read_text()
    assert source.count("    meter = Meter(") == 1 and source.count("model.train()") == 1
    assert source.index("meter = Meter(") < source.index("model.train()")  # it greets before


def test_the_mistake_is_three_zeros_too_many() -> None:
    assert "you want 100 steps, and type three zeros too many" in TEXT
    assert "steps=100_000" in cell_with('"too-long"')


def test_a_fifth_more() -> None:
    assert "Ask for what the job needs and a fifth more." in TEXT
    assert "1.2 * needed_min" in cell_with("needed_min")


def test_the_quizs_job_is_the_texts() -> None:
    assert "A job needs 40 minutes. You ask for 20 hours" in QUIZ
    assert "One that asks for 20 hours waits." in TEXT
    assert "fits into no gap of one hour" in QUIZ
    assert "the other three will be in an hour" in TEXT


def test_the_longest_choice_is_seldom_the_right_one() -> None:
    questions = load(FOLDER / "day0_1.toml").questions
    longest = [max(each.choices, key=lambda choice: len(choice.text)) for each in questions]
    assert sum(choice.right for choice in longest) <= 2
    for each in questions:
        lengths = [len(choice.text) for choice in each.choices]
        assert max(lengths) <= 1.25 * min(lengths), each.text
        for choice in each.choices:
            assert len(re.findall(r"[.!?](?:\s|$)", choice.explanation)) <= 2
