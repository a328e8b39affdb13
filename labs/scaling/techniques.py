"""Ways to send less, as lines that are added to solutions/train.py, and what each step then takes.

The hooks are PyTorch's own (torch.distributed.algorithms).
"""

from __future__ import annotations

from textwrap import dedent

import pandas as pd

from course import recorded_runs
from labs.scaling.efficiency import mean_step_s

HOOKS = "torch.distributed.algorithms.ddp_comm_hooks"
# By name: the lines to add, by the line that they follow. `model` is the network in DDP.
TECHNIQUES: dict[str, dict[str, str]] = {
    "bf16": {
        "import torch": f"from {HOOKS} import default_hooks",
        "criterion = nn.CrossEntropyLoss()":
            "model.register_comm_hook(None, default_hooks.bf16_compress_hook)",
    },
    "powersgd": {
        "import torch": f"from {HOOKS} import powerSGD_hook as powersgd",
        "criterion = nn.CrossEntropyLoss()": """
            state = powersgd.PowerSGDState(None, matrix_approximation_rank=1,
                                           start_powerSGD_iter=4)
            model.register_comm_hook(state, powersgd.powerSGD_hook)""",
    },
    "accumulate": {
        'meter.lap("load")': "model.require_backward_grad_sync = meter.step % 4 == 3",
        'meter.lap("backward")': """
            if not model.require_backward_grad_sync:  # as in `with model.no_sync()`
                meter.lap("optimizer", loss=loss)
                profiler.step()
                continue""",
    },
    "local_sgd": {
        "criterion = nn.CrossEntropyLoss()":
            "model.require_backward_grad_sync = False  # each rank trains by itself",
        "scaler.update()": """
            if meter.step % 8 == 7:  # average the weights of all ranks
                weights = [weight.data for weight in model.parameters()]
                mean = torch.cat([weight.flatten() for weight in weights]) / run.world_size
                distributed.all_reduce(mean)
                for weight, part in zip(weights, mean.split([w.numel() for w in weights])):
                    weight.copy_(part.view_as(weight))""",
    },
}  # fmt: skip
HOSTS, GPUS = 2, 4


def compare_techniques(machine: str, rung: str) -> pd.DataFrame:
    """Compare recorded steps on two simulated hosts: with each technique, and without.

    The mean is over 40 steps, after which all techniques have repeated themselves. Columns:
    step_ms, efficiency in percent of one GPU with as many images as each of the others has.
    """
    runs = [run for run in recorded_runs(machine) if run.config.rung == rung]
    (single,) = (run for run in runs if run.gpus == 1)
    added = {str({key: dedent(new).strip() for key, new in lines.items()}): name
             for name, lines in TECHNIQUES.items()}  # fmt: skip
    steps_s = {
        added.get(str(run.launched.get("added")), "DDP"): mean_step_s(run)
        for run in runs
        if (run.gpus, run.config.hosts) == (GPUS, HOSTS)
    }
    step_s = pd.Series({name: steps_s[name] for name in ("DDP", *TECHNIQUES)})
    return pd.DataFrame({"step_ms": 1e3 * step_s, "efficiency": 100 * mean_step_s(single) / step_s})
