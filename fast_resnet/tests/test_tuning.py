"""Which tiles a GPU was found to run fastest is shipped, or kept where the user's caches lie."""

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="the kernels are written in Triton, which is not here")

from triton.runtime.errors import OutOfResources  # noqa: E402

from fast_resnet import tuning  # noqa: E402
from fast_resnet.tuning import Choices, Saved  # noqa: E402


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fast_resnet"


def test_an_h100_has_choices_from_the_start() -> None:
    chosen = Saved("NVIDIA H100 80GB HBM3").chosen
    assert chosen["gram 3136 64 64"] == "bmm64"
    assert len(chosen) > 50


def test_a_file_beside_is_of_the_gpu_that_its_name_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is listed that is not there, and one that is put there needs no list."""
    assert all(path.is_file() for path in tuning.SHIPPED.values())
    for name, text in {
        "a100": '{"stats 7 512": "a100"}',
        "h100": '{"stats 7 512": "h100"}',
    }.items():
        (tmp_path / f"tuned_{name}.json").write_text(text)
    monkeypatch.setattr(tuning, "SHIPPED", tuning.shipped(tmp_path))
    assert [*tuning.SHIPPED] == ["h100", "a100"]  # what others begin with comes first
    chosen = [Saved(gpu).chosen for gpu in ("NVIDIA A100-SXM4-40GB", "NVIDIA H200")]
    assert chosen == [{"stats 7 512": "a100"}, {"stats 7 512": "h100"}]


def test_another_gpu_keeps_what_a_run_has_chosen(cache: Path) -> None:
    saved = Saved("NVIDIA L40S")
    assert saved.chosen == Saved("NVIDIA H100 80GB HBM3").chosen  # a guess to begin with
    saved.write()
    assert not cache.exists()  # nothing to write
    saved.chosen["stats 7 512"] = "(4096, 8, 4)"
    other = Saved("NVIDIA L40S")
    other.chosen["stats 7 1024"] = "(4096, 8, 8)"
    for each in (saved, other):
        each.write()
    both = saved.chosen | other.chosen
    assert len(both) == len(Saved("NVIDIA H100 80GB HBM3").chosen) + 2
    assert json.loads((cache / "nvidia-l40s.json").read_text()) == both
    assert Saved("NVIDIA L40S").chosen == both
    assert "stats 7 512" not in Saved("NVIDIA A100-SXM4-40GB").chosen


def test_a_file_that_is_broken_is_made_anew(cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / "nvidia-l40s.json").write_text("{")
    assert len(Saved("NVIDIA L40S").chosen) > 50


def test_a_cache_that_cannot_be_written_is_told(cache: Path, capsys: pytest.CaptureFixture) -> None:
    cache.write_text("a file, where a folder should be")
    saved = Saved("NVIDIA L40S")
    saved.chosen["stats 7 512"] = "(4096, 8, 4)"
    saved.write()
    assert "nvidia-l40s.json could not be written" in capsys.readouterr().err


def test_a_choice_that_this_gpu_cannot_hold_is_made_anew() -> None:
    def large() -> torch.Tensor:
        raise OutOfResources(250_000, 100_000, "shared memory")

    ours = Choices(torch.device("cpu"), {"conv3 49 512 2048 True": "large"})
    candidates = {"small": lambda: torch.ones(1), "large": large}
    assert ours.run("conv3", 49, (512, 2048, True), candidates) == 1
    assert ours.chosen == {"conv3 49 512 2048 True": "small"}
