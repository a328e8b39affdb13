"""The small runs and dry runs of an exercise try all values of the settings that it reads."""

import re
from importlib import import_module
from typing import Any
from unittest.mock import MagicMock

import pytest

from course.checks import compare, discovery, dry_runs, exercises
from course.config import BOUNDS, CHOICES, DEFAULTS, Config
from labs.augmentation import mixing_checks

ANOTHER = "another"  # value, of a setting without choices
# Why no run of an exercise tries these values of a setting.
UNTRIED = {
    "device non_blocking True": "TODO dataloader adds it to these lines",
    "compile compile max-autotune reduce-overhead": "they need a GPU",
    "compile_blocks compile max-autotune reduce-overhead": "they need a GPU",
    "param_groups weight_decay 0": "nothing decays, whichever group it is in",
    "lr_range_test schedule  linear one_cycle step": "cosine, too, is not find",
    "lr_range_test steps 0": "the config refuses it",
    "resume steps 0": "complete_epochs has counted them",
    "accumulation non_blocking True": "main reads it in a line above",
    "reshard shard ": "only fully_shard reads the result",
    "prefetch unit_blocks 0": "the config refuses it",
    "pipeline_stages image_px another": "pipelines.split reads it",
    "pipeline_stages precision tf32": "it computes like fp32 here",
    "pipeline_stages stage_split another": "pipelines.split reads it",
    "pipeline_schedule micro_batch 0": "only GPipe accepts one micro-batch",
    "pipeline_schedule pipeline ": "the line above the TODO excludes it",
    "pipeline_schedule ranks 1": "the line above the TODO excludes it",
    "checkpoint precision bf16 fp32 tf32": "only in fp16 does the scaler have a state",
}
REAL = "half"  # launch replaces it by a device's own format


def values_of(setting: str, config: Config) -> list[Any]:
    """Return the values that runs must try."""
    if setting == "ranks":
        return [1, ANOTHER]
    if setting in CHOICES:
        return [*{*config.choices.get(setting, CHOICES[setting])} - {REAL}]
    if isinstance(DEFAULTS[setting], bool):
        return [False, True]
    return [0, ANOTHER] if setting in BOUNDS and BOUNDS[setting].least == 0 else [ANOTHER]


def settings_of(name: str, script: str) -> set[str]:
    """Return the settings that an exercise's lines read, and lines that define their names."""
    seams = exercises.seams(script, script, name)
    lines = "\n".join(line for seam in seams for line in seam.solution)
    assigned = re.findall(r"^ +(\w+) = (.*)$", script, re.MULTILINE)
    names = [name for name, _ in assigned]
    lines += "".join(
        f"\n{value}"
        for name, value in assigned
        if names.count(name) == 1 and re.search(rf"\b{name}\b", lines)
    )
    found = {*re.findall(r"\bcfg\.(\w+)", lines)} & {*DEFAULTS}
    return found | {"ranks"} if re.search(r"run\.(world_size|\w*rank)", lines) else found


@pytest.mark.parametrize("name", discovery.exercises())
def test_runs_try_the_values_of_each_setting(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = discovery.exercises()[name]
    script = (exercises.SOLUTIONS / exercises.solution_of(name)).read_text()
    tried = [(run.config, run.ranks) for run in compare.small_runs(wanted)]

    def first_step(_: str, config: Config, *, world_size: int = 1, **__: Any) -> MagicMock:
        tried.append((config, world_size))
        return MagicMock()

    for module, slow in ((dry_runs, "_read"), (mixing_checks, "_check")):
        monkeypatch.setattr(module, "first_step", first_step)
        monkeypatch.setattr(module, slow, lambda *_: ())
    for call in wanted.calls:
        module, function = call.split(":")
        [*getattr(import_module(module), function)(exercises.render(script), tried[0][0])]
    missing = []
    for setting in sorted(settings_of(name, script)):
        values = {ranks if setting == "ranks" else getattr(cfg, setting) for cfg, ranks in tried}
        required = values_of(setting, tried[0][0])
        untried = {x for x in required if x not in values and (x != ANOTHER or len(values) < 2)}
        missing += [" ".join([name, setting, *sorted(map(str, untried))])] * bool(untried)
    assert missing == [key for key in UNTRIED if key.startswith(f"{name} ")]
