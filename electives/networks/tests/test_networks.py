"""SSD300, 3D U-Net and ResNet-50: their data, the benchmark, and its tables."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from narrow_networks import small
from threadpoolctl import threadpool_limits
from typer.testing import CliRunner

from course import __main__
from course.training.models import parameter_count
from electives import networks as lab
from electives.networks import (
    bench,
    catalogue,
    measurements,
    ssd,
    verify,
)
from electives.networks.bench import Setting, Workload
from electives.networks.figures import RUNGS
from labs.memory import unet3d

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
        for name, published, rel in (("unet3d", 31.2, 0.001), ("ssd300", 22.0, 0.05)):
            millions = parameter_count(counts[name]) / 1e6
            assert millions == pytest.approx(published, rel=rel)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["ssd300", "unet3d", "resnet50"])
    def test_learn(self, name: str) -> None:
        workload = Workload(Setting(name, batch=2), CPU)
        for _ in range(5 if name == "ssd300" else 20):
            workload.step()
        assert workload.losses[-1] < 0.99 * workload.losses[0]


class TestLoss:
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


class TestBench:
    @pytest.mark.parametrize("name, precision", [("unet3d", "fp32"), ("resnet50", "bf16")])
    def test_format_and_layout_are_those_of_the_setting(self, name: str, precision: str) -> None:
        workload = Workload(Setting(name, precision, layout="channels_last", batch=2), CPU)
        assert [*workload.count_formats()] == [precision]
        dims = catalogue.get(name).dims
        layout = torch.channels_last if dims == 2 else torch.channels_last_3d
        weights = [w for w in workload.network.parameters() if w.dim() == dims + 2]
        tensors = [workload.inputs, *weights]
        assert all(tensor.is_contiguous(memory_format=layout) for tensor in tensors)

    def test_wrong_settings_are_refused(self) -> None:
        with pytest.raises(ValueError, match="network='vgg': choose"):
            Setting("vgg")

    def test_precisions_take_turns_on_this_machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(catalogue, "NETWORKS", {"resnet50": catalogue.NETWORKS["resnet50"]})
        monkeypatch.setattr(bench, "precisions", lambda: ["fp32", "bf16"])
        table = lab.benchmark_here()
        assert table["ratio"].iloc[0] == 1 and table["images_per_s"].gt(0).all()
        assert table["computed_in"].str.split(" × ").str[1].tolist() == ["fp32", "bf16"]
        # A disturbance changes both precisions' steps in a turn; the first turn is warm-up.
        times = iter([9.0, 9.0] + [4.0, 2.0] + [40.0, 20.0] * 2)
        monkeypatch.setattr(bench, "_time_step", lambda _: next(times))
        table = lab.benchmark_here()
        assert table["ratio"].tolist() == [1, 2] and table["ratio_q3"].tolist() == [1, 2]

    def test_the_command_prints_a_table_and_json(self) -> None:
        arguments = ["bench", "--network", "unet3d", "--precision", "bf16", "--precision", "fp32"]
        arguments += ["--quick"]
        result = CliRunner().invoke(__main__.app, arguments)
        assert result.exit_code == 0, result.output
        assert all(text in result.stdout for text in ("13 × bf16", "13 × fp32", "1.00"))
        result = CliRunner().invoke(__main__.app, [*arguments, "--json"])
        rows = json.loads(result.stdout)
        assert [row["formats"] for row in rows] == [{"bf16": 13}, {"fp32": 13}]


class TestTables:
    @pytest.fixture
    def rows(self, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
        """Return a table of measurements with round numbers."""
        kinds = {"products": 0.5, "normalisation": 0.2, "copies": 0.1, "others": 0.2}
        table = []
        for name in catalogue.NETWORKS:
            fixed = {"network": name, "machine": "a GPU"}
            fixed |= {"batch": catalogue.get(name).batch_size, "tensor_core_share": 0.4}
            for place, setting in enumerate(RUNGS.values(), 1):
                fields = fixed | dict(zip(("precision", "layout", "compile"), setting))
                fields |= {"images_per_s": 100.0 * place, "step_s": 0.1}
                table.append(fields | {"mode": "train", "busy_s": 0.08, "kinds": kinds})
        monkeypatch.setattr(measurements, "recorded_table", lambda *_: pd.DataFrame(table))
        return lab.load_measurements("a GPU")

    def test_gains_follow_from_the_measurements(self, rows: pd.DataFrame) -> None:
        assert np.allclose(rows["images_per_busy_s"], rows["images_per_s"] / 0.8)
        gains = lab.tensor_core_gains(rows)
        assert gains["at_most"].tolist() == [2, 2, 2]  # products take half of the time
        assert gains["tf32"].tolist() == [2, 2, 2]
        assert gains.loc[("unet3d", 2), "fp16_a100"] == pytest.approx(8.2, abs=0.01)

    def test_an_audit_of_the_published_rows(self) -> None:
        found = lab.audit_table(lab.published_rows(), verify.find_problems)
        assert (found.xs("A100", level="gpu") == "speed").all(axis=None)
        likely = lab.published_rows(iterations=200, batch={"resnet50": 64})
        problems = lab.audit_table(likely, verify.find_problems).stack()
        problems = problems[~problems.isin(["", "✓"])]
        assert problems.to_dict() == {("ssd300", "P100", "fp16"): "ratio"}
