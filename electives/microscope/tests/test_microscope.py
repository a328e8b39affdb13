"""The microscope: cases, kernels' names, and tables of what was measured."""

from pathlib import Path

import pytest
import torch

from electives import microscope as lab
from electives.microscope import kernel_names, permission, sparsity, timing, wmma
from electives.microscope.cases import Convolution, Product

CPU = torch.device("cpu")
NVJET = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NNN"


def test_operations_are_counted() -> None:
    assert Convolution(6, 8, px=4, images=2).flop == 2 * (2 * 16) * 9 * 6 * 8
    depthwise = Convolution(8, 8, "fp32", px=4, images=2, groups=8)
    assert depthwise.flop == 2 * (2 * 16) * 9 * 8
    assert depthwise.call(torch.device("cpu"))().shape == (2, 8, 4, 4)


def test_kernels_are_separated_by_markers() -> None:
    spin = "at::cuda::(anonymous namespace)::spin_kernel(long)"
    names = ["fill", spin, "gemm", "splitK", spin, "fill", spin, "Memset (Device)", "conv", spin]
    parts = timing.split_at_markers({"kernel": name} for name in names)
    assert [[kernel["kernel"] for kernel in part] for part in parts] == [
        ["gemm", "splitK"],
        ["conv"],
    ]


@pytest.mark.parametrize(
    ("kernels", "main"),
    [
        (["nchwToNhwcKernel", NVJET, "splitKreduce_kernel"], NVJET),
        (["Memset (Device)", "gemm_f32_ffma", "cudnn::convertTensor_kernel"], "gemm_f32_ffma"),
        (["void flip_filter<float>", "fft2d_r2c_64x64", "gemm_cf32_ffma"], "gemm_cf32_ffma"),
    ],
)
def test_the_main_kernel_is_the_one_that_multiplies(kernels: list[str], main: str) -> None:
    assert kernel_names.main_kernel(kernels) == main


@pytest.mark.parametrize(
    ("kernel", "tile", "family"),
    [
        (NVJET, "128 x 256", "nvjet, Hopper"),
        ("sm80_xmma_gemm_bf16_nn_n_tilesize64x128x32_stage4", "64 x 128", "Ampere"),
    ],
)
def test_names_show_tile_and_family(kernel: str, tile: str, family: str) -> None:
    assert (kernel_names.tile(kernel), kernel_names.family(kernel)) == (tile, family)


def test_this_machine_is_measured() -> None:
    cases = Product(32, 33, 34, "fp32"), Convolution(4, 4, "fp32", px=8, images=1)
    table = lab.time_cases(*cases)
    assert table["tflop_per_s"].gt(0).all() and table["what"].tolist() == ["product", "convolution"]
    assert not table.eq("").all().any()  # a CPU has no kernels to name


def test_counters_are_grouped_by_case() -> None:
    table = lab.counters_by_case(lab.load_measurements().counters)
    assert len(table) == 25
    padded = table.loc["convolution, 65 to 65, NHWC, bf16"]
    assert padded["others_us"] == pytest.approx(41.184 + 3.712 + 39.968)
    assert table.loc["product, M = 4,096, N = 4,096, K = 4,096, fp32", "tensor_active"] == 0
    with pytest.raises(ValueError, match="no microscope is recorded for 'nvidia-h200'"):
        lab.load_measurements("nvidia-h200")


@pytest.mark.parametrize(
    ("restricted", "capabilities", "words"),
    [
        (None, 0, "no NVIDIA driver"),
        (0, 0, "lets all users"),
        (1, 1 << 21, "has SYS_ADMIN"),
        (1, 0xA80425FB, "expect ERR_NVGPUCTRPERM"),  # Docker's default capabilities
    ],
)
def test_permission_to_read_counters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restricted: int, capabilities: int, words: str
) -> None:
    driver, process = tmp_path / "params", tmp_path / "status"
    if restricted is not None:
        driver.write_text(f"EnableMSI: 1\nRmProfilingAdminOnly: {restricted}\n")
    process.write_text(f"Name:\tpython\nCapEff:\t{capabilities:016x}\n")
    monkeypatch.setattr(permission, "DRIVER", driver)
    monkeypatch.setattr(permission, "PROCESS", process)
    assert words in permission.counter_permission()


def test_pruned_weights_stay_zero_and_recover() -> None:
    (row,) = lab.pruned_accuracy(sparsity.prune, seeds=1).to_dict("records")
    assert row["zeros"] == 0.5 and row["pruned"] < min(row["trained"], row["fine_tuned"])
    speeds = lab.sparse_speeds().loc[(16384, 4096, 16384)]
    assert speeds["times_as_fast"] == pytest.approx(1.27, abs=0.005)


def test_recorded_instructions() -> None:
    table = wmma.library_instructions()["kernels"]
    assert table["HGMMA"] > table["HMMA"] > 0
    assert wmma.MACHINE_CODE.read_text().count("HMMA.16816.F32") == 2
