"""SSD300, 3D U-Net and ResNet-50: their data, the benchmark, and its tables."""

import json
import multiprocessing
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import of_ranks
import pandas as pd
import pytest
import torch
from narrow_networks import small, small_ssd
from threadpoolctl import threadpool_limits
from torchvision.models.detection._utils import BoxCoder
from torchvision.ops import box_iou
from typer.testing import CliRunner

from course import __main__
from course.analysis.tensor_cores import tensor_core_report
from course.analysis.traces.reader import read
from course.runs import recordings
from course.training.models import parameter_count
from labs import lab_networks as lab
from labs.lab_networks import (
    bench,
    boxes,
    catalogue,
    cost,
    evidence,
    local,
    measurements,
    ssd,
    unet3d,
    verify,
    volumes,
)
from labs.lab_networks.bench import Setting, Workload
from tools import bench_cli

CPU = torch.device("cpu")
TINY = {"batch": 2, "warmup": 1, "iterations": 2}


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use narrow networks and one thread: on small tensors threads wait for each other."""
    for name, network in small().items():
        monkeypatch.setitem(catalogue.NETWORKS, name, network)
        monkeypatch.setitem(bench.QUICK, name, {"batch": 2})
    with threadpool_limits(1):
        yield


class TestNetworks:
    def test_have_the_published_size(self) -> None:
        with torch.device("meta"):
            counts = {"ssd300": ssd.SSD300(), "unet3d": unet3d.UNet3D()}
        for name, rel in (("unet3d", 0.001), ("ssd300", 0.05)):
            millions = parameter_count(counts[name]) / 1e6
            assert millions == pytest.approx(cost.PUBLISHED_MILLIONS[name], rel=rel)

    def test_answer_for_each_box_and_each_voxel(self) -> None:
        offsets, scores = small_ssd().eval()(torch.zeros(1, 3, 300, 300))
        assert offsets.shape == (1, ssd.BOXES, 4) and scores.shape == (1, ssd.BOXES, 81)
        assert ssd.default_boxes().shape == (ssd.BOXES, 4)
        network = unet3d.UNet3D(widths=(2, 4, 4))
        assert network(torch.zeros(1, 1, 8, 16, 8)).shape == (1, 3, 8, 16, 8)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["ssd300", "unet3d", "resnet50"])
    def test_learn(self, name: str) -> None:
        workload = Workload(Setting(name, batch=2), CPU)
        for _ in range(5 if name == "ssd300" else 20):
            workload.step()
        assert workload.losses[-1] < 0.99 * workload.losses[0]


class TestData:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return boxes.ensure(tmp_path / "boxes", boxes.Recipe(images=3))

    def test_default_boxes_are_matched_with_objects(self) -> None:
        objects = torch.tensor([[20.0, 30, 200, 220], [250.0, 5, 262, 14]])
        defaults, labels = ssd.default_boxes(), torch.tensor([7, 3])
        offsets, kinds = ssd.encode(objects, labels, defaults)
        assert set(kinds.tolist()) == {0, 3, 7}  # also the small object
        decoded = BoxCoder(ssd.WEIGHTS).decode_single(offsets[kinds == 7], defaults[kinds == 7])
        assert torch.allclose(decoded, objects[:1].expand_as(decoded), atol=0.01)
        overlap = box_iou(objects, defaults)
        assert (kinds[(overlap[0] >= 0.5) & (overlap[1] < 0.5)] == 7).all()
        assert (kinds[overlap.max(0).values < 0.5] != 0).sum() <= 2

    def test_three_hard_background_boxes_count_per_object(self) -> None:
        scores = torch.randn(1, 40, 3, generator=torch.Generator().manual_seed(0))
        labels = torch.zeros(1, 40, dtype=torch.long)
        labels[0, :2] = torch.tensor([1, 2])
        offsets = torch.zeros(1, 40, 4)
        losses = torch.nn.functional.cross_entropy(scores[0], labels[0], reduction="none")
        hardest = losses[2:].sort(descending=True).values[:6]
        expected = (losses[:2].sum() + hardest.sum()) / 2
        assert torch.allclose(ssd.loss((offsets, scores), (offsets, labels)), expected)
        shifted = ssd.loss((offsets + 2, scores), (offsets, labels))
        assert torch.allclose(shifted, expected + 4 * 1.5)  # only of boxes with an object

    def test_images_are_composed_once(self, root: Path) -> None:
        image, objects = boxes.compose(np.random.default_rng([0, 1]))
        saved = json.loads((root / boxes.BOXES).read_text())
        assert saved["00001.jpg"] == objects and len(saved) == 3 and image.size == boxes.SIZE
        left, top, right, bottom = objects[-1]["box"]
        assert 0 <= left < right <= 640 and 0 <= top < bottom <= 480
        written = (root / "00001.jpg").stat().st_mtime_ns
        assert boxes.ensure(root, boxes.Recipe(images=3)) == root
        assert (root / "00001.jpg").stat().st_mtime_ns == written

    def test_a_loaded_image_has_its_objects_where_they_are(self, root: Path) -> None:
        dataset = boxes.Boxes(root)
        objects = torch.tensor([item["box"] for item in dataset.objects["00000.jpg"]])
        straight = objects * torch.tensor([300 / 640, 300 / 480] * 2)
        flipped = straight.clone()
        flipped[:, [0, 2]] = 300 - straight[:, [2, 0]]
        orientations = set()
        for seed in range(4):
            torch.manual_seed(seed)
            image, (offsets, kinds) = dataset[0]
            assert image.shape == (3, 300, 300) and image.dtype == torch.float32
            decoded = BoxCoder(ssd.WEIGHTS).decode_single(offsets, dataset.defaults)[kinds > 0]
            fits = [box_iou(decoded, b).max(1).values.min() > 0.99 for b in (straight, flipped)]
            orientations.add(fits.index(True))
        assert orientations == {0, 1}

    def test_volumes_hold_kidneys_with_a_tumour(self, tmp_path: Path) -> None:
        root = volumes.ensure(tmp_path / "volumes", volumes.Recipe(volumes=2, side=32))
        brightness, kinds = np.load(root / "000.npy")
        assert brightness.shape == kinds.shape == (32, 32, 32) and set(np.unique(kinds)) == {
            0,
            1,
            2,
        }
        assert (volumes.compose(32, np.random.default_rng([0, 0]))[1] == kinds).all()
        inputs, targets = volumes.Volumes(root, side=16)[0]
        assert inputs.shape == (1, 16, 16, 16) and targets.shape == (16, 16, 16)
        assert abs(float(inputs.mean())) < 1e-4 and float(inputs.std()) == pytest.approx(
            1, abs=0.01
        )


class TestBench:
    @pytest.mark.parametrize("name", ["unet3d", "resnet50"])
    @pytest.mark.parametrize("precision", ["fp32", "bf16"])
    def test_format_and_layout_are_those_of_the_setting(self, name: str, precision: str) -> None:
        workload = Workload(Setting(name, precision, layout="channels_last", batch=2), CPU)
        assert [*workload.count_formats()] == [precision]
        dims = catalogue.get(name).dims
        layout = torch.channels_last if dims == 2 else torch.channels_last_3d
        weights = [w for w in workload.network.parameters() if w.dim() == dims + 2]
        tensors = [next(workload.batches)[0], *weights]
        assert all(tensor.is_contiguous(memory_format=layout) for tensor in tensors)

    def test_the_log_has_each_step_and_the_result(self, tmp_path: Path) -> None:
        log = tmp_path / "new" / "bench.jsonl"
        row = bench.measure(Setting("unet3d", **TINY), log, "cpu")
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert [line["type"] for line in lines] == ["PARAMETER", "LOG", "LOG", "RESULT"]
        assert lines[0]["data"]["network"] == "unet3d" and lines[-1]["data"] == row
        steps = [line["data"]["step_s"] for line in lines[1:3]]
        assert row["step_s"] == pytest.approx(np.median(steps))
        assert row["images_per_s"] == pytest.approx(2 / row["step_s"]) and row["timed"] == 2

    def test_seconds_limit_the_steps(self) -> None:
        short = Setting("unet3d", batch=2, warmup=2, seconds=1e-6)
        assert bench.measure(short, None, "cpu")["timed"] == bench.MIN_STEPS
        long = replace(short, iterations=9, seconds=60.0)
        assert bench.measure(long, None, "cpu")["timed"] == 9

    def test_inference_changes_nothing(self) -> None:
        workload = Workload(Setting("resnet50", mode="infer", batch=2), CPU)
        before = [tensor.clone() for tensor in workload.network.state_dict().values()]
        workload.step()
        assert all(map(torch.equal, before, workload.network.state_dict().values()))
        assert np.isnan(workload.losses[0])

    def test_photographs_are_loaded_many_times(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        root = volumes.ensure(tmp_path / "volumes", volumes.Recipe(volumes=3, side=24))
        monkeypatch.setattr(volumes, "ensure", lambda: root)
        setting = Setting("unet3d", data="photographs", workers=1, batch=2, warmup=1, iterations=4)
        row = bench.measure(setting, None, "cpu")
        assert row["timed"] == 4 and np.isfinite(row["last_loss"])
        assert not multiprocessing.active_children()

    def test_workers_steps_are_averaged_by_round(self) -> None:
        seconds = np.array([3.0, 0, 0, 6, 0, 0, 100])  # three workers deliver at once
        setting = Setting("unet3d", data="photographs", workers=3)
        assert bench._mean_by_round(setting, seconds).tolist() == [1, 2]
        assert bench._mean_by_round(replace(setting, workers=0), seconds) is seconds

    @pytest.mark.parametrize(
        ("message", "fields"),
        [
            ("network='vgg': choose", {"network": "vgg"}),
            ("precision='fp8': choose fp32 or tf32", {"precision": "fp8"}),
            ("so leave it out", {"network": "ssd300", "px": 512}),
            ("px=18: unet3d needs 8, 12", {"network": "unet3d", "px": 18}),
            ("several GPUs must agree", {"gpus": 2, "seconds": 1.0}),
        ],
    )
    def test_wrong_settings_are_refused(self, message: str, fields: dict) -> None:
        with pytest.raises(ValueError, match=re.escape(message)):
            Setting(**fields)

    @pytest.mark.slow
    def test_ranks_train_one_network_on_different_images(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bench, "measure_rank", of_ranks.narrow_row)
        row = bench.bench(Setting("resnet50", px=32, gpus=2, **TINY), device="cpu")
        assert row["weights_apart"] == 0 and len(set(row["first_losses"])) == 2
        assert row["images_per_s"] == pytest.approx(4 / row["step_s"])

    def test_precisions_take_turns_on_this_machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(local, "NETWORKS", ("resnet50",))
        monkeypatch.setattr(bench, "precisions", lambda: ["fp32", "bf16"])
        table = lab.benchmark_here()
        assert table["ratio"].iloc[0] == 1 and table["images_per_s"].gt(0).all()
        assert table["computed_in"].str.split(" × ").str[1].tolist() == ["fp32", "bf16"]
        # A disturbance changes both precisions' steps in a turn; the first turn is warm-up.
        times = iter([9.0, 9.0] + [4.0, 2.0] * 2 + [40.0, 20.0] * 3)
        monkeypatch.setattr(local, "_time_step", lambda _: next(times))
        table = lab.benchmark_here()
        assert table["ratio"].tolist() == [1, 2] and table["ratio_q3"].tolist() == [1, 2]

    def test_the_command_prints_a_table_and_json(self, runs_root: Path) -> None:
        arguments = ["bench", "--network", "unet3d", "--precision", "bf16", "--precision", "fp32"]
        arguments += ["--mode", "infer", "--quick"]
        result = CliRunner().invoke(__main__.app, arguments)
        assert result.exit_code == 0, result.output
        assert all(text in result.stdout for text in ("13 × bf16", "13 × fp32", "1.00"))
        result = CliRunner().invoke(__main__.app, [*arguments, "--json"])
        rows = json.loads(result.stdout)
        assert [row["formats"] for row in rows] == [{"bf16": 13}, {"fp32": 13}]
        row = {"formats": {"fp32": 5}, "tensor_core_share": 0.25}
        assert bench_cli.evidence(row) == "5 × fp32; 25% of the time on Tensor Cores"


class TestEvidence:
    def test_a_traced_step_is_summarized(self) -> None:
        folder = recordings.RECORDED / "nvidia-h100"
        trace = read(next(folder.glob("traces/trace-amp_fp16*/trace.json.gz")))
        summary, report = evidence.summarize(trace), tensor_core_report(trace)
        assert sum(summary["kinds"].values()) == pytest.approx(1)
        norm = report[report["operator"].str.contains("(?i)norm")]["gpu_share"].sum()
        assert summary["kinds"]["normalisation"] == pytest.approx(norm) and norm > 0.2
        assert summary["kinds"]["products"] > summary["tensor_core_share"]
        assert len(summary["kernels"]) == evidence.KERNELS

    def test_only_the_traced_step_counts(self) -> None:
        folder = recordings.RECORDED / "nvidia-h100-x2"
        trace = read(next(folder.glob("traces/tensor-traced-24*/trace.json.gz")))
        begin = trace.kernels["start_s"].median()
        step = pd.DataFrame([{"name": evidence.TRACED_STEP, "start_s": begin, "duration_s": 1.0}])
        part = evidence.only_step(replace(trace, ranges=pd.concat([trace.ranges, step])))
        assert len(part.kernels) == (trace.kernels["start_s"] >= begin).sum() < len(trace.kernels)
        seconds = evidence.busy_seconds(trace)
        assert evidence.busy_seconds(part)["busy_s"] < seconds["busy_s"]
        # Tensor parallelism waits for its communication.
        assert seconds["exposed_s"] == pytest.approx(seconds["communication_s"])

    def test_a_gpu_is_busy_while_it_has_any_work(self) -> None:
        def rows(*spans: tuple[str, float, float]) -> pd.DataFrame:
            columns = ["kernel", "start_s", "duration_s"]
            return pd.DataFrame([(n, b, e - b) for n, b, e in spans], columns=columns)

        nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
        kernels = rows(("conv", 0, 2), (nccl, 1, 4), ("conv", 5, 6))
        trace = SimpleNamespace(kernels=kernels, copies=rows(("", 5.5, 7)))
        seconds = evidence.busy_seconds(trace)
        assert seconds == {"busy_s": 6, "communication_s": 3, "exposed_s": 2}


class TestTables:
    @pytest.fixture
    def rows(self, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
        """Return a table of measurements with round numbers."""
        kinds = {"products": 0.5, "normalisation": 0.2, "copies": 0.1, "others": 0.2}
        table = []
        for name in catalogue.NETWORKS:
            fixed = {"network": name, "data": "synthetic", "machine": "a GPU", "workers": 4}
            fixed |= {"batch": catalogue.get(name).batch_size, "tensor_core_share": 0.4}
            for place, setting in enumerate(lab.figures.RUNGS.values(), 1):
                fields = fixed | dict(zip(("precision", "layout", "compile"), setting))
                fields |= {"images_per_s": 100.0 * place, "step_s": 0.1}
                table.append(fields | {"mode": "train", "busy_s": 0.08, "kinds": kinds})
                table.append(fields | {"mode": "infer", "images_per_s": 500.0 * place})
        photographs = {"data": "photographs", "images_per_s": 300.0}
        table.append(table[10] | photographs)  # fp16, channels last
        monkeypatch.setattr(measurements, "recorded_table", lambda *_: pd.DataFrame(table))
        return lab.load_measurements("a GPU")

    def test_speeds_while_a_gpu_is_busy(self, rows: pd.DataFrame) -> None:
        train = rows.query("mode == 'train'")
        assert np.allclose(train["busy"], 0.8)
        assert np.allclose(train["images_per_busy_s"], train["images_per_s"] / 0.8)
        assert rows.query("mode == 'infer'")["images_per_busy_s"].isna().all()
        assert rows.query("precision == 'tf32'")["speedup"].eq(2).all()

    def test_gains_follow_from_the_measurements(self, rows: pd.DataFrame) -> None:
        gains = lab.tensor_core_gains(rows)
        assert gains["at_most"].tolist() == [2, 2, 2]  # products take half of the time
        assert gains["tf32"].tolist() == [2, 2, 2]
        assert gains.loc[("unet3d", 2), "fp16_a100"] == pytest.approx(8.2, abs=0.01)
        layouts = lab.layout_speedups(rows)
        assert layouts["layout"].tolist() == [6 / 4] * 3
        assert layouts["compiler"].to_numpy() == pytest.approx(7 / 6)
        assert np.allclose(lab.inference_speedups(rows), 5 * 0.8)
        files = lab.loading_speeds(rows)
        assert files.loc["ssd300", "kept"] == 0.5
        assert f"{files.loc['ssd300', 'kept']:.0%}: 300 of 600" in lab.plot_loading(files).alt

    def test_published_numbers_are_next_to_measured_ones(self, rows: pd.DataFrame) -> None:
        steps = lab.images_per_step()
        batches = steps["network"].map({"ssd300": 32, "unet3d": 2, "resnet50": 64})
        assert (steps["by_200"] / batches - 1).abs().max() < 0.015
        speeds = lab.speeds_with_published(rows, "H100")
        published = lab.published_speeds()
        pd.testing.assert_frame_equal(speeds.loc[published.index], published)
        assert speeds.loc[("unet3d", "H100"), "fp16"] == 400
        assert speeds.loc[("unet3d", "H100, at work"), "fp16"] == pytest.approx(500)
        alt = lab.plot_speedups(lab.speedups(speeds)).alt
        assert "3D U-Net; tf32 A100: 4.88 ×" in alt and "fp16 P100: failed" in alt
        assert "tf32 V100" not in alt and "tf32 H100: 2.00 ×" in alt

    def test_figures_describe_what_they_draw(self, rows: pd.DataFrame) -> None:
        alt = lab.plot_ladder(rows).alt
        assert "fp32: 100 to 125 (1.0 ×), TF32" in alt and "compiled: 700 to 875 (7.0 ×)" in alt
        alt = lab.plot_ladder(rows.query("precision == 'fp32'"), "infer").alt
        assert "fp32: 500 (1.0 ×)" in alt and "TF32" not in alt
        assert "SSD300 (32), TF32: 40" in lab.plot_time_by_kind(rows, "TF32").alt
        alt = lab.plot_busy(rows, "fp32").alt
        assert "SSD300 (32), fp32: 80 of 100 ms" in alt and "TF32" not in alt
        limits = pd.DataFrame(
            {"network": name, "precision": precision, "arithmetic": 800.0, "memory": 400.0}
            | {"nearer": "memory"}
            for name in catalogue.NETWORKS
            for precision in bench.CHOICES["precision"]
        )
        alt = lab.plot_limit_shares(rows, limits).alt
        assert "SSD300 (32), TF32: 50 to 6" in alt

    def test_scaling_is_compared_with_one_gpu(self) -> None:
        table = lab.scaling_efficiency("nvidia-h100-x2")
        efficiency = table["efficiency"].unstack("gpus")
        assert (efficiency[1] == 1).all() and efficiency[2].between(0.7, 1.02).all()
        assert table.loc[("ssd300", 32, 2), "megabytes"] == pytest.approx(92, abs=1)
        assert "2 GPUs: " in lab.plot_scaling(table).alt


def test_waiting_between_steps_is_noticed() -> None:
    def wait_each_time(step: Callable, wait: Callable, warmup: int, iterations: int) -> float:
        def step_and_wait() -> None:
            step()
            wait()

        for _ in range(warmup):
            step()
        wait()
        return verify.seconds_per_step(step_and_wait, wait, 0, iterations)

    assert verify.check_seconds(wait_each_time)
    with pytest.raises(AssertionError, match="it waits 9 times between timed steps"):
        verify.check_waits(wait_each_time)
