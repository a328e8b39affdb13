"""Config: what decides a run, the ladder of rungs, and settings given as text."""

import json
from dataclasses import FrozenInstanceError, asdict, fields
from itertools import pairwise

import pytest
from cases import for_all

from course.config import COMPILED, LADDER, Config, from_dict, parse_settings, rung, vary
from course.valid import AT_LEAST, CHOICES


def changed_fields(before: Config, after: Config) -> set[str]:
    return {f.name for f in fields(Config) if getattr(before, f.name) != getattr(after, f.name)}


PAIRS = [*pairwise(LADDER), *pairwise(["channels_last", *COMPILED])]


@for_all("before, after", PAIRS, ids=" to ".join)
def test_rung_changes_one_field(before: str, after: str) -> None:
    assert len(changed_fields(rung(before), rung(after)) - {"rung"}) == 1


def test_ladder_names_its_rungs() -> None:
    assert len(LADDER) > 1
    assert {name: cfg.rung for name, cfg in LADDER.items()} == {name: name for name in LADDER}


@for_all("name", LADDER)
def test_quick_shrinks_but_keeps_what_the_rung_shows(name: str) -> None:
    full, quick = rung(name), rung(name, quick=True)
    for kept in ("rung", "model", "device", "precision", "channels_last", "data", "seed"):
        assert getattr(quick, kept) == getattr(full, kept)
    assert quick.image_px < full.image_px
    assert quick.batch_size < full.batch_size
    assert quick.epochs * quick.steps < full.epochs * full.steps
    assert quick.lr < full.lr  # a smaller batch bears smaller steps only


def test_changes_stand_over_quick() -> None:
    cfg = rung("amp", quick=True, batch_size="16", fused="true")
    assert (cfg.batch_size, cfg.fused, cfg.image_px) == (16, True, 64)


def test_unknown_rung_lists_the_ladder() -> None:
    with pytest.raises(ValueError, match="no rung 'fast': the ladder has") as caught:
        rung("fast")
    assert all(name in str(caught.value) for name in LADDER)


@for_all("name", CHOICES)
def test_bad_choice_lists_the_valid_ones(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}='other': choose") as caught:
        Config(**{name: "other"})
    assert all(valid in str(caught.value) for valid in CHOICES[name])


@for_all("name", AT_LEAST)
def test_too_small_a_number_says_the_least(name: str) -> None:
    least = AT_LEAST[name]
    with pytest.raises(ValueError, match=f"{name}={least - 1}: it must be {least} or more"):
        Config(**{name: least - 1})


@for_all("name", ("image_px", "batch_size", "val_steps", "workers"))
def test_least_number_is_taken(name: str) -> None:
    assert getattr(Config(**{name: AT_LEAST[name]}), name) == AT_LEAST[name]


def test_warmup_must_leave_a_step() -> None:
    with pytest.raises(ValueError, match="warmup_steps=6 leaves none of the 6 steps"):
        Config(epochs=2, steps=3, warmup_steps=6)
    assert Config(epochs=2, steps=3, warmup_steps=5).warmup_steps == 5


def test_config_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Config().batch_size = 1  # type: ignore[misc]


def test_json_round_trip() -> None:
    cfg = Config(precision="fp16", fused=True, steps=3, warmup_steps=0, lr=0.25, data="synthetic")
    assert from_dict(asdict(cfg)) == cfg
    assert from_dict(json.loads(cfg.to_json())) == cfg
    assert from_dict({}) == Config()


def test_from_dict_refuses_an_unknown_field() -> None:
    with pytest.raises(ValueError, match="a run has no setting 'optimiser'"):
        from_dict({**asdict(Config()), "optimiser": "lars"})


def test_unknown_setting_suggests_the_near_one() -> None:
    with pytest.raises(ValueError, match="did you mean 'batch_size'") as caught:
        rung("baseline", batchsize=32)
    assert all(field.name in str(caught.value) for field in fields(Config))


def test_unknown_setting_without_a_near_one() -> None:
    with pytest.raises(ValueError, match="a run has no setting 'zzz': choose rung"):
        parse_settings(["zzz=1"])


def test_settings_get_the_type_of_their_field() -> None:
    given = ["batch_size=32", " fused = true", "channels_last=no", "lr=0.5", "model=resnet18"]
    settings = parse_settings(given)
    wanted = {"batch_size": 32, "fused": True, "channels_last": False, "lr": 0.5}
    assert settings == {**wanted, "model": "resnet18"}
    assert {key: type(settings[key]) for key in wanted} == {
        "batch_size": int,
        "fused": bool,
        "channels_last": bool,
        "lr": float,
    }


def test_setting_may_hold_an_equals_sign() -> None:
    assert parse_settings(["data_root=/disk/a=b"]) == {"data_root": "/disk/a=b"}


@for_all(
    "pair, wanted",
    [
        ("batch_size=3.5", "int"),
        ("batch_size=many", "int"),
        ("batch_size=", "int"),
        ("steps=inf", "int"),
        ("lr=fast", "float"),
        ("fused=maybe", "bool"),
        ("fused=2", "bool"),
    ],
)
def test_wrong_type_says_which_is_needed(pair: str, wanted: str) -> None:
    key = pair.partition("=")[0]
    with pytest.raises(ValueError, match=f"^{key}=.*a value of type {wanted} is needed"):
        parse_settings([pair])


def test_setting_without_equals_sign() -> None:
    with pytest.raises(ValueError, match="'nonsense' is not of the form key=value"):
        parse_settings(["nonsense"])


@for_all("setting", ("lr=nan", "lr=-0.1", "momentum=-1", "weight_decay=nan"))
def test_number_that_cannot_train_is_refused_before_the_queue(setting: str) -> None:
    with pytest.raises(ValueError, match=setting.partition("=")[0]):
        rung("baseline", **parse_settings([setting]))


def test_vary_gives_each_combination_a_label_of_its_own() -> None:
    found = vary(rung("device"), batch_size=range(8, 25, 8), precision=["fp32", "bf16"])
    assert [(cfg.batch_size, cfg.precision) for cfg in found] == [
        (8, "fp32"),
        (8, "bf16"),
        (16, "fp32"),
        (16, "bf16"),
        (24, "fp32"),
        (24, "bf16"),
    ]
    labels = [cfg.rung for cfg in found]
    assert labels[0] == "device-batch_size-8-precision-fp32"
    assert len(set(labels)) == 6 and not set(labels) & set(LADDER)


@for_all("values", [{}, {"batch_size": []}, {"precision": "bf16"}])
def test_vary_without_values_shows_how(values: dict) -> None:
    with pytest.raises(ValueError, match=r"batch_size=\[8, 16, 32\]"):
        vary(rung("device"), **values)


def test_vary_refuses_what_rung_refuses() -> None:
    with pytest.raises(ValueError, match="did you mean 'batch_size'"):
        vary(rung("device"), batchsize=[8])
    with pytest.raises(ValueError, match="must be 1 or more"):
        vary(rung("device"), batch_size=[8, 0])


@for_all(
    "changes, said",
    [
        ({"micro_batch": 65}, "micro_batch=65 is more than batch_size=64"),
        ({"checkpointing": "all"}, "checkpointing='all': choose"),
        ({"image_px": 100}, "halves images five times, so choose a multiple of 32"),
        ({"model": "coatnet_9"}, "model='coatnet_9': choose resnet18"),
    ],
)
def test_what_large_networks_cannot_have(changes: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        rung("large", **changes)


def test_a_config_knows_the_script_that_does_what_it_asks() -> None:
    assert {cfg.script for cfg in LADDER.values()} == {"train.py"}
    for changes in ({"model": "coatnet_0_224"}, {"micro_batch": 8}, {"offload": True}):
        assert rung("device", **changes).script == "train_sharded.py"


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model": "resnet18"}, "resnet18 do not end .* choose resnet50, resnet101, resnet152"),
        ({"compile": "default"}, 'both replace the step: set compile=""'),
        ({"sync_batchnorm": True}, "set sync_batchnorm=False"),
        ({"micro_batch": 8}, "known to train.py alone"),
        ({"save_every": 4}, "train_restarted.py.* does not know it"),
        ({"tensor": 2}, "train_parallel.py.* does not know it"),
    ],
)
def test_the_algebra_rung_refuses_what_it_cannot_train(changes, message):
    with pytest.raises(ValueError, match=message):
        rung("algebra", **changes)


def test_the_algebra_rung_changes_one_field_of_fused():
    before, after = vars(rung("fused")), vars(rung("algebra"))
    assert [key for key in before if before[key] != after[key]] == ["rung", "algebra"]
    assert all(rung("algebra", model=model).algebra for model in ("resnet101", "resnet152"))
