"""Config: values and combinations that are refused, the ladder, sweeps, and settings as text."""

import json
from dataclasses import asdict
from itertools import pairwise

import pytest

from course import config
from course.config import LADDER, SCRIPTS, Config, from_dict, parse_settings, rung, vary


def refusal(base: str, **changes: object) -> str:
    with pytest.raises(ValueError) as caught:
        rung(base, **changes)
    return str(caught.value)


BAD_VALUES = {
    "precision=fp61": "(did you mean 'fp16'?): choose fp32 or tf32 or bf16 or fp16 or half",
    "model=coatnet_9": "model='coatnet_9' (did you mean 'coatnet_5_224'?): choose resnet18 or",
    "shard=zero1": 'choose "" or zero2 or zero3 or hybrid',
    "batch_size=0": "batch_size=0: it must be 1 or more",
    "image_px=31": "image_px=31: it must be 32 or more",
    "lr=inf": "lr=inf: it must be 0 or more, and below inf",
    "label_smoothing=1": "label_smoothing=1.0: it must be 0 or more, and below 1",
    "batch_size=3.5": "batch_size='3.5': expected a whole number",
    "fused=2": "fused='2': expected true or false",
    "stage_split=half": """stage_split='half': choose "gflop", "weights", or numbers of blocks""",
    "rung=../elsewhere": "rung='../elsewhere': use letters, digits",
    "batchsize=32": "no setting 'batchsize' (did you mean 'batch_size'?): choose rung, script",
}


@pytest.mark.parametrize("pair, message", BAD_VALUES.items())
def test_a_bad_value_is_refused_with_the_valid_ones(pair: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        rung("baseline", **parse_settings([pair]))
    assert message in str(caught.value)


def test_every_choice_and_bound_is_checked() -> None:
    for name, choices in config.CHOICES.items():
        assert all(choice in refusal("baseline", **{name: "other"}) for choice in choices)
    for name, bounds in config.BOUNDS.items():
        assert f"must be {bounds.least:g} or more" in refusal(
            "baseline", **{name: bounds.least - 1}
        )
    numbers = {name for name, value in asdict(Config()).items() if type(value) in (int, float)}
    unbounded = numbers - set(config.BOUNDS) - {"seed"}
    assert not unbounded, "give it a type with bounds, such as Amount, in course/config/scripts.py"


SHARDED, PARALLEL, RESTARTED = "train_sharded.py", "train_parallel.py", "train_restarted.py"
# A rung, what changes it, and words of the message.
SILENTLY_WRONG = [
    ("baseline", {"warmup_steps": 32}, "warmup_steps=32 leaves none of the 32 steps: raise steps"),
    ("baseline", {"lr_warmup": 32}, "lr_warmup=32 leaves none of the 32 steps"),
    ("baseline", {"budget_s": 3}, "with epochs=2: training may stop in any epoch. Set budget_s=0"),
    ("baseline", {"profile_steps": 8}, "profile_steps=8 needs warmup_steps=11 or more"),
    ("baseline", {"persistent_workers": True}, "there is no worker to keep. Set workers=1 or more"),
    ("shards", {"data": "synthetic"}, "Set data='default' or 'imagenet'"),
    ("shards", {"drop_last": False}, "shards are read without end. Set drop_last=True"),
    ("gpu_decode", {"randaugment": "cpu"}, "Set randaugment='device' or ''"),
    ("randaugment", {"data": "synthetic"}, "with data='synthetic': no file becomes an image"),
    ("randaugment_device", {"uint8": False}, "Set uint8=True"),
    ("progressive", {"start_px": 100}, "start_px=100: resnet50 halves images five times"),
    ("progressive", {"start_px": 256}, "start_px=256 is more than image_px=224"),
    ("baseline", {"data": "crops", "image_px": 64}, "Set image_px=32"),
    ("baseline", {"data": "crops", "format": "raw"}, "Set format='files'"),
    ("baseline", {"data": "crops", "randaugment": "cpu"}, "no worker loads them"),
    ("fused", {"optimizer": "lamb"}, "Set optimizer='sgd' or 'nesterov' or 'adamw'"),
    ("baseline", {"optimizer": "schedulefree", "schedule": "cosine"}, "Set schedule=''"),
    ("baseline", {"schedule": "one_cycle", "lr_warmup": 2}, "Set lr_warmup=0"),
    ("find", {"steps": 1, "warmup_steps": 1}, "Set steps=2 or more"),
    ("algebra", {"model": "resnet18"}, "Set model='resnet50' or 'resnet101' or 'resnet152'"),
    (
        "algebra",
        {"compile": "default"},
        "each replaces the step in a different way. Set compile=''",
    ),
    ("large", {"micro_batch": 65}, "micro_batch=65 is more than batch_size=64: choose 64 or less"),
    ("large", {"image_px": 100}, "image_px=100: coatnet_pico_rw_224 halves images five times"),
    (
        "sharded",
        {"precision": "fp16"},
        "no precision='fp16'; train.py and train_restarted.py have it",
    ),
    ("sharded", {"gather_bf16": True, "shard": ""}, "Set shard='zero3' or 'zero2' or 'hybrid'"),
    ("sharded", {"gather_bf16": True, "precision": "fp32"}, "Set precision='half' or 'bf16'"),
    ("sharded", {"prefetch": 1, "unit_blocks": 0}, "Set unit_blocks=1 or more"),
    ("sharded", {"resume": "a", "schedule": "cosine"}, "shards do not save the rate"),
    ("large", {"stage_split": "weights"}, "pipeline='' with stage_split='weights'"),
    ("pipeline", {"micro_batch": 3}, "choose a divisor of 64"),
    ("pipeline", {"batch_size": 0, "micro_batch": 0}, "batch_size=0: it must be 1 or more"),
    ("pipeline", {"tensor": 2}, "train_parallel.py splits layers or stages, not both"),
    ("tensor", {"shard": "zero2"}, f"{PARALLEL} has no shard='zero2'; {SHARDED} has it"),
    ("baseline", {"hosts": 2}, "only NCCL, on GPUs, can simulate hosts. Set device='auto'"),
    ("restarted", {"save_every": 0, "async_save": True}, "Set save_every=1 or more"),
    ("restarted", {"sigterm_step": 32}, "sigterm_step=32 leaves none of the 32 steps"),
    ("algebra", {"micro_batch": 8}, f"{SHARDED}, {PARALLEL} and train_gpt.py have it"),
    (
        "large",
        {"mix": "mixup"},
        f"{SHARDED} has no setting 'mix'; train.py and",
    ),
    (
        "tensor",
        {"save_every": 4},
        f"no setting 'save_every'; train.py, {SHARDED}, {RESTARTED} and train_gpt.py have it",
    ),
    (
        "restarted",
        {"sigterm_step": 1, "start_px": 32},
        f"{RESTARTED} has no setting 'start_px'; train.py, ",
    ),
    ("restarted", {"drop_last": False}, "a step's number decides its epoch. Set drop_last=True"),
    ("sharded", {"resume": "a", "save_every": 4}, "counted from the other run's end. Set save_ev"),
    ("find", {"save_every": 4}, "a search is not resumed. Set save_every=0"),
]


@pytest.mark.parametrize("base, changes, message", SILENTLY_WRONG)
def test_what_would_be_silently_wrong_is_refused(base: str, changes: dict, message: str) -> None:
    assert message in refusal(base, **changes)


@pytest.mark.parametrize(
    "before, after",
    [
        *pairwise(LADDER),
        *pairwise(["channels_last", *config.COMPILED, "autotune"]),
        *pairwise(sum(config.LADDERS["train_gpt.py"], ())),
    ],
)
def test_rung_changes_one_field(before: str, after: str) -> None:
    fields = [
        key for key, value in asdict(rung(before)).items() if asdict(rung(after))[key] != value
    ]
    assert len(fields) == 2 and fields[0] == "rung" and rung(after).rung == after


@pytest.mark.parametrize("name", LADDER)
def test_quick_shrinks_but_keeps_what_the_rung_shows(name: str) -> None:
    full, quick = rung(name), rung(name, quick=True)
    for kept in ("rung", "model", "device", "precision", "channels_last", "data", "seed"):
        assert getattr(quick, kept) == getattr(full, kept)
    assert quick.image_px < full.image_px and quick.batch_size < full.batch_size
    assert quick.epochs * quick.steps < full.epochs * full.steps
    assert quick.lr < full.lr


def test_changes_replace_those_of_quick_and_take_the_type_of_their_field() -> None:
    pairs = ["batch_size=16", " fused = true", "lr=0.5", "data_root=/disk/a=b", "drop_last=no"]
    cfg = rung("amp", quick=True, **parse_settings(pairs))
    assert (cfg.batch_size, cfg.fused, cfg.lr, cfg.image_px) == (16, True, 0.5, 64)
    assert (cfg.data_root, cfg.drop_last) == ("/disk/a=b", False)


def test_a_saved_config_is_read_again() -> None:
    cfg = Config(precision="fp16", fused=True, steps=3, warmup_steps=0, lr=0.25, data="synthetic")
    assert from_dict(json.loads(cfg.to_json())) == cfg
    with pytest.raises(ValueError, match="a run has no setting 'optimiser'"):
        from_dict({**asdict(Config()), "optimiser": "lars"})


def test_vary_gives_each_combination_its_own_label() -> None:
    configs = vary(rung("device"), batch_size=range(8, 17, 8), precision=["fp32", "bf16"])
    assert [(cfg.batch_size, cfg.precision) for cfg in configs] == [
        (8, "fp32"),
        (8, "bf16"),
        (16, "fp32"),
        (16, "bf16"),
    ]
    assert configs[0].rung == "device-batch_size-8-precision-fp32"
    assert len({cfg.rung for cfg in configs}) == 4


@pytest.mark.parametrize(
    "name, changes, script",
    [
        *((name, {}, "train.py") for name in LADDER),
        ("device", {"model": "coatnet_0_224"}, SHARDED),
        ("device", {"micro_batch": 8}, SHARDED),
        ("device", {"offload": True}, SHARDED),
        ("pipeline", {}, PARALLEL),
        ("restarted", {}, RESTARTED),
        ("large", {"micro_batch": 16}, SHARDED),
        ("channels_last", {"save_every": 8}, "train.py"),
        ("large", {"pipeline": "1f1b", "micro_batch": 2}, PARALLEL),
        ("mixup", {"sigterm_step": 8}, RESTARTED),  # mix is a setting of several scripts
        ("restarted", {"data": "crops"}, "train.py"),
        ("large", {"script": PARALLEL}, PARALLEL),
        ("baseline", {"script": RESTARTED, "mix": ""}, RESTARTED),
    ],
)
def test_a_config_names_the_script_that_reads_its_fields(
    name: str, changes: dict, script: str
) -> None:
    assert type(rung(name, **changes)) is SCRIPTS[script]
    assert rung(name, **changes).script == script
