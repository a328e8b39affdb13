"""The ladder as a waterfall: what each rung added, and the ceilings above the machine."""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache
from typing import Any

import pandas as pd

from course.config import BEYOND, LADDER, from_dict, rung
from course.runs.recordings import SETUP, ladders
from course.topics.roofline.bounds import points, recorded_ceilings
from course.topics.roofline.cost import fused, operators, plain

PRECISION = "bf16"  # of the ladder's last rungs; fp16 moves as many bytes
KEPT = ["rung", "precision", "images_per_s", "images_per_s_q1", "images_per_s_q3", "machine"]


def steps(machine: str) -> pd.DataFrame:
    """The recorded rungs, each beside the one before it.

    Columns: rung, precision, images_per_s with _q1 and _q3, added (images_per_s above the step
    before), ratio (to the step before), wall and share (which ceiling is the lower one, and how
    much of it is reached; of compiled rungs the lower edge of the wall's band; none on the CPU,
    whose ceilings are not known, and of the algebra, which moves other bytes than the walls
    count), machine (with when it was measured), setup. A rung that was not recorded is left out.

    Raises:
        ValueError: nothing is recorded for the machine, or no ceilings.
    """
    on = ladders(machine)
    first = on["CPU"].get(("baseline", "fp32"))
    formats = {
        name: PRECISION if config.precision == "half" else config.precision
        for name, config in (LADDER | BEYOND).items()
    }
    others = [on["GPU"].get(rung) for rung in formats.items()]
    rows = [asdict(record) for record in (first, *others) if record]
    rows = [row | {"precision": row["config"]["precision"]} for row in rows]
    table = pd.DataFrame(rows)[KEPT]
    table = table.merge(_shares(rows, machine), on="rung", how="left")
    before = table["images_per_s"].shift()
    return table.assign(
        added=table["images_per_s"] - before.fillna(0),
        ratio=table["images_per_s"] / before,
        setup=f"ResNet-50, {from_dict(SETUP).setup}",
    )


def walls(machine: str) -> pd.DataFrame:
    """What holds a training step in half precision on a machine, whatever its speed so far.

    Columns: wall, cost (of an image, in words), low and high (images/s; they differ where the
    bytes are known within limits only). Bytes and FLOP are counted (`cost.operators`), the
    machine's ceilings were measured.

    Raises:
        ValueError: no ceilings are recorded for the machine.
    """
    ceilings = recorded_ceilings(machine)
    gflop, eager, least, most = _image()
    memory, arithmetic = ceilings.bytes_per_s / 1e6, ceilings.flop_per_s[PRECISION] / 1e9
    return pd.DataFrame(
        [
            {
                "wall": "memory, eager",
                "cost": f"{eager:.0f} MB",
                "low": memory / eager,
                "high": memory / eager,
            },
            {
                "wall": "memory, compiled",
                "cost": f"{least:.0f} to {most:.0f} MB",
                "low": memory / most,
                "high": memory / least,
            },
            {
                "wall": f"arithmetic, {PRECISION}",
                "cost": f"{gflop:.1f} GFLOP",
                "low": arithmetic / gflop,
                "high": arithmetic / gflop,
            },
        ]
    )


@lru_cache
def _image() -> tuple[float, float, float, float]:
    """GFLOP of an image, and its megabytes: eager, fused at least and at most."""
    table = operators(plain(rung("channels_last", **SETUP))).set_index("operator")
    gflop, megabytes = table["gflop"].sum(), table["megabytes"].sum()
    least, most = fused(table)[["least", "most"]].sum()
    return float(gflop), float(megabytes), float(least), float(most)


def _shares(rows: list[dict[str, Any]], machine: str) -> pd.DataFrame:
    placed = points(pd.DataFrame(rows), recorded_ceilings(machine))
    shares = placed[["rung", "nearer", "share"]].rename(columns={"nearer": "wall"})
    low = walls(machine).set_index("wall")["low"]["memory, compiled"]
    fused = [
        {"rung": row["rung"], "wall": "memory", "share": row["images_per_s"] / low}
        for row in rows
        if row["config"].get("compile")
    ]
    return pd.concat([shares, pd.DataFrame(fused)], ignore_index=True)
