"""What lab 1.4 and its quiz say, held against the recorded traces, counters and ceilings."""

import json
from functools import cache

import pandas as pd
import pytest
from claims import text_of, text_of_quiz

from course import LADDER, recorded, rung, trace_path
from course.labs.quizzes import FOLDER
from course.labs.quizzes import load as load_quiz
from course.runs import recordings
from course.runs.run import PROJECT
from course.topics import profiler, roofline
from course.traces.tables import Trace

NOTEBOOK = "day1_4_profiler"
TEXT, QUIZ = text_of(NOTEBOOK), text_of_quiz("day1_4")
RUNGS = ("device", "tf32", "amp", "channels_last")
MACHINE = "nvidia-h100"


def says(*sentences: str) -> None:
    for sentence in sentences:
        assert sentence in TEXT, sentence


@cache
def traces() -> dict[str, Trace]:
    return {name: profiler.read(trace_path(MACHINE, name)) for name in RUNGS}


@cache
def idle() -> pd.DataFrame:
    return pd.concat({name: profiler.idle(each) for name, each in traces().items()}).droplevel(1)


@cache
def ms_by_operator() -> pd.DataFrame:
    columns = {
        name: profiler.by_operator(each).set_index("name")["seconds"] * 1e3
        for name, each in traces().items()
    }
    return pd.DataFrame(columns).fillna(0)


@cache
def summary() -> pd.DataFrame:
    return profiler.tensor_core_summary(**traces()).set_index("name")


@cache
def runs() -> pd.DataFrame:
    return recorded(MACHINE)


def ms_of(words: str) -> pd.Series:
    """Of each rung, the milliseconds of the operators whose names have these words."""
    table = ms_by_operator()
    return table[table.index.str.contains(words)].sum()


def asked_ms(name: str) -> float:
    return traces()[name].kernels["launch_s"].max() * 1e3


class TestTwoClocks:
    def test_how_far_the_host_is_ahead_in_fp32(self) -> None:
        says("the last kernel after 122 ms, and the device finishes after 299 ms")
        kernels = traces()["device"].kernels
        assert round(asked_ms("device")) == 122
        assert round((kernels["start_s"] + kernels["duration_s"]).max() * 1e3) == 299
        waits = traces()["device"].calls.groupby("name")["duration_s"].sum()
        assert waits.idxmax() == "cudaDeviceSynchronize"  # that is how the host spends the rest

    def test_streams(self) -> None:
        says("The device has five streams here, each a queue of its own")
        assert traces()["device"].kernels["stream"].nunique() == 5

    def test_the_last_rung_needs_a_fifth(self) -> None:
        says("On the last rung the device needs about a fifth of that time")
        ratio = idle()["span_s"]["channels_last"] / idle()["span_s"]["device"]
        assert ratio == pytest.approx(0.2, abs=0.03)

    def test_lead_and_idle_time(self) -> None:
        says(
            "The host's median lead, `launch_delay_ms`, shrinks from 56 to 13 ms.",
            "the device is busy for at least 97 % of every step",
        )
        lead = idle()["launch_delay_s"] * 1e3
        assert (round(lead["device"]), round(lead["channels_last"])) == (56, 13)
        assert lead.idxmax() == "device" and lead.idxmin() == "channels_last"
        assert round(100 * idle()["busy_share"].min()) == 97


class TestBatch64:
    def step_s(self) -> float:
        rows = runs()[runs()["rung"].eq("channels_last") & runs()["batch_size"].eq(64)]
        (row,) = rows.itertuples()  # as the cell takes it
        return row.step_s

    def test_the_step_is_longer_than_the_work(self) -> None:
        says("At batch 64 the device has a quarter of the work", "at most these 18.7")
        assert idle()["busy_s"]["channels_last"] / 4 < 0.9 * self.step_s()
        assert round(self.step_s() * 1e3, 1) == 18.7

    def test_what_the_profiler_costs(self) -> None:
        says("in the trace, asking took 38 ms. Without it, asking took at most these 18.7 ms")
        assert round(asked_ms("channels_last")) == 38

    def test_one_call_for_all_is_faster(self) -> None:
        says("in fp16, batch 64 ran 40 % faster when one call, a CUDA graph")
        path = PROJECT / "benchmarks" / "fast_step" / "explored_h100.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        speeds = {row["name"]: row.get("images_per_s") for row in rows}
        assert speeds["eager_fp16_graph_batch_64"] / speeds["eager_fp16_batch_64"] == (
            pytest.approx(1.40, abs=0.005)
        )


class TestKernelsAndCopies:
    def test_a_batchnorm_after_each_convolution(self) -> None:
        says("The network has 53 convolutions, and a BatchNorm after each.")
        calls = traces()["device"].operators["name"].value_counts()
        assert calls["aten::conv2d"] == calls["aten::batch_norm"] == 53

    def test_a_launch_and_what_it_starts(self) -> None:
        says("a call of several microseconds, whether it then runs for 1 µs or for 5 ms")
        calls, kernels = traces()["channels_last"].calls, traces()["device"].kernels
        launches = calls[calls["name"].eq("cudaLaunchKernel")]["duration_s"]
        assert 3e-6 < launches.mean() < 10e-6
        assert round(kernels["duration_s"].min() * 1e6) == 1
        assert round(kernels["duration_s"].max() * 1e3) == 5

    def test_only_the_loss_crosses_the_bus(self) -> None:
        says("Only `DtoH`, device to host, crosses the bus here: 4 bytes, the loss.")
        table = profiler.copies(traces()["channels_last"]).set_index("kind")
        assert set(table.index) == {"memset", "DtoH", "DtoD"}
        assert table.loc["DtoH", ["count", "bytes"]].tolist() == [1, 4]


class TestWhereTheTimeGoes:
    def test_convolutions(self) -> None:
        says(
            "In fp32, convolutions take 73 % of the time.",
            "TF32 makes them 3.9 times as fast, bf16 autocast 6.5 times",
        )
        ms = ms_of("conv")
        assert round(100 * ms["device"] / ms_by_operator()["device"].sum()) == 73
        assert round(ms["device"] / ms["tf32"], 1) == 3.9
        assert round(ms["device"] / ms["amp"], 1) == 6.5

    def test_batchnorm(self) -> None:
        says(
            "on `amp`, 54 % of the time is BatchNorm",
            "takes 62 ms instead of 49",
            "BatchNorm falls from 62 to 27 ms",
            "and convolutions, with their layout conversions, from 34 to 18",
            "after autocast, BatchNorm takes most of the step",
        )
        ms = ms_of("batch_norm")
        assert round(100 * ms["amp"] / ms_by_operator()["amp"].sum()) == 54
        assert [round(ms[name]) for name in ("device", "amp", "channels_last")] == [49, 62, 27]
        convolutions = ms_of("conv")
        assert [round(convolutions[name]) for name in ("amp", "channels_last")] == [34, 18]

    def test_whose_batchnorm_kernels_run(self) -> None:
        says("In fp32 they are cuDNN's. In bf16 they are PyTorch's own", "other kernels run")
        pattern = r"(\w+::(?:bn|batch_norm)_\w+)<"  # as in the cell
        found = {
            name: profiler.by_kernel(each)["name"].str.extract(pattern)[0].dropna()
            for name, each in traces().items()
        }
        assert found["device"].str.startswith("cudnn::bn_").all()
        assert found["amp"].str.startswith("native::batch_norm_").all()
        assert not set(found["amp"]) & set(found["channels_last"])
        for name in RUNGS:  # the table shows nearly all of its time
            table = profiler.by_kernel(traces()[name])
            shown = table["name"].str.extract(pattern)[0].notna()
            assert table.loc[shown, "seconds"].sum() * 1e3 > 0.99 * ms_of("batch_norm")[name]


class TestVerdicts:
    def test_of_names(self) -> None:
        says("144 of 145 were found, without a false alarm", 'is **unknown**, never "not"')
        score = profiler.score()
        score = score[score["generation"].eq("all")].set_index("part")
        row = score.loc["held-out"]
        assert (row["found"], row["used"], row["false_alarms"]) == (144, 145, 0)
        assert profiler.classify("void my_own_kernel<float>(float*)").verdict == "unknown"

    def test_of_whole_steps(self) -> None:
        says("Of 305 large kernels the name was right for 302, and wrong for none.", "the three")
        judged = profiler.truth.summary(profiler.truth.compare(MACHINE))
        columns = ["large", "right", "wrong", "unknown", "unclear"]
        assert judged[columns].sum().tolist() == [305, 302, 0, 0, 3]
        assert profiler.truth.LARGE == 0.005

    def test_what_conv2d_started(self) -> None:
        says("used them in all 53 calls, but for only 64 % of its time", "others rewrite layouts")
        row = profiler.tensor_core_report(traces()["amp"]).set_index("operator").loc["aten::conv2d"]
        assert row["calls"] == row["tensor_core_kernels"] == 53
        assert round(100 * row["tensor_core_share"]) == 64
        assert row["layout_s"] == pytest.approx(row["other_s"])


class TestTensorCoreReport:
    def test_fp32(self) -> None:
        says("`device`: 73 % of the step is eligible and runs on ordinary cores.")
        assert round(100 * summary().loc["device", "eligible_share"]) == 73
        assert summary().loc["device", "tensor_core_share"] == 0

    def test_tf32(self) -> None:
        says(
            "all 161 products, of convolutions and the last layer, run",
            "less than half the time, and 13 % of it",
        )
        row = summary().loc["tf32"]
        assert row["gpu_s"] < summary().loc["device", "gpu_s"] / 2
        assert round(100 * row["layout_share"]) == 13
        for name in ("tf32", "amp", "channels_last"):
            report = profiler.tensor_core_report(traces()[name])
            assert report["tensor_core_kernels"].sum() == 161
        # Each of 53 convolutions three times, but for the first one's input; and the last layer.
        assert 161 == 3 * 53 - 1 + 3

    def test_amp(self) -> None:
        says("take 20 ms instead of 38, and the rest is hardly faster", "from 28 to 18 %")
        shares, total = summary()["tensor_core_share"], summary()["gpu_s"] * 1e3
        on_units = shares * total
        assert [round(on_units[name]) for name in ("tf32", "amp")] == [38, 20]
        assert [round(100 * shares[name]) for name in ("tf32", "amp")] == [28, 18]
        rest = total - on_units
        assert 0.9 < rest["amp"] / rest["tf32"] < 1

    def test_channels_last(self) -> None:
        says("the rewriting falls from 11.5 % to under 1 %")
        share = summary()["layout_share"]
        assert round(100 * share["amp"], 1) == 11.5 and share["channels_last"] < 0.01


@cache
def points() -> pd.DataFrame:
    large = runs()[runs()["rung"].isin(LADDER) & runs()["batch_size"].eq(256)]
    found = roofline.points(large, roofline.recorded_ceilings(MACHINE))
    return found.set_index(["rung", "precision"])


class TestRoofline:
    @pytest.mark.slow
    def test_what_an_image_needs(self) -> None:
        says(
            "Convolutions do nearly 190 operations for each byte.",
            "The others here do too few to be counted, yet they move most of the bytes.",
        )
        table = roofline.operators(rung("channels_last", **recordings.SETUP))
        shown = table.head(8)
        convolutions = shown["operator"].str.contains("conv")
        assert shown.loc[convolutions, "flop_per_byte"].between(185, 190).all()
        assert (shown.loc[~convolutions, "gflop"] == 0).all()
        others = shown.loc[~convolutions, "megabytes"].sum()
        assert others > table["megabytes"].sum() / 2

    @pytest.mark.slow
    def test_convolutions_are_the_arithmetic(self) -> None:
        says("The 53 convolutions do more than 99 % of the step's arithmetic")
        for quick in (True, False):
            table = roofline.operators(rung("device", quick=quick)).set_index("operator")["gflop"]
            assert table[table.index.str.contains("conv")].sum() > 0.99 * table.sum()

    @pytest.mark.slow
    def test_a_small_batch_lies_further_left(self) -> None:
        says("A small batch lies further left, since the weights are moved once a step, ")
        small, large = (roofline.step_cost(rung("device", batch_size=size)) for size in (4, 256))
        assert small.flop_per_byte < 0.8 * large.flop_per_byte

    def test_the_h100s_ceilings(self) -> None:
        says("673 TFLOP/s in bf16 and 3.0 TB/s")
        limits = roofline.recorded_ceilings(MACHINE)
        assert round(limits.flop_per_s["bf16"] / 1e12) == 673
        assert round(limits.bytes_per_s / 1e12, 1) == 3.0

    @pytest.mark.slow
    def test_the_bounds(self) -> None:
        says(
            "In fp32, arithmetic allows 2,103 images/s and memory 3,149.",
            "TF32 raises the first to 15,013",
            "from there on **memory is the lower limit**",
            "bf16 halves the bytes and doubles this limit.",
        )
        fp32, tf32 = points().loc[("device", "fp32")], points().loc[("device", "tf32")]
        assert round(fp32["arithmetic_images_per_s"]) == 2103
        assert round(fp32["memory_images_per_s"]) == 3149
        assert round(tf32["arithmetic_images_per_s"]) == 15013
        assert set(points()["nearer"].drop(("device", "fp32"))) == {"memory"}
        bf16 = points().loc[("amp", "bf16")]
        ratio = bf16["memory_images_per_s"] / tf32["memory_images_per_s"]
        assert ratio == pytest.approx(2, rel=0.02)

    @pytest.mark.slow
    def test_how_much_is_reached(self) -> None:
        says("`amp` reaches only 36 % of it", "`channels_last` reaches 64 %")
        reached = {name: points().loc[(name, "bf16"), "share"] for name in ("amp", "channels_last")}
        assert {name: round(100 * share) for name, share in reached.items()} == {
            "amp": 36,
            "channels_last": 64,
        }
        assert reached["amp"] < points().loc[("device", "tf32"), "share"]

    def test_the_compiled_step_is_shown_and_faster(self) -> None:
        says("The recorded gain:")
        rows = runs()[runs()["precision"].eq("bf16") & runs()["batch_size"].eq(256)]
        speeds = rows.set_index("rung")["images_per_s"]
        assert speeds["compile"] > 1.4 * speeds["channels_last"]


class TestQuiz:
    def test_its_numbers(self) -> None:
        cost = roofline.step_cost(rung("channels_last", batch_size=256))
        limits = roofline.recorded_ceilings(MACHINE)
        gflop, megabytes = cost.flop / 1e9, cost.bytes / 1e6
        assert f"takes {gflop:.1f} GFLOP and moves about {megabytes:.0f} MB" in QUIZ
        assert f"takes {cost.flop / limits.flop_per_s['bf16'] * 1e3:.2f} ms" in QUIZ
        assert f"takes {cost.bytes / limits.bytes_per_s * 1e3:.2f} ms" in QUIZ
        assert f"{gflop:.1f} GFLOP ÷ {megabytes:.0f} MB is {cost.flop_per_byte:.0f} FLOP" in QUIZ
        assert "673 ÷ 3.0 = 224" in QUIZ and round(673 / 3.0) == 224

    def test_its_kernel_name(self) -> None:
        question = load_quiz(FOLDER / "day1_4.toml").question(2)
        verdict = profiler.classify(question.text.split("`")[1])
        assert (verdict.verdict, verdict.generation) == ("used", "ampere")  # the A100's

    def test_length_does_not_give_the_answer_away(self) -> None:
        questions = load_quiz(FOLDER / "day1_4.toml").questions
        longest = [max(each.choices, key=lambda choice: len(choice.text)) for each in questions]
        assert sum(choice.right for choice in longest) <= 2
