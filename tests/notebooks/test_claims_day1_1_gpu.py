"""What lab 1.1 and its quiz say of numbers, against the records and against PyTorch itself."""

from dataclasses import replace

import pandas as pd
import pytest
from claims import network, text_of, text_of_quiz

from course import models, recorded, rung, trace_path
from course.labs.quizzes import find
from course.runs.recordings import answer, load
from course.runs.run import PROJECT
from course.topics import memory, profiler
from course.topics.memory.batch_sizes import Fit

H100 = "nvidia-h100"
TEXT, QUIZ = text_of("day1_1_gpu"), text_of_quiz("day1_1")


@pytest.fixture(scope="module")
def h100() -> pd.DataFrame:
    return recorded(H100)


@pytest.fixture(scope="module")
def best(h100: pd.DataFrame) -> pd.DataFrame:
    """The rung channels_last in bf16, by batch size."""
    rows = h100[h100["rung"].eq("channels_last") & h100["precision"].eq("bf16")]
    return rows.set_index("batch_size").sort_index()


@pytest.fixture(scope="module")
def missing(h100: pd.DataFrame) -> pd.DataFrame:
    """How many GiB each prediction of a run on the H100 is too low: `setting`, `gib`."""
    told = memory.of_recorded(H100)
    return told.assign(gib=told["measured_gib"] - told["predicted_gib"])


class TestModel:
    def test_where_parameters_and_arithmetic_are(self) -> None:
        assert "it holds 59 % of the parameters. `layer1` holds less than 1 %" in TEXT
        assert "does 83 % as much arithmetic as `layer4`, because images are eight times" in TEXT
        model = network("resnet50")
        parts = models.describe(model, image_px=224).set_index("part")
        share = parts["parameters"] / models.parameter_count(model)
        assert round(share["layer4"] * 100) == 59
        assert share["layer1"] < 0.01
        gflop = parts["forward_gflop"]
        assert round(gflop["layer1"] / gflop["layer4"] * 100) == 83
        sides = [int(parts["output"][name].split(" × ")[-1]) for name in ("layer1", "layer4")]
        assert sides[0] == 8 * sides[1]

    def test_other_sources_count_half(self) -> None:
        assert "other sources count one, and say 4.1 for ResNet-50" in TEXT
        model = network("resnet50")
        assert round(models.forward_gflop(model, 224) / 2, 1) == 4.1


class TestRungs:
    def test_share_of_decoding(self) -> None:
        assert "JPEG files: 7 % of the step on 16 recorded CPU cores" in TEXT
        assert "share of *load*: 73 % of the step on the recorded H100" in TEXT
        for name, percent, device in (("baseline", 7, "cpu"), ("device", 73, "cuda")):
            record = answer(H100, rung(name)).record
            assert (record.data, record.device) == ("default", device)
            assert round(record.load_s / record.step_s * 100) == percent
        assert answer(H100, rung("baseline")).record.hardware["cores"] == 16

    def test_backward_is_the_longest_part_on_a_cpu(self) -> None:
        assert "*Backward* is the longest part" in TEXT
        record = answer(H100, rung("baseline")).record
        others = (record.load_s, record.forward_s, record.loss_s, record.optimizer_s)
        assert record.backward_s > max(others)

    def test_memory_of_the_h100(self) -> None:
        assert "the recorded H100 reads and writes 3.0 TB a second" in TEXT
        assert round(load(H100)["ceilings"]["copy_tb_per_s"], 1) == 3.0
        assert "bytes read and written" in load(H100)["ceilings"]["command"]

    def test_first_bar_of_the_last_picture(self, h100: pd.DataFrame) -> None:
        assert "## 9. Day 1's four rungs on an H100" in TEXT
        assert "The first bar is that of 16 CPU cores" in TEXT
        rows = h100[h100["batch_size"].eq(256) & ~h100["precision"].isin(["fp16", "tf32"])]
        rungs = [name for name in rows["rung"] if name in ("baseline", "device", "amp")]
        assert rungs == ["baseline", "device", "amp"]
        first = rows[rows["rung"].eq("baseline")].iloc[0]
        assert first["device"] == "cpu" and first["hardware"]["cores"] == 16

    def test_the_clock(self) -> None:
        assert "Asking took 0.06 ms a kernel, computing 0.3 ms." in TEXT
        kernels = profiler.read(trace_path(H100, "device")).kernels
        kernels = kernels[kernels["phase"].eq("forward")]
        begin = kernels["launch_s"].min()
        asked = kernels["launch_s"].max() - begin
        done = (kernels["start_s"] + kernels["duration_s"]).max() - begin
        assert round(asked / len(kernels) * 1e3, 2) == 0.06
        assert round(done / len(kernels) * 1e3, 1) == 0.3


class TestMemory:
    def test_weights_and_what_goes_with_them(self) -> None:
        assert "ResNet-50's weights take 0.1 GiB" in TEXT
        assert "25.6 million × 3 × 4 bytes is 0.29 GiB" in TEXT
        parameters = models.parameter_count(network("resnet50"))
        assert round(parameters / 1e6, 1) == 25.6
        assert round(parameters * 4 / 2**30, 1) == 0.1
        assert round(parameters * 12 / 2**30, 2) == 0.29

    def test_anatomy(self) -> None:
        assert "So they lie mostly in `layer4`" in TEXT
        assert "two thirds of them in `layer1` and `layer2`" in TEXT
        assert "at batch 64 they are 94 % of all" in TEXT
        held = memory.anatomy(rung("device", batch_size=64))
        gib = held.pivot(index="part", columns="kind", values="gib")
        assert gib["weights"]["layer4"] > gib["weights"].sum() / 2
        growing = gib["activations"]
        assert round(growing.sum() / gib.to_numpy().sum() * 100) == 94
        assert abs(growing[["layer1", "layer2"]].sum() / growing.sum() - 2 / 3) < 0.01

    def test_room_of_an_h100_and_the_answers(self, h100: pd.DataFrame) -> None:
        assert "An H100 has 79.2 GiB for tensors" in TEXT
        gpu = h100[h100["device"].eq("cuda")]
        assert {each["device_gib"] for each in gpu["hardware"]} == {79.2}
        told = memory.of_recorded(H100)
        told = told[told["batch_size"].eq(1024)].set_index("setting")
        assert told["predicted_gib"]["fp32"] > 79.2 and told["status"]["fp32"] == "oom"
        assert told["predicted_gib"]["bf16, channels_last"] < 79.2

    @pytest.mark.slow
    def test_three_sizes_of_each_sweep_fit(self, h100: pd.DataFrame) -> None:
        assert "Two points always lie on a line. A third can miss it" in TEXT
        swept = h100[h100["rung"].str.startswith("device-batch_size")]
        assert swept["batch_size"].tolist() == [32, 64, 256, 1024, 2048]
        assert swept["status"].tolist() == ["ok"] * 3 + ["oom"] * 2
        code = (PROJECT / "notebooks" / "day1_1_gpu.ipynb").read_text()
        assert "sizes = [8, 16, 32, 192] if quick else large" in code
        assert '\\"cpu\\": 2 if quick' in code and '\\"cuda\\": 1 if quick' in code
        small = rung("device", quick=True, data="synthetic", image_px=64)
        third, last = (memory.predict(replace(small, batch_size=size)) for size in (64, 192))
        room = 0.2  # for work spaces of libraries; on a CPU most of a GiB is no tensor's, too
        assert third.peak_gib + room < 1 and third.peak_gib + 1 + room < 2
        assert last.peak_gib > 1 and last.peak_gib + 0.7 > 2

    def test_five_sizes_lie_on_a_line(self, best: pd.DataFrame, h100: pd.DataFrame) -> None:
        assert "five batch sizes lie on one line. Batch 1,024 fits" in TEXT
        assert "and 2,048 does not" in TEXT
        assert best["status"].to_dict() == {
            **dict.fromkeys((64, 128, 256, 512, 1024), "ok"),
            2048: "oom",
        }
        assert memory.fit(memory.sweep(best.reset_index())).misfit < 0.005
        assert best["peak_gib"][1024] < 0.6 * 79.2  # room to spare

    def test_fp32_takes_nearly_twice_as_much(self, best: pd.DataFrame, h100: pd.DataFrame) -> None:
        assert "In fp32 each image takes nearly twice as much, and batch 1,024 ran out" in TEXT
        fp32 = h100[h100["rung"].eq("device") & h100["precision"].ne("tf32")]
        assert fp32.set_index("batch_size")["status"][1024] == "oom"
        lines: list[Fit] = [memory.fit(memory.sweep(each)) for each in (fp32, best.reset_index())]
        assert 1.85 < lines[0].per_image_gib / lines[1].per_image_gib < 2

    def test_what_predictions_miss(self, missing: pd.DataFrame) -> None:
        assert "*Half precision*: 0.07 to 0.10 GiB too little at every batch" in TEXT
        assert "*fp32*: 0.4 to 0.6 GiB too little from batch 128 on" in TEXT
        assert "*Compiled*: 0.3 GiB too much" in TEXT
        fitted = missing[missing["status"].eq("ok")]
        half = fitted[fitted["precision"].ne("fp32") & fitted["compile"].eq("")]["gib"]
        assert (round(half.min(), 2), round(half.max(), 2)) == (0.07, 0.10)
        full = fitted[fitted["setting"].eq("fp32") & fitted["batch_size"].ge(128)]["gib"]
        assert (round(full.min(), 1), round(full.max(), 1)) == (0.4, 0.6)
        compiled = fitted[fitted["compile"].ne("")]["gib"]
        assert [round(each, 1) for each in compiled] == [-0.3] * len(compiled)


class TestThroughput:
    def test_growth_with_the_batch(self, best: pd.DataFrame) -> None:
        assert (
            "grows by 9 %, from 128 to 256 by 7 %, from 256 to 1,024 by 6 %" in TEXT
            and "From 64 to 128 images" in TEXT
        )
        speed = best["images_per_s"]
        growth = [speed[b] / speed[a] - 1 for a, b in ((64, 128), (128, 256), (256, 1024))]
        assert [round(each * 100) for each in growth] == [9, 7, 6]

    def test_the_update_takes_the_same_at_any_batch(self, best: pd.DataFrame) -> None:
        assert "updating the weights takes 0.5 ms at 64 images and at 1,024" in TEXT
        assert {round(best["optimizer_s"][size] * 1e3, 1) for size in (64, 128, 1024)} == {0.5}


class TestQuiz:
    def test_speeds(self, best: pd.DataFrame) -> None:
        assert "3,727 images a second at batch 128, 3,980 at 256 and 4,214 at 1,024" in QUIZ
        speed = best["images_per_s"]
        assert [round(speed[size]) for size in (128, 256, 1024)] == [3727, 3980, 4214]
        assert "From 128 to 256 it gained 7 %, from 256 to 1,024 another 6 %" in QUIZ
        assert "It took 0.5 ms at 128 images and at 1,024" in QUIZ
        assert "Batch 1,024 took 44 of the H100's 79 GiB" in QUIZ
        assert round(best["peak_gib"][1024]) == 44

    def test_product(self) -> None:
        assert "1.1 TFLOP of arithmetic" in QUIZ and "51 TFLOP a second" in QUIZ
        tflop, tflop_per_s = 2 * 8192**3 / 1e12, load(H100)["ceilings"]["fp32"]["tflop_per_s"]
        assert (round(tflop, 1), round(tflop_per_s)) == (1.1, 51)
        assert "takes 22 ms, more than 400 times what the stopwatch says" in QUIZ
        assert round(tflop / tflop_per_s * 1e3) == 22
        assert 400 < tflop / tflop_per_s / 0.05e-3 < 450

    def test_sizes(self, h100: pd.DataFrame) -> None:
        assert "25.6 million × 12 bytes are 0.29 GiB" in QUIZ
        assert round(25.6e6 * 12 / 2**30, 2) == 0.29
        assert "needed 21.4 GiB at batch 256 in fp32" in QUIZ
        row = h100[
            h100["rung"].eq("device") & h100["batch_size"].eq(256) & h100["precision"].ne("tf32")
        ].iloc[0]
        assert round(row["peak_gib"], 1) == 21.4

    def test_the_right_choice_is_not_the_longest(self) -> None:
        longest = [
            max(each.choices, key=lambda choice: len(choice.text)).right
            for each in find("day1_1").questions
        ]
        assert sum(longest) <= 2
