"""Which values can a config have, and which of them together?"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import Any

CHOICES = {
    "device": ("cpu", "auto"),
    "precision": ("fp32", "tf32", "bf16", "fp16", "half"),
    "data": ("synthetic", "default", "imagenet", "crops"),
    "format": ("files", "shards", "small", "raw", "gpu_decode"),
    "randaugment": ("", "cpu", "device"),
    "mix": ("", "mixup", "cutmix"),
    "compile": ("", "default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune"),
    "optimizer": (
        "sgd",
        "nesterov",
        "adamw",
        "lars",
        "lamb",
        "lion",
        "muon",
        "schedulefree",
    ),
    "schedule": ("", "linear", "cosine", "one_cycle", "find"),
    "model": (
        "resnet18",
        "resnet34",
        "resnet50",
        "resnet101",
        "resnet152",
        "resnet18_cifar",
        "resnet8_patches",
        "coatnet_pico_rw_224",
        "coatnet_0_224",
        "coatnet_3_224",
        "coatnet_5_224",
        "vit_tiny_patch16_224",
    ),
    "checkpointing": ("", "every", "second", "selective"),
    "shard": ("", "zero2", "zero3", "hybrid"),
    "pipeline": ("", "gpipe", "1f1b", "interleaved", "zero_bubble"),
}
HALF_FORMATS = ("bf16", "fp16")  # the first that a device has hardware for is its `half`
SCALES_LOSS = ("train.py", "train_restarted.py")  # scripts that may train in fp16
WIDENING = ("resnet50", "resnet101", "resnet152")  # whose blocks end in a wide 1x1 convolution
FUSED = ("sgd", "nesterov", "adamw")  # optimizers of which PyTorch has one kernel for many weights
AT_LEAST = {
    "image_px": 32,
    "batch_size": 1,
    "epochs": 1,
    "steps": 1,
    "warmup_steps": 0,
    "val_steps": 0,
    "val_images": 0,
    "workers": 0,
    "lr": 0,
    "momentum": 0,
    "weight_decay": 0,
    "memory_gib": 0,
    "budget_s": 0,
    "overflow_step": 0,
    "shuffle_buffer": 0,
    "lr_warmup": 0,
    "ema": 0,
    "mix_alpha": 0.01,
    "label_smoothing": 0,
    "start_px": 0,
    "profile_steps": 0,
    "prefetch_factor": 1,
    "bucket_mb": 0.001,
    "collective_timeout_s": 1,
    "micro_batch": 0,
    "unit_blocks": 0,
    "prefetch": 0,
    "clip": 0,
    "tensor": 1,
    "save_every": 0,
    "sigterm_step": 0,
    "sigkill_step": 0,
}
CROPS_PX = 32  # of data="crops": they are stored so
_CUT = re.compile(r"gflop|weights|[1-9]\d*(,[1-9]\d*)*")
# What scripts of one day know, and that of tensors and pipelines does not.
_NOT_PARALLEL = (
    *("checkpointing", "offload", "policy", "prefetch", "clip"),
    *("save_shards", "resume", "save_weights", "compile", "algebra"),
)
# Nor does the script that starts again; of some of it, nothing would be in a checkpoint.
_NOT_RESTARTED = (
    *("micro_batch", "checkpointing", "offload", "shard", "policy", "prefetch", "clip"),
    *("save_shards", "resume", "compile", "algebra", "profile_steps", "sync_batchnorm"),
    *("randaugment", "start_px", "ema", "budget_s"),
)
TRACE_WAIT = 2  # steps before a trace: one to wait, one in which the profiler itself warms up


def half_of(formats: Collection[str], *, scales_loss: bool) -> str:
    """The format that `precision="half"` stands for, given those that a device has hardware for.

    fp16 needs loss scaling; a script without it computes in fp32 where there is no bf16.
    """
    usable = HALF_FORMATS if scales_loss else ("bf16",)
    return next((name for name in usable if name in formats), "fp32")


def check(cfg: Any) -> None:
    """Raise ValueError with what was wrong, the valid values, and what to do.

    Args:
        cfg: a `course.config.Config` that is being made.
    """
    for name, valid in CHOICES.items():
        if getattr(cfg, name) not in valid:
            raise ValueError(f"{name}={getattr(cfg, name)!r}: choose {' or '.join(valid)}")
    for name, least in AT_LEAST.items():
        if not least <= getattr(cfg, name) < math.inf:  # which NaN is not, either
            raise ValueError(f"{name}={getattr(cfg, name)}: it must be {least} or more")
    if not re.fullmatch(r"\w[\w.-]*", cfg.rung):  # it names the run's folder
        raise ValueError(f"rung={cfg.rung!r}: use letters, digits, and _ . - between them")
    _check_steps(cfg)
    _check_loading(cfg)
    _check_augmentation(cfg)
    _check_learning(cfg)
    _check_large(cfg)
    if cfg.algebra:
        _check_algebra(cfg)
    if cfg.script == "train_restarted.py":
        _check_restarted(cfg)
    if cfg.data == "crops":
        _check_crops(cfg)


def _check_steps(cfg: Any) -> None:
    if cfg.warmup_steps >= cfg.steps * cfg.epochs:
        raise ValueError(
            f"warmup_steps={cfg.warmup_steps} leaves none of the "
            f"{cfg.steps * cfg.epochs} steps to measure: raise steps or lower warmup_steps"
        )
    if cfg.budget_s and cfg.epochs > 1:
        raise ValueError(
            f"budget_s={cfg.budget_s:g} may end training in any of epochs={cfg.epochs}: "
            f"set budget_s=0 to do them all"
        )
    least = TRACE_WAIT + cfg.profile_steps + 1  # one more, in which the trace is written
    if cfg.profile_steps and cfg.warmup_steps < least:
        raise ValueError(
            f"profile_steps={cfg.profile_steps} needs warmup_steps={least} or more (and more "
            f"steps than that): traced steps are slower, so they must not be measured ones"
        )


def _check_loading(cfg: Any) -> None:
    if cfg.persistent_workers and not cfg.workers:
        raise ValueError("persistent_workers=True needs workers=1 or more that can stay")
    if cfg.format == "shards" and cfg.data == "synthetic":
        raise ValueError('data="synthetic" is stored nowhere: set format="files"')
    if cfg.format == "shards" and not cfg.drop_last:
        raise ValueError('format="shards" is read without end: set drop_last=True')
    if cfg.format == "gpu_decode" and not cfg.uint8:
        raise ValueError('format="gpu_decode" gives bytes on the device: set uint8=True')


def _check_augmentation(cfg: Any) -> None:
    if cfg.data == "synthetic" and (cfg.randaugment or cfg.start_px):
        name = "randaugment" if cfg.randaugment else "start_px"
        raise ValueError(
            f'{name}={getattr(cfg, name)!r} changes how files become images: data="synthetic" '
            f'has none, so set data="default"'
        )
    if cfg.format == "gpu_decode" and cfg.randaugment == "cpu":
        raise ValueError(
            'randaugment="cpu" changes images in workers, and format="gpu_decode" has none '
            'there: set randaugment="device"'
        )
    if cfg.start_px and cfg.format in ("shards", "gpu_decode"):
        raise ValueError(
            f"start_px={cfg.start_px}: crops grow with format files, small or raw, not with "
            f"{cfg.format}"
        )
    if cfg.randaugment == "device" and not cfg.uint8:
        raise ValueError('randaugment="device" changes images that come as bytes: uint8=True')
    if cfg.label_smoothing >= 1:
        raise ValueError(
            f"label_smoothing={cfg.label_smoothing:g} leaves nothing of a label: it must be "
            f"below 1, as in 0.1"
        )
    if cfg.start_px % 32 or cfg.start_px > cfg.image_px:
        raise ValueError(
            f"start_px={cfg.start_px}: it must be a multiple of 32, and at most "
            f"image_px={cfg.image_px}"
        )


def _check_crops(cfg: Any) -> None:
    asked = {"image_px": CROPS_PX, "format": "files", "workers": 0, "start_px": 0}
    asked |= {"uint8": True, "pin_memory": False}
    if cfg.randaugment == "cpu":
        raise ValueError(
            'randaugment="cpu" is done by workers, and data="crops" has none: set '
            'randaugment="device"'
        )
    for name, due in asked.items():
        if getattr(cfg, name) != due:
            raise ValueError(
                f'{name}={getattr(cfg, name)!r}: data="crops" are images of {CROPS_PX} pixels '
                f"that lie on the device as bytes: set {name}={due!r}"
            )


def _check_learning(cfg: Any) -> None:
    updates = cfg.steps * cfg.epochs
    if cfg.fused and cfg.optimizer not in FUSED:
        raise ValueError(
            f"fused=True: PyTorch fuses {', '.join(FUSED)}; set fused=False with "
            f"optimizer={cfg.optimizer!r}"
        )
    if cfg.lr_warmup >= updates:
        raise ValueError(
            f"lr_warmup={cfg.lr_warmup} leaves none of the {updates} updates to train at lr: "
            f"raise steps or epochs, or lower lr_warmup"
        )
    if cfg.schedule and cfg.optimizer == "schedulefree":
        raise ValueError(
            f'schedule={cfg.schedule!r}: optimizer="schedulefree" averages weights instead of '
            f'lowering the learning rate: set schedule=""'
        )
    if cfg.schedule in ("one_cycle", "find") and cfg.lr_warmup:
        raise ValueError(
            f"lr_warmup={cfg.lr_warmup}: schedule={cfg.schedule!r} has a rise of its own: "
            f"set lr_warmup=0"
        )
    if cfg.schedule == "find" and updates < 2:
        raise ValueError('schedule="find" grows from one update to the next: set steps=2')
    if cfg.schedule and cfg.budget_s:
        raise ValueError(
            f"budget_s={cfg.budget_s:g} may end training before schedule={cfg.schedule!r} "
            f"has come to its end: set budget_s=0"
        )
    if cfg.ema >= 1:
        raise ValueError(f"ema={cfg.ema:g} keeps averages as they are: below 1, as in 0.99")


def _check_algebra(cfg: Any) -> None:
    if cfg.model not in WIDENING:
        raise ValueError(
            f"algebra=True: blocks of {cfg.model} do not end in a 1x1 convolution that widens: "
            f"choose {', '.join(WIDENING)}"
        )
    if cfg.compile:
        raise ValueError(
            f'algebra=True and compile={cfg.compile!r} both replace the step: set compile=""'
        )
    if cfg.sync_batchnorm:
        raise ValueError(
            "algebra=True takes statistics of each rank's own images: set sync_batchnorm=False"
        )
    if cfg.script == "train_sharded.py":
        raise ValueError("algebra=True is known to train.py alone: leave out what Day 4 asks for")


def _check_large(cfg: Any) -> None:
    if cfg.micro_batch > cfg.batch_size:
        raise ValueError(
            f"micro_batch={cfg.micro_batch} is more than batch_size={cfg.batch_size}: an "
            f"update's images are split into micro-batches, so choose {cfg.batch_size} or less"
        )
    if cfg.is_large and cfg.image_px % 32:
        raise ValueError(
            f"image_px={cfg.image_px}: {cfg.model} halves images five times, so choose a "
            f"multiple of 32"
        )
    if cfg.precision == "fp16" and cfg.script not in SCALES_LOSS:
        raise ValueError(
            f"precision='fp16': {cfg.script} does not scale the loss, so small gradients would "
            f"become 0. Choose precision='half' or 'bf16'"
        )
    _check_sharded(cfg)
    _check_parallel(cfg)


def _check_parallel(cfg: Any) -> None:
    if cfg.tensor > 1 and cfg.pipeline:
        raise ValueError(
            f"tensor={cfg.tensor} and pipeline={cfg.pipeline!r}: the course's script does one or "
            f'the other; set tensor=1, or pipeline=""'
        )
    if cfg.cut != "gflop" and not cfg.pipeline:
        raise ValueError(f'cut={cfg.cut!r} is of a network in stages: set pipeline="1f1b", too')
    if cfg.tensor == 1 and not cfg.pipeline:
        return
    alone = [name for name in _NOT_PARALLEL if getattr(cfg, name)]
    alone += [name for name in ("shard", "unit_blocks") if cfg.pipeline and cfg.shard]
    if cfg.micro_batch and not cfg.pipeline:
        alone.append("micro_batch")
    if alone:
        raise ValueError(
            f"{alone[0]}={getattr(cfg, alone[0])!r}: train_parallel.py, which tensor and pipeline "
            f"ask for, does not know it: leave it out"
        )
    if cfg.shard not in ("", "zero3"):
        raise ValueError(f'shard={cfg.shard!r}: with tensor={cfg.tensor} choose "zero3", or ""')
    if cfg.pipeline and cfg.batch_size % (cfg.micro_batch or cfg.batch_size):
        raise ValueError(
            f"micro_batch={cfg.micro_batch}: stages send each other tensors of one shape, so "
            f"choose what divides batch_size={cfg.batch_size}"
        )
    if not _CUT.fullmatch(cfg.cut):
        raise ValueError(
            f'cut={cfg.cut!r}: choose "gflop", "weights", or numbers of blocks as in "4,9"'
        )


def _check_restarted(cfg: Any) -> None:
    alone = [name for name in _NOT_RESTARTED if getattr(cfg, name)]
    if cfg.tensor > 1 or cfg.pipeline:
        alone.append("pipeline" if cfg.pipeline else "tensor")
    if alone:
        raise ValueError(
            f"{alone[0]}={getattr(cfg, alone[0])!r}: train_restarted.py, which save_every and "
            f"deterministic ask for, does not know it: leave it out"
        )
    if cfg.data == "crops" or cfg.format in ("shards", "gpu_decode"):
        what = f"data={cfg.data!r}" if cfg.data == "crops" else f"format={cfg.format!r}"
        raise ValueError(
            f'{what} cannot begin in the middle of an epoch: set data="default" with format '
            f"files, small or raw"
        )
    if not cfg.drop_last:
        raise ValueError(
            "drop_last=False ends an epoch with the files, and a position in it is counted in "
            "steps: set drop_last=True"
        )
    if cfg.schedule == "find" or cfg.optimizer == "schedulefree":
        name = "schedule" if cfg.schedule == "find" else "optimizer"
        raise ValueError(f"{name}={getattr(cfg, name)!r} is not known to train_restarted.py")
    if cfg.async_save and not cfg.save_every:
        raise ValueError("async_save=True is how a checkpoint is written: set save_every, too")
    if max(cfg.sigterm_step, cfg.sigkill_step) >= cfg.steps * cfg.epochs:
        raise ValueError(
            f"the process is to be interrupted after the last of {cfg.steps * cfg.epochs} steps: "
            f"lower sigterm_step or sigkill_step"
        )


def _check_sharded(cfg: Any) -> None:
    for name in ("policy", "prefetch"):
        if getattr(cfg, name) and not cfg.shard:
            raise ValueError(
                f"{name}={getattr(cfg, name)!r} is of a network that is sharded: set "
                f'shard="zero3", or zero2 or hybrid'
            )
    if cfg.policy and cfg.precision not in ("bf16", "half"):
        raise ValueError(
            f'policy=True gathers weights in bf16: set precision="half" or "bf16", not '
            f"{cfg.precision!r}"
        )
    if cfg.shard and cfg.micro_batch:
        raise ValueError(
            f"micro_batch={cfg.micro_batch}: model.no_sync(), which accumulates, is DDP's: "
            f"set micro_batch=0 with shard={cfg.shard!r}"
        )
    if cfg.prefetch and not cfg.unit_blocks:
        raise ValueError(
            f"prefetch={cfg.prefetch}: with unit_blocks=0 there is one unit, and none ahead"
        )
    if cfg.resume and (cfg.schedule or cfg.lr_warmup):
        raise ValueError(
            f"resume={cfg.resume!r}: a checkpoint has weights and the optimizer's state, not "
            f'where a learning rate was: set schedule="" and lr_warmup=0'
        )
