"""The rules judge kernels right whose machine code or counters are known; the report counts."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from cases import for_all
from trace_files import CONV, SHARE, ncu_row, ncu_text, onednn_line

from course.analysis.traces import tables
from course.analysis.traces.figures import plot_tensor_cores
from course.analysis.traces.tensor_cores import counters
from course.analysis.traces.tensor_cores import report as tensor_cores
from course.analysis.traces.tensor_cores.rules import classify, labelled, rules, score
from course.runs.record import Record, write_record
from course.runs.recordings import trace_path
from course.runs.run import RECORDED, Run


@pytest.fixture(scope="module")
def h100() -> dict[str, tables.Trace]:
    names = {"fp32": "device", "amp": "amp", "channels_last": "channels_last"}
    return {rung: tables.read(trace_path("nvidia-h100", file)) for rung, file in names.items()}


# ---- Rules -------------------------------------------------------------------------------------


@for_all("rule", rules(), ids=lambda rule: rule.example[:40])
def test_every_rule_decides_its_example(rule) -> None:
    assert classify(rule.example) == rule


def test_a_name_without_a_rule_is_unknown() -> None:
    for name in ("", "Kernel2", "void acme::frobnicate<float>(float*)"):
        assert classify(name).verdict == "unknown"


def test_precision_and_recall_on_labelled_kernels() -> None:
    table = score()
    print(table.round(3).to_string())
    generations = {"all", "volta", "turing", "ampere", "ada", "hopper", "blackwell"}
    assert set(table["generation"]) == generations
    total = table[table["generation"] == "all"].set_index("part")
    for part in ("development", "held-out"):
        row = total.loc[part]
        assert row["kernels"] > 200 and row["used"] > 100
        assert row["precision"] >= 0.99 and row["recall"] >= 0.98 and row["decided"] >= 0.9
        assert row["denied"] == 0
    short = labelled()["kernel"].str.replace(r"^void |[<(].*", "", regex=True)
    table = score(labelled().assign(kernel=short))
    assert table["false_alarms"].sum() == 0 and table["denied"].sum() == 0


def test_labels_agree_with_their_evidence() -> None:
    known = labelled()
    assert known["kernel"].is_unique and set(known["truth"]) == {"used", "not"}
    assert known["evidence"].str.match(r"SASS sm_\d+\w?: |ncu: [\d.]+%? ?%? of Tensor").all()
    code = known[known["evidence"].str.startswith("SASS")]
    has_products = ~code["evidence"].str.contains("no MMA")
    assert (has_products == (code["truth"] == "used")).all()
    counted = known[known["evidence"].str.startswith("ncu")]
    share = counted["evidence"].str.extract(r"([\d.]+)%")[0].astype(float)
    assert (share[counted["truth"] == "used"] >= 15).all()
    assert (share[counted["truth"] == "not"] <= 0.5).all()


def test_score_of_your_kernels() -> None:
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


# ---- Report ------------------------------------------------------------------------------------


def test_the_h100_used_tensor_cores_with_amp_and_not_in_fp32(h100) -> None:
    table = tensor_cores.tensor_core_summary(**h100).set_index("name")
    used, layout = table["tensor_core_share"], table["layout_share"]
    assert used["fp32"] == 0 and table.loc["fp32", "eligible_share"] > 0.6
    assert 0.1 < used["amp"] < used["channels_last"]
    assert layout["amp"] > 0.05 > 0.02 > layout["channels_last"]
    parts = ["tensor_core_share", "eligible_share", "not_eligible_share", "unknown_share"]
    assert table[parts].sum(axis=1).tolist() == pytest.approx([1, 1, 1])
    assert table["unknown_share"].max() < 0.005
    assert "0.0% of 300" in tensor_cores.describe(tensor_cores.tensor_core_report(h100["fp32"]))


def test_report_agrees_with_the_trace(h100) -> None:
    trace = h100["amp"]
    table = tensor_cores.tensor_core_report(trace).set_index("operator")
    by_operator = tables.by_operator(trace).set_index("name")
    assert table["gpu_s"].to_dict() == pytest.approx(by_operator["seconds"].to_dict())
    assert table["gpu_s"].is_monotonic_decreasing
    parts = table[["tensor_core_s", "other_s", "unknown_s"]].sum(axis=1)
    assert parts.tolist() == pytest.approx(table["gpu_s"].tolist())
    assert table["kernels"].sum() == len(trace.kernels)
    conv = table.loc["aten::conv2d"]
    assert (conv["eligible"], conv["uses_tensor_cores"], conv["types"]) == ("yes", "used", "bf16")
    assert conv["calls"] == 53  # autocast calls it twice for one
    assert any("nchwToNhwc" in name for name in conv["other_names"])
    assert all(classify(name).verdict == "used" for name in conv["tensor_core_names"])
    norm = table.loc["aten::native_batch_norm_backward"]
    assert (norm["eligible"], norm["uses_tensor_cores"]) == ("no", "not")


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
    columns = {"kernel": "elementwise_kernel", "operator": operator}
    kernels = h100["fp32"].kernels.head(1).assign(**columns, input_types=[(kind, kind, "")])
    trace = replace(h100["fp32"], kernels=kernels, device=device)
    assert tensor_cores.tensor_core_report(trace)["eligible"].item() == eligible


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
    used = kernels.head(1).assign(operator="acme::op", kernel="nvjet_sm90_x")
    row = tensor_cores.tensor_core_report(used).iloc[0]
    assert (row["eligible"], row["uses_tensor_cores"]) == ("yes", "used")
    with pytest.raises(ValueError, match="duration_s"):
        tensor_cores.tensor_core_report(kernels[["kernel"]])


def test_report_of_nsight_systems_and_compute(nsys_file: Path, tmp_path: Path) -> None:
    report = tensor_cores.tensor_core_report(tables.read_nsys(nsys_file)).set_index("operator")
    assert report.loc["aten::conv2d", ["eligible", "calls"]].tolist() == ["yes", 1]
    assert report.loc["(none known)", "eligible"] == "unknown"
    name, path = "nvjet_sm90_tst_64x64_64x13_2x1_v_bz_NTT", tmp_path / "ncu.csv"
    rows = [(0, name, "52.0"), (1, "void copy<int>(int, T2)", "0"), (2, "at::gelu", "12.0")]
    path.write_text(
        ncu_text(
            *(ncu_row(*row[:2], SHARE, "%", row[2]) for row in rows),
            *(ncu_row(*row[:2], "gpu__time_duration.sum", "ns", "1,000") for row in rows),
        )
    )
    trace = tables.read_ncu(path)
    table = tensor_cores.tensor_core_kernels(trace).set_index("kernel")
    assert table.loc[name, ["verdict", "generation"]].tolist() == ["used", "hopper"]
    assert table.loc[name, "tensor_active"] == pytest.approx(0.52)
    assert "no known operator" in tensor_cores.describe(tensor_cores.tensor_core_report(trace))


# ---- Hardware counters and machine code --------------------------------------------------------

H100 = RECORDED / "nvidia-h100" / "traces"
PRODUCT = "nvjet_sm90_hsh_128x256_64x4_2x1_v_bz_coopA_TNN"


def counted(*rows: tuple) -> pd.DataFrame:
    """Kernel, setting, seconds and tensor_active, as `read_counters` returns them."""
    columns = ["kernel", "setting", "seconds", "tensor_active"]
    table = pd.DataFrame(rows, columns=columns).assign(count=1)
    table["share"] = table["seconds"] / table.groupby("setting")["seconds"].transform("sum")
    return table[counters.COLUMNS]


def code(**mma: str) -> pd.DataFrame:
    """By kernel the products in its machine code, as `read_sass` returns them."""
    table = pd.DataFrame({"kernel": mma.keys(), "mma": mma.values()}, dtype=object)
    return table.assign(library="libcudnn.so", instructions=99, hfma2_mma=3, constants=0)[
        counters.SASS_COLUMNS
    ]


@for_all(
    ("active", "mma", "expected", "evidence"),
    [
        (0.4, None, "used", "cycles"),
        (0.003, "HMMA", "not", "cycles"),  # a product that this step never reached
        (0.01, "HGMMA", "used", "code"),  # a small product
        (0.12, "", "not", "code"),  # a GELU: ordinary arithmetic in the same pipe
        (0.12, None, "unclear", ""),
        (None, "HMMA", "used", "code"),
    ],
)
def test_cycles_decide_before_machine_code(active, mma, expected, evidence) -> None:
    # The same kernel in a second setting, where no counter was read.
    table = counted(("k", "amp", 1e-3, active), ("k", "tf32", 1e-3, None))
    machine_code = code(other="HMMA") if mma is None else code(k=mma, other="HMMA")
    judged = counters.decide_truth(table.astype({"tensor_active": float}), machine_code)
    assert judged.loc["k"].to_dict() == {"truth": expected, "evidence": evidence}
    assert list(judged.index) == ["k"]


def test_names_are_compared_with_counters(h100, tmp_path: Path) -> None:
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
    code(**{batch_norm: "", PRODUCT: "HGMMA"}).to_csv(path.with_name("sass.csv"), index=False)
    compared = counters.compare_with_counters(path=path)
    by_name = compared.set_index("kernel")
    expected = ["right", "right", "unknown", "wrong", "unclear"]
    assert by_name.loc[[row[0] for row in rows], "result"].tolist() == expected
    assert by_name.loc[[batch_norm, PRODUCT], "evidence"].tolist() == ["code", "cycles"]
    traced = by_name[by_name["count"].isna()]
    assert set(traced.index) == set(names) - {batch_norm}
    assert set(traced["result"]) == {"unclear"}
    amp, other = counters.summarize_verdicts(compared).itertuples()
    assert (amp.right, amp.wrong, amp.unknown, amp.by_code) == (2, 1, 1, 1)
    assert amp.large == 4 + amp.unclear and amp.unclear == (traced["largest"] > 0.005).sum()
    assert (amp.right_share, amp.used_by_name, amp.used_in_truth) == pytest.approx((0.8, 0.2, 0.2))
    assert amp.matched_share == pytest.approx(by_name.loc[batch_norm, "trace_share"])
    assert other.matched_share != other.matched_share and other.unclear == 1
    with pytest.raises(ValueError, match="research.tensor_cores OUT.jsonl"):
        counters.compare_with_counters("nvidia-h200")


# Triton compiled these during the step, so no library has their code; too busy for a "not".
UNSETTLED = {
    f"triton_poi_fused__native_batch_norm_legit_functional_relu_{number}" for number in (5, 11, 27)
}


def test_every_large_kernel_of_the_h100_is_judged_right() -> None:
    compared = counters.compare_with_counters("nvidia-h100")
    table = counters.summarize_verdicts(compared)
    print(table.round(3).to_string())
    large = compared[compared["largest"] > counters.LARGE]
    unclear = large[large["result"] == "unclear"]
    assert set(unclear["kernel"]) == UNSETTLED and unclear["tensor_active"].max() < 0.006
    assert large.loc[large["result"] != "right", "kernel"].isin(UNSETTLED).all()
    assert {"device", "tf32", "amp", "channels_last", "compile"} <= set(large["setting"])
    assert table["matched_share"].dropna().min() > 0.98  # the trace and the counters agree
    assert (table["used_by_name"] - table["used_in_truth"]).abs().max() < 0.01


def test_cycles_and_machine_code_of_the_h100_agree() -> None:
    measured = counters.read_counters(H100 / counters.COUNTERS_FILE)
    sass = counters.read_sass(H100 / counters.SASS_FILE)
    judged = counters.decide_truth(measured, sass).join(sass.set_index("kernel"))
    both = judged[(judged["evidence"] == "cycles") & judged["mma"].notna()]
    assert both["truth"].value_counts().min() > 30
    assert ((both["mma"] != "") == (both["truth"] == "used")).all()
    # These instructions kept the pipe busy in kernels without a product.
    busy = judged[(judged["evidence"] == "code") & (judged["truth"] == "not")]
    assert len(busy) > 30 and (busy["hfma2_mma"] > 0).all()
    assert (busy["constants"] == busy["hfma2_mma"]).all()


# ---- A CPU -------------------------------------------------------------------------------------


def test_report_of_a_cpu_run(tmp_path: Path) -> None:
    layer, images = torch.nn.Conv2d(3, 8, 3), torch.randn(2, 3, 8, 8)
    with torch.profiler.profile(record_shapes=True) as profiler:
        layer(images).relu_().sum().backward()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    write_record(tmp_path, Record("ok", trace="trace.json"))
    table = tensor_cores.kernels_of_run(Run(tmp_path))
    assert "no Tensor Cores" in table.attrs["text"]
    rows = table.set_index("operator")
    assert rows.loc["aten::conv2d", ["eligible", "uses_tensor_cores"]].tolist() == ["yes", "not"]
    assert rows.loc["aten::relu_", "eligible"] == "no"
    assert table["cpu_share"].sum() == pytest.approx(1)
    summary = tensor_cores.tensor_core_summary(cpu=table)
    assert summary["gpu_s"].item() == 0 and summary["tensor_core_share"].isna().all()
    with pytest.raises(ValueError, match="no GPU time"):
        plot_tensor_cores(table)
    lines = onednn_line("brgconv:avx512_core_amx", "bf16", 30) + onednn_line("jit:avx2", "f32", 10)
    isa = "onednn_verbose,v1,info,cpu,isa:Intel AVX-512 with AMX\n"
    (tmp_path / "onednn.csv").write_text(isa + lines)
    table = tensor_cores.kernels_of_run(Run(tmp_path))
    assert table["type"].tolist() == ["bf16", "f32"]
    text = " ".join(table.attrs["text"].split())
    for words in ("AMX tiles", "bf16", "no Tensor Cores", "Intel AVX-512 with AMX"):
        assert words in text


def test_a_run_without_a_trace_says_how_to_get_one(tmp_path: Path) -> None:
    write_record(tmp_path, Record("ok"))
    with pytest.raises(ValueError, match="profile_steps"):
        tensor_cores.kernels_of_run(Run(tmp_path))


# ---- Picture -----------------------------------------------------------------------------------


def test_bars_add_up_to_the_gpu_time(h100) -> None:
    report = tensor_cores.tensor_core_report(h100["amp"])
    others = [*report["operator"].head(4), f"{len(report) - 4} others"]
    summary = tensor_cores.tensor_core_summary(**h100)
    for table, names in ((report, others), (summary, [*h100])):
        axes = plot_tensor_cores(table, machine="NVIDIA H100", top=4).axes[0]
        assert axes.get_title(loc="left") == "NVIDIA H100"
        assert [label.get_text() for label in axes.get_yticklabels()] == names
        drawn = sum(bar.get_width() for bar in axes.patches)
        assert drawn == pytest.approx(table["gpu_s"].sum() * 1e3)
