"""The microscope: its cases, what is told apart, what is found, and what a record says."""

import json
import re
from pathlib import Path

import pytest
import torch

from benchmarks import microscope as benchmark
from course.topics import microscope
from course.topics.microscope import (
    Convolution,
    Product,
    given,
    libraries,
    looked,
    measured,
    names,
    record,
)
from course.topics.microscope.libraries import CudnnConvolution
from course.traces.tensor_cores.rules import labelled

CPU = torch.device("cpu")


@pytest.mark.parametrize("stored", ["NN", "NT", "TN", "TT"])
def test_a_product_stores_its_matrices_as_asked(stored: str) -> None:
    call = Product(5, 7, 3, "fp32", stored).call(CPU)
    a, b = (cell.cell_contents for cell in call.__closure__)
    assert call().shape == (5, 7) and torch.equal(call(), a @ b)
    for matrix, how in ((a, stored[0]), (b, stored[1])):
        assert matrix.stride() == ((1, len(matrix)) if how == "T" else (matrix.shape[1], 1))


def test_operations_are_counted() -> None:
    assert Product(2, 3, 5).flop == 2 * 2 * 3 * 5
    assert Convolution(6, 8, px=4, images=2).flop == 2 * (2 * 16) * 9 * 6 * 8
    assert Convolution(64, 64, groups=64, px=4, images=2).flop == 2 * (2 * 16) * 9 * 64
    assert CudnnConvolution("fp16", "NHWC", "FMA_MATH").flop == Convolution(64, 64).flop


def test_a_convolution_keeps_its_layout() -> None:
    for layout, order in (("NCHW", torch.contiguous_format), ("NHWC", torch.channels_last)):
        made = Convolution(8, 16, "fp32", layout, px=6, images=2).call(CPU)()
        assert made.shape == (2, 16, 6, 6) and made.is_contiguous(memory_format=order)


def test_an_unknown_format_lists_what_there_is() -> None:
    with pytest.raises(ValueError, match="dtype='fp4': choose fp64, int8, fp8, fp32"):
        Product(8, 8, 8, "fp4").call(CPU)


def test_kernels_are_told_apart_by_the_markers_between() -> None:
    spin = "at::cuda::(anonymous namespace)::spin_kernel(long)"
    seen = ["fill", spin, "gemm", "splitK", spin, "fill", spin, "Memset (Device)", "conv", spin]
    assert looked.between(seen) == [("gemm", "splitK"), ("conv",)]
    rows = [{"kernel": each, "duration_s": 2e-6, "tensor_active": 0.5} for each in seen[1:5]]
    (row,) = benchmark.by_case([Product(1, 2, 3)], rows, found := measured.Names())
    assert row["kernels"] == [0, 1] and row["us"] == [2.0, 2.0] and found.all == ["gemm", "splitK"]
    with pytest.raises(ValueError, match="shorter"):
        benchmark.by_case([Product(1, 2, 3)] * 2, rows, found)


def test_shapes_vary_one_side_at_a_time() -> None:
    cases = measured.products()
    assert len(cases) == len(set(cases)) == 7 * 13 + 3 * 4
    near, far, line = measured.grids().values()
    assert len(near) == 17**2 and len({case.m for case in near + far + line}) == 1
    assert {case.k for case in line} == {4096} and len(far) == 8 * 32


def test_the_largest_is_the_fastest_of_all_that_were_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "SOUGHT", {"fp32": 4})
    found = measured.largest("fp32", CPU, measured.Names(), sides=(16, 48))
    rates = {(m, n, k): m * n * k / us for m, n, k, us in found["tried"]}
    assert max(rates, key=rates.get) == (found["m"], found["n"], found["k"])
    assert {(16, 16, 48), (48, 48, 48)} < {*rates} and len(rates) > 8
    assert found["normal"]["us"] > 0 and found["zeros"]["us"] > 0


def test_each_part_is_saved_and_what_fails_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "BASE", Product(16, 16, 16))
    monkeypatch.setattr(measured, "LINE", (16, 24))
    monkeypatch.setattr(measured, "MORE", (1,))
    monkeypatch.setattr(benchmark.shutil, "which", lambda *_, **__: None)
    out = tmp_path / "out.json"
    benchmark.main(str(out), "products", "line", "counters")
    (found,) = json.loads(out.read_text()).values()
    assert found["line"]["n"] == [16, 24] and found["line"]["m"] == [16, 16]
    assert "no ncu on this machine" in found["failed"]["counters"] and "counters" not in found
    done = [row for row in found["products"] if "us" in row]
    assert {row["dtype"] for row in done} >= {"bf16", "fp32", "fp64"}
    (tf32, *_) = [row for row in found["products"] if row["dtype"] == "tf32"]
    assert "tf32" in tf32["said"] and "us" not in tf32


def test_the_kernel_that_multiplies_is_found_among_helpers() -> None:
    nvjet, ffma = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_NNN", "sm80_xmma_gemm_f32_ffma_kernel"
    assert names.main_kernel(["nchwToNhwcKernel", nvjet, "splitKreduce_kernel"]) == nvjet
    assert names.main_kernel(["Memset (Device)", ffma, "splitKreduce_kernel"]) == ffma
    assert names.main_kernel([]) == ""
    assert record.tile(nvjet) == (128, 256)
    assert record.tile("sm80_xmma_gemm_bf16_nn_n_tilesize64x128x32_stage4") == (64, 128)
    assert record.tile("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_nn") == (128, 64)
    assert record.tile("gemv2T_kernel_val") == (0, 0)


def test_the_few_names_have_their_labels_truth() -> None:
    truth = labelled().set_index("kernel")["truth"]
    assert [each.used for each in names.FEW] == [truth[each.name] == "used" for each in names.FEW]
    assert sum(each.used for each in names.FEW) == 7
    table = names.told(given.uses_tensor_cores)
    assert (table["told"] == table["truth"]).all()


def test_generations_are_those_of_labels_and_data_sheets() -> None:
    table = microscope.generations()
    evidence = labelled().groupby("generation")["evidence"].agg(" ".join)
    for architecture, row in table.iterrows():
        words = row["instruction"].partition("x256")[0].replace("HGMMA.64", "HGMMA.64x256x16")
        assert words in evidence[architecture.lower()], words
        assert row["flop"] == 2 * row["m"] * row["n"] * row["k"]
    clocks = table["flop_per_clock"].dropna()
    assert (abs(clocks / [1024, 1024, 2048, 4096] - 1) < 0.005).all()


def test_the_libraries_names_have_their_headers_numbers() -> None:
    text = ""
    for folder in libraries.folders():
        for name in ("cublas_api.h", "library_types.h", "cudnn_ops_v9.h", "cudnn_graph_v9.h"):
            text += path.read_text() if (path := folder / "include" / name).exists() else ""
    if "CUDNN_FMA_MATH" not in text or "CUBLAS_PEDANTIC_MATH" not in text:
        pytest.skip("the headers of cuBLAS and cuDNN are not here")
    for name, number in libraries.VALUES.items():
        assert re.search(rf"\b{name}\s*=\s*{number}\b", text), name


def test_listings_compile_where_headers_are() -> None:
    for row in libraries.tried().itertuples():
        if row.compiles == "no" and "is not here" in row.said:
            pytest.skip(row.said)
        assert row.compiles == "yes", row.said


def test_what_a_listing_misses_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(libraries, "folders", list)
    with pytest.raises(FileNotFoundError, match="cublas_v2.h is not here: it comes with PyTorch"):
        libraries.compiled("products", tmp_path)
    monkeypatch.setattr(libraries.shutil, "which", lambda _: None)
    with pytest.raises(FileNotFoundError, match="no C.. compiler is here"):
        libraries.compiled("products", tmp_path)


def test_this_machine_is_seen() -> None:
    table = microscope.here(Product(32, 33, 34, "fp32"), Convolution(4, 4, "fp32", px=8, images=1))
    assert table["tflop_per_s"].gt(0).all() and table["what"].tolist() == ["product", "convolution"]


@pytest.fixture(scope="module")
def h100() -> microscope.record.Seen:
    return microscope.recorded("nvidia-h100")


def test_a_record_is_read(h100: microscope.record.Seen) -> None:
    assert "NVIDIA H100" in h100.machine and "recorded" in h100.machine
    for table in (h100.products, h100.convolutions, h100.near, h100.far, h100.line):
        assert (table["machine"] == h100.machine).all()
        done = table.dropna(subset="us")
        assert done["tflop_per_s"].between(0.1, 1979).all() and (done["kernel"] != "").all()
    assert len(h100.near) == 289 and h100.largest.index[0] == "bf16"
    assert (h100.largest["share"] < 1).all()
    with pytest.raises(ValueError, match="no microscope is recorded for 'nvidia-h200': nvidia-h1"):
        microscope.recorded("nvidia-h200")


def test_the_roofline_takes_the_largest_products(h100: microscope.record.Seen) -> None:
    usual = record.recorded_ceilings("nvidia-h100")
    found = microscope.ceilings("nvidia-h100")
    for name, rate in found.flop_per_s.items():
        largest = 1e12 * h100.largest["tflop_per_s"].get(name, 0)
        assert rate == max(usual.flop_per_s[name], largest)
    assert found.source.startswith("largest product found") and "recorded" in found.source


def test_pictures_say_what_they_show(h100: microscope.record.Seen) -> None:
    draw = microscope.pictures
    assert draw.sides(h100.products).alt.startswith("TFLOP/s of 4,096 × 4,096 × 4,096: ")
    assert "around 4,096: from" in draw.near(h100.near).alt
    assert "at most" in draw.far(h100.far).alt
    assert "tiles of the kernels: " in draw.line(h100.line).alt
    assert "of 22 on Tensor Cores" in draw.convolutions(h100.convolutions).alt
    assert "of 989" in draw.largest(h100.largest).alt


def test_turns_are_filled_as_tiles_fit(h100: microscope.record.Seen) -> None:
    table = h100.line.head(1).assign(m=4096, n=4096, tile="128 x 256")
    (share,) = microscope.pictures.filled(table)
    assert share == pytest.approx(512 / (4 * 132))
    shares = microscope.pictures.filled(h100.line)
    assert ((shares > 0) & (shares <= 1)).all()
