"""The recorded rungs are those of the ladder, and their MFU follows from their speed."""

import pytest

from course import rung
from labs import gpt as lab
from labs.gpt.lab import RUNGS
from trainspeed.gpus import gpu_rates


def test_recorded_mfu_follows_from_tokens_per_second() -> None:
    table = lab.recorded_ladder()
    assert [*table.index] == [*RUNGS, "gpt_fused, batch 64"]
    gpt2 = rung("gpt", context=1024, layers=12, heads=12, width=768)
    (machine,) = table["machine"].unique()
    mfu_percent = 100 * table["tokens_per_s"] * gpt2.flop_per_token / gpu_rates(machine)["bf16"]
    assert mfu_percent.tolist() == pytest.approx(table["mfu_percent"].tolist())
