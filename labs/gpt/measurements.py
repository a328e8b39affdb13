"""Read the GPT's rungs as an H200 ran them."""

import pandas as pd

from course import recorded_runs
from trainspeed.gpus import gpu_rates


def recorded_ladder() -> pd.DataFrame:
    """Return the GPT's rungs on an H200, one run each, with 16 sequences per step.

    The last row is the fastest rung with 64. Indexed by rung, with columns batch_size (sequences),
    tokens_per_s (median), mfu_percent, peak_gib, joules_per_token, machine and steps (measured).
    """
    rows = {}
    for run in recorded_runs("nvidia-h200", "gpt"):
        config, record = run.config, run.record
        many = f", batch {config.batch_size}" * (config.batch_size != 16)
        speed = record.images_per_s * config.tokens
        rows[config.rung + many] = {
            "batch_size": config.batch_size,
            "tokens_per_s": speed,
            "mfu_percent": 100 * speed * config.flop_per_token / gpu_rates(record.machine)["bf16"],
            "peak_gib": record.peak_gib,
            "joules_per_token": record.joules_per_image / config.tokens,
            "machine": record.machine,
            "steps": record.steps_measured,
        }
    return pd.DataFrame.from_dict(rows, orient="index")
