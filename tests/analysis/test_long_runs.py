"""Plans of complete trainings: arithmetic from a recorded machine, and what they are based on."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from course import __main__
from course.analysis.long_runs import IMAGES, find_basis, plan_training
from course.config import LADDER, rung
from course.jobs.sites import Site
from course.runs.recordings import answer

SITE = Site("fast", "slurm", time_min=63, cpus_per_gpu=64, gpus_per_node=8)


def values(table) -> dict[str, str]:
    return dict(zip(table["quantity"], table["value"]))


def test_a_plan_of_one_gpu_follows_from_its_recorded_speed() -> None:
    basis = find_basis(rung("imagenet"), 1, "nvidia-h100")
    assert (basis.recorded_on, basis.gpus, basis.config.batch_size) == ("nvidia-h100", 1, 256)
    plan = values(plan_training(rung("imagenet", val_steps=0), SITE, 1, "nvidia-h100"))
    hours, minutes, seconds = map(int, plan["time"].split(":"))
    expected_h = 90 * IMAGES / basis.record.images_per_s / 3600
    assert hours + minutes / 60 + seconds / 3600 == pytest.approx(expected_h, rel=0.01)
    assert plan["jobs"] == "9, so 8 requeues"  # of an hour each, for 8.05 hours
    assert plan["memory per GPU"] == f"{basis.record.peak_gib:.1f} GiB"
    kwh = expected_h * basis.record.watts / 1000
    assert plan["energy of the GPUs"] == f"at most {kwh:,.1f} kWh"
    assert plan["data on disk"] == "155 GB"


def test_each_rung_of_the_recorded_ladder_can_be_planned() -> None:
    for name in LADDER:  # of the first one, only the record was kept, without its steps
        plan = values(plan_training(rung(name), SITE, 1, "nvidia-h200"))
        assert all("nan" not in value for value in plan.values()), name


def test_shards_and_a_site_without_a_queue_are_in_the_plan() -> None:
    local = replace(SITE, name="here", executor="local")
    plan = values(plan_training(rung("imagenet", format="shards"), local, 1, "nvidia-h200"))
    assert plan["data on disk"] == "309 GB"  # the tar files, and the shards made of them
    assert plan["jobs"].endswith("times course resume")


def test_what_a_plan_assumes_is_listed() -> None:
    table = plan_training(rung("imagenet_fast"), SITE, 8, "nvidia-h200")
    assumed = table.loc[table["value"].str.endswith("assumed"), "based on"].tolist()
    assert assumed == ["measured at 224 px", "measured on 4 of 8"]
    assert table["based on"].str.len().min() > 0
    assert "loading" in table["based on"][0]  # small images are trained faster than loaded


def test_few_cores_make_it_longer() -> None:
    plans = [
        plan_training(rung("imagenet"), replace(SITE, cpus_per_gpu=cores), 1, "nvidia-h200")
        for cores in (2, 5)
    ]
    assert [plan["based on"][0].partition(":")[2][:10] for plan in plans] == [
        " 1 worker ",
        " 4 workers",
    ]
    assert int(values(plans[0])["jobs"].split(",")[0]) > int(values(plans[1])["jobs"].split(",")[0])


@pytest.mark.parametrize(
    "options, message",
    [
        (["--gpus", "3", "--site", "slurm"], "choose a multiple of gpus=3"),
        (["--gpus", "99", "--site", "slurm"], "gpus=99"),
        (["--from", "nvidia-h300"], "Recorded machines: nvidia-h100"),
        (["--from", "nvidia-h100-x2"], "has the step of rung 'imagenet': choose another machine"),
    ],
)
def test_impossible_plans_are_refused(options: list[str], message: str, runs_root) -> None:
    result = CliRunner().invoke(__main__.app, ["plan", "--rung", "imagenet", *options])
    assert message in str(result.exception)


def test_a_run_with_another_step_is_refused() -> None:
    basis = answer("nvidia-h100", rung("device", data="synthetic", batch_size=256, steps=60,
                                       warmup_steps=20, val_steps=0, epochs=1))  # fmt: skip
    with pytest.raises(ValueError, match="step, with other values of precision, channels_last"):
        plan_training(rung("imagenet"), SITE, 1, basis)


def test_the_command_prints_json(runs_root) -> None:
    result = CliRunner().invoke(__main__.app, ["plan", "--site", "jean-zay-h100", "--json"])
    assert [row["quantity"] for row in json.loads(result.stdout)][:3] == [
        "time",
        "per epoch",
        "jobs",
    ]
