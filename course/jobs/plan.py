"""Check and prepare a launch before anything is started: script, config, site, batch script."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from course.config import FULL_SIZE, SCRIPTS, Config, change
from course.data import folders
from course.jobs import batch_script as slurm_script
from course.jobs import local, sites, slurm
from course.jobs.sites import Site
from course.runs import run as runs
from course.runs.files import read_dict
from course.runs.run import ADDED, PROJECT, Run
from course.text import read_utf8

# 256 images of 224 px take 21.4 GiB in fp32, and two runs that take turns are in memory together.
LARGE_GPU_GIB = 40


@dataclass(frozen=True)
class Plan:
    """One launch: the script and its text, the config, the site, and the request."""

    source: Path
    text: str
    config: Config
    site: Site
    request: dict[str, Any]
    is_repeat: bool = False  # of an existing run, as the partner of the first launch of a group

    @property
    def name(self) -> str:
        """The run's name: the same text, config, site and GPU count always give the same.

        It also depends on the runs that it takes turns with, because such a run measures more than
        a run by itself. A repetition has the name of the run that it repeats.
        """
        request = {
            key: value
            for key, value in self.request.items()
            if key != "added" and (key != "beside" or not self.is_repeat)  # the text has them
        }
        request["config"] = asdict(self.config)
        known = json.dumps([self.text, request], sort_keys=True)
        return f"{self.config.rung}-{hashlib.sha256(known.encode()).hexdigest()[:8]}"

    def attempts(self) -> tuple[Run | None, Path]:
        """Return the last attempt at this run, or None, and the folder for the next."""
        last, number, root = None, 1, runs.runs_root()
        while (folder := root / (self.name if number == 1 else f"{self.name}.{number}")).exists():
            if (folder / "launch.json").exists():
                last = Run(folder)
            number += 1
        return last, folder


def in_turns(plans: Sequence[Plan]) -> list[Plan]:
    """Return the same launches as one group, in which each takes turns with all the others."""
    names = [planned.name for planned in plans]
    if len(set(names)) < len(names):
        raise ValueError("two of these runs are the same: vary them, or launch one against it")
    _check_budgets([planned.config for planned in plans])
    return [replace(planned, request=planned.request | {"beside": names}) for planned in plans]


def beside(planned: Plan, against: Run) -> tuple[Plan, Plan]:
    """Pair a launch with a repetition of another run's snapshot, to take turns with.

    Returns:
        The launch, and the launch of the repetition.
    """
    config = against.requested_config
    _check_budgets([planned.config, config])
    launched, kept = against.launched, ("added", "hooks", "arguments", "folder")
    values = {name: launched[name] for name in kept if name in launched}
    values |= {"rung": config.rung, "site": planned.site.name, "gpus": against.gpus}
    source = Path(launched["script"])
    text = against.script.read_text()
    repeat = Plan(source, text, config, planned.site, values, is_repeat=True)
    both = {"beside": [repeat.name]}
    return replace(planned, request=planned.request | both), replace(repeat, request=values | both)


def _check_budgets(configs: Sequence[Config]) -> None:
    if any(config.steps == 0 for config in configs):
        raise ValueError("steps=0: runs that take turns need a number, or launch each by itself")
    budgets = {config.budget_s for config in configs}
    if len(budgets) > 1:
        raise ValueError(
            f"runs that take turns end together, and these have budget_s={sorted(budgets)}: give "
            f"all the same (quick runs have one, runs at full size none)"
        )


def plan_run(
    script: str | Path,
    config: Config,
    *,
    site: str = "local",
    gpus: int = 1,
    time_min: float | None = None,
    hooks: Sequence[str] = (),
    arguments: Sequence[str] | None = None,
) -> Plan:
    """Check a launch and return its plan; the arguments are those of `launch.launch`.

    Raises:
        ValueError: no such script or site, or an impossible request.
    """
    source, chosen = find_script(script), sites.get(site)
    text = read_utf8(source)
    check_syntax(text, "/".join(source.parts[-2:]))
    chosen.check_gpus(gpus)
    if name := script_of(source):  # raises if it would ignore some of the settings
        config = change(config, {"script": name})
    _check_parallel(config, gpus)
    _check_hosts(config, gpus, chosen)
    if gpus > 1 and config.device != "cpu" and device_for(gpus, site) == "cpu":
        raise ValueError(
            f"gpus={gpus}: this machine has fewer GPUs, and each rank needs one. Choose fewer, "
            f"or let all ranks use the CPU, device='cpu'"
        )
    if chosen.executor == "local" and not config.has_sizes:
        import torch

        config.fitted(config.device != "cpu" and torch.accelerator.is_available())  # or raise
    copies = gpus // config.tensor  # of the network
    if rest := config.batch_size % copies:
        ranks = f"gpus={gpus}" + f" with tensor={config.tensor}" * (config.tensor > 1)
        raise ValueError(
            f"batch_size={config.batch_size} is what one update sees, and {ranks} cannot share it "
            f"evenly: choose a multiple of {copies}, such as {config.batch_size - rest or copies}"
        )
    if time_min is not None:
        chosen = replace(chosen, time_min=time_min)
    config = _with_data_root(config, chosen)
    request = {"rung": config.rung, "site": site, "gpus": gpus}
    if added := _added(source, text):
        request["added"] = added
    if hooks:
        request["hooks"] = [*hooks]
    if arguments is not None:
        request |= {"arguments": [*arguments], "folder": str(Path.cwd())}
    return Plan(source, text, config, chosen, request)


def check_syntax(text: str, name: str) -> None:
    """Raise a ValueError with the line of a script that Python cannot read."""
    try:
        compile(text, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        line = (error.text or "").strip()
        raise ValueError(
            f"{name}, line {error.lineno}: {error.msg}: `{line}`. Nothing was launched: fix the "
            f"line and save the file"
        ) from None


def _check_parallel(config: Config, gpus: int) -> None:
    """Raise ValueError if these ranks cannot split the network or batch as the config requests."""
    if gpus % config.tensor:
        raise ValueError(f"gpus={gpus}: tensor={config.tensor} needs a multiple of {config.tensor}")
    passes = config.batch_size // (config.micro_batch or config.batch_size)
    if config.pipeline in ("interleaved", "zero_bubble") and passes % gpus:
        raise ValueError(
            f"pipeline={config.pipeline!r} deals {passes} micro-batches out in rounds of "
            f"gpus={gpus}: choose a micro_batch that makes a multiple of {gpus}"
        )


def _check_hosts(config: Config, gpus: int, site: Site) -> None:
    """Raise ValueError if ranks cannot divide evenly among simulated hosts, or nodes are real."""
    if gpus % config.hosts:
        divisors = [str(hosts) for hosts in range(1, gpus + 1) if gpus % hosts == 0]
        choice = f"choose hosts={' or '.join(divisors)}, or more GPUs"
        raise ValueError(f"hosts={config.hosts} must share gpus={gpus} evenly: {choice}")
    if config.hosts > 1 and site.executor == "slurm" and site.shape(gpus)[0] > 1:
        raise ValueError(
            f"hosts={config.hosts}: gpus={gpus} are several real nodes of site {site.name!r}: "
            f"set hosts=1, or choose at most {site.gpus_per_node} GPUs"
        )


def script_of(source: Path) -> str:
    """Return the course's script that a script is a copy of, by its name; "" for any other."""
    launched = read_dict(source.with_name("launch.json"))  # a run's snapshot is always train.py
    name = Path(launched.get("script", source)).name
    return name if name in SCRIPTS else ""


def _added(source: Path, text: str) -> dict[str, str]:
    """Return a variant's added lines by the line before them; {} for any other script."""
    variant = read_dict(source.with_suffix(ADDED))
    if not variant:
        return {}
    if variant["sha256"] != hashlib.sha256(text.encode()).hexdigest():
        return {source.name: "edited since script_variant() made it"}
    return variant["added"]


def device_for(gpus: int, site: str = "local") -> str:
    """Return the `Config.device` for this many ranks: "cpu" if there are too few accelerators.

    Ranks cannot share an accelerator, only the CPU. Without an accelerator, "auto" is the CPU.
    """
    import torch  # only here: it takes seconds

    few = sites.get(site).executor == "local" and 0 < torch.accelerator.device_count() < gpus
    return "cpu" if few else "auto"


def without_loading(site: str = "local") -> dict[str, Any]:
    """Return settings for full-size runs in which a GPU does not wait for images.

    One process decodes files more slowly than a GPU trains, which would hide the effect of other
    rungs: so the images are synthetic, and 256 per step if they fit, otherwise 64. A recorded
    machine gets the settings of its recorded ladder. On a machine without an accelerator loading
    is a small part of a step, and the settings are empty.
    """
    import torch  # only here: it takes seconds

    from trainspeed.measured_memory import total_gib

    if (executor := sites.get(site).executor) == "recorded":
        return FULL_SIZE
    if executor == "slurm":  # the memory of its GPUs is not known here
        return {"data": "synthetic", "batch_size": 64}
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is None:
        return {}
    return {"data": "synthetic", "batch_size": 256 if total_gib(device) > LARGE_GPU_GIB else 64}


def preview(script: str | Path, config: Config, **options: Any) -> str:
    """Return the batch script that `launch` would submit with these arguments; submit nothing."""
    planned = plan_run(script, config, **options)
    _, folder = planned.attempts()
    return _batch_script(folder, planned.request, planned.site)


def batch_script(run: Run, site: str | None = None) -> str:
    """Return the batch script that a run was submitted as, or would be on another site.

    Args:
        site: a name in sites.toml; None: the run's own site, and the script really submitted.

    Raises:
        ValueError: no such site, a recorded run, or a site that only has recorded runs.
    """
    if run.is_recorded:
        raise ValueError(f"{run.name} ran on another machine, which left no batch script here")
    scripts = sorted(run.job.folder.glob("logs/*_submission.sh"))
    if site is None and scripts:
        return scripts[-1].read_text()
    chosen = replace(sites.get(site or run.launched["site"]), time_min=run.launched["time_min"])
    return _batch_script(run.folder, run.launched, chosen)


def _batch_script(folder: Path, request: dict[str, Any], site: Site) -> str:
    if site.executor == "recorded":
        raise ValueError(f"site {site.name!r} starts no jobs, so there is no batch script for it")
    write = slurm_script.batch_script if site.executor == "slurm" else local.commands
    return write(folder, request, site)


def engine(run: Run) -> Any:
    """Return the module that submits a run's job, and knows whether it is alive."""
    return {"local": local, "slurm": slurm}[run.executor]


def _with_data_root(config: Config, site: Site) -> Config:
    if config.data != "imagenet":
        return config
    folder = config.data_root or site.data_root
    if not folder:
        raise ValueError(
            f'data="imagenet" needs data_root, a folder with train/ and val/ inside: set it in '
            f"the config, or for site {site.name!r} in {sites.user_file()}"
        )
    root = Path(folder).expanduser().resolve()
    if site.executor == "local":  # elsewhere the disks may differ
        _check_data(root, config.format)
    return replace(config, data_root=str(root))


def _check_data(root: Path, format_: str) -> None:
    """Raise an error for a data set that is missing, before a job waits in the queue."""
    if format_ in folders.KINDS:
        folders.converted_folder(format_, root)
    elif missing := [split for split in folders.SPLITS if not (root / split).is_dir()]:
        raise ValueError(
            f"data_root={str(root)!r}: expected a folder with train/ and val/ inside, and "
            f"it has no {' and no '.join(missing)}: set it to another folder, or read what is "
            f"there with course data --from"
        )


def find_script(script: str | Path) -> Path:
    """Find a script by its path, relative to the current folder or to the project's root.

    Raises:
        ValueError: there is none; the message lists the course's.
    """
    path = Path(script).expanduser()
    for candidate in (path, PROJECT / path):
        if candidate.is_file():
            if candidate.suffix != ".py":
                raise ValueError(f"script {str(script)!r}: expected a Python script, NAME.py")
            return candidate.resolve()
    known = ", ".join(
        f"{folder}/{file.name}"
        for folder in ("exercises", "solutions")
        for file in sorted((PROJECT / folder).glob("*.py"))
    )
    fix = f"choose {known}"
    if path.parent.name == "exercises" and (PROJECT / "solutions" / path.name).exists():
        fix = "course exercises --restore writes the missing exercises again"
    raise ValueError(f"no script {str(script)!r} here or in {PROJECT}: {fix}")
