"""Traces of Nsight Systems and Nsight Compute have the same tables as PyTorch's."""

import sqlite3
from pathlib import Path

import pandas as pd
import pytest
from trace_files import CONV, DURATION, SHARE, WGRAD, message_of, ncu_row, ncu_text

from labs.profiler import nsight
from labs.profiler.figures import plot_timeline
from trainspeed import tensor_cores
from trainspeed.traces import tables

TEXTS = {1: "cudaLaunchKernel_v7000", 2: CONV, 4: "forward", 5: WGRAD}
BASE, PROCESS = 8_000_000_000, 70 << 24  # when it began, and the process's part of thread numbers


def span(begin: int, end: int, **columns: object) -> dict[str, object]:
    return {"start": BASE + begin, "end": BASE + end, **columns}


def note(begin: int, end: int, text: str | None, number: int | None = None) -> dict[str, object]:
    return span(begin, end, text=text, textId=number, globalTid=PROCESS + 71)


def launch(begin: int, thread: int, number: int) -> dict[str, object]:
    return span(begin, begin + 5, globalTid=PROCESS + thread, correlationId=number, nameId=1)


def kernel(begin: int, end: int, number: int, name: int) -> dict[str, object]:
    place = {"streamId": 7, "globalPid": PROCESS, "correlationId": number}
    return span(begin, end, **place, demangledName=name, shortName=3)


COPY = {"copyKind": 1, "bytes": 4096, "srcKind": 1, "dstKind": 2}
TABLES = {
    "StringIds": [{"id": number, "value": text} for number, text in TEXTS.items()],
    "TARGET_INFO_GPU": [{"name": "NVIDIA A100"}],
    "ENUM_CUDA_MEM_KIND": [{"id": 1, "label": "Pinned"}, {"id": 2, "label": "Device"}],
    "CUPTI_ACTIVITY_KIND_RUNTIME": [launch(200, 71, 11), launch(700, 88, 12), launch(210, 71, 13)],
    "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(300, 390, 11, 2), kernel(800, 900, 12, 5)],
    "CUPTI_ACTIVITY_KIND_MEMCPY": [
        span(250, 290, streamId=7, globalPid=PROCESS, correlationId=13, **COPY)
    ],
    "NVTX_EVENTS": [
        note(0, 1000, "ProfilerStep#5"),
        note(100, 500, None, 4),  # its text is in StringIds
        note(500, 990, "backward"),
        note(150, 400, "aten::conv2d, seq = 3"),
    ],
}


@pytest.fixture
def nsys_file(tmp_path: Path) -> Path:
    path = tmp_path / "report.sqlite"
    with sqlite3.connect(path) as database:
        for name, rows in TABLES.items():
            pd.DataFrame(rows).convert_dtypes().to_sql(name, database, index=False)
    database.close()
    return path


def change(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as database:
        for statement in statements:
            database.execute(statement)
    database.close()


def test_nsight_systems_has_the_same_tables(nsys_file: Path) -> None:
    trace = nsight.read_nsys(nsys_file)
    assert trace.device == "NVIDIA A100"
    rows = trace.kernels.set_index("kernel")
    assert list(rows.index) == [CONV, WGRAD]
    assert list(rows["phase"]) == ["forward", "backward"]
    assert set(rows["step"]) == {5}
    assert list(rows["operator"]) == ["aten::conv2d", ""]
    assert rows.loc[CONV, "duration_s"] == pytest.approx(90e-9)
    assert rows.loc[CONV, "start_s"] == pytest.approx(300e-9)
    (copy,) = trace.copies.itertuples()
    assert (copy.kind, copy.memory, copy.bytes) == ("HtoD", "Pinned -> Device", 4096)
    assert tables.idle(trace)["gap_s"].item() == pytest.approx(410e-9)
    report = tensor_cores.tensor_core_report(trace).set_index("operator")
    assert report.loc["aten::conv2d", ["eligible", "calls"]].tolist() == ["yes", 1]
    assert report.loc["(none known)", "eligible"] == "unknown"


def test_nsight_systems_with_only_kernels(nsys_file: Path) -> None:
    optional = ("NVTX_EVENTS", "TARGET_INFO_GPU", "ENUM_CUDA_MEM_KIND")
    optional += tuple(f"CUPTI_ACTIVITY_KIND_{name}" for name in ("MEMCPY", "RUNTIME"))
    change(nsys_file, *(f"DROP TABLE {name}" for name in optional))
    change(
        nsys_file,  # as some versions name it
        "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO CUPTI_ACTIVITY_KIND_KERNEL_V10",
    )
    trace = nsight.read_nsys(nsys_file)
    assert tables.by_kernel(trace)["count"].sum() == 2
    assert set(trace.kernels["phase"]) == {""} and trace.copies.empty
    change(nsys_file, "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL_V10")
    assert "no table CUPTI_ACTIVITY_KIND_KERNEL" in message_of(nsight.read_nsys, nsys_file)


def test_nsight_systems_refuses_hidden_kernels_and_other_files(nsys_file: Path) -> None:
    change(
        nsys_file,
        "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER)",
        "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (0, 90000)",
    )
    message = message_of(nsight.read_nsys, nsys_file)
    assert "CUDA graphs without their kernels (1 launched, 9e-05 s in total)" in message
    assert "--cuda-graph-trace=node" in message
    nsys_file.write_text("not a database at all, but text that is long enough to have a header")
    message = message_of(nsight.read_nsys, nsys_file)
    assert "cannot be read as an Nsight Systems export" in message


def test_nsight_compute_has_durations_and_tensor_core_counters(tmp_path: Path) -> None:
    path, copy = tmp_path / "ncu.csv", "void copy<int>(int, T2)"
    product = "nvjet_sm90_tst_64x64_64x13_2x1_v_bz_NTT"
    path.write_text(
        ncu_text(
            ncu_row(0, product, DURATION, "ns", "26,784"),
            ncu_row(0, product, SHARE, "%", "53.50"),
            ncu_row(1, copy, DURATION, "usecond", "3.5"),
            ncu_row(1, copy, SHARE, "%", "n/a"),
        )
    )
    trace = nsight.read_ncu(path)
    conv, other = trace.kernels.set_index("kernel").loc[[product, copy]].itertuples()
    assert conv.duration_s == pytest.approx(26.784e-6) and other.duration_s == pytest.approx(3.5e-6)
    assert tables.by_kernel(trace)["name"].tolist() == [product, copy]
    assert conv.tensor_active == pytest.approx(0.535)
    with pytest.raises(ValueError, match="no times"):
        plot_timeline(trace)


def test_nsight_systems_leaves_out_rows_without_a_valid_time(nsys_file: Path) -> None:
    before = nsight.read_nsys(nsys_file)
    columns = "streamId, globalPid, correlationId, demangledName, shortName"
    change(
        nsys_file,
        *(
            f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end, {columns}) "
            f"VALUES ({times}, 7, {PROCESS}, 11, 2, 3)"
            for times in ("0, 0", f"{BASE}, NULL", f"{BASE + 9}, {BASE}", f"NULL, {BASE}")
        ),
        "UPDATE TARGET_INFO_GPU SET name = NULL",
    )
    trace = nsight.read_nsys(nsys_file)
    pd.testing.assert_frame_equal(trace.kernels, before.kernels)
    assert trace.device == "" and trace.dropped == {
        "whose start and end are 0": 1,
        "without a start or an end": 2,
        "that end before they start": 1,
    }
    assert trace.source == "report.sqlite, Nsight Systems, without 4 invalid rows"


def test_nsight_systems_keeps_devices_apart(nsys_file: Path) -> None:
    change(
        nsys_file,
        "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN deviceId INTEGER",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = demangledName = 5",
    )
    table = tables.idle(nsight.read_nsys(nsys_file))
    assert list(table["device"]) == [0, 1] and list(table["busy_share"]) == [1, 1]


def test_nsight_compute_leaves_out_invalid_durations(tmp_path: Path) -> None:
    path = tmp_path / "ncu.csv"
    values = ("26,784", "-5", "inf", "0", "n/a")
    rows = [ncu_row(number, CONV, DURATION, "ns", value) for number, value in enumerate(values)]
    path.write_text(ncu_text(*rows, ncu_row(4, CONV, SHARE, "%", "50")))
    trace = nsight.read_ncu(path)
    assert tables.by_kernel(trace)["seconds"].item() == pytest.approx(26.784e-6)
    assert trace.kernels["tensor_active"].max() == 0.5 and sum(trace.dropped.values()) == 3


def test_nsight_compute_refuses_files_without_its_metrics(tmp_path: Path) -> None:
    path = tmp_path / "ncu.csv"
    path.write_text("==PROF== Connected\nloss 3\n")
    assert "no line of column names" in message_of(nsight.read_ncu, path)
    path.write_text(ncu_text(ncu_row(0, CONV, "dram__bytes.sum", "byte", "5")))
    assert "neither durations nor Tensor Core counters" in message_of(nsight.read_ncu, path)
