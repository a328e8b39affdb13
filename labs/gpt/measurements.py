"""Read the GPT's rungs as printed reports of an H200 had them."""

from pathlib import Path

import pandas as pd


def recorded_ladder() -> pd.DataFrame:
    """Return the GPT's rungs on an H200, one run each; gpt_vocabulary was not measured.

    Indexed by rung, with columns batch_size (sequences), tokens_per_s (median; q1, q3 its
    quartiles), mfu_percent, peak_gib, joules_per_token, machine and steps (measured).
    """
    path = Path(__file__).with_name("ladder_h200.jsonl")
    return pd.read_json(path, lines=True).set_index("rung")
