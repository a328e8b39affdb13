"""The microscope: cases, kernels' names, and tables of what was measured."""

from dataclasses import replace

import pytest
import torch

from labs import lab_microscope as lab
from labs.lab_microscope import kernel_names, measurements, timing
from labs.lab_microscope.cases import Convolution, Product

CPU = torch.device("cpu")
NVJET = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NNN"


def test_operations_are_counted() -> None:
    assert Convolution(6, 8, px=4, images=2).flop == 2 * (2 * 16) * 9 * 6 * 8


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
    table = lab.map_this_machine(reach=1)
    assert len(table) == 9 and table["tflop_per_s"].gt(0).all() and table["k"].nunique() == 3
    assert " TFLOP/s, at K = " in lab.plot_near_map(table).alt


def test_refused_cases_are_left_out() -> None:
    base = Product(16, 16, 16, "fp32")
    assert measurements.accepts(base, CPU)
    assert not measurements.accepts(replace(base, dtype="tf32"), CPU)  # no CPU has it


def test_ceilings_are_the_largest_recorded_rates() -> None:
    rates = lab.load_measurements().largest["tflop_per_s"]
    ceilings = lab.measured_ceilings().flop_per_s
    assert ceilings == {name: 1e12 * rates[name] for name in ceilings}
    with pytest.raises(ValueError, match="no microscope is recorded for 'nvidia-h200'"):
        lab.load_measurements("nvidia-h200")


def test_counters_agree_with_the_rule_and_the_names() -> None:
    table = lab.counters_by_load(lab.load_measurements().counters)
    odd = table[table["k"] % 2 + table["n"] % 2 > 0].set_index("dtype")["load"]
    assert odd["bf16"].eq(2).all() and odd["tf32"].eq(4).all() and odd["fp64"].eq(8).all()
    steps = lab.convolution_in_steps("64 to 64 channels, 3 x 3")
    rates = Convolution(64, 64, images=256).flop / steps["us"] / 1e6
    assert rates.tolist() == pytest.approx(steps["tflop_per_s"].tolist())
    with pytest.raises(ValueError, match="convolution='last': choose one of first, 3 to 64"):
        lab.convolution_in_steps("last")
