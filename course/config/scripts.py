"""A class for each script, in the course's order: the settings that not all scripts have."""

import re  # noqa: I001 - one line of names
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from course.config.common import (
    Amount, AnyPrecision, Bounds, Compile, Config, Count, CountOrAll, Fraction, Positive,
)  # fmt: skip
from course.config.rules import ANY, COMMON, IMAGES, ONE_OR_MORE, RESTARTS

ResNet = Literal["resnet18", "resnet34", "resnet50", "resnet101", "resnet152",
                 "resnet18_cifar", "resnet8_patches"]  # fmt: skip
CoAtNet = Literal["coatnet_pico_rw_224", "coatnet_0_224", "coatnet_3_224", "coatnet_5_224"]
ViT = Literal["vit_tiny_patch16_224", "vit_gigantic_patch14_224"]


@dataclass(frozen=True)
class ImageConfig(Config):
    """What all scripts have that train with images."""

    model: Literal[ResNet, CoAtNet, ViT] = "resnet50"
    channels_last: bool = False  # NHWC memory layout for weights and images

    # Images, and how they are loaded.
    data: Literal["synthetic", "default", "imagenet", "crops"] = "default"
    data_root: str = ""  # for data="imagenet": folder with train/ and val/; "": the site's
    format: Literal["files", "small", "raw", "gpu_decode"] = "files"  # of stored images
    image_px: Annotated[int, Bounds(32)] = 224  # side of the training and validation crops
    workers: CountOrAll = 0  # DataLoader processes; 0: the training process loads; -1: all cores
    persistent_workers: bool = False  # keep workers between epochs
    prefetch_factor: Positive = 2  # batches that each worker prepares in advance
    pin_memory: bool = False  # batches in page-locked memory, for asynchronous copies
    non_blocking: bool = False  # do not wait while a batch is copied to the device
    uint8: bool = True  # images are copied as bytes, normalised on the device
    val_images: Count = 0  # maximum of images to validate on; 0: all

    # Updates.
    label_smoothing: Fraction = 0.0  # share of each label that is spread over all classes
    optimizer: Literal["sgd", "nesterov", "adamw", "lars", "lamb", "lion", "muon"] = "sgd"
    momentum: Amount = 0.9

    RULES = IMAGES
    LIMITS = {"start_px": "image_px"}

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        for name in ("start_px", *["image_px"] * self.is_timm):
            if (px := getattr(self, name)) % 32:
                yield f"{name}={px}: {self.model} halves images five times; choose a multiple of 32"

    @property
    def is_timm(self) -> bool:
        """Whether the network is from timm, built for one image size."""
        return not self.model.startswith("resnet")

    @property
    def samples(self) -> str:
        stored = f" as {self.format}" * (self.format != "files" and self.data != "synthetic")
        return f"{self.data} data{stored}, {self.image_px} px"


@dataclass(frozen=True)
class TrainConfig(ImageConfig):
    """Trains a ResNet, on one device or several."""

    script: Literal["train.py"] = "train.py"
    precision: AnyPrecision = "fp32"
    compile: Compile = ""  # mode of torch.compile; "": the model is not compiled
    algebra: bool = False  # BatchNorm's statistics from the bottlenecks' narrow inputs
    model: ResNet = "resnet50"
    format: Literal["files", "shards", "small", "raw", "gpu_decode"] = "files"  # of stored images
    shuffle_buffer: Count = 1000  # for format="shards": images to draw from
    drop_last: bool = True  # every epoch has all steps; False: it ends with the files
    budget_s: Amount = 0.0  # end when a ratio is certain, or after this time; 0: all steps
    profile_steps: Count = 0  # warm-up steps to trace
    save_weights: bool = False  # write weights.pt at the end
    tracker: Literal["", "tensorboard", "trackio", "wandb"] = ""  # shows curves while it trains

    # Augmentation.
    randaugment: Literal["", "cpu", "device"] = ""  # where to augment
    auto_augment: Literal["", "ta_wide"] = ""  # TrivialAugmentWide, by workers
    random_erasing: Fraction = 0.0  # probability that a box of an image is erased
    ra_reps: Positive = 1  # times that an image is used, before others, with different augmentation
    mix: Literal["", "mixup", "cutmix", "both"] = ""  # mix each image and label with another image
    mix_alpha: Annotated[float, Bounds(0.01)] = 1.0  # of the Beta distribution of the proportions
    start_px: Count = 0  # training crops grow from this to image_px; 0: they do not
    start_ramp: Count = 0  # last epoch with start_px, counted from 0
    end_ramp: Count = 0  # first epoch with image_px; 0: the last one

    # Validation.
    val_px: Count = 0  # side of the validation crops; 0: image_px
    crop_pct: Annotated[float, Bounds(0.1, below=1.001)] = 0.875  # of the shorter side: the crop
    flip_tta: bool = False  # add the scores of each image and of its mirror image

    # Learning.
    optimizer: Literal[
        "sgd", "nesterov", "adamw", "lars", "lamb", "lion", "muon", "schedulefree"
    ] = "sgd"  # fmt: skip
    schedule: Literal["", "linear", "cosine", "one_cycle", "step", "find"] = ""  # "": constant
    lr_batch: Count = 0  # lr is for this batch size, and grows linearly with it; 0: for any
    lr_warmup_epochs: Count = 0  # instead of lr_warmup
    lr_step_size: Positive = 30  # for schedule="step": epochs between two falls
    lr_gamma: Amount = 0.1  # for schedule="step": factor of each fall
    norm_decay: bool = True  # also decay BatchNorm's weights and biases
    ema: Fraction = 0.0  # validate averages with this decay per update; 0: the weights
    overflow_step: Count = 0  # makes a gradient infinite in this step; 0: never

    # Restarts.
    save_every: Count = 0  # steps between two checkpoints; 0: no checkpoints
    async_save: bool = False  # write checkpoints in the background
    deterministic: bool = False  # use only algorithms with bitwise equal results

    # Several ranks: DDP.
    bucket_mb: Annotated[float, Bounds(0.001)] = 25.0  # of gradients per message
    find_unused: bool = False  # search for weights that a step does not use
    sync_batchnorm: bool = False  # BatchNorm's statistics over the batch of all ranks

    RULES = (
        *IMAGES,
        *RESTARTS,
        ("schedule", ["find"], {"save_every": [0]}, "a search is not resumed"),
        ("format", ["shards"], {"data": ["default", "imagenet"]}, "only files are in shards"),
        ("format", ["shards"], {"drop_last": [True]}, "shards are read without end"),
        ("format", ["shards"], {"ra_reps": [1]}, "shards have their own order"),
        ("format", ["gpu_decode"], {"auto_augment": [""]}, "workers do not decode the images"),
        ("data", ["crops"], {"auto_augment": [""]}, "no worker loads them"),
        ("data", ["synthetic"], {"auto_augment": [""], "random_erasing": [0], "ra_reps": [1]},
         "no file becomes an image"),
        ("auto_augment", ANY, {"randaugment": [""]}, "each is a complete augmentation"),
        ("optimizer", ["schedulefree"], {"schedule": [""]}, "it averages weights instead"),
        ("optimizer", ["schedulefree"], {"lr_warmup_epochs": [0]}, "it counts updates"),
        ("schedule", ["one_cycle", "find"], {"lr_warmup_epochs": [0]}, "it has its own warm-up"),
        ("lr_warmup_epochs", ANY, {"lr_warmup": [0]}, "both are the length of one warm-up"),
        ("lr_step_size", ANY, {"schedule": ["step"]}, "only this schedule falls in steps"),
        ("lr_gamma", ANY, {"schedule": ["step"]}, "only this schedule falls in steps"),
        ("start_ramp", ANY, {"start_px": range(32, 2**63)}, "crops of one size have no ramp"),
        ("end_ramp", ANY, {"start_px": range(32, 2**63)}, "crops of one size have no ramp"),
        ("schedule", ["find"], {"steps": range(2, 2**63)}, "the rate grows from step to step"),
        ("algebra", [True], {"model": ["resnet50", "resnet101", "resnet152"]}, "no bottlenecks"),
        ("algebra", [True], {"compile": [""]}, "each replaces the step in a different way"),
        ("algebra", [True], {"sync_batchnorm": [False]}, "its statistics are of a rank's images"),
    )  # fmt: skip

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        for name in ("lr_warmup_epochs", "start_ramp", "end_ramp"):
            if (at := getattr(self, name)) >= self.epochs:
                yield f"{name}={at} is not before the end of epochs={self.epochs}: lower {name}"
        if self.end_ramp and self.start_ramp >= self.end_ramp:
            yield f"start_ramp={self.start_ramp}: choose an epoch before end_ramp={self.end_ramp}"


@dataclass(frozen=True)
class ShardedConfig(ImageConfig):
    """Trains a network that needs more memory than one GPU has."""

    script: Literal["train_sharded.py"] = "train_sharded.py"
    compile: Compile = ""  # mode of torch.compile, for each block
    drop_last: bool = True
    budget_s: Amount = 0.0
    profile_steps: Count = 0
    save_weights: bool = False
    randaugment: Literal["", "cpu"] = ""
    start_px: Count = 0
    bucket_mb: Annotated[float, Bounds(0.001)] = 25.0

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
    save_every: Count = 0
    async_save: bool = False
    deterministic: bool = False

    LIMITS = ImageConfig.LIMITS | {"micro_batch": "batch_size"}
    RULES = (
        *IMAGES,
        *RESTARTS,
        ("gather_bf16", [True], {"precision": ["half", "bf16"]}, "it gathers weights in bf16"),
        ("gather_bf16", [True], {"shard": ["zero3", "zero2", "hybrid"]}, "nothing is gathered"),
        ("prefetch", ANY, {"shard": ["zero3", "zero2", "hybrid"]}, "nothing is gathered"),
        ("prefetch", ANY, {"unit_blocks": ONE_OR_MORE}, "there is one unit: none to gather ahead"),
        ("resume", ANY, {"schedule": [""], "lr_warmup": [0]}, "shards do not save the rate"),
        ("resume", ANY, {"save_every": [0]}, "its steps are counted from the other run's end"),
    )


@dataclass(frozen=True)
class ParallelConfig(ImageConfig):
    """Trains one network on several devices, split by tensors or by stages."""

    script: Literal["train_parallel.py"] = "train_parallel.py"
    drop_last: bool = True
    budget_s: Amount = 0.0
    profile_steps: Count = 0
    randaugment: Literal["", "cpu"] = ""
    start_px: Count = 0

    micro_batch: Count = 0  # images that a stage computes at once; 0: the batch
    shard: Literal["", "zero3"] = ""  # of each rank's part, over the copies of the network
    unit_blocks: Count = 1
    tensor: Positive = 1  # ranks that share each MLP; data parallelism over the rest
    pipeline: Literal["", "gpipe", "1f1b", "interleaved", "zero_bubble"] = ""  # schedule
    stage_split: str = "gflop"  # balance stages by gflop or weights; or their first blocks: "4,9"

    LIMITS = ImageConfig.LIMITS | {"micro_batch": "batch_size"}
    RULES = (
        *IMAGES,
        ("stage_split", ANY, {"pipeline": ["1f1b", "gpipe", "interleaved", "zero_bubble"]},
         "only a pipeline has stages"),
        ("pipeline", ANY, {"shard": [""]}, "stages are not sharded"),
        ("pipeline", ANY, {"tensor": [1]}, "train_parallel.py splits layers or stages, not both"),
        ("micro_batch", ANY, {"tensor": [1]}, "only stages compute micro-batches"),
    )  # fmt: skip

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.pipeline and self.batch_size % (self.micro_batch or self.batch_size):
            why = "stages exchange tensors of one shape"
            yield f"micro_batch={self.micro_batch}: {why}; choose a divisor of {self.batch_size}"
        if not re.fullmatch(r"gflop|weights|[1-9]\d*(,[1-9]\d*)*", self.stage_split):
            choices = '"gflop", "weights", or numbers of blocks as in "4,9"'
            yield f"stage_split={self.stage_split!r}: choose {choices}"


@dataclass(frozen=True)
class RestartedConfig(ImageConfig):
    """Trains so that it can be stopped at any step, and resumes as if nothing had happened."""

    script: Literal["train_restarted.py"] = "train_restarted.py"
    precision: AnyPrecision = "fp32"
    data: Literal["synthetic", "default", "imagenet"] = "default"
    format: Literal["files", "small", "raw"] = "files"
    mix: Literal["", "mixup", "cutmix"] = ""
    mix_alpha: Annotated[float, Bounds(0.01)] = 1.0
    overflow_step: Count = 0

    save_every: Count = 0  # steps between two checkpoints; 0: no checkpoints
    async_save: bool = False  # write checkpoints in the background
    deterministic: bool = False  # use only algorithms with bitwise equal results
    sigterm_step: Count = 0  # sends SIGTERM in this step; 0: never
    sigkill_step: Count = 0  # kills the process in the first save after this step

    STEPS = (*Config.STEPS, "sigterm_step", "sigkill_step")
    RULES = (*IMAGES, *RESTARTS)


# GPT-2's smallest network, for an accelerator; and one for a CPU, for which the sizes are tiny, but
# not the vocabulary.
GPT2 = {"context": 1024, "layers": 12, "heads": 12, "width": 768}
TINY_GPT = {"context": 32, "layers": 2, "heads": 2, "width": 32}


@dataclass(frozen=True)
class GPTConfig(Config):
    """Trains a GPT on a text."""

    script: Literal["train_gpt.py"] = "train_gpt.py"
    schedule: Literal["", "cosine"] = ""
    compile: Compile = ""
    attention: Literal["", "sdpa"] = ""  # "": written out; "sdpa": one fused operator
    clip: Amount = 0.0
    micro_batch: Count = 0  # sequences that a rank computes at once; 0: its share
    profile_steps: Count = 0

    # The network. 0: as GPT-2's smallest (GPT2) on an accelerator, tiny (TINY_GPT) on a CPU.
    context: Count = 0  # tokens of a sequence
    layers: Count = 0  # blocks
    heads: Count = 0  # of each block's attention, which share its width
    width: Count = 0  # values that describe a token
    vocabulary: Positive = 50257  # token ids: by default as many as GPT-2 has
    vocabulary_multiple: Positive = 1  # pad the table of tokens to a multiple of this

    shard: Literal["", "zero3"] = ""
    tensor: Positive = 1  # ranks that share each layer; data parallelism over the rest

    save_every: Count = 0
    async_save: bool = False
    async_process: bool = False  # in a process, whose Python leaves that of training alone
    deterministic: bool = False

    MAY_BECOME_ANOTHER = False
    LIMITS = {"micro_batch": "batch_size"}
    RULES = (
        *COMMON,
        ("tensor", ANY, {"shard": ["zero3"]}, "DDP averages weights that all ranks have"),
        ("shard", ANY, {"micro_batch": [0]}, "it accumulates gradients only under DDP"),
        ("shard", ANY, {"compile": [""]}, "shards are gathered between the blocks"),
        ("async_save", [True], {"save_every": ONE_OR_MORE}, "nothing is written"),
        ("async_process", [True], {"async_save": [True], "shard": ["zero3"]},
         "it writes shards in the background"),
    )  # fmt: skip

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        sizes = [(self.heads or size["heads"], self.width or size["width"])
                 for size in (TINY_GPT, GPT2)]  # fmt: skip
        if all(width % heads for heads, width in sizes):  # on any device
            heads, width = sizes[0]
            divisors = [str(number) for number in range(1, width + 1) if width % number == 0]
            yield f"heads={heads} cannot share width={width} evenly: choose {' or '.join(divisors)}"
        if all(heads % self.tensor for heads, _ in sizes):
            heads = sizes[0][0]
            divisors = [str(number) for number in range(1, heads + 1) if heads % number == 0]
            yield f"tensor={self.tensor} cannot share heads={heads}: choose {' or '.join(divisors)}"

    def fitted(self, has_accelerator: bool) -> Config:
        sizes = GPT2 if has_accelerator else TINY_GPT
        return replace(self, **{name: getattr(self, name) or size for name, size in sizes.items()})

    @property
    def data_name(self) -> str:
        return "text"

    @property
    def has_sizes(self) -> bool:
        return all(getattr(self, name) for name in GPT2)

    @property
    def samples(self) -> str:
        if not self.has_sizes:
            return "a GPT of the device's size"
        return f"{self.layers} layers of width {self.width}, {self.context} tokens"

    @property
    def tokens(self) -> int:
        return self.context

    @property
    def weights(self) -> int:
        """The number of weights without the embeddings of positions, and without padding."""
        block = 12 * self.width**2 + 13 * self.width  # with the biases, and two normalisations
        return self.vocabulary * self.width + self.layers * block + 2 * self.width

    @property
    def flop_per_token(self) -> int:
        """The FLOP of a token's forward and backward pass (PaLM, arXiv:2204.02311, appendix B)."""
        return 6 * self.weights + 12 * self.layers * self.width * self.context
