"""Rules about kernel names are right on kernels whose machine code was read; the report counts."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from cases import for_all
from trace_files import (
    CONV,
    SHARE,
    ncu_row,
    ncu_text,
    onednn_line,
)

from course.analysis.traces import tables
from course.analysis.traces.tensor_cores import report as tensor_cores
from course.analysis.traces.tensor_cores import rules as tensor_core_rules
from course.analysis.traces.tensor_cores import truth
from course.analysis.traces.tensor_cores.pictures import plot_tensor_cores as picture
from course.analysis.traces.tensor_cores.rules import (
    RuleError,
    classify,
    labelled,
    rules,
    score,
)
from course.runs.record import Record, write_record
from course.runs.recordings import trace_path
from course.runs.run import RECORDED, Run

FLIPPED = {"used": "not", "not": "used", "unknown": "not"}


@pytest.fixture(scope="module")
def h100() -> dict[str, tables.Trace]:
    names = {"fp32": "device", "amp": "amp", "channels_last": "channels_last"}
    return {rung: tables.read(trace_path("nvidia-h100", file)) for rung, file in names.items()}


# ---- rules -------------------------------------------------------------------------------------


@for_all("rule", rules(), ids=lambda rule: rule.example[:40])
def test_every_rule_decides_its_own_example(rule) -> None:
    found = classify(rule.example)
    assert found.pattern == rule.pattern, f"an earlier rule decides it: {found.pattern}"
    assert (found.verdict, found.generation, found.why) == (rule.verdict, rule.generation, rule.why)


# Names as DESIGN lists them, newest first; then those that only look so; then what no name tells.
KNOWN = {
    "nvjet_sm100_tst_128x256_64x4_2x1_2cta_v_bz_TNN": ("used", "blackwell"),
    "nvjet_sm90_hsh_64x104_64x10_2x1_v_bz_NNT": ("used", "hopper"),
    "cutlass3x_sm100_tensorop_s128x256x16gemm_bf16_bf16_f32_bf16_bf16": ("used", "blackwell"),
    "cutlass3x_sm90_tensorop_s64x128x16gemm_f16_f16_f32_f16_f16": ("used", "hopper"),
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7": ("used", "hopper"),
    "sm90_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64"
    "_warpgroupsize1x1x1_g1_execute_segment_k_off_kernel__5x_cudnn": ("used", "hopper"),
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn": ("used", "ampere"),
    "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x32x32_stage4"
    "_warpsize4x1x1_g1_tensor16x8x16_execute_kernel__5x_cudnn": ("used", "ampere"),
    "cutlass_tensorop_s1688dgrad_optimized_tf32_256x64_16x4_nhwc": ("used", "ampere"),
    "cutlass_80_tensorop_s16816gemm_f16_64x64_32x6_nn_align8": ("used", "ampere"),
    "cutlass_80_tensorop_d884gemm_32x32_16x5_nn_align1": ("used", "ampere"),
    "turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_stages_32x1_nn": ("used", "turing"),
    "turing_int8_i8816gemm_int8_128x128_ldg16_stages_64x1_nt": ("used", "turing"),
    "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn": ("used", "volta"),
    "volta_h884gemm_256x64_ldg8_nn": ("used", "volta"),
    "Volta_hmma_implicit_gemm_fprop_fp32_nhwc_128x64x16x1": ("used", "volta"),
    "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma"
    "_aligna4_alignc4_execute_kernel__5x_cublas": ("not", ""),
    "cutlass_80_simt_sgemm_128x64_8x5_nn_align1": ("not", ""),
    "void conv2d_c1_k1_nhwc_kernel<__half, __half, __half, float, 5, 1, 8, 3, 3>": ("not", ""),
    "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, true, false>": ("not", ""),
    "nchwToNhwcKernel": ("not", ""),
    "volta_sgemm_128x64_nn": ("not", ""),
    "volta_hgemm_128x64_nn": ("not", ""),
    "implicit_convolve_hhgemm": ("not", ""),
    "volta_scudnn_128x32_relu_medium_nn_v1": ("not", ""),
    "fft2d_r2c_64x64": ("not", ""),
    "triton_tem_fused_mm_relu_0": ("unknown", ""),
    "Kernel2": ("unknown", ""),
    "void acme::frobnicate<float>(float*)": ("unknown", ""),
    "": ("unknown", ""),
}


@for_all("name", KNOWN)
def test_known_names_are_decided_as_the_design_says(name: str) -> None:
    found = classify(name)
    verdict, generation = KNOWN[name]
    assert found.verdict == verdict
    assert not generation or found.generation == generation


@pytest.mark.slow
def test_a_flipped_rule_is_noticed() -> None:
    known, before = labelled(), score()
    of = pd.Series([classify(name).pattern for name in known["kernel"]])
    for at, rule in enumerate(rules()):
        flipped = replace(rule, verdict=FLIPPED[rule.verdict])
        table = (*rules()[:at], flipped, *rules()[at + 1 :])
        if (of == rule.pattern).any():
            after = score(table=table)
            worse = (after["recall"] < before["recall"]) | (
                after["precision"] < before["precision"]
            )
            assert worse.any(), rule.pattern
        else:  # no library has such a kernel to label; the list of known names tells
            assert any(classify(name, table).verdict != said for name, (said, _) in KNOWN.items())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[rule]\n", "no TOML"),
        ("a = 1\n", "holds no rule"),
        ('[[rule]]\npattern = "a"\nverdict = "used"\nexample = "a"\n', "missing ['why']"),
        ('[[rule]]\npattern="a"\nverdict="used"\nexample="a"\nwhy="w"\nname="x"\n', "['name']"),
        ('[[rule]]\npattern="a"\nverdict="yes"\nexample="a"\nwhy="w"\n', "used, not, unknown"),
        ('[[rule]]\npattern="(a"\nverdict="not"\nexample="a"\nwhy="w"\n', "regular expression"),
    ],
)
def test_malformed_rules_are_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "rules.toml"
    with pytest.raises(RuleError, match=r"rules\.toml"):
        rules(path)
    path.write_text(text)
    with pytest.raises(RuleError) as caught:
        rules(path)
    assert words in str(caught.value) and "rules.toml" in str(caught.value)


# ---- score -------------------------------------------------------------------------------------


def test_precision_and_recall_on_labelled_kernels() -> None:
    table = score()
    print(table.round(3).to_string())
    assert set(table["generation"]) == {
        "all",
        "volta",
        "turing",
        "ampere",
        "ada",
        "hopper",
        "blackwell",
    }
    whole = table[table["generation"] == "all"].set_index("part")
    for part in ("development", "held-out"):
        row = whole.loc[part]
        assert row["kernels"] > 200 and row["used"] > 100
        assert row["precision"] >= 0.99 and row["recall"] >= 0.98 and row["decided"] >= 0.9
        assert row["denied"] == 0


def test_labels_are_what_their_header_says() -> None:
    known = labelled()
    assert known["kernel"].is_unique and set(known["truth"]) == {"used", "not"}
    assert set(known["part"]) == {"development", "held-out"}
    assert known["evidence"].str.match(r"SASS sm_\d+\w?: |ncu: [\d.]+%? ?%? of Tensor").all()
    code = known[known["evidence"].str.startswith("SASS")]
    has = ~code["evidence"].str.contains("no MMA")
    assert (has == (code["truth"] == "used")).all()
    counted = known[known["evidence"].str.startswith("ncu")]
    share = counted["evidence"].str.extract(r"([\d.]+)%")[0].astype(float)
    assert (share[counted["truth"] == "used"] >= 15).all()
    assert (share[counted["truth"] == "not"] <= 0.5).all()


def test_a_short_name_is_never_decided_wrongly() -> None:
    known = labelled()
    short = known["kernel"].str.replace(r"^void |[<(].*", "", regex=True)
    table = score(known.assign(kernel=short))
    assert table["false_alarms"].sum() == 0 and table["denied"].sum() == 0


def test_score_counts_by_hand() -> None:
    names = [
        CONV.replace("tilesize", "warpgroupsize1x1x1_"),
        "ampere_sgemm_128x64_nn",
        "Kernel2",
        "volta_sgemm_128x64_nn",
    ]
    (row,) = score(pd.DataFrame({"kernel": names, "truth": ["used"] * 3 + ["not"]})).itertuples()
    assert (row.part, row.generation, row.kernels, row.used) == ("yours", "all", 4, 3)
    assert (row.found, row.false_alarms, row.denied, row.unknown) == (1, 0, 1, 1)
    assert (row.precision, row.recall, row.decided) == pytest.approx((1, 1 / 3, 3 / 4))


# ---- report ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_h100_used_them_with_amp_and_not_in_fp32(h100) -> None:
    table = tensor_cores.tensor_core_summary(**h100).set_index("name")
    assert table.loc["fp32", "tensor_core_share"] == 0
    assert table.loc["fp32", "eligible_share"] > 0.6
    assert (
        0.1
        < table.loc["amp", "tensor_core_share"]
        < table.loc["channels_last"]["tensor_core_share"]
    )
    assert (
        table.loc["amp", "layout_share"] > 0.05 > 0.02 > table.loc["channels_last", "layout_share"]
    )
    parts = ["tensor_core_share", "eligible_share", "not_eligible_share", "unknown_share"]
    assert table[parts].sum(axis=1).tolist() == pytest.approx([1, 1, 1])
    assert table["unknown_share"].max() < 0.005
    assert "0.0% of 300" in tensor_cores.describe(tensor_cores.tensor_core_report(h100["fp32"]))


def test_report_agrees_with_the_trace(h100) -> None:
    found = h100["amp"]
    table = tensor_cores.tensor_core_report(found).set_index("operator")
    by_operator = tables.by_operator(found).set_index("name")
    assert table["gpu_s"].to_dict() == pytest.approx(by_operator["seconds"].to_dict())
    assert table["gpu_s"].is_monotonic_decreasing
    parts = table[["tensor_core_s", "other_s", "unknown_s"]].sum(axis=1)
    assert parts.tolist() == pytest.approx(table["gpu_s"].tolist())
    assert table["kernels"].sum() == len(found.kernels)
    conv = table.loc["aten::conv2d"]
    assert (conv["eligible"], conv["uses_tensor_cores"], conv["types"]) == ("yes", "used", "bf16")
    assert conv["calls"] == 53  # autocast calls it twice for one
    assert any("nchwToNhwc" in name for name in conv["other_names"])
    assert all(classify(name).verdict == "used" for name in conv["tensor_core_names"])
    normal = table.loc["aten::native_batch_norm_backward"]
    assert (normal["eligible"], normal["uses_tensor_cores"]) == ("no", "not")


@for_all(
    ("device", "operator", "kind", "eligible"),
    [
        ("NVIDIA H100", "aten::conv2d", "float", "yes"),  # as TF32
        ("Tesla V100-SXM2-16GB", "aten::conv2d", "float", "no"),
        ("Tesla V100-SXM2-16GB", "aten::conv2d", "c10::Half", "yes"),
        ("Tesla V100-SXM2-16GB", "aten::linear", "c10::BFloat16", "no"),
        ("Tesla P100-PCIE-16GB", "aten::conv2d", "c10::Half", "no"),
        ("Tesla T4", "aten::_int_mm", "signed char", "yes"),
        ("NVIDIA H100", "aten::scaled_dot_product_attention", "c10::Half", "yes"),
        ("NVIDIA H100", "aten::mm", "c10::complex<float>", "yes"),
        ("NVIDIA H100", "aten::upsample_bilinear2d", "c10::Half", "no"),
        ("NVIDIA H100", "aten::_convert_indices_from_coo_to_csr", "c10::Half", "no"),
        ("NVIDIA H100", "aten::_conv_depthwise2d", "c10::Half", "no"),
        ("NVIDIA H100", "aten::add_", "c10::Half", "no"),
        ("NVIDIA H100", "aten::mv", "c10::Half", "no"),
    ],
)
def test_eligible_by_operator_type_and_gpu(h100, device, operator, kind, eligible) -> None:
    kernels = (
        h100["fp32"]
        .kernels.head(1)
        .assign(kernel="elementwise_kernel", operator=operator, input_types=[(kind, kind, "")])
    )
    found = replace(h100["fp32"], kernels=kernels, device=device)
    assert tensor_cores.tensor_core_report(found)["eligible"].item() == eligible


def test_an_operator_that_used_them_was_eligible(h100) -> None:
    kernels = h100["fp32"].kernels.head(1).assign(operator="acme::op", kernel="nvjet_sm90_x")
    row = tensor_cores.tensor_core_report(kernels).iloc[0]
    assert (row["eligible"], row["uses_tensor_cores"]) == ("yes", "used")


def test_unknown_kernels_are_listed_and_counted(h100) -> None:
    kernels = h100["channels_last"].kernels.copy()
    before = tensor_cores.tensor_core_summary(run=kernels)["unknown_share"].item()
    kernels.loc[kernels["operator"] == "aten::relu_", "kernel"] = "acme_frobnicate"
    table = tensor_cores.tensor_core_kernels(kernels)
    (row,) = table[table["verdict"] == "unknown"].itertuples()
    assert (row.kernel, row.count) == ("acme_frobnicate", 49)
    after = tensor_cores.tensor_core_summary(run=kernels)["unknown_share"].item()
    assert after - before == pytest.approx(row.share)
    report = tensor_cores.tensor_core_report(kernels).set_index("operator")
    assert report.loc["aten::relu_", "uses_tensor_cores"] == "unknown"


def test_nsight_systems_and_compute_go_through(nsys_file, tmp_path) -> None:  # noqa: F811
    report = tensor_cores.tensor_core_report(tables.read_nsys(nsys_file)).set_index("operator")
    assert report.loc["aten::conv2d", ["eligible", "calls"]].tolist() == ["yes", 1]
    assert report.loc["(none known)", "eligible"] == "unknown"
    name = "nvjet_sm90_tst_64x64_64x13_2x1_v_bz_NTT"
    path = tmp_path / "ncu.csv"
    rows = [(0, name, "52.0"), (1, "void copy<int>(int, T2)", "0"), (2, "at::gelu", "12.0")]
    path.write_text(
        ncu_text(
            *(ncu_row(*row[:2], SHARE, "%", row[2]) for row in rows),
            *(ncu_row(*row[:2], "gpu__time_duration.sum", "ns", "1,000") for row in rows),
        )
    )
    found = tables.read_ncu(path)
    table = tensor_cores.tensor_core_kernels(found).set_index("kernel")
    assert table.loc[name, ["verdict", "generation"]].tolist() == ["used", "hopper"]
    assert table.loc[name, "tensor_active"] == pytest.approx(0.52)
    assert "no known operator" in tensor_cores.describe(tensor_cores.tensor_core_report(found))


def test_a_table_without_kernels_is_refused() -> None:
    with pytest.raises(ValueError, match="duration_s"):
        tensor_cores.tensor_core_report(pd.DataFrame({"kernel": ["a"]}))


# ---- hardware counters and machine code --------------------------------------------------------

H100 = RECORDED / "nvidia-h100" / "traces"
NAN = float("nan")
PRODUCT = "nvjet_sm90_hsh_128x256_64x4_2x1_v_bz_coopA_TNN"


def counted(*rows: tuple) -> pd.DataFrame:
    """Kernel, setting, seconds and tensor_active, as `read_counters` returns them."""
    columns = ["kernel", "setting", "seconds", "tensor_active"]
    table = pd.DataFrame(rows, columns=columns).assign(count=1)
    table["share"] = table["seconds"] / table.groupby("setting")["seconds"].transform("sum")
    return table[truth.COLUMNS]


def code(**mma: str) -> pd.DataFrame:
    """By kernel the products in its machine code, as `read_sass` returns them."""
    table = pd.DataFrame({"kernel": mma.keys(), "mma": mma.values()}, dtype=object)
    return table.assign(library="libcudnn.so", instructions=99, hfma2_mma=3, constants=0)[
        truth.SASS_COLUMNS
    ]


def test_a_table_of_counters_with_other_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ncu.csv"
    path.write_text("kernel,seconds\na,1\n")
    with pytest.raises(ValueError, match="they must be"):
        truth.read_counters(path)
    with pytest.raises(ValueError, match="research.tensor_cores OUT.jsonl"):
        truth.compare("nvidia-h200")


@for_all(
    ("active", "mma", "shown", "evidence"),
    [
        (0.4, None, "used", "cycles"),
        (0.003, None, "not", "cycles"),
        (0.4, "", "used", "cycles"),  # what happened counts for more than what was read
        (0.003, "HMMA", "not", "cycles"),  # a product that this step never reached
        (0.01, "HGMMA", "used", "code"),  # a small product
        (0.12, "", "not", "code"),  # a GELU: ordinary arithmetic in the same pipe
        (0.12, None, "unclear", ""),
        (None, "HMMA", "used", "code"),
        (None, None, "unclear", ""),
    ],
)
def test_truth_by_cycles_else_by_machine_code(active, mma, shown, evidence) -> None:
    table = counted(("k", "amp", 1e-3, active)).astype({"tensor_active": float})
    read = code(other="HMMA") if mma is None else code(k=mma, other="HMMA")
    found = truth.truth(table, read)
    assert found.loc["k"].to_dict() == {"truth": shown, "evidence": evidence}
    assert list(found.index) == ["k"]


def test_truth_is_of_the_kernel_in_all_settings() -> None:
    table = counted(("k", "amp", 1e-3, 0.4), ("k", "tf32", 1e-3, 0.1))
    assert truth.truth(table, code()).loc["k", "truth"] == "used"


def test_no_machine_code_is_no_answer(tmp_path: Path) -> None:
    assert truth.read_sass(tmp_path / "sass.csv").empty
    (tmp_path / "sass.csv").write_text("# a\nkernel,mma\nk,\n")
    with pytest.raises(ValueError, match="they must be"):
        truth.read_sass(tmp_path / "sass.csv")


def test_names_are_held_against_counters(h100, tmp_path: Path) -> None:
    names = tables.by_kernel(h100["amp"])["name"]
    batch_norm = names[names.str.contains("batch_norm_backward")].iloc[0]
    rows = [
        (batch_norm, "amp", 7e-3, 0.03),
        (PRODUCT, "amp", 1e-3, 0.4),
        ("acme_frobnicate", "amp", 1e-3, 0.4),
        ("nvjet_sm90_y", "amp", 1e-3, 0.0),
        ("nvjet_sm90_x", "none", 1e-3, 0.1),
    ]
    path = tmp_path / "ncu.csv"
    counted(*rows).to_csv(path, index=False)
    read = code(**{batch_norm: "", PRODUCT: "HGMMA"})
    read.to_csv(path.with_name("sass.csv"), index=False)
    compared = truth.compare(path=path)
    by_name = compared.set_index("kernel")
    wanted = ["right", "right", "unknown", "wrong", "unclear"]
    assert by_name.loc[[row[0] for row in rows], "result"].tolist() == wanted
    assert by_name.loc[[batch_norm, PRODUCT], "evidence"].tolist() == ["code", "cycles"]
    assert by_name.loc[PRODUCT, "trace_share"] != by_name.loc[PRODUCT, "trace_share"]  # NaN
    only_traced = by_name[by_name["count"].isna()]
    assert set(only_traced.index) == set(names) - {batch_norm}
    assert set(only_traced["result"]) == {"unclear"}
    amp, other = truth.summary(compared).itertuples()
    assert (amp.right, amp.wrong, amp.unknown, amp.by_code) == (2, 1, 1, 1)
    assert amp.large == 4 + amp.unclear and amp.unclear == (only_traced["largest"] > 0.005).sum()
    assert (amp.right_share, amp.used_by_name, amp.used_in_truth) == pytest.approx((0.8, 0.2, 0.2))
    assert amp.matched_share == pytest.approx(by_name.loc[batch_norm, "trace_share"])
    assert other.matched_share != other.matched_share and other.unclear == 1


# Compiled by Triton while the step ran, so in no library, and busier than a sure "not".
UNSETTLED = {
    f"triton_poi_fused__native_batch_norm_legit_functional_relu_{number}" for number in (5, 11, 27)
}


def test_every_large_kernel_of_the_h100_is_judged_right() -> None:
    compared = truth.compare("nvidia-h100")
    table = truth.summary(compared)
    print(table.round(3).to_string())
    large = compared[compared["largest"] > truth.LARGE]
    open_ = large[large["result"] == "unclear"]
    assert set(open_["kernel"]) == UNSETTLED and open_["tensor_active"].max() < 0.006
    assert large.loc[large["result"] != "right", "kernel"].isin(UNSETTLED).all()
    assert {"device", "tf32", "amp", "channels_last", "compile"} <= set(large["setting"])
    assert large.groupby("setting").size().min() > 10
    # What was traced is what was counted.
    assert table["matched_share"].dropna().min() > 0.98
    assert (table["used_by_name"] - table["used_in_truth"]).abs().max() < 0.01  # small unclear ones


def test_cycles_and_machine_code_of_the_h100_say_the_same() -> None:
    counted = truth.read_counters(H100 / truth.FILE)
    read = truth.read_sass(H100 / truth.SASS)
    assert read["kernel"].is_unique and set(read["kernel"]) <= set(counted["kernel"])
    found = truth.truth(counted, read).join(read.set_index("kernel"))
    both = found[(found["evidence"] == "cycles") & found["mma"].notna()]
    assert both["truth"].value_counts().min() > 30
    said = (both["mma"] != "").map({True: "used", False: "not"})
    assert both[both["truth"] != said].empty
    # What kept the pipe busy in kernels without a product.
    busy = found[(found["evidence"] == "code") & (found["truth"] == "not")]
    assert len(busy) > 30 and (busy["hfma2_mma"] > 0).all()
    assert (busy["constants"] == busy["hfma2_mma"]).all()


# ---- a CPU -------------------------------------------------------------------------------------


@pytest.fixture
def cpu_run(tmp_path: Path) -> Run:
    layer, images = torch.nn.Conv2d(3, 8, 3), torch.randn(2, 3, 8, 8)
    with torch.profiler.profile(record_shapes=True) as profiler:
        layer(images).relu_().sum().backward()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    write_record(tmp_path, Record("ok", trace="trace.json"))
    return Run(tmp_path)


def test_a_cpu_run_says_what_onednn_ran_and_that_there_are_no_tensor_cores(cpu_run) -> None:
    info = "onednn_verbose,v1,info,cpu,isa:Intel AVX-512 with AMX\n"
    lines = onednn_line("brgconv:avx512_core_amx", "bf16", 30) + onednn_line("jit:avx2", "f32", 10)
    (cpu_run.folder / "onednn.csv").write_text(info + lines)
    table = tensor_cores.kernels_of_run(cpu_run)
    assert table["type"].tolist() == ["bf16", "f32"]
    said = " ".join(table.attrs["text"].split())
    for words in ("AMX tiles", "bf16", "no Tensor Cores", "Intel AVX-512 with AMX"):
        assert words in said


def test_a_trace_without_kernels_is_no_empty_table(cpu_run) -> None:
    table = tensor_cores.kernels_of_run(cpu_run)
    assert "no Tensor Cores" in table.attrs["text"]
    rows = table.set_index("operator")
    assert rows.loc["aten::conv2d", ["eligible", "uses_tensor_cores"]].tolist() == ["yes", "not"]
    assert rows.loc["aten::relu_", "eligible"] == "no"
    assert table["cpu_share"].sum() == pytest.approx(1)
    summary = tensor_cores.tensor_core_summary(cpu=table)
    assert summary["gpu_s"].item() == 0 and summary["tensor_core_share"].isna().all()
    with pytest.raises(ValueError, match="no GPU time"):
        picture(table)


def test_a_run_without_a_trace_says_how_to_get_one(tmp_path) -> None:
    write_record(tmp_path, Record("ok"))
    with pytest.raises(ValueError, match="profile_steps"):
        tensor_cores.kernels_of_run(Run(tmp_path))


# ---- picture -----------------------------------------------------------------------------------


def test_picture_of_operators_adds_up(h100) -> None:
    report = tensor_cores.tensor_core_report(h100["amp"])
    axes = picture(report, top=4).axes[0]
    assert axes.get_title(loc="left") == h100["amp"].device
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == [*report["operator"].head(4), f"{len(report) - 4} others"]
    drawn = sum(bar.get_width() for bar in axes.patches)
    assert drawn == pytest.approx(report["gpu_s"].sum() * 1e3)


def test_picture_of_rungs_adds_up(h100) -> None:
    summary = tensor_cores.tensor_core_summary(**h100)
    axes = picture(summary, machine=h100["amp"].device).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(h100)
    assert sum(bar.get_width() for bar in axes.patches) == pytest.approx(
        summary["gpu_s"].sum() * 1e3
    )
    assert picture(summary)._repr_png_()


def test_rules_and_labels_are_shipped_files() -> None:
    for path in (tensor_core_rules.RULES, tensor_core_rules.LABELLED):
        assert path.is_file() and path.stat().st_size < 150_000
