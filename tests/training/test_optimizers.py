"""Optimizers by name, learning-rate schedules, averages of weights."""

import math

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint import state_dict
from torch.utils._pytree import tree_leaves

from course.config import CHOICES, Config
from course.training import optimizers

NAMES = CHOICES["optimizer"]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 4)
    )


def config(**changes) -> Config:
    return Config(**{"epochs": 2, "steps": 10, "warmup_steps": 0, "lr": 0.01} | changes)


def train(cfg: Config, net: nn.Module, updates: int = 20) -> tuple[list[float], list[float]]:
    """Train on one batch, and return the learning rate and the loss of each update."""
    optimizer = optimizers.create(net.parameters(), cfg)
    optimizers.schedule(optimizer, cfg)
    averaged = optimizers.Averaged(net, optimizer, cfg)
    images, labels = torch.randn(16, 3, 8, 8), torch.randint(4, (16,))
    rates, losses = [], []
    for _ in range(updates):
        loss = nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    with averaged.validated() as validated:
        net.validated = validated.state_dict()
        net.validated = {name: value.clone() for name, value in net.validated.items()}
    net.optimizer = optimizer
    return rates, losses


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_each_learns(name: str) -> None:
    lr = 1.0 if name == "lars" else 0.01
    rates, losses = train(config(optimizer=name, lr=lr), network())
    assert losses[-1] < 0.7 * losses[0], losses
    assert {*rates} == {lr}


def trained_optimizer(net: nn.Module, cfg: Config, updates: int) -> torch.optim.Optimizer:
    train(cfg, net, updates)
    return net.optimizer


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_config_replaces_the_settings_of_a_checkpoint(
    name: str, capsys: pytest.CaptureFixture
) -> None:
    nets, lr = [network(), network()], (0.01, 0.003)
    saved, resumed = (
        trained_optimizer(net, config(optimizer=name, lr=rate, weight_decay=rate), 3)
        for net, rate in zip(nets, lr)
    )
    state = state_dict.get_optimizer_state_dict(nets[0], saved)
    state_dict.set_optimizer_state_dict(nets[1], resumed, state)
    group = resumed.param_groups[0]
    assert (group["lr"], group["weight_decay"]) == (0.003, 0.003)
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        f"continues with this config's {key}=0.003, not the checkpoint's 0.01"
        for key in ("lr", "weight_decay")
    ]
    pairs = zip(*(tree_leaves([*one.state.values()]) for one in (saved, resumed)), strict=True)
    assert all(torch.equal(value, due) for value, due in pairs)


@pytest.mark.parametrize("schedule", ["one_cycle", "cosine"])
def test_a_schedule_continues_and_is_not_changed(
    schedule: str, capsys: pytest.CaptureFixture
) -> None:
    saved = trained_optimizer(network(), config(schedule=schedule), 5)
    same, other = (
        optimizers.create(network().parameters(), config(schedule=schedule, lr=lr))
        for lr in (0.01, 0.02)
    )
    for optimizer, lr in ((same, 0.01), (other, 0.02)):
        optimizers.schedule(optimizer, config(schedule=schedule, lr=lr))
    same.load_state_dict(saved.state_dict())
    for key in ("lr", "momentum"):
        assert same.param_groups[0][key] == saved.param_groups[0][key]
    assert not capsys.readouterr().out
    with pytest.raises(ValueError, match="schedule begins with lr=.* and the checkpoint's began"):
        other.load_state_dict(saved.state_dict())


def test_learning_rates_follow_their_schedules() -> None:
    assert {*train(config(), network())[0]} == {0.01}
    warmup = train(config(lr_warmup=4), network())[0]
    assert warmup == pytest.approx([0.002, 0.004, 0.006, 0.008] + [0.01] * 16)
    linear = train(config(schedule="linear", lr_warmup=4), network())[0]
    assert linear[4:] == pytest.approx([0.01 * (16 - n) / 16 for n in range(16)])
    cosine = train(config(schedule="cosine"), network())[0]
    assert cosine == pytest.approx([0.005 * (1 + math.cos(math.pi * n / 20)) for n in range(20)])
    cycle = train(config(schedule="one_cycle"), network())[0]
    assert max(cycle) == pytest.approx(0.01, rel=0.05) and cycle.index(max(cycle)) in range(4, 8)
    assert cycle[0] == pytest.approx(0.01 / 25) and cycle[-1] < 0.001


@pytest.mark.parametrize("fused", [False, True])  # fused optimizers skip in their kernel
def test_a_skipped_step_does_not_advance_the_schedule(fused: bool) -> None:
    net = network()
    cfg = config(schedule="linear", fused=fused)
    optimizer = optimizers.create(net.parameters(), cfg)
    optimizers.schedule(optimizer, cfg)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    rates = []
    for step in range(4):
        scaler.scale(net(torch.randn(2, 3, 8, 8)).sum()).backward()
        if step == 1:
            net[3].bias.grad[0] = math.inf
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        rates.append(optimizer.param_groups[0]["lr"] * 20 / 0.01)
    assert rates == pytest.approx([19, 19, 18, 17])
    assert all(weight.isfinite().all() for weight in net.parameters())


def test_averages_of_weights_are_validated() -> None:
    net, twin, mean = network(), network(), None
    train(config(ema=0.9), net, updates=8)
    for updates in range(1, 9):
        twin = network()
        train(config(), twin, updates=updates)
        weight = twin[0].weight.detach()
        mean = weight.clone() if mean is None else 0.9 * mean + 0.1 * weight
    assert not torch.allclose(net.validated["0.weight"], net[0].weight)
    assert torch.allclose(net.validated["0.weight"], mean, atol=1e-6)
    free = network()
    train(config(optimizer="schedulefree"), free)
    assert not torch.allclose(free.validated["0.weight"], free[0].weight)
    assert free.optimizer.param_groups[0]["train_mode"]
