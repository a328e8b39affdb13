"""The microscope: its cases, what is told apart, what is found, and what a record says."""

import json
import re
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from cases import for_all

from course.analysis.roofline.bounds import recorded_ceilings
from course.analysis.traces.tensor_cores.rules import labelled
from course.runs import recordings
from labs import lab_microscope as microscope
from labs.lab_microscope import (
    kernel_calls as looked,
)
from labs.lab_microscope import (
    libraries,
    names,
)
from labs.lab_microscope import (
    measurements as measured,
)
from labs.lab_microscope import (
    records as record,
)
from labs.lab_microscope import (
    solutions as given,
)
from labs.lab_microscope.cases import Convolution, Product
from labs.lab_microscope.libraries import CudnnConvolution

CPU = torch.device("cpu")
SHORT = (
    (looked, "BATCH_S", 0.002),
    (looked, "REPEATS", 2),
    (measured, "TRY_S", 0.004),
    (measured, "HELD_S", 0.01),
)


@for_all("stored", ["NN", "NT", "TN", "TT"])
def test_a_product_stores_its_matrices_as_asked(stored: str) -> None:
    call = Product(5, 7, 3, "fp32", stored).call(CPU)
    a, b = (cell.cell_contents for cell in call.__closure__)
    assert call().shape == (5, 7) and torch.equal(call(), a @ b)
    for matrix, how in ((a, stored[0]), (b, stored[1])):
        assert matrix.stride() == ((1, len(matrix)) if how == "T" else (matrix.shape[1], 1))


def test_what_is_refused_leaves_all_threads_to_what_follows() -> None:
    """What PyTorch refuses when it is called, and not when it is made: its cores come back."""

    def refuse() -> None:
        raise RuntimeError("not implemented")

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    case = SimpleNamespace(dtype="fp64", call=lambda device: refuse)
    with pytest.raises(RuntimeError, match="not implemented"):
        looked.times(case, CPU)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(threads)


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
    parts = looked.between([(name, float(at)) for at, name in enumerate(seen)])
    assert parts == [(("gemm", 2.0), ("splitK", 3.0)), (("conv", 8.0),)]


def test_shapes_vary_one_side_at_a_time() -> None:
    cases = measured.products()
    assert len(cases) == len(set(cases)) == 7 * 13 + 3 * 4
    near, far, line = measured.grids().values()
    assert len(near) == 17**2 and len({case.m for case in near + far + line}) == 1
    assert {case.k for case in line} == {4096} and len(far) == 8 * 32


def test_the_largest_is_the_fastest_of_all_that_were_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "SOUGHT", {"fp32": 4})
    for where, name, short in SHORT:
        monkeypatch.setattr(where, name, short)
    found = measured.largest("fp32", CPU, measured.Names(), sides=(16, 48))
    rates = {(m, n, k): m * n * k / us for m, n, k, us in found["tried"]}
    assert max(rates, key=rates.get) == (found["m"], found["n"], found["k"])
    assert {(16, 16, 48), (48, 48, 48)} < {*rates} and len(rates) > 8
    assert found["normal"]["us"] > 0 and found["zeros"]["iqr_us"] >= 0 and found["cold_us"] > 0


def test_the_kernel_that_multiplies_is_found_among_helpers() -> None:
    nvjet, ffma = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_NNN", "sm80_xmma_gemm_f32_ffma_kernel"
    assert names.main_kernel(["nchwToNhwcKernel", nvjet, "splitKreduce_kernel"]) == nvjet
    assert names.main_kernel(["Memset (Device)", ffma, "splitKreduce_kernel"]) == ffma
    fourier = ["void flip_filter<float>", "fft2d_r2c_64x64", "gemm_cf32cf32_ffma", "fft2d_c2r"]
    assert names.main_kernel(fourier) == "gemm_cf32cf32_ffma"
    assert names.main_kernel(["cudnn::convertTensor_kernel<__half>", ffma]) == ffma
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


NVJET = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NNN"


@pytest.fixture(scope="module")
def seen() -> record.Seen:
    """What the benchmark's own path measures, in small and on a CPU, which has no kernels: one of
    an H100's is put in their place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measured, "BASE", Product(16, 16, 16))
        for name, short in (("NEAR", (15, 16)), ("FAR_K", (8, 16)), ("FAR_N", (16, 32))):
            patch.setattr(measured, name, short)
        patch.setattr(measured, "LINE", (16, 24, 32))
        patch.setattr(measured, "MORE", (1,))
        patch.setattr(measured, "CHANNELS", (8,))
        patch.setattr(measured, "SOUGHT", {"bf16": 0, "fp32": 0})
        for where, name, shorter in SHORT:
            patch.setattr(where, name, shorter)
        patch.setattr(measured, "largest", partial(measured.largest, sides=(16, 32)))
        patch.setattr(measured, "convolutions", lambda: [Convolution(8, 8, px=4, images=1)])
        parts = {name: part(measured.Names()) for name, part in measured.parts(CPU).items()}
    for table in ("near", "far", "line"):
        parts[table]["kernels"] = [[0] for _ in parts[table]["us"]]
    for row in [*parts["products"], *parts["convolutions"]]:
        row["kernels"] = [0]
    known = {"machine": "NVIDIA H100 of this test", "date": "2026-11-25", "torch": "2.11.0"}
    return record.seen(json.loads(json.dumps(parts | known | {"names": [NVJET]})))


def test_what_is_measured_is_read(seen: record.Seen) -> None:
    assert seen.machine == "NVIDIA H100 of this test (recorded 2026-11-25, PyTorch 2.11.0)"
    done = seen.products.dropna(subset="us")
    assert (done["kernel"] == NVJET).all() and (done["tensor_cores"] == "used").all()
    rate = done["m"] * done["n"] * done["k"] * 2 / done["us"] / 1e6
    pd.testing.assert_series_equal(rate, done["tflop_per_s"], check_names=False)
    assert "tf32" in seen.products.set_index("dtype").loc["tf32", "said"].iloc[0]
    assert seen.line["n"].tolist() == [16, 24, 32] and set(seen.line["tile"]) == {"128 x 256"}
    best = seen.largest.loc["bf16"]
    assert best["published"] == 989 and best["share"] == best["tflop_per_s"] / 989
    assert "NVIDIA" in seen.cublas["said"].iloc[0]  # no GPU here
    with pytest.raises(ValueError, match="no microscope is recorded for 'nvidia-h200'"):
        record.recorded("nvidia-h200")


def test_what_is_measured_is_drawn(seen: record.Seen) -> None:
    draw = microscope.figures
    assert " TFLOP/s, at K = " in draw.near(seen.near).alt
    assert " TFLOP/s, at K = " in draw.far(seen.far).alt
    assert "; 128 x 256: 16: " in draw.line(seen.line).alt
    assert "data sheet: bf16 989" in draw.largest(seen.largest).alt


def test_turns_are_filled_as_tiles_fit(seen: record.Seen) -> None:
    (share,) = microscope.plot_filled(seen.line.head(1).assign(m=4096, n=4096))
    assert share == pytest.approx(512 / (4 * 132))
    assert microscope.plot_filled(seen.line.assign(tile="")).empty


def test_this_machine_has_a_map_and_no_gpu() -> None:
    table = microscope.near(reach=1)
    assert len(table) == 9 and table["tflop_per_s"].gt(0).all() and table["k"].nunique() == 3
    if not torch.cuda.is_available():
        assert microscope.on_gpu() is None


def test_a_gpu_without_a_format_has_all_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As an A100, which refuses fp8."""
    here = import_module("labs.lab_microscope.local")  # whose name a function has, too
    saved = recordings.load("nvidia-h100")["microscope"]

    def refuse(_: measured.Names) -> None:
        raise RuntimeError("torch._scaled_mm needs a newer GPU\nand more")

    parts = {name: (lambda _, found=found: found) for name, found in saved.items()}
    parts |= {"largest_fp8": refuse, "names": lambda kept: kept.all.extend(saved["names"])}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(here, "Recorder", lambda _: SimpleNamespace(describe=lambda _: saved))
    monkeypatch.setattr(here.measured, "parts", lambda _: parts)
    known = microscope.recorded().largest
    assert [*microscope.on_gpu().largest.index] == [name for name in known.index if name != "fp8"]
    said = "largest_fp8 is left out: torch._scaled_mm needs a newer GPU\n"
    assert capsys.readouterr().out == said
    monkeypatch.setattr(here.measured, "parts", lambda _: {"near": refuse})
    with pytest.raises(RuntimeError, match="newer GPU"):
        microscope.on_gpu()


def test_the_ceiling_is_the_largest_rate_that_was_found() -> None:
    found, usual = microscope.ceilings(), recorded_ceilings("nvidia-h100")
    largest = microscope.recorded().largest["tflop_per_s"]
    assert found.flop_per_s == {name: 1e12 * largest[name] for name in usual.flop_per_s}
    assert (found.bytes_per_s, found.machine) == (usual.bytes_per_s, usual.machine)
    assert found.source == "largest products, recorded 2026-11-25, PyTorch 2.11.0"


def test_records_are_drawn() -> None:
    draw = microscope.figures
    both = [microscope.channels(each) for each in ("bf16", "tf32")]
    assert "widest load: 2 bytes: 57: 88.6, " in draw.channels(*both).alt
    odd = draw.odd(microscope.odd(microscope.recorded().products)).alt
    assert "fp8: 103, int8: 87; N = 4,097" in odd and "fp8: refused, int8: refused" in odd


def test_kernels_say_for_whom_they_were_written() -> None:
    assert names.family(NVJET) == "nvjet, Hopper"
    turing = "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_nn_align1>()"
    assert names.family(turing) == "align1, Turing"
    assert names.family("sm80_xmma_gemm_f32_ffma_kernel") == "Ampere"
    assert names.family("gemv2T_kernel_val") == ""


def test_one_side_is_longer(seen: record.Seen) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "BASE", Product(16, 16, 16))
        table = microscope.odd(seen.products)
    assert table.loc["fp32", ["none", "M", "N", "K"]].gt(0).all()
    assert table.loc["tf32", ["none", "M", "N", "K"]].isna().all()


def test_counters_stand_beside_the_rule() -> None:
    table = microscope.beside_rule(microscope.recorded().counters)
    odd = table[table["k"] % 2 + table["n"] % 2 > 0].set_index("dtype")["load"]
    assert odd["bf16"].eq(2).all() and odd["tf32"].eq(4).all() and odd["fp64"].eq(8).all()
    assert table.loc[table["dtype"] == "fp32", "tensor_active"].lt(0.001).all()


def test_a_convolution_is_found_in_each_step() -> None:
    table = microscope.in_steps("64 to 64 channels, 3 x 3")
    flop = Convolution(64, 64, images=256).flop
    assert (flop / table["us"] / 1e6).tolist() == pytest.approx(table["tflop_per_s"].tolist())
    assert table["tensor_active"].notna().all()
    # What the kernels' counter says agrees with what their names say.
    assert (table["tensor_active"].gt(0.15) == table["tensor_cores"].eq("used")).all()
    with pytest.raises(ValueError, match="convolution='last': choose one of first, 3 to 64"):
        microscope.in_steps("last")
