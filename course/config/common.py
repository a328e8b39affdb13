"""The settings that all scripts have, and the checks of every config."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from course.config import rules
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
CountOrAll = Annotated[int, Bounds(-1)]  # -1: as many as there are

Compile = Literal["", "default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune"]
AnyPrecision = Literal["fp32", "tf32", "bf16", "fp16", "half"]  # fp16 needs loss scaling
HALF_FORMATS = ("bf16", "fp16")  # "half" is the first one that a device has hardware for

# Of all scripts, which add to these in the course's order.
SCRIPTS: dict[str, type[Config]] = {}
DEFAULTS: dict[str, Any] = {}
CHOICES: dict[str, tuple[str, ...]] = {}
BOUNDS: dict[str, Bounds] = {}
_BOOLS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_IN_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


@dataclass(frozen=True)
class Config:
    """Everything that decides what a run computes. Frozen: a changed config is a different run.

    All scripts have these settings, and each script's class adds its own. `Config(…)` is of the
    script that has all the given ones. Those that only other scripts have read as their defaults.
    """

    rung: str = "baseline"  # only a label, which does not change the computation
    script: str = ""  # the course's script that reads these settings

    # Device, number format and speed of a step.
    device: Literal["cpu", "auto"] = "cpu"  # "auto": the accelerator, if any
    precision: Literal["fp32", "tf32", "bf16", "half"] = "fp32"  # "half": device's own
    fused: bool = False  # one kernel updates many weights
    batch_size: Positive = 64  # images, or sequences, per update, over all ranks
    memory_gib: Amount = 0.0  # simulate a smaller GPU: out of memory above this; 0: no limit

    # Length of the run, and what is measured.
    epochs: Positive = 2
    steps: Count = 16  # training steps per epoch; 0: all images once
    warmup_steps: Count = 8  # first steps of the run, excluded from all times
    val_steps: CountOrAll = 4  # maximum of validation batches per epoch; 0: none; -1: all images

    # Learning.
    lr: Amount = 0.01
    lr_warmup: Count = 0  # updates until the learning rate reaches lr
    schedule: Literal["", "linear", "cosine", "one_cycle"] = ""  # "": constant
    weight_decay: Amount = 5e-5
    seed: int = 0

    # Several ranks.
    collective_timeout_s: Positive = 60  # a rank that waits longer for others fails
    hosts: Positive = 1  # simulated hosts that share the GPUs of one machine: NCCL uses a network

    RULES = rules.COMMON  # these have no annotations, because they are not settings
    LIMITS = {}  # settings that must not be larger than another
    MAY_BECOME_ANOTHER = True  # script's config, by a change of a setting that only that one has
    STEPS = ("warmup_steps", "lr_warmup")  # settings that must be less than the number of steps

    def __init_subclass__(cls) -> None:
        """Add a script's settings to those of all scripts."""
        if not cls.script:  # what several scripts share
            return
        SCRIPTS[cls.script] = cls
        hints = get_type_hints(cls, include_extras=True)
        cls.choices = {name: get_args(x) for name, x in hints.items() if get_origin(x) is Literal}
        bounded = {name: x for name, x in hints.items() if get_origin(x) is Annotated}
        BOUNDS.update({name: x.__metadata__[0] for name, x in bounded.items()})
        DEFAULTS.update({name: getattr(cls, name) for name in hints if name not in DEFAULTS})
        for name, choices in cls.choices.items():
            CHOICES[name] = tuple(dict.fromkeys((*CHOICES.get(name, ()), *choices)))

    def __new__(cls, **settings: Any) -> Config:
        kind = find_class(settings) if cls is Config else cls
        for name, value in settings.items():
            if not kind.has(name, value):  # or it would be ignored
                convert(name, value)  # raises if no script has it
                having = [script for script, other in SCRIPTS.items() if other.has(name, value)]
                is_value = name in kind.__dataclass_fields__
                what = f"{name}={value!r}" if is_value else f"setting {name!r}"
                *most, last = having
                others = f"{', '.join(most)} and {last} have" if most else f"{last} has"
                raise ValueError(f"{kind.script} has no {what}; {others} it")
        return super().__new__(kind)

    def __post_init__(self) -> None:
        for problem in chain(self.problems(), rules.broken(self)):
            raise ValueError(problem)

    def __getattr__(self, name: str) -> Any:
        if name not in DEFAULTS:
            raise AttributeError(f"a run has no setting {name!r}{closest(name, DEFAULTS)}")
        return DEFAULTS[name]

    @classmethod
    def has(cls, name: str, value: Any) -> bool:
        """Return whether the script has this setting, and this value of it."""
        return name in cls.__dataclass_fields__ and value in cls.choices.get(name, (value,))

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the values, and what to choose; a class may add to it."""
        for name, (least, below) in BOUNDS.items():
            if not least <= (value := getattr(self, name)) < below:  # NaN fails this, too
                limit = f", and below {below:g}" if value >= below else ""
                yield f"{name}={value}: it must be {least:g} or more{limit}"
        steps = self.steps * self.epochs
        if not re.fullmatch(r"\w[\w.-]*", self.rung):  # it names the run's folder
            yield f"rung={self.rung!r}: use letters, digits, and _ . - between them"
        for name in self.STEPS:
            if self.steps and (at := getattr(self, name)) >= steps:
                yield f"{name}={at} leaves none of the {steps} steps: raise steps or lower {name}"
        for name, other in self.LIMITS.items():
            if (value := getattr(self, name)) > (limit := getattr(self, other)):
                yield f"{name}={value} is more than {other}={limit}: choose {limit} or less"
        least = rules.TRACE_WAIT + self.profile_steps + 1  # the trace is written in one more step
        if self.profile_steps and self.warmup_steps < least:
            why = "traced steps are slower, so they must not be measured"
            yield f"profile_steps={self.profile_steps} needs warmup_steps={least} or more: {why}"

    def fitted(self, has_accelerator: bool) -> Config:  # noqa: ARG002
        """Return the config with the sizes that it leaves to the machine."""
        return self

    def require_images(self, what: str) -> None:
        """Raise ValueError if its script trains with text; `what` is only for images."""
        if "image_px" not in vars(self):
            raise ValueError(
                f"{self.script} trains with text, and {what} is only for images: choose a rung of "
                f"another script"
            )

    @property
    def is_half(self) -> bool:
        """Whether the forward pass runs in 16 bits."""
        return self.precision in ("half", *HALF_FORMATS)

    @property
    def scales_loss(self) -> bool:
        """Whether its script scales the loss, as training in fp16 requires."""
        return self.has("precision", "fp16")

    @property
    def has_sizes(self) -> bool:
        """Whether it leaves no size to the machine, so that `fitted` would change nothing."""
        return True

    @property
    def setup(self) -> str:
        """Data, sizes and simulated hosts in words, to be shown with any speed."""
        hosts = f", {self.hosts} simulated hosts" * (self.hosts > 1)
        return f"{self.samples}, batch {self.batch_size}{hosts}"

    @property
    def data_name(self) -> str:
        """The data that it trains with, in a word or two."""
        return self.data

    @property
    def samples(self) -> str:
        """What one sample of a batch is, in words."""
        return ""

    @property
    def tokens(self) -> int:
        """The tokens of a sequence; 0 for a script whose samples are images."""
        return 0

    @property
    def unit(self) -> str:
        """What a script's speed counts: images or tokens."""
        return "tokens" if self.tokens else "images"

    def to_json(self) -> str:
        """Return the config as indented JSON."""
        return json.dumps(asdict(self), indent=2)


def find_class(settings: dict[str, Any], first: str = "") -> type[Config]:
    """Return the class of the script that has these settings.

    It is the script that they name; or else `first`, or the first script that has a setting which
    `first` lacks. If none of these has all settings, it is `first`, whose class refuses them.
    """
    if settings.get("script"):
        return SCRIPTS[convert("script", settings["script"])]
    items = [(k, v) for k, v in settings.items() if k != "script" and v != DEFAULTS.get(k)]
    kinds = [SCRIPTS[first or "train.py"]]
    for item in items if kinds[0].MAY_BECOME_ANOTHER else ():
        kinds += [kind for kind in SCRIPTS.values() if kind.has(*item)][:1]
    return next((kind for kind in kinds if all(kind.has(*item) for item in items)), kinds[0])


def from_dict(values: dict[str, Any]) -> Config:
    """Create a config from JSON values; raise ValueError for a setting that its script lacks.

    Settings of other scripts are left out if they have their defaults. Runs that were recorded
    before each script had a class of its own have the settings of all scripts.
    """
    values = {name: convert(name, value) for name, value in values.items()}
    kind = find_class(values)
    names = kind.__dataclass_fields__
    return kind(**{k: v for k, v in values.items() if k in names or v != DEFAULTS[k]})


def change(
    config: Config, changes: dict[str, Any], optional: dict[str, Any] | None = None
) -> Config:
    """Return a config with changes, of a script that has them if its own does not.

    Args:
        optional: further changes, as far as the script has these settings.
    """
    changes = {name: convert(name, value) for name, value in changes.items()}
    kind = find_class(vars(config) | {"script": ""} | changes, config.script)
    fitting = {name: v for name, v in (optional or {}).items() if kind.has(name, v)}
    return from_dict(vars(config) | fitting | changes | {"script": kind.script})


def all_settings(config: Config) -> dict[str, Any]:
    """Return the settings of all scripts; those that the config's script lacks have defaults."""
    return {name: getattr(config, name) for name in DEFAULTS}


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """Convert `["batch_size=32", "fused=true"]` to `{"batch_size": 32, "fused": True}`."""
    settings = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign:
            raise ValueError(f"{pair!r}: expected key=value, as in batch_size=32")
        settings[key.strip()] = convert(key.strip(), text.strip())
    return settings


def convert(name: str, value: Any) -> Any:
    """Convert a value, such as text, to the type of a setting; ValueError if no script has it."""
    if name not in DEFAULTS:
        near, names = closest(name, DEFAULTS), ", ".join(DEFAULTS)
        raise ValueError(f"a run has no setting {name!r}{near}: choose {names}")
    wanted, choices = type(DEFAULTS[name]), CHOICES.get(name)
    if choices and value not in choices:
        listed = " or ".join(choice or '""' for choice in choices)
        raise ValueError(f"{name}={value!r}{closest(str(value), choices)}: choose {listed}")
    try:
        if wanted is bool:
            return _BOOLS[str(value).lower()]
        if wanted is int and float(value) != int(float(value)):
            raise ValueError
        return wanted(value)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ValueError(f"{name}={value!r}: expected {_IN_WORDS[wanted]}") from None


def resolve_half(formats: Collection[str], *, scales_loss: bool) -> str:
    """Return the meaning of `precision="half"` for a device with hardware for these formats.

    fp16 needs loss scaling; a script without it computes in fp32 if there is no bf16.
    """
    usable = HALF_FORMATS if scales_loss else ("bf16",)
    return next((name for name in usable if name in formats), "fp32")
