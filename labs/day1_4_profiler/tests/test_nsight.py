"""Traces of Nsight Systems and Nsight Compute have the same tables as PyTorch's."""

import sqlite3
from pathlib import Path

import pytest
from trace_files import CONV, COUNT, DURATION, SHARE, WGRAD, message_of, ncu_row, ncu_text

from course.analysis import tensor_cores
from course.analysis.traces import tables
from labs.day1_4_profiler import nsight
from labs.day1_4_profiler.figures import plot_timeline

NSYS = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER, id INTEGER, name TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL,
  eventClass INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL,
  returnValue INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL,
  deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL,
  correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL,
  shortName INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL,
  deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL,
  correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL,
  srcKind INTEGER, dstKind INTEGER);
CREATE TABLE ENUM_CUDA_MEM_KIND (id INTEGER PRIMARY KEY, name TEXT, label TEXT);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL,
  rangeId INTEGER, category INTEGER, color INTEGER, text TEXT, globalTid INTEGER,
  endGlobalTid INTEGER, textId INTEGER, domainId INTEGER);
"""

PROCESS = 70 << 24

TEXTS = [(1, "cudaLaunchKernel_v7000"), (2, CONV), (3, "short"), (4, "forward"), (5, WGRAD)]


@pytest.fixture
def nsys_file(tmp_path: Path) -> Path:
    path = tmp_path / "report.sqlite"
    base = 8_000_000_000
    with sqlite3.connect(path) as db:
        db.executescript(NSYS)
        db.executemany("INSERT INTO StringIds VALUES (?,?)", TEXTS)
        db.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 0, 'NVIDIA A100')")
        db.executemany(
            "INSERT INTO ENUM_CUDA_MEM_KIND VALUES (?,?,?)",
            [(1, "PINNED", "Pinned"), (2, "DEVICE", "Device")],
        )
        calls = [(200, 71, 11, 1), (700, 88, 12, 1), (210, 71, 13, 1)]
        db.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,0,?,?,?,0)",
            [
                (base + at, base + at + 5, PROCESS + tid, number, name)
                for at, tid, number, name in calls
            ],
        )
        db.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,0,1,7,?,?,?,3)",
            [(base + 300, base + 390, 11, PROCESS, 2), (base + 800, base + 900, 12, PROCESS, 5)],
        )
        db.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?,?,0,1,7,13,?,4096,1,1,2)",
            (base + 250, base + 290, PROCESS),
        )
        db.executemany(
            "INSERT INTO NVTX_EVENTS VALUES (?,?,59,0,0,0,?,?,0,?,0)",
            [
                (base, base + 1000, "ProfilerStep#5", PROCESS + 71, None),
                (base + 100, base + 500, None, PROCESS + 71, 4),  # its text is in StringIds
                (base + 500, base + 990, "backward", PROCESS + 71, None),
                (base + 150, base + 400, "aten::conv2d, seq = 3", PROCESS + 71, None),
                (base + 995, None, "a mark, no range", PROCESS + 71, None),
            ],
        )
    db.close()
    return path


# ---- Nsight Systems ----------------------------------------------------------------------------


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
    (copy,) = tables.copies(trace).itertuples()
    assert (copy.kind, copy.memory, copy.bytes) == ("HtoD", "Pinned -> Device", 4096)
    assert tables.idle(trace)["largest_gap_s"].item() == pytest.approx(410e-9)


def test_nsight_systems_with_only_kernels(nsys_file: Path) -> None:
    optional = ("NVTX_EVENTS", "TARGET_INFO_GPU", "ENUM_CUDA_MEM_KIND")
    optional += tuple(f"CUPTI_ACTIVITY_KIND_{name}" for name in ("MEMCPY", "RUNTIME"))
    change(nsys_file, *(f"DROP TABLE {name}" for name in optional))
    trace = nsight.read_nsys(nsys_file)
    assert tables.by_kernel(trace)["count"].sum() == 2
    assert set(trace.kernels["phase"]) == {""} and trace.copies.empty
    change(nsys_file, "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
    assert "no table CUPTI_ACTIVITY_KIND_KERNEL" in message_of(nsight.read_nsys, nsys_file)


def test_nsight_systems_with_the_table_names_of_a_newer_schema(nsys_file: Path) -> None:
    for name in ("KERNEL", "RUNTIME", "MEMCPY"):
        table = f"CUPTI_ACTIVITY_KIND_{name}"
        change(
            nsys_file,
            f"ALTER TABLE {table} RENAME TO {table}_V10",
            f"CREATE TABLE {table}_V9 AS SELECT * FROM {table}_V10 LIMIT 1",
        )
    change(
        nsys_file,
        "CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)",
        "INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '4.1.0')",
    )
    with pytest.warns(UserWarning, match=r"schema version 4.1.0.* nsys stats report.sqlite"):
        test_nsight_systems_has_the_same_tables(nsys_file)
    change(nsys_file, "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL_V10 RENAME COLUMN start TO begin")
    message = message_of(nsight.read_nsys, nsys_file)
    assert "schema version 4.1.0 (KeyError: 'start')" in message


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
    nsys_file.unlink()
    assert "no such file" in message_of(nsight.read_nsys, nsys_file)


# ---- Nsight Compute ----------------------------------------------------------------------------


def test_nsight_compute_has_durations_and_tensor_core_counters(tmp_path: Path) -> None:
    path, copy = tmp_path / "ncu.csv", "void copy<int>(int, T2)"
    path.write_text(
        ncu_text(
            ncu_row(0, CONV, DURATION, "ns", "26,784"),
            ncu_row(0, CONV, COUNT, "inst", "1,048,576"),
            ncu_row(0, CONV, SHARE, "%", "53.50"),
            ncu_row(1, copy, DURATION, "usecond", "3.5"),
            ncu_row(1, copy, COUNT, "inst", "0"),
            ncu_row(1, copy, SHARE, "%", "n/a"),
        )
    )
    trace = nsight.read_ncu(path)
    conv, other = trace.kernels.set_index("kernel").loc[[CONV, copy]].itertuples()
    assert conv.duration_s == pytest.approx(26.784e-6) and other.duration_s == pytest.approx(3.5e-6)
    assert conv.tensor_active == pytest.approx(0.535) and conv.tensor_instructions == 1048576
    assert other.tensor_instructions == 0 and other.tensor_active != other.tensor_active  # NaN
    assert tables.by_kernel(trace)["name"].tolist() == [CONV, copy]
    assert tables.idle(trace).empty  # it has no times
    assert trace.device == "GPU of compute capability 9.0"
    with pytest.raises(ValueError, match="no times"):
        plot_timeline(trace)


def test_nsight_compute_raw_page_has_one_column_per_metric(tmp_path: Path) -> None:
    path = tmp_path / "ncu.csv"
    path.write_text(
        f'"ID","Process ID","Kernel Name","{DURATION}","{SHARE}"\n"","","","ms","%"\n'
        f'"0","5","{CONV}","1.5","12,5"\n'
    )
    (row,) = nsight.read_ncu(path).kernels.itertuples()
    assert (row.duration_s, row.tensor_active) == pytest.approx((1.5e-3, 0.125))


def test_nsight_compute_refuses_files_without_its_metrics(tmp_path: Path) -> None:
    path = tmp_path / "ncu.csv"
    assert "No such file" in message_of(nsight.read_ncu, path)
    path.write_text("==PROF== Connected\nloss 3\n")
    assert "no line of column names" in message_of(nsight.read_ncu, path)
    path.write_text(ncu_text(ncu_row(0, CONV, "dram__bytes.sum", "byte", "5")))
    assert "neither durations nor Tensor Core counters" in message_of(nsight.read_ncu, path)


# ---- Report of the Tensor Cores -------------------------------------------------------------


def test_report_of_nsight_systems_and_compute(nsys_file: Path, tmp_path: Path) -> None:
    report = tensor_cores.tensor_core_report(nsight.read_nsys(nsys_file)).set_index("operator")
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
    trace = nsight.read_ncu(path)
    table = tensor_cores.tensor_core_kernels(trace).set_index("kernel")
    assert table.loc[name, ["verdict", "generation"]].tolist() == ["used", "hopper"]
    assert table.loc[name, "tensor_active"] == pytest.approx(0.52)
    assert "no known operator" in tensor_cores.describe(tensor_cores.tensor_core_report(trace))
