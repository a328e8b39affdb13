"""The lab of the fast step says what is counted, and what was recorded."""

import pytest
from claims import text_of, text_of_quiz

from course.runs.recordings import recorded, recorded_runs
from course.topics import fast_step
from course.topics.fast_step import traffic

TEXT = text_of("lab_fast_step")


def said(words: str) -> None:
    assert words in TEXT, words


def test_what_a_block_moves() -> None:
    total = fast_step.passes()[[*traffic.WAYS]].sum()
    said("138 by single operators.")
    said("100 are left")
    said("Of 100 tensors that the compiled step moves in a block, 61 are left.")
    assert total.tolist() == [138, 100, 61]
    said("a formula that spares it two fifths of the bytes")
    assert total["fast"] / total["compile"] == pytest.approx(0.6, abs=0.015)
    said("the wide output y₃ of conv3 and its gradient cost the compiler 44 of its 100")
    parts = fast_step.passes().set_index("part")["compile"]
    of_y3 = parts["bn3's sums: over y3, or over z2"] + parts["bn3, addition and ReLU"]
    assert of_y3 + parts["ReLU and bn3: sums, then the gradient of y3"] == 44


def test_bytes_of_whole_steps_were_counted_in_the_same_proportion() -> None:
    """docs/performance.md: 486, 366 and 217 MB, counted operator by operator, all in all."""
    moved = fast_step.megabytes()
    whole = {"eager": 486, "compile": 366, "fast": 217}
    for way, megabytes in whole.items():
        assert moved[way] / megabytes == pytest.approx(0.77, abs=0.03), way


def test_the_gain() -> None:
    moved, measured = fast_step.megabytes(), fast_step.measured()
    said("1.64 times was promised, and 1.46 were measured")
    assert round(moved["compile"] / moved["fast"], 2) == 1.64
    speed = measured["images_per_s"]
    assert round(speed["fast"] / speed["compile"], 2) == 1.46
    said("8,765 images a second after 6,018, in fp16 at batch 256")
    assert f"{speed['fast']:,.0f} {speed['compile']:,.0f}" == "8,765 6,018"
    said("at nearly half as many images a second again")
    said("it draws 685 W of the card's 700")
    assert round(measured.loc["fast", "watts"]) == 685
    assert "the card draws 685 of its 700 W" in text_of_quiz("lab_fast_step")
    said("0.078 J an image after 0.110")
    joules = measured["joules_per_image"].round(3)
    assert (joules["fast"], joules["compile"]) == (0.078, 0.11)
    below = 1e6 * fast_step.ceilings()["tb_per_s"] / moved
    said("All stand below the memory's curve")
    assert (speed < below).all()


def test_another_kernel_size() -> None:
    said("with 3×3 convolutions it does not, for G would have 9K × 9K numbers")


def test_the_rung_as_recorded() -> None:
    said("the rung made 8,713 images a second on the H100 in fp16 and 8,376 in bf16")
    runs = recorded("nvidia-h100")
    speed = runs[runs["rung"].eq("algebra")].set_index("precision")["images_per_s"]
    assert [f"{speed[half]:,.0f}" for half in ("fp16", "bf16")] == ["8,713", "8,376"]
    said("four H200s make 36,906 in bf16, at 97.8 % of four times one")
    runs = [run.record for run in recorded_runs("nvidia-h200-x4", "scaling")]
    speed = {run.gpus: run.images_per_s for run in runs if run.rung == "algebra"}
    assert f"{speed[4]:,.0f} {100 * speed[4] / (4 * speed[1]):.1f}" == "36,906 97.8"
