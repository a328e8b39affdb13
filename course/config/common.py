"""The `Config` of a run, which decides what it computes, and the ladder of rungs as data."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from course.config import rules
from course.config.rules import CROPS_PX, HALF_FORMATS, SCRIPT_FIELDS
from course.text import closest

GIB = 1024**3  # bytes: the unit of fields and columns that end in _gib


class Bounds(NamedTuple):
    """The smallest value of a number, and the limit below which it must be."""

    least: float
    below: float = math.inf


Count = Annotated[int, Bounds(0)]
Positive = Annotated[int, Bounds(1)]
Amount = Annotated[float, Bounds(0)]
Fraction = Annotated[float, Bounds(0, below=1)]

ResNet = Literal["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"]
SmallResNet = Literal["resnet18_cifar", "resnet8_patches"]
CoAtNet = Literal["coatnet_pico_rw_224", "coatnet_0_224", "coatnet_3_224", "coatnet_5_224"]
ViT = Literal["vit_tiny_patch16_224", "vit_gigantic_patch14_224"]
Model = Literal[ResNet, SmallResNet, CoAtNet, ViT]
Optimizer = Literal["sgd", "nesterov", "adamw", "lars", "lamb", "lion", "muon", "schedulefree"]
Compile = Literal["", "default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune"]


@dataclass(frozen=True)
class Config:
    """Everything that decides what a run computes. Frozen: a changed config is a different run."""

    rung: str = "baseline"  # only a label, which does not change the computation

    # Device, number format and speed of a step.
    device: Literal["cpu", "auto"] = "cpu"  # "auto": the accelerator, if any
    precision: Literal["fp32", "tf32", "bf16", "fp16", "half"] = "fp32"  # "half": device's own
    channels_last: bool = False  # NHWC memory layout for weights and images
    fused: bool = False  # one kernel updates many weights
    compile: Compile = ""  # mode of torch.compile; "": the model is not compiled
    algebra: bool = False  # BatchNorm's statistics from the bottlenecks' narrow inputs
    model: Model = "resnet50"
    memory_gib: Amount = 0.0  # simulate a smaller GPU: out of memory above this; 0: no limit

    # Images, and how they are loaded.
    data: Literal["synthetic", "default", "imagenet", "crops"] = "default"
    data_root: str = ""  # for data="imagenet": folder with train/ and val/; "": the site's
    format: Literal["files", "shards", "small", "raw", "gpu_decode"] = "files"  # of stored images
    shuffle_buffer: Count = 1000  # for format="shards": images to draw from
    image_px: Annotated[int, Bounds(32)] = 224  # side of the training and validation crops
    batch_size: Positive = 64  # images per update, over all ranks
    workers: Count = 0  # DataLoader processes; 0: the training process loads images
    persistent_workers: bool = False  # keep workers between epochs
    prefetch_factor: Positive = 2  # batches that each worker prepares in advance
    pin_memory: bool = False  # batches in page-locked memory, for asynchronous copies
    non_blocking: bool = False  # do not wait while a batch is copied to the device
    drop_last: bool = True  # every epoch has all steps; False: it ends with the files
    uint8: bool = True  # images are copied as bytes, normalised on the device

    # Length of the run, and what is measured.
    epochs: Positive = 2
    steps: Positive = 16  # training steps per epoch
    warmup_steps: Count = 8  # first steps of the run, excluded from all times
    budget_s: Amount = 0.0  # end when a ratio is certain, or after this time; 0: all steps
    profile_steps: Count = 0  # warm-up steps to trace
    val_steps: Count = 4  # maximum of validation batches per epoch; 0: no validation
    val_images: Count = 0  # maximum of images to validate on; 0: all
    save_weights: bool = False  # write weights.pt at the end

    # Augmentation.
    randaugment: Literal["", "cpu", "device"] = ""  # where to augment
    mix: Literal["", "mixup", "cutmix"] = ""  # mix each image and its label with another image
    mix_alpha: Annotated[float, Bounds(0.01)] = 1.0  # of the Beta distribution of the proportions
    label_smoothing: Fraction = 0.0  # share of each label that is spread over all classes
    start_px: Count = 0  # training crops grow from this to image_px; 0: they do not

    # Learning.
    optimizer: Optimizer = "sgd"
    lr: Amount = 0.01
    lr_warmup: Count = 0  # updates until the learning rate reaches lr
    schedule: Literal["", "linear", "cosine", "one_cycle", "find"] = ""  # "": constant
    momentum: Amount = 0.9
    weight_decay: Amount = 5e-5
    norm_decay: bool = True  # also decay BatchNorm's weights and biases
    ema: Fraction = 0.0  # validate averages with this decay per update; 0: the weights
    seed: int = 0
    overflow_step: Count = 0  # makes a gradient infinite in this step; 0: never

    # Several ranks: DDP.
    bucket_mb: Annotated[float, Bounds(0.001)] = 25.0  # of gradients per message
    find_unused: bool = False  # search for weights that a step does not use
    sync_batchnorm: bool = False  # BatchNorm's statistics over the batch of all ranks
    collective_timeout_s: Positive = 60  # a rank that waits longer for others fails
    hosts: Positive = 1  # pretended hosts that share the GPUs of one machine: NCCL uses a network

    # Memory and shards: train_sharded.py.
    micro_batch: Count = 0  # images that a rank computes at once; 0: its share
    checkpointing: Literal["", "every", "second", "selective"] = ""  # which blocks are recomputed
    offload: bool = False  # store saved tensors in host memory until backward
    shard: Literal["", "zero2", "zero3", "hybrid"] = ""  # zero2: all but weights; hybrid: HSDP
    unit_blocks: Count = 1  # blocks gathered together; 0: the complete network
    gather_bf16: bool = False  # gather weights in bf16, instead of casting them under autocast
    prefetch: Count = 0  # units to gather ahead; 0: PyTorch's default
    clip: Amount = 0.0  # maximum norm of the gradients; 0: no limit
    save_shards: bool = False  # each rank writes its weights and optimizer state at the end
    resume: str = ""  # continue from this run, which saved its shards

    # Tensors and stages: train_parallel.py.
    tensor: Positive = 1  # ranks that share each MLP; data parallelism over the rest
    pipeline: Literal["", "gpipe", "1f1b", "interleaved", "zero_bubble"] = ""  # schedule
    stage_split: str = "gflop"  # balance stages by gflop or weights; or their first blocks: "4,9"

    # Checkpoints and restarts: train_restarted.py.
    save_every: Count = 0  # steps between two checkpoints; 0: no checkpoints
    async_save: bool = False  # write checkpoints in the background
    deterministic: bool = False  # use only algorithms with bitwise equal results
    sigterm_step: Count = 0  # sends SIGTERM in this step; 0: never
    sigkill_step: Count = 0  # kills the process in the first save after this step

    def __post_init__(self) -> None:
        _check_values(self)
        rules.check(self)

    def changed(self, *names: str) -> list[str]:
        """Return the names of those fields that differ from their default."""
        return [name for name in names if getattr(self, name) != getattr(Config, name)]

    @property
    def is_timm(self) -> bool:
        """Whether the network is from timm, built for one image size."""
        return not self.model.startswith("resnet")

    @property
    def is_half(self) -> bool:
        """Whether the forward pass runs in 16 bits."""
        return self.precision in ("half", *HALF_FORMATS)

    @property
    def script(self) -> str:
        """The course's script that reads all fields of this config."""
        for script, names in SCRIPT_FIELDS.items():
            if self.changed(*names):
                return script
        return "train_sharded.py" if self.is_timm else "train.py"

    @property
    def scales_loss(self) -> bool:
        """Whether its script scales the loss, as training in fp16 requires."""
        return self.script in ("train.py", "train_restarted.py")

    @property
    def setup(self) -> str:
        """Data, sizes and pretended hosts in words, to be shown with any speed."""
        stored = f" as {self.format}" * (self.format != "files" and self.data != "synthetic")
        hosts = f", {self.hosts} pretended hosts" * (self.hosts > 1)
        return f"{self.data} data{stored}, {self.image_px} px, batch {self.batch_size}{hosts}"

    def to_json(self) -> str:
        """Return the config as indented JSON."""
        return json.dumps(asdict(self), indent=2)


_HINTS = get_type_hints(Config, include_extras=True)
CHOICES = {name: get_args(hint) for name, hint in _HINTS.items() if get_origin(hint) is Literal}
BOUNDS: dict[str, Bounds] = {
    name: hint.__metadata__[0] for name, hint in _HINTS.items() if get_origin(hint) is Annotated
}
_TYPES = get_type_hints(Config) | dict.fromkeys(CHOICES, str)
_BOOLS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_IN_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _check_values(cfg: Config) -> None:
    for name, choices in CHOICES.items():
        value = getattr(cfg, name)
        if value not in choices:
            listed = " or ".join(choice or '""' for choice in choices)
            raise ValueError(f"{name}={value!r}{closest(str(value), choices)}: choose {listed}")
    for name, (least, below) in BOUNDS.items():
        value = getattr(cfg, name)
        if not least <= value < below:  # NaN fails this, too
            limit = f", and below {below:g}" if value >= below else ""
            raise ValueError(f"{name}={value}: it must be {least:g} or more{limit}")


# Each rung: the previous rung, and what it changes. It is one field, so that a change in speed has
# one cause, except for Day 4's large network.
_RUNG_CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "device": ("baseline", {"device": "auto"}),
    "amp": ("device", {"precision": "half"}),
    "channels_last": ("amp", {"channels_last": True}),
    "dataloader": ("channels_last", {"workers": 8}),
    "fused": ("channels_last", {"fused": True}),
    "compile": ("fused", {"compile": "default"}),
    "autotune": ("compile", {"compile": "max-autotune-no-cudagraphs"}),
    "algebra": ("fused", {"algebra": True}),
    "shards": ("dataloader", {"format": "shards"}),
    "small": ("dataloader", {"format": "small"}),
    "raw": ("small", {"format": "raw"}),
    "gpu_decode": ("dataloader", {"format": "gpu_decode"}),
    "randaugment": ("dataloader", {"randaugment": "cpu"}),
    "randaugment_device": ("randaugment", {"randaugment": "device"}),
    "label_smoothing": ("dataloader", {"label_smoothing": 0.1}),
    "mixup": ("dataloader", {"mix": "mixup"}),
    "cutmix": ("mixup", {"mix": "cutmix"}),
    "progressive": ("dataloader", {"start_px": 128}),
    "no_norm_decay": ("channels_last", {"norm_decay": False}),
    "find": ("channels_last", {"schedule": "find"}),
    "large": (
        "channels_last",
        {"model": "coatnet_pico_rw_224", "optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.05},
    ),
    "accumulated": ("large", {"micro_batch": 16}),
    "checkpointed": ("large", {"checkpointing": "every"}),
    "offloaded": ("large", {"offload": True}),
    "sharded": ("large", {"shard": "zero3"}),
    "tensor": ("large", {"tensor": 2}),
    "pipeline": ("large", {"pipeline": "1f1b", "micro_batch": 2}),
    "restarted": ("channels_last", {"save_every": 8}),
}
RUNGS: dict[str, Config] = {"baseline": Config()}
for _name, (_before, _change) in _RUNG_CHANGES.items():
    RUNGS[_name] = replace(RUNGS[_before], rung=_name, **_change)
# What `course ladder` runs, and the rungs after channels_last that it runs only with --compile,
# because compiling ResNet-50 takes minutes on a small machine.
_LADDER_NAMES = ("baseline", "device", "amp", "channels_last", "dataloader")
LADDER: dict[str, Config] = {name: RUNGS[name] for name in _LADDER_NAMES}
# Sizes at which machines are recorded.
SYNTHETIC = {"data": "synthetic", "val_steps": 0, "epochs": 1}
FULL_SIZE = SYNTHETIC | {"batch_size": 256, "steps": 60, "warmup_steps": 20}  # a large GPU is busy
COMPILED = ("fused", "compile")

# Small enough for two CPU cores, and large enough to show the effect of a rung: with fewer pixels,
# the fixed cost of a step hides it. The learning rate is scaled with the batch.
QUICK: dict[str, Any] = {
    "image_px": 144,
    "batch_size": 8,
    "epochs": 1,
    "steps": 64,
    "warmup_steps": 2,
    "val_steps": 2,
    "budget_s": 8.0,
    "lr": 0.003,
}


def rung(name: str, *, quick: bool = False, **changes: Any) -> Config:
    """Return a rung of the ladder, with fields changed.

    Args:
        name: a key of `RUNGS`.
        quick: reduce images, batch and steps so that two CPU cores need only seconds.
        changes: fields to set; text is converted to the field's type.

    Raises:
        ValueError: an unknown rung, field or value; the message lists the valid ones.
    """
    if name not in RUNGS:
        listed = ", ".join(RUNGS)
        raise ValueError(f"no rung {name!r}{closest(str(name), RUNGS)}: the ladder has {listed}")
    changes = {key: _convert(key, value) for key, value in changes.items()}
    small = QUICK | {"workers": min(RUNGS[name].workers, 2)} if quick else {}
    if changes.get("data") == "crops":
        small = small | {"image_px": CROPS_PX, "workers": 0}
    return replace(RUNGS[name], **{**small, **changes})


def vary(config: Config, **values: Iterable[Any]) -> list[Config]:
    """Return a sweep: a config for each value of a field, or for each combination of several.

    Each is labelled with its values (`device-batch_size-32`), to distinguish it from its rung.
    Raises ValueError without a field or values.
    """
    lists = {key: [] if isinstance(v, str) else [*v] for key, v in values.items()}
    if not lists or not all(lists.values()):
        raise ValueError("name a field and its values, as in vary(config, batch_size=[8, 16, 32])")
    configs = []
    for combination in itertools.product(*lists.values()):
        changes = {key: _convert(key, value) for key, value in zip(values, combination)}
        label = "-".join([config.rung, *(f"{key}-{value}" for key, value in changes.items())])
        configs.append(replace(config, **changes, rung=label))
    return configs


def resolve_half(formats: Collection[str], *, scales_loss: bool) -> str:
    """Return the meaning of `precision="half"` for a device with hardware for these formats.

    fp16 needs loss scaling; a script without it computes in fp32 if there is no bf16.
    """
    usable = HALF_FORMATS if scales_loss else ("bf16",)
    return next((name for name in usable if name in formats), "fp32")


def from_dict(values: dict[str, Any]) -> Config:
    """Create a Config from JSON values. Raise ValueError for a field this version does not know."""
    return Config(**{key: _convert(key, value) for key, value in values.items()})


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """Convert `["batch_size=32", "fused=true"]` to `{"batch_size": 32, "fused": True}`."""
    settings = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign:
            raise ValueError(f"{pair!r}: expected key=value, as in batch_size=32")
        settings[key.strip()] = _convert(key.strip(), text.strip())
    return settings


def _convert(key: str, value: Any) -> Any:
    if key not in _TYPES:
        names = ", ".join(_TYPES)
        raise ValueError(f"a run has no setting {key!r}{closest(key, _TYPES)}: choose {names}")
    wanted = _TYPES[key]
    try:
        if wanted is bool:
            return _BOOLS[str(value).lower()]
        if wanted is int and float(value) != int(float(value)):
            raise ValueError
        return wanted(value)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ValueError(f"{key}={value!r}: expected {_IN_WORDS[wanted]}") from None
