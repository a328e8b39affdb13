"""The microscope: cases, kernels' names, and tables of what was measured."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from cases import for_all

from course.analysis.tensor_cores.scores import labelled
from labs import lab_microscope as lab
from labs.lab_microscope import kernel_names, libraries, measurements, timing
from labs.lab_microscope.cases import Convolution, Product
from research import cuda_libraries

CPU = torch.device("cpu")
NVJET = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NNN"


@for_all("stored", ["NN", "NT", "TN", "TT"])
def test_a_product_stores_its_matrices_in_this_order(stored: str) -> None:
    call = Product(5, 7, 3, "fp32", stored).call(CPU)
    a, b = (cell.cell_contents for cell in call.__closure__)
    assert call().shape == (5, 7) and torch.equal(call(), a @ b)
    for matrix, order in zip((a, b), stored):
        assert matrix.stride() == ((1, len(matrix)) if order == "T" else (matrix.shape[1], 1))


def test_operations_are_counted() -> None:
    assert Product(2, 3, 5).flop == 2 * 2 * 3 * 5
    assert Convolution(6, 8, px=4, images=2).flop == 2 * (2 * 16) * 9 * 6 * 8
    assert Convolution(64, 64, groups=64, px=4, images=2).flop == 2 * (2 * 16) * 9 * 64


def test_an_unknown_format_names_the_choices() -> None:
    with pytest.raises(ValueError, match="dtype='fp4': choose fp64, fp32, tf32"):
        Product(8, 8, 8, "fp4").call(CPU)


def test_kernels_are_separated_by_markers() -> None:
    spin = "at::cuda::(anonymous namespace)::spin_kernel(long)"
    names = ["fill", spin, "gemm", "splitK", spin, "fill", spin, "Memset (Device)", "conv", spin]
    parts = timing.split_at_markers({"kernel": name} for name in names)
    assert [[kernel["kernel"] for kernel in part] for part in parts] == [
        ["gemm", "splitK"],
        ["conv"],
    ]


def test_the_largest_rate_is_the_fastest_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    def rate(case: Product, *_: object, zeros: bool = False) -> dict[str, float]:
        return {"us": case.flop / (case.m + 2 * case.n - case.k % 5) / (1 + zeros)}

    monkeypatch.setattr(timing, "time_without_pause", rate)  # it needs a GPU
    monkeypatch.setitem(measurements.TRIALS, "fp32", 4)
    names = measurements.KernelNames()
    best = measurements.search_largest_rate("fp32", CPU, names, sides=(16, 48))
    rates = {(m, n, k): m * n * k / us for m, n, k, us in best["tried"]}
    assert max(rates, key=rates.get) == (best["m"], best["n"], best["k"])
    assert {(16, 16, 48), (48, 48, 48)} < {*rates} and len(rates) > 8


@for_all(
    ("kernels", "main"),
    [
        (["nchwToNhwcKernel", NVJET, "splitKreduce_kernel"], NVJET),
        (["Memset (Device)", "gemm_f32_ffma", "cudnn::convertTensor_kernel"], "gemm_f32_ffma"),
        (["void flip_filter<float>", "fft2d_r2c_64x64", "gemm_cf32_ffma"], "gemm_cf32_ffma"),
        ([], ""),
    ],
)
def test_the_main_kernel_is_the_one_that_multiplies(kernels: list[str], main: str) -> None:
    assert kernel_names.main_kernel(kernels) == main


@for_all(
    ("kernel", "tile", "family"),
    [
        (NVJET, "128 x 256", "nvjet, Hopper"),
        ("sm80_xmma_gemm_bf16_nn_n_tilesize64x128x32_stage4", "64 x 128", "Ampere"),
        ("void cutlass::Kernel2<cutlass_75_s1688gemm_bf16_256x128_nn_align1>()", "256 x 128", None),
        ("gemv2T_kernel_val", "", ""),
    ],
)
def test_names_show_tile_and_family(kernel: str, tile: str, family: str | None) -> None:
    assert kernel_names.tile(kernel) == tile
    assert kernel_names.family(kernel) == ("align1, Turing" if family is None else family)


def test_generations_agree_with_labels_and_data_sheets() -> None:
    table = lab.generations()
    evidence = labelled().groupby("generation")["evidence"].agg(" ".join)
    for architecture, row in table.iterrows():
        assert row["instruction"] in evidence[architecture.lower()]
    clocks = table["flop_per_clock"].dropna()
    assert (abs(clocks / [1024, 1024, 2048, 4096] - 1) < 0.005).all()


def test_the_libraries_numbers_are_those_of_their_headers() -> None:
    home = libraries.Path(torch.__file__).parent.parent / "nvidia"
    names = ("cublas_api.h", "library_types.h", "cudnn_ops_v9.h", "cudnn_graph_v9.h")
    text = "".join(path.read_text() for name in names for path in home.glob(f"*/include/{name}"))
    if "CUDNN_FMA_MATH" not in text or "CUBLAS_PEDANTIC_MATH" not in text:
        pytest.skip("the headers of cuBLAS and cuDNN are missing")
    for name, number in cuda_libraries.VALUES.items():
        assert re.search(rf"\b{name}\s*=\s*{number}\b", text), name


def test_listings_compile_or_say_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in lab.compile_listings().itertuples():
        assert row.compiles == "yes" or "is missing: install" in row.message
    monkeypatch.setattr(libraries.shutil, "which", lambda _: None)
    assert lab.compile_listings()["message"].str.contains("C.. compiler is missing").all()


def test_this_machine_is_measured() -> None:
    cases = Product(32, 33, 34, "fp32"), Convolution(4, 4, "fp32", px=8, images=1)
    table = lab.time_cases(*cases)
    assert table["tflop_per_s"].gt(0).all() and table["what"].tolist() == ["product", "convolution"]
    table = lab.map_this_machine(reach=1)
    assert len(table) == 9 and table["tflop_per_s"].gt(0).all() and table["k"].nunique() == 3
    assert " TFLOP/s, at K = " in lab.plot_near_map(table).alt


def test_a_gpu_without_a_format_has_all_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Like an A100, which refuses fp8; measurements are the recorded ones."""
    saved: dict[str, Any] = measurements.records.part("nvidia-h100", "microscope")

    def refuse(_: object) -> None:
        raise RuntimeError("torch._scaled_mm needs a newer GPU\nand more")

    def store_names(names: list[str]) -> None:
        names += saved["names"]

    parts = {name: (lambda _, part=part: part) for name, part in saved.items() if name in TABLES}
    parts |= {name: (lambda _, part=part: part) for name, part in saved.items() if "_" in name}
    parts |= {"largest_fp8": refuse, "store": store_names}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(measurements, "_machine", lambda _: saved["machine"])
    monkeypatch.setattr(measurements, "parts", lambda _: parts)
    formats = [*lab.load_measurements().largest.index]
    assert [*lab.measure_gpu().largest.index] == [name for name in formats if name != "fp8"]
    output = capsys.readouterr().out
    assert output == "largest_fp8 is left out: torch._scaled_mm needs a newer GPU\n"
    monkeypatch.setattr(measurements, "parts", lambda _: {"near": refuse})
    with pytest.raises(RuntimeError, match="newer GPU"):
        lab.measure_gpu()


TABLES = ("products", "convolutions", "near", "far", "line")


def test_measured_cases_become_tables() -> None:
    names = measurements.KernelNames()
    base = Product(16, 16, 16, "fp32")
    cases = [base, replace(base, dtype="tf32"), Convolution(8, 8, "fp32", px=4, images=1)]
    rows = [*measurements.measure_cases(cases, CPU, names)]
    grid = measurements.measure_grid([base, replace(base, n=24)], CPU, names)
    raw = {"machine": "NVIDIA H100", "date": "2026-11-25", "torch": "2.11.0", "names": names}
    raw |= {"products": rows, **dict.fromkeys(("near", "far", "line"), grid)}
    tables = measurements.records.build_tables(raw)
    assert tables.machine == "NVIDIA H100 (recorded 2026-11-25, PyTorch 2.11.0)"
    measured = tables.products.dropna(subset="us")
    assert measured["tflop_per_s"].gt(0).all() and "tf32" in tables.products["said"].iloc[0]
    assert tables.line["n"].tolist() == [16, 24] and tables.largest.empty


def test_recorded_measurements_are_drawn() -> None:
    h100 = lab.load_measurements()
    assert "widest load: 2 bytes: 57: 88.6, " in lab.plot_channels(lab.channel_sweep("bf16")).alt
    odd = lab.plot_odd_sides(lab.odd_side_rates(h100.products)).alt
    assert "fp8: 103, int8: 87; N = 4,097" in odd and "fp8: refused, int8: refused" in odd
    assert " TFLOP/s, at K = " in lab.plot_far_map(h100.far).alt
    assert "128 x 256: " in lab.plot_waves(h100.line).alt
    assert "data sheet: bf16 989" in lab.plot_largest_rates(h100.largest).alt
    rates = h100.largest["tflop_per_s"]
    ceilings = lab.measured_ceilings().flop_per_s
    assert ceilings == {name: 1e12 * rates[name] for name in ceilings}
    with pytest.raises(ValueError, match="no microscope is recorded for 'nvidia-h200'"):
        lab.load_measurements("nvidia-h200")


def test_counters_agree_with_the_rule_and_the_names() -> None:
    table = lab.counters_by_load(lab.load_measurements().counters)
    odd = table[table["k"] % 2 + table["n"] % 2 > 0].set_index("dtype")["load"]
    assert odd["bf16"].eq(2).all() and odd["tf32"].eq(4).all() and odd["fp64"].eq(8).all()
    assert table.loc[table["dtype"] == "fp32", "tensor_active"].lt(0.001).all()
    steps = lab.convolution_in_steps("64 to 64 channels, 3 x 3")
    rates = Convolution(64, 64, images=256).flop / steps["us"] / 1e6
    assert rates.tolist() == pytest.approx(steps["tflop_per_s"].tolist())
    assert (steps["tensor_active"].gt(0.15) == steps["tensor_cores"].eq("used")).all()
    with pytest.raises(ValueError, match="convolution='last': choose one of first, 3 to 64"):
        lab.convolution_in_steps("last")
