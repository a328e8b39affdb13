"""A recorded shared file system."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

RECORDED = Path(__file__).with_name("shared_files.jsonl")


def shared_files() -> pd.DataFrame:
    """Return the speed of one reader over a network, as research/shared_files.py recorded it.

    Returns:
        One row per way to store the images, the index. Columns: attributes, opens, reads, closes
        (requests per image), kb, request_ms (of one request), images_per_s, local_images_per_s
        (from memory), machine, date.
    """
    table = pd.read_json(RECORDED, lines=True, convert_dates=False, precise_float=True)
    return table.set_index("way").drop(columns=["plan", "torch", "command"])
