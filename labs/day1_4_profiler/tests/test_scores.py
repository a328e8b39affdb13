"""The rules judge kernels right whose machine code or counters are known."""

from pathlib import Path

import pandas as pd
import pytest
from cases import for_all
from trace_files import CONV

from course.analysis.tensor_cores import counters
from course.analysis.tensor_cores.scores import labelled, score
from course.analysis.traces import tables
from course.runs.recordings import trace_path
from course.runs.run import RECORDED


@pytest.fixture(scope="module")
def h100() -> dict[str, tables.Trace]:
    names = {"fp32": "device", "amp": "amp", "channels_last": "channels_last"}
    return {rung: tables.read(trace_path("nvidia-h100", file)) for rung, file in names.items()}


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
