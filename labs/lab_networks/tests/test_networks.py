"""SSD300, 3D U-Net and ResNet-50: what they are, what is timed, and what a learner writes."""

import json
import multiprocessing
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import of_ranks
import pandas as pd
import pytest
import torch
from job_helpers import warm_up
from narrow_networks import small, small_ssd
from torchvision.models.detection._utils import BoxCoder
from torchvision.ops import box_iou
from typer.testing import CliRunner
from written_helpers import cell_of, defined, filled

from course import __main__
from course.analysis.traces.reader import read
from course.analysis.traces.tensor_cores.report import tensor_core_report, tensor_core_summary
from course.checks.functions import check_written
from course.runs import recordings
from course.training.models import parameter_count
from labs import lab_networks as networks
from labs.lab_networks import (
    bench,
    boxes,
    catalogue,
    cost,
    published,
    ssd,
    unet3d,
    volumes,
)
from labs.lab_networks import (
    figures as pictures,
)
from labs.lab_networks import (
    formats as seen,
)
from labs.lab_networks import (
    local as here,
)
from labs.lab_networks import (
    measurements as measured,
)
from labs.lab_networks import (
    verify as written,
)
from labs.lab_networks.bench import Setting, Work
from tools import bench_cli as command

CPU = torch.device("cpu")
TINY = {"batch": 2, "warmup": 1, "iterations": 2}


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small networks, one thread: on small tensors two wait for each other."""
    for name, network in small().items():
        monkeypatch.setitem(catalogue.NETWORKS, name, network)
        monkeypatch.setitem(bench.QUICK, name, {"batch": 2})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def narrow_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks have small networks as well, and PyTorch already, where a server forks them."""
    warm_up()
    monkeypatch.setattr(bench, "_of_rank", of_ranks.narrow_row)


class TestNetworks:
    def test_have_the_published_size(self) -> None:
        with torch.device("meta"):
            millions = {
                "ssd300": parameter_count(ssd.SSD300()) / 1e6,
                "unet3d": parameter_count(unet3d.UNet3D()) / 1e6,
            }
        assert millions["unet3d"] == pytest.approx(cost.PUBLISHED_MILLIONS["unet3d"], rel=0.001)
        assert millions["ssd300"] == pytest.approx(cost.PUBLISHED_MILLIONS["ssd300"], rel=0.05)

    def test_give_an_answer_for_each_box_and_each_voxel(self) -> None:
        places, scores = small_ssd().eval()(torch.zeros(1, 3, 300, 300))
        assert places.shape == (1, 8732, 4) and scores.shape == (1, 8732, 81)
        assert ssd.default_boxes().shape == (8732, 4)
        network = unet3d.UNet3D(classes=3, widths=(2, 4, 4))
        assert network(torch.zeros(1, 1, 8, 16, 8)).shape == (1, 3, 8, 16, 8)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["ssd300", "unet3d", "resnet50"])
    def test_learn(self, name: str) -> None:
        work = Work(Setting(name, batch=2), CPU)
        for _ in range(5 if name == "ssd300" else 20):
            work.step()
        assert work.losses[-1] < 0.99 * work.losses[0]
        assert np.isfinite(work.losses).all()


class TestBoxes:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return boxes.ensure(tmp_path / "boxes", boxes.Recipe(images=3))

    def test_each_object_has_a_box_and_boxes_find_their_object(self) -> None:
        objects = torch.tensor([[20.0, 30, 200, 220], [250.0, 5, 262, 14]])
        defaults, labels = ssd.default_boxes(), torch.tensor([7, 3])
        places, kinds = ssd.encoded(objects, labels, defaults)
        assert set(kinds.tolist()) == {0, 3, 7}
        found = BoxCoder(ssd.WEIGHTS).decode_single(places[kinds == 7], defaults[kinds == 7])
        assert torch.allclose(found, objects[:1].expand_as(found), atol=0.01)
        overlap = box_iou(objects, defaults)
        assert (kinds[(overlap[0] >= 0.5) & (overlap[1] < 0.5)] == 7).all()
        far = overlap.max(0).values < 0.5
        assert (kinds[far] != 0).sum() <= 2  # each object's best one alone

    def test_of_the_background_the_hardest_count_three_for_each_object(self) -> None:
        draw = torch.Generator().manual_seed(0)
        scores = torch.randn(1, 40, 3, generator=draw)
        labels = torch.zeros(1, 40, dtype=torch.long)
        labels[0, :2] = torch.tensor([1, 2])
        places = torch.zeros(1, 40, 4)
        each = torch.nn.functional.cross_entropy(scores[0], labels[0], reduction="none")
        hardest = each[2:].sort(descending=True).values[:6]
        expected = (each[:2].sum() + hardest.sum()) / 2
        assert torch.allclose(ssd.loss((places, scores), (places, labels)), expected)
        moved = ssd.loss((places + 2, scores), (places, labels))
        assert torch.allclose(moved, expected + 4 * 1.5)  # of boxes with an object alone

    def test_are_made_once_and_the_same_again(self, root: Path, tmp_path: Path) -> None:
        image, objects = boxes.composed(np.random.default_rng([0, 1]))
        known = json.loads((root / boxes.BOXES).read_text())
        assert known["00001.jpg"] == objects and len(known) == 3
        left, top, right, bottom = objects[-1]["box"]  # nothing hides the last one
        assert image.size == boxes.SIZE and 0 <= left < right <= 640 and 0 <= top < bottom <= 480
        time_made = (root / "00001.jpg").stat().st_mtime_ns
        assert boxes.ensure(root, boxes.Recipe(images=3)) == root
        assert (root / "00001.jpg").stat().st_mtime_ns == time_made
        (root / "00001.jpg").rename(tmp_path / "away.jpg")
        assert not boxes.is_whole(root, boxes.Recipe(images=3))
        (tmp_path / "away.jpg").rename(root / "00001.jpg")

    def test_a_loaded_image_has_its_objects_where_they_are(self, root: Path) -> None:
        found = boxes.Boxes(root)
        wanted = found.known["00000.jpg"]
        seen_flipped = set()
        for seed in range(4):
            torch.manual_seed(seed)
            image, (places, kinds) = found[0]
            assert image.shape == (3, 300, 300) and image.dtype == torch.float32
            assert set(kinds.unique().tolist()) <= {0, *(each["label"] for each in wanted)}
            at = BoxCoder(ssd.WEIGHTS).decode_single(places, found.defaults)[kinds > 0]
            straight = torch.tensor([each["box"] for each in wanted]) * torch.tensor(
                [300 / 640, 300 / 480] * 2
            )
            turned = straight.clone()
            turned[:, [0, 2]] = 300 - straight[:, [2, 0]]
            fits = [box_iou(at, each).max(1).values.min() > 0.99 for each in (straight, turned)]
            assert any(fits)
            seen_flipped.add(fits.index(True))
        assert seen_flipped == {0, 1}


def test_volumes_hold_kidneys_with_a_tumour_and_parts_of_them_are_loaded(tmp_path: Path) -> None:
    recipe = volumes.Recipe(volumes=2, side=32)
    root = volumes.ensure(tmp_path / "volumes", recipe)
    bright, kind = np.load(root / "000.npy")
    assert bright.shape == kind.shape == (32, 32, 32) and set(np.unique(kind)) == {0, 1, 2}
    assert (volumes.composed(32, np.random.default_rng([0, 0]))[1] == kind).all()
    given, wanted = volumes.Volumes(root, side=16)[0]
    assert given.shape == (1, 16, 16, 16) and wanted.shape == (16, 16, 16)
    assert abs(float(given.mean())) < 1e-4 and float(given.std()) == pytest.approx(1, abs=0.01)
    assert volumes.is_whole(root, recipe) and not volumes.is_whole(root, volumes.Recipe())


class TestBench:
    @pytest.mark.parametrize("name", ["unet3d", "resnet50"])
    @pytest.mark.parametrize("precision", ["fp32", "bf16"])
    def test_the_format_is_seen_and_the_layout_is_there(self, name: str, precision: str) -> None:
        work = Work(Setting(name, precision, layout="channels_last", batch=2), CPU)
        (kind,) = work.evidence()["formats"]
        assert kind == precision
        dims = catalogue.get(name).dims
        layout = torch.channels_last if dims == 2 else torch.channels_last_3d
        given, _ = next(work.batches)
        assert given.is_contiguous(memory_format=layout)
        weights = [each for each in work.plain.parameters() if each.dim() == dims + 2]
        assert all(each.is_contiguous(memory_format=layout) for each in weights)

    def test_each_step_is_a_line_and_the_result_the_last(self, tmp_path: Path) -> None:
        log = tmp_path / "new" / "bench.jsonl"
        row = bench.measure(Setting("unet3d", **TINY), log, "cpu")
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert [line["type"] for line in lines] == ["PARAMETER", "LOG", "LOG", "RESULT"]
        assert lines[0]["data"]["network"] == "unet3d" and lines[-1]["data"] == row
        steps = [line["data"]["step_s"] for line in lines[1:3]]
        assert row["step_s"] == pytest.approx(np.median(steps))
        assert row["images_per_s"] == pytest.approx(2 / row["step_s"]) and row["timed"] == 2

    def test_as_many_steps_as_fit_into_the_time(self) -> None:
        short = Setting("unet3d", batch=2, warmup=2, seconds=1e-6)
        few = bench.measure(short, None, "cpu")
        assert few["timed"] == bench.FEWEST
        all_ = Setting("unet3d", batch=2, warmup=2, iterations=9, seconds=60.0)
        assert bench.measure(all_, None, "cpu")["timed"] == 9

    def test_inference_keeps_no_graph_and_learns_nothing(self) -> None:
        work = Work(Setting("resnet50", mode="infer", batch=2), CPU)
        before = [each.clone() for each in work.plain.state_dict().values()]
        work.step()
        assert all(map(torch.equal, before, work.plain.state_dict().values()))
        assert np.isnan(work.losses[0])

    def test_photographs_are_loaded_again_and_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        root = volumes.ensure(tmp_path / "volumes", volumes.Recipe(volumes=3, side=24))
        monkeypatch.setattr(volumes, "ensure", lambda: root)
        setting = Setting("unet3d", data="photographs", workers=1, **TINY)
        row = bench.measure(setting, None, "cpu")
        assert row["timed"] == 2 and np.isfinite(row["last_loss"])
        assert not multiprocessing.active_children()  # before any collection
        loaded = catalogue.batches(catalogue.get("unet3d").loaded(2, 16, 0))
        shapes = {tuple(next(loaded)[1].shape) for _ in range(4)}  # more than there are
        assert shapes == {(2, 16, 16, 16)}

    def test_of_workers_who_take_turns_a_round_is_timed(self) -> None:
        seconds = np.array([3.0, 0, 0, 6, 0, 0, 100])  # three give theirs at once; the last alone
        work = SimpleNamespace(setting=Setting("unet3d", data="photographs", workers=3))
        assert bench._rounds(work, seconds).tolist() == [1, 2]
        alone = SimpleNamespace(setting=Setting("unet3d", data="photographs"))
        assert bench._rounds(alone, seconds) is seconds

    def test_what_cannot_be_is_refused(self) -> None:
        for wrong, words in {
            "vgg": {"network": "vgg"},
            "precision='fp8': choose fp32 or tf32": {"precision": "fp8"},
            "leave --px out": {"network": "ssd300", "px": 512},
            "px=18: unet3d takes 8, 12": {"network": "unet3d", "px": 18},
            "several must agree": {"gpus": 2, "seconds": 1.0},
        }.items():
            with pytest.raises(ValueError, match=re.escape(wrong)):
                Setting(**words)
        with pytest.raises(ValueError, match="exists on CUDA alone"):
            bench.measure(Setting("unet3d", "tf32"), None, "cpu")

    def test_settings_are_all_combinations(self) -> None:
        found = bench.settings(Setting(), mode=["train", "infer"], precision=["fp32", "bf16"])
        assert [(each.mode, each.precision) for each in found] == [
            ("train", "fp32"),
            ("train", "bf16"),
            ("infer", "fp32"),
            ("infer", "bf16"),
        ]

    @pytest.mark.slow
    def test_ranks_learn_one_network_from_different_images(self, narrow_ranks: None) -> None:
        row = bench.bench(Setting("resnet50", px=32, gpus=2, **TINY), device="cpu")
        assert row["weights_apart"] == 0 and len(set(row["first_losses"])) == 2
        assert row["images_per_s"] == pytest.approx(4 / row["step_s"])

    def test_here_all_networks_in_the_formats_with_units(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(here, "NETWORKS", ("unet3d", "resnet50"))  # two do
        monkeypatch.setattr(bench, "precisions", lambda: ["fp32", "bf16"])
        table = here.measured_here()
        assert table["ratio"][table["precision"] == "fp32"].tolist() == [1, 1]
        assert table["ratio"].between(table["ratio_q1"], table["ratio_q3"]).all()
        kinds = table["computed_in"].str.split(" × ").str[1]
        assert kinds.tolist() == table["precision"].tolist()

    def test_a_gpu_is_named_with_its_index(self) -> None:
        assert bench.device_of("cuda") == torch.device("cuda", 0)  # set_device needs it

    def test_here_a_disturbance_meets_all_precisions_alike(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(here, "NETWORKS", ("resnet50",))
        monkeypatch.setattr(bench, "precisions", lambda: ["fp32", "bf16"])
        taken = iter([9.0, 9.0] + [4.0, 2.0] * 2 + [40.0, 20.0] * 3)  # one turn is warm-up
        monkeypatch.setattr(here, "_seconds", lambda *_: next(taken))
        table = here.measured_here()
        assert table["ratio"].tolist() == [1, 2] and table["ratio_q3"].tolist() == [1, 2]

    def test_the_command_prints_a_table_and_json(self, runs_root: Path) -> None:
        asked = ["bench", "--network", "unet3d", "--precision", "bf16", "--precision", "fp32"]
        asked += ["--mode", "infer", "--quick"]
        done = CliRunner().invoke(__main__.app, asked)
        assert done.exit_code == 0, done.output
        assert "13 × bf16" in done.stdout and "13 × fp32" in done.stdout and "1.00" in done.stdout
        done = CliRunner().invoke(__main__.app, [*asked, "--json"])
        rows = json.loads(done.stdout)
        assert [row["formats"] for row in rows] == [{"bf16": 13}, {"fp32": 13}]

    def test_the_command_says_who_used_tensor_cores(self) -> None:
        row = {"formats": {"fp32": 5}, "tensor_core_share": 0.25}
        assert command.evidence(row) == "5 × fp32; 25% of the time on Tensor Cores"


class TestOfGpus:
    def test_where_the_time_of_a_traced_step_goes(self) -> None:
        (path, *_) = (recordings.RECORDED / "nvidia-h100").glob(
            "traces/trace-amp_fp16*/trace.json.gz"
        )
        trace = read(path)
        found = seen.told(trace)
        report = tensor_core_report(trace)
        assert found["tensor_core_share"] == tensor_core_summary(a=report)["tensor_core_share"][0]
        assert sum(found["kinds"].values()) == pytest.approx(1)
        norm = report[report["operator"].str.contains("(?i)norm")]["gpu_share"].sum()
        assert found["kinds"]["normalisation"] == pytest.approx(norm) and norm > 0.2
        assert found["kinds"]["products"] > found["tensor_core_share"]
        assert len(found["kernels"]) == seen.KERNELS

    def test_a_peak_is_reset_when_the_device_is_in_use(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        order: list[str] = []

        class Noted(Work):
            def __init__(self, *given: Any) -> None:
                super().__init__(*given)
                order.append("work")

        monkeypatch.setattr(bench, "Work", Noted)
        monkeypatch.setattr(bench.memory, "reset_peak", lambda _: order.append("reset"))
        bench.measure(Setting("unet3d", **TINY), None, "cpu")
        assert order == ["work", "reset"]

    def test_what_comes_before_the_measured_step_does_not_count(self) -> None:
        (path,) = (recordings.RECORDED / "nvidia-h100-x2").glob(
            "traces/tensor-traced-24*/trace.json.gz"
        )
        trace = read(path)
        begin = trace.kernels["start_s"].median()
        range_ = pd.DataFrame([{"name": seen.MEASURED, "start_s": begin, "duration_s": 1.0}])
        some = seen.measured(replace(trace, ranges=pd.concat([trace.ranges, range_])))
        assert len(some.kernels) == (trace.kernels["start_s"] >= begin).sum() < len(trace.kernels)
        assert some.copies["start_s"].min() >= begin
        assert seen.busy(some)["busy_s"] < seen.busy(trace)["busy_s"]
        assert "operators" in seen.told(some)

    def test_a_gpu_is_busy_while_it_has_any_work(self) -> None:
        def rows(*spans: tuple[str, float, float]) -> pd.DataFrame:
            columns = ["kernel", "start_s", "duration_s"]
            return pd.DataFrame([(n, b, e - b) for n, b, e in spans], columns=columns)

        nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
        trace = SimpleNamespace(
            kernels=rows(("conv", 0, 2), (nccl, 1, 4), ("conv", 5, 6)),
            copies=rows(("", 5.5, 7)),
        )
        assert seen.busy(trace) == {"busy_s": 6, "communication_s": 3, "exposed_s": 2}
        (path,) = (recordings.RECORDED / "nvidia-h100-x2").glob(
            "traces/tensor-traced-24*/trace.json.gz"
        )
        found = seen.busy(read(path))
        assert 0 < found["communication_s"] < found["busy_s"]
        # Tensor parallelism: what is sent is waited for.
        assert found["exposed_s"] == pytest.approx(found["communication_s"])


def test_published_rows_agree_on_200_iterations() -> None:
    steps = published.images_a_step()
    right = steps["network"].map({"ssd300": 32, "unet3d": 2, "resnet50": 64})
    assert (steps["by_200"] / right - 1).abs().max() < 0.015
    assert len(published.table()) == 21 and published.table()["seconds"].isna().sum() == 1


class TestTables:
    """What the lab will say of a record, here of one that this machine made in small."""

    measured_rows: ClassVar[list[dict[str, Any]]] = []

    def measure_rows(self) -> None:
        brief = {"batch": 2, "warmup": 1, "iterations": 2, "px": 8}
        fast = {"precision": "fp16", "layout": "channels_last"}
        layouts = [("fp32", "contiguous"), ("fp16", "contiguous"), ("fp16", "channels_last")]
        settings = [
            Setting("unet3d", precision, mode, layout, **brief)
            for mode in bench.MODES
            for precision, layout in layouts
        ]
        settings += [Setting("unet3d", data="photographs", **fast, **brief)]
        rows = [bench.bench(each, device="cpu") for each in settings]
        assert "busy_s" not in rows[0]  # nothing is traced on a processor
        for row in rows:
            waits = {"contiguous": 0.8, "channels_last": 0.5}[row["layout"]]
            if row["mode"] == "train" and row["data"] == "synthetic":
                row["busy_s"] = row["step_s"] * (1 if row["precision"] == "fp32" else waits)
        self.measured_rows += rows

    @pytest.fixture
    def rows(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
        """The table, of rows that are measured once."""
        if not self.measured_rows:
            root = volumes.ensure(tmp_path / "volumes", volumes.Recipe(volumes=2, side=24))
            monkeypatch.setattr(volumes, "ensure", lambda: root)
            self.measure_rows()
        rows = self.measured_rows
        saved = {"machine": "small", "date": "2026-01-01", "torch": "2", "rows": rows}
        monkeypatch.setattr(recordings, "load", lambda _: {"networks": saved})
        return measured.recorded("small")

    @pytest.mark.slow
    def test_follow_from_rows_that_were_measured(self, rows: pd.DataFrame) -> None:
        of = rows.set_index(["mode", "precision", "layout", "data"])["images_per_s"].sort_index()
        fp16 = of.loc["train", "fp16"].loc[:, "synthetic"]
        layouts = networks.layouts(rows).loc["unet3d"]
        expected = fp16["channels_last"] / 0.5 / (fp16["contiguous"] / 0.8)
        assert layouts["layout_brings"] == pytest.approx(expected)
        assert np.isnan(layouts["compiler_brings"])  # it was not measured
        inference = networks.inference(rows).loc["unet3d"]
        train, infer = (of.loc[mode, "fp32", "contiguous", "synthetic"] for mode in bench.MODES)
        assert inference["fp32 contiguous"] == infer / train and len(inference) == 3
        files = networks.from_files(rows)
        assert files.index.tolist() == ["unet3d"]
        kept = of.loc["train", "fp16", "channels_last"]
        assert files.loc["unet3d", "kept"] == kept["photographs"] / kept["synthetic"]
        assert f": {files.loc['unet3d', 'kept']:.0%}: " in pictures.plot_fed(files).alt
        assert all(
            set(each) == {"first_pass", "warm_up", "timed", "traced"} for each in rows["took_s"]
        )

    def test_a_gpu_that_waits_is_told_apart_from_what_it_reached(self, rows: pd.DataFrame) -> None:
        of = rows[rows["data"] == "synthetic"].set_index(["mode", "precision", "layout"])
        fp16, fp32 = (
            of.loc[("train", "fp16", "contiguous")],
            of.loc[("train", "fp32", "contiguous")],
        )
        assert fp16["busy"] == pytest.approx(0.8) and fp32["busy"] == 1
        assert fp16["at_work_per_s"] == pytest.approx(2 / fp16["busy_s"])
        assert fp16["against_fp32"] == fp16["images_per_s"] / fp32["images_per_s"]
        assert fp16["work_against_fp32"] == pytest.approx(fp16["against_fp32"] / 0.8)
        assert of.loc["infer", ["busy", "at_work_per_s", "work_against_fp32"]].isna().all(axis=None)
        beside = networks.beside(rows, "a CPU")
        assert beside.loc[("unet3d", "a CPU"), "fp16"] == fp16["images_per_s"]
        assert beside.loc[("unet3d", "a CPU, at work"), "fp16"] == fp16["at_work_per_s"]
        theirs = beside.drop(["a CPU", "a CPU, at work"], level="gpu")
        pd.testing.assert_frame_equal(theirs, published.speeds())

    def test_scaling_says_what_a_step_does(self, monkeypatch: pytest.MonkeyPatch) -> None:
        one = {"network": "ssd300", "batch": 32, "gpus": 1, "images_per_s": 1000.0}
        one |= {"step_s": 0.032, "busy_s": 0.024, "exposed_s": 0.0, "communication_s": 0.0}
        one |= {"parameters": 23_000_000}
        two = one | {"gpus": 2, "images_per_s": 1600.0, "step_s": 0.04}
        two |= {"busy_s": 0.03, "exposed_s": 0.004, "communication_s": 0.005}
        table = pd.DataFrame([one, two])
        monkeypatch.setattr(measured, "recorded_together", lambda _: table)
        found = measured.scaling("two GPUs")
        assert found.loc[("ssd300", 32, 1), "efficiency"] == 1
        row = found.loc[("ssd300", 32, 2)]
        assert row["efficiency"] == 0.8 and row["computing"] == pytest.approx(0.65)
        assert row["megabytes"] == 92 and row["nccl_s"] == 0.005
        alt = pictures.plot_scaled(found).alt
        assert "SSD300 (32), 1 GPU: 75, SSD300 (32), 2 GPUs: 65" in alt
        assert "2 GPUs: 26 of 40 ms; efficiency 80%" in alt


class TestPictures:
    @pytest.fixture
    def rows(self) -> pd.DataFrame:
        """A table as `recorded` gives it, with round numbers."""
        found: list[dict[str, Any]] = []
        kinds = {"products": 0.5, "normalisation": 0.2, "copies": 0.1, "others": 0.2}
        for name in catalogue.NETWORKS:
            for place, (precision, layout, compile_) in enumerate(pictures.RUNGS.values(), 1):
                own = {"precision": precision, "layout": layout, "compile": compile_}
                speed = {"images_per_s": 100.0 * place, "against_fp32": float(place)}
                speed |= {"busy": 0.8, "at_work_per_s": 125.0 * place, "step_s": 0.1}
                of = {"network": name, "mode": "train", "data": "synthetic", "machine": "a GPU"}
                of |= {"batch": catalogue.get(name).batch_size, "tensor_core_share": 0.4}
                found.append(of | own | speed | {"kinds": kinds})
        return pd.DataFrame(found)

    def test_alt_text_has_the_values(self, rows: pd.DataFrame) -> None:
        alt = pictures.plot_beside(published.ratios()).alt
        assert "3D U-Net; tf32 A100: 4.88 ×, fp16 P100: failed" in alt and "H100" not in alt
        assert "tf32 V100" not in alt
        alt = pictures.plot_beside(published.ratios(networks.beside(rows, "H100"))).alt
        assert "ResNet-50; tf32 A100: 1.77 ×, tf32 H100: 2.00 ×, tf32 H100, at work: 2.00 ×" in alt
        alt = pictures.plot_ladder(rows).alt
        assert "fp32: 100 to 125 (1.0 ×), TF32" in alt and "compiled: 700 to 875 (7.0 ×)" in alt
        assert "SSD300 (32), TF32: 40" in pictures.plot_where(rows, "TF32").alt

    def test_rungs_that_were_not_measured_are_left_out(self, rows: pd.DataFrame) -> None:
        some = rows[~rows["compile"] & (rows["precision"] == "fp32")].assign(mode="infer")
        some = some.assign(at_work_per_s=np.nan)  # nothing is traced in inference
        alt = pictures.plot_ladder(some, "infer").alt
        assert "fp32: 100 (1.0 ×)" in alt and "TF32" not in alt

    def test_a_gpu_that_waits_is_shown(self, rows: pd.DataFrame) -> None:
        rows = rows.assign(busy=np.where(rows["network"] == "ssd300", 0.6, np.nan))
        alt = pictures.plot_at_work(rows, "fp32", "fp16").alt
        assert "SSD300 (32), fp32: 60 of 100 ms" in alt and "ResNet" not in alt
        assert "SSD300 (32), fp32: 60, " in alt and "TF32" not in alt

    def test_what_can_be_gained_follows_from_the_share_of_products(
        self, rows: pd.DataFrame
    ) -> None:
        gains = measured.gains(rows)
        assert gains["at_most"].tolist() == [2, 2, 2]  # half of the time
        assert gains["tf32"].tolist() == [2, 2, 2]
        assert gains.loc[("unet3d", 2), "fp16_a100"] == pytest.approx(8.2, abs=0.01)
        without = measured.gains(rows[rows["precision"] != "tf32"])
        assert without["tf32"].isna().all()

    def test_limits_name_the_lower_one(self, rows: pd.DataFrame) -> None:
        limits = pd.DataFrame(
            {"network": name, "precision": precision, "arithmetic": 800.0, "memory": 400.0}
            | {"nearer": "memory"}
            for name in catalogue.NETWORKS
            for precision in bench.PRECISIONS
        )
        alt = pictures.plot_reached(rows, limits).alt
        assert "SSD300 (32), TF32: 50 to 62 % of what the memory allows" in alt


RIGHT = [
    ("wait()", "wait()", "(time.perf_counter() - begin) / iterations"),
    ("wait(); wait()", "wait()", "(time.perf_counter() - begin) / float(iterations)"),
]
WRONG = {
    ("wait()", "pass", RIGHT[0][2]): "the clock is read while the device still computes",
    ("pass", "wait()", RIGHT[0][2]): "what warm-up left in the queue is in it",
    ("wait()", "wait()", "time.perf_counter() - begin"): "that is all 10 steps together",
    ("wait()", "wait()", "(time.perf_counter() - begin) / (warmup + iterations)"): (
        "only the steps after the warm-up are timed, so divide by their number alone"
    ),
    ("wait()", "wait()", "f'{begin}'"): "it returns str: seconds are asked for",
    ("wait()", "step(); wait()", RIGHT[0][2]): "it makes 21 steps: 10 of warm-up and 10",
    ("time.sleep(1)", "wait()", RIGHT[0][2]): "whether warm-up is over: call wait\\(\\)",
    ("wait()", "weight()", "1.0"): "it raised NameError: name 'weight' is not defined",
}


class TestWritten:
    @pytest.fixture
    def define(self, tmp_path: Path, runs_root: Path) -> Callable[..., Callable]:
        """The lab's function, its blanks filled by answers."""
        cell = cell_of("lab_networks", "seconds_a_step")
        return lambda *answers: defined(
            filled(cell, *answers), "seconds_a_step", tmp_path, "import time\n"
        )

    def test_an_untouched_cell_says_where_its_blank_is(self, define: Callable) -> None:
        checked = check_written("networks.timing", define())
        assert checked.failed and "a blank is left" in checked.parts[0].evidence
        assert "before the clock is read first" in checked.parts[0].look_at

    def test_right_answers_pass(self, define: Callable) -> None:
        for answers in RIGHT:
            checked = check_written("networks.timing", mine := define(*answers))
            assert checked.passed and checked.function is mine, checked

    @pytest.mark.parametrize("answers", WRONG)
    def test_wrong_answers_hear_what_is_wrong(self, answers: tuple, define: Callable) -> None:
        checked = check_written("networks.timing", define(*answers))
        assert checked.failed and re.search(WRONG[answers], repr(checked)), repr(checked)

    def test_waiting_between_steps_is_seen(self) -> None:
        def waits_each_time(step, wait, warmup, iterations):
            for _ in range(warmup):
                step()
            wait()

            def one() -> None:
                step()
                wait()

            return written.seconds_a_step(one, wait, 0, iterations)

        assert written.is_right(waits_each_time)
        with pytest.raises(AssertionError, match="it waits 9 times between timed steps"):
            written.waits_where_it_must(waits_each_time)

    def test_ours_passes(self) -> None:
        assert written.is_right(written.seconds_a_step)
        assert written.waits_where_it_must(written.seconds_a_step)
