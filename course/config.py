"""What is one run? A `Config`; and the ladder, rung by rung, as data."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, get_type_hints

from course import valid
from course.text import closest
from course.valid import CROPS_PX

GIB = 1024**3  # bytes: the unit of whatever has a name that ends in _gib
# What train_sharded.py alone looks at.
LARGE = (
    "micro_batch",
    "checkpointing",
    "offload",
    "shard",
    "policy",
    "prefetch",
    "clip",
    "save_shards",
    "resume",
)
PARALLEL = ("tensor", "pipeline", "cut")  # and what train_parallel.py alone does
# And train_restarted.py.
RESTARTED = ("save_every", "async_save", "deterministic", "sigterm_step", "sigkill_step")


@dataclass(frozen=True)
class Config:
    """Everything that decides what a run computes. Frozen: a changed run is another run."""

    rung: str = "baseline"  # label only: it never changes what is computed
    device: str = "cpu"  # "auto": the accelerator where there is one
    precision: str = "fp32"  # number format of the forward pass; "half": the device's own 16 bits
    channels_last: bool = False  # NHWC memory layout for weights and images
    fused: bool = False  # the optimizer's step as one kernel for many weights
    compile: str = ""  # torch.compile's mode; "": the model is not compiled
    algebra: bool = False  # bottlenecks whose BatchNorm's statistics come from narrow inputs
    model: str = "resnet50"
    data: str = "default"
    data_root: str = ""  # for data="imagenet": folder with train/ and val/; "": the site's
    format: str = "files"  # how images are stored (`course data --as` converts them), and decoded
    shuffle_buffer: int = 1000  # of format="shards": images out of which a random one comes next
    image_px: int = 224  # training and validation crop, pixels a side
    batch_size: int = 64  # images that one update sees, over all ranks
    epochs: int = 2
    steps: int = 16  # training steps an epoch
    warmup_steps: int = 8  # first steps of the run, left out of every time
    budget_s: float = 0.0  # stop once a ratio is sure, or after so many seconds; 0: all steps
    profile_steps: int = 0  # so many of the warm-up steps are traced; 0: none
    val_steps: int = 4  # validation batches after each epoch, at most; 0: none
    val_images: int = 0  # validate on so many images at most; 0: all of them
    workers: int = 0  # DataLoader processes; 0: the training process loads
    persistent_workers: bool = False  # they stay from one epoch to the next
    prefetch_factor: int = 2  # batches that each worker makes ahead
    pin_memory: bool = False  # batches lie in page-locked memory, from which a GPU copies by itself
    non_blocking: bool = False  # the script goes on while a batch is copied to the device
    drop_last: bool = True  # an epoch has all its steps; False: it ends with the files
    uint8: bool = True  # images travel as bytes, and are normalised on the device; False: as floats
    randaugment: str = ""  # two random changes of each image: by the workers, or on the device
    mix: str = ""  # each image is mixed with another of its batch, and so are their labels
    mix_alpha: float = 1.0  # of the Beta distribution from which shares are drawn
    label_smoothing: float = 0.0  # this much of each label is spread over all classes
    start_px: int = 0  # training crops grow from it to image_px, epoch by epoch; 0: they do not
    optimizer: str = "sgd"  # what turns gradients into updates of the weights
    lr: float = 0.01
    lr_warmup: int = 0  # first updates, over which the learning rate grows to lr
    schedule: str = ""  # the learning rate's course from there to the end; "": it stays
    momentum: float = 0.9
    weight_decay: float = 5e-5
    norm_decay: bool = True  # it pulls at BatchNorm's weights and at biases, too
    ema: float = 0.0  # validate averages that keep this share at an update; 0: the weights as is
    seed: int = 0
    bucket_mb: float = 25.0  # gradients that DDP sends together
    find_unused: bool = False  # DDP looks for weights that a step does not use
    sync_batchnorm: bool = False  # BatchNorm's statistics over the batch of all ranks
    collective_timeout_s: int = 60  # a rank that waits longer for the others gives up
    save_weights: bool = False  # write weights.pt at the end
    overflow_step: int = 0  # a gradient is made infinite there, to see it skipped; 0: nowhere
    micro_batch: int = 0  # images of a rank that go through the network at once; 0: all its share
    checkpointing: str = ""  # blocks whose inside is computed again in backward, instead of kept
    offload: bool = False  # what backward needs waits in the host's memory
    shard: str = (
        ""  # what ranks share out: zero3 all, zero2 no weights, hybrid in each half; "": DDP
    )
    unit_blocks: int = 1  # blocks whose weights are gathered together; 0: the whole network at once
    policy: bool = False  # gather shards in bf16, instead of casting them under autocast
    prefetch: int = 0  # so many units are gathered ahead; 0: as PyTorch does by itself
    clip: float = 0.0  # gradients longer than that, taken together, are shortened to it; 0: never
    save_shards: bool = False  # at the end every rank writes its part of weights and optimizer
    resume: str = ""  # name of a run that did so: training goes on from there
    tensor: int = 1  # ranks that share out each MLP; the others train copies of the network
    pipeline: str = ""  # each rank has stages of the network, and they work in this order; "": none
    cut: str = "gflop"  # what stages have alike; or the blocks at which they begin, as in "4,9"
    save_every: int = 0  # steps between two checkpoints; 0: none is written
    async_save: bool = False  # a thread writes them, while training goes on
    deterministic: bool = False  # only algorithms that give the same bits again
    sigterm_step: int = 0  # in this step the process is asked to end, to see it go on; 0: in none
    sigkill_step: int = 0  # after it, the process is killed in the midst of its next checkpoint
    memory_gib: float = 0.0  # a smaller device on purpose: out of memory above so much; 0: no limit

    def __post_init__(self) -> None:
        valid.check(self)

    @property
    def is_large(self) -> bool:
        """Is it a network of timm's, made for one number of pixels?"""
        return not self.model.startswith("resnet")

    @property
    def script(self) -> str:
        """The course's script that does what this config asks for: Day 4's for large networks."""
        if self.tensor > 1 or self.pipeline:
            return "train_parallel.py"
        if any(getattr(self, name) for name in RESTARTED):
            return "train_restarted.py"
        asked = any(getattr(self, name) for name in LARGE)
        return "train_sharded.py" if asked or self.is_large else "train.py"

    @property
    def setup(self) -> str:
        """What was trained on, in words: a speed means nothing without it."""
        stored = f" as {self.format}" * (self.format != "files" and self.data != "synthetic")
        return f"{self.data} data{stored}, {self.image_px} px, batch {self.batch_size}"

    def to_json(self) -> str:
        """The config as indented JSON text."""
        return json.dumps(asdict(self), indent=2)


_TYPES = get_type_hints(Config)

# Each rung changes one field of the rung before it, so that a change of speed has one cause.
_BASELINE = Config()
_DEVICE = replace(_BASELINE, rung="device", device="auto")
_AMP = replace(_DEVICE, rung="amp", precision="half")
_CHANNELS_LAST = replace(_AMP, rung="channels_last", channels_last=True)
_DATALOADER = replace(_CHANNELS_LAST, rung="dataloader", workers=8)
LADDER: dict[str, Config] = {
    cfg.rung: cfg for cfg in (_BASELINE, _DEVICE, _AMP, _CHANNELS_LAST, _DATALOADER)
}
# The ladder's last rungs, which begin at channels_last again: to compile ResNet-50 takes a small
# machine minutes, so that `course ladder` climbs them only where it is asked to.
COMPILED = ("fused", "compile")
# Beside the ladder, and those two.
_FUSED = replace(_CHANNELS_LAST, rung="fused", fused=True)
_COMPILE = replace(_FUSED, rung="compile", compile="default")
_AUTOTUNE = replace(_COMPILE, rung="autotune", compile="max-autotune-no-cudagraphs")
_ALGEBRA = replace(_FUSED, rung="algebra", algebra=True)  # in the compiler's place
_SMALL = replace(_DATALOADER, rung="small", format="small")
_RAW = replace(_SMALL, rung="raw", format="raw")
_SHARDS = replace(_DATALOADER, rung="shards", format="shards")
_GPU_DECODE = replace(_DATALOADER, rung="gpu_decode", format="gpu_decode")
_RANDAUGMENT = replace(_DATALOADER, rung="randaugment", randaugment="cpu")
_ON_DEVICE = replace(_RANDAUGMENT, rung="randaugment_device", randaugment="device")
_SMOOTHED = replace(_DATALOADER, rung="label_smoothing", label_smoothing=0.1)
_MIXUP = replace(_DATALOADER, rung="mixup", mix="mixup")
_CUTMIX = replace(_MIXUP, rung="cutmix", mix="cutmix")
_PROGRESSIVE = replace(_DATALOADER, rung="progressive", start_px=128)
_NO_NORM_DECAY = replace(_CHANNELS_LAST, rung="no_norm_decay", norm_decay=False)
_FIND = replace(_CHANNELS_LAST, rung="find", schedule="find")
# Day 4's, by train_sharded.py.
_LARGE = replace(
    _CHANNELS_LAST,
    rung="large",
    model="coatnet_pico_rw_224",
    optimizer="adamw",
    lr=1e-3,
    weight_decay=0.05,
)
_ACCUMULATED = replace(_LARGE, rung="accumulated", micro_batch=16)
_CHECKPOINTED = replace(_LARGE, rung="checkpointed", checkpointing="every")
_OFFLOADED = replace(_LARGE, rung="offloaded", offload=True)
_SHARDED = replace(_LARGE, rung="sharded", shard="zero3")
_TENSOR = replace(_LARGE, rung="tensor", tensor=2)
_PIPELINE = replace(_LARGE, rung="pipeline", pipeline="1f1b", micro_batch=2)
_RESTARTED = replace(_CHANNELS_LAST, rung="restarted", save_every=8)
BEYOND: dict[str, Config] = {
    cfg.rung: cfg
    for cfg in (
        *(_FUSED, _COMPILE, _AUTOTUNE, _ALGEBRA, _SHARDS, _SMALL, _RAW, _GPU_DECODE),
        *(_RANDAUGMENT, _ON_DEVICE, _SMOOTHED, _MIXUP, _CUTMIX, _PROGRESSIVE),
        *(_NO_NORM_DECAY, _FIND, _LARGE, _ACCUMULATED, _CHECKPOINTED, _OFFLOADED, _SHARDED),
        *(_TENSOR, _PIPELINE, _RESTARTED),
    )
}

QUICK_WORKERS = 2  # at most
# Small enough for two CPU cores, and large enough that what a rung brings shows there: with fewer
# pixels, what a step costs at any size hides it. The model stays ResNet-50: only what it is fed
# shrinks, and the learning rate with the batch.
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
    """One rung of the ladder, perhaps shrunk, perhaps with fields changed.

    Args:
        name: a key of `LADDER`, or of `BEYOND`.
        quick: shrink images, batch and steps to what two CPU cores do in seconds.
        changes: fields to set on top, by name; text is converted to the field's type.

    Raises:
        ValueError: an unknown rung, field or value; the message lists the valid ones.
    """
    known = LADDER | BEYOND
    if name not in known:
        raise ValueError(f"no rung {name!r}: the ladder has {', '.join(known)}")
    changes = {key: _convert(key, value) for key, value in changes.items()}
    small = QUICK | {"workers": min(known[name].workers, QUICK_WORKERS)} if quick else {}
    if changes.get("data") == "crops":
        small = small | {"image_px": CROPS_PX, "workers": 0}
    return replace(known[name], **{**small, **changes})


def vary(config: Config, **values: Iterable[Any]) -> list[Config]:
    """A sweep: the config once for each value of a field, or for each combination of several.

    Each is labelled by its values (`device-batch_size-32`), so that no run of a sweep is
    taken for one of the rung it started from.

    Raises:
        ValueError: no field, a field without values, an unknown field or a wrong value.
    """
    lists = {key: [] if isinstance(each, str) else [*each] for key, each in values.items()}
    if not lists or not all(lists.values()):
        raise ValueError("name a field and its values, as in vary(config, batch_size=[8, 16, 32])")
    found = []
    for combination in itertools.product(*lists.values()):
        changes = {key: _convert(key, value) for key, value in zip(values, combination)}
        label = "-".join([config.rung, *(f"{key}-{value}" for key, value in changes.items())])
        found.append(replace(config, **changes, rung=label))
    return found


def from_dict(values: dict[str, Any]) -> Config:
    """A Config from JSON values. Raises ValueError on a field this version does not know."""
    if "tf32" in values:  # of runs from before it became a value of `precision`
        values = {key: value for key, value in values.items() if key != "tf32"} | (
            {"precision": "tf32"} if values["tf32"] and values["precision"] == "fp32" else {}
        )
    return Config(**{key: _convert(key, value) for key, value in values.items()})


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """`["batch_size=32", "fused=true"]` to `{"batch_size": 32, "fused": True}`.

    Raises:
        ValueError: a pair without `=`, an unknown field, or a value of the wrong type.
    """
    settings = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign:
            raise ValueError(f"{pair!r} is not of the form key=value, as in batch_size=32")
        settings[key.strip()] = _convert(key.strip(), text.strip())
    return settings


def _convert(key: str, value: Any) -> Any:
    if key not in _TYPES:
        names = ", ".join(field.name for field in fields(Config))
        raise ValueError(f"a run has no setting {key!r}{closest(key, _TYPES)}: choose {names}")
    wanted = _TYPES[key]
    try:
        if wanted is bool:
            return _to_bool(value)
        if wanted is int and float(value) != int(float(value)):
            raise ValueError
        return wanted(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{key}={value!r}: a value of type {wanted.__name__} is needed") from None


def _to_bool(value: Any) -> bool:
    text = str(value).lower()
    if text not in ("true", "1", "yes", "false", "0", "no"):
        raise ValueError
    return text in ("true", "1", "yes")
