"""What several tests of traces read."""

import sqlite3
from pathlib import Path

import pytest
from trace_files import CONV, WGRAD

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
