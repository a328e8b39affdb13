"""Ways to send less, as lines that are added to solutions/train.py, and what each step then takes.

The hooks are PyTorch's own (torch.distributed.algorithms).
"""

from __future__ import annotations

from dataclasses import replace
from textwrap import dedent

import pandas as pd

from course import Run, launch, recorded_runs, rung, script_variant
from course.lab import SYNTHETIC
from labs.scaling.model import Link, config_buckets, exposed_s

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
CYCLE = 8  # steps after which all techniques have repeated themselves
HOSTS = 2


def technique_runs(machine: str, rung: str) -> dict[str, Run]:
    """Return recorded runs of a rung on two pretended hosts, with each technique and without.

    "one GPU" has as many images as each of the others has per GPU.
    """
    named = {"one GPU": network_run(machine, rung, gpus=1, hosts=1)}
    several = [run for run in recorded_runs(machine) if run.config.hosts == HOSTS]
    gpus = max(run.gpus for run in several)
    named["DDP"] = network_run(machine, rung, gpus, HOSTS)
    added = {name: {key: dedent(new).strip() for key, new in lines.items()}
             for name, lines in TECHNIQUES.items()}  # fmt: skip
    for run in several:
        if run.config.rung == rung and run.gpus == gpus:
            named |= {name: run for name in added if run.launched.get("added") == added[name]}
    return named


def network_run(machine: str, rung: str, gpus: int, hosts: int) -> Run:
    """Return a machine's recorded run of a rung on GPUs that are split over pretended hosts.

    Raises:
        ValueError: it is not recorded.
    """
    for run in recorded_runs(machine, "network"):
        if (run.config.rung, run.gpus, run.config.hosts) == (rung, gpus, hosts):
            return run
    raise ValueError(f"{machine}: {rung} on {gpus} GPUs of {hosts} pretended hosts is not recorded")


def train_on(site: str, technique: str) -> dict[str, Run]:
    """Train a small network on one rank of a site, and on two with and without a technique."""
    sizes = SYNTHETIC | {"model": "resnet18", "image_px": 32, "steps": 24, "budget_s": 0.0}
    config = rung("baseline", quick=True, **sizes | {"batch_size": 128})
    script = script_variant(technique, TECHNIQUES[technique])
    wanted = {
        "one rank": ("solutions/train.py", replace(config, batch_size=64), 1),
        "DDP": ("solutions/train.py", config, 2),
        technique: (script, config, 2),
    }
    # One after another, because all nodes may be this machine.
    return {
        name: launch(path, changed, site=site, gpus=ranks).wait()
        for name, (path, changed, ranks) in wanted.items()
    }


def predict_efficiency(single: Run, ranks: int, link: Link) -> float:
    """Predict the efficiency of DDP from a run on one rank, if messages cost no computing time."""
    config, alone_s = single.config, mean_step_s(single)
    buckets = config_buckets(config.model, config.image_px, config.bucket_mb)
    return alone_s / (alone_s + exposed_s(buckets, ranks, link, single.record.backward_s))


def mean_step_s(run: Run) -> float:
    """Return the mean step in seconds, after warm-up and over complete cycles.

    A median would leave out the steps that send.
    """
    steps = run.steps["step_s"].iloc[run.config.warmup_steps :]
    return float(steps.iloc[-(len(steps) // CYCLE * CYCLE) :].mean())


def compare_steps(runs: dict[str, Run]) -> pd.DataFrame:
    """Compare runs with the first one, which has one rank: step_ms, efficiency in percent."""
    step_s = pd.Series({name: mean_step_s(run) for name, run in runs.items()})
    return pd.DataFrame({"step_ms": 1e3 * step_s, "efficiency": 100 * step_s.iloc[0] / step_s})


def predict_hosts(machine: str, rung: str, links: dict[tuple[int, int], Link]) -> pd.DataFrame:
    """Predict recorded runs on pretended hosts from one GPU's step, and compare.

    A predicted step is one GPU's, DDP's own work, as on as many GPUs of one host, and what is
    still being sent when backward ends.

    Args:
        links: by the numbers of GPUs and hosts.

    Returns:
        Columns: gpus, hosts, exposed_ms, predicted and measured efficiency in percent.
    """
    single, rows = network_run(machine, rung, gpus=1, hosts=1), []
    config, alone_s = single.config, mean_step_s(single)
    buckets = config_buckets(config.model, config.image_px, config.bucket_mb)
    for (gpus, hosts), link in links.items():
        try:
            run, local = (network_run(machine, rung, gpus, number) for number in (hosts, 1))
        except ValueError:
            continue
        late_s = exposed_s(buckets, gpus, link, single.record.backward_s)
        predicted_s = mean_step_s(local) + late_s
        shares = [100 * alone_s / step_s for step_s in (predicted_s, mean_step_s(run))]
        rows.append((gpus, hosts, 1e3 * late_s, *shares))
    return pd.DataFrame(rows, columns=["gpus", "hosts", "exposed_ms", "predicted", "measured"])
