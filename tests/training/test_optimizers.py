"""Optimizers by name, the learning rate's course over updates, averages of weights."""

import math
import sys
import warnings

import pytest
import torch
from cases import for_all
from torch import nn

from course.config import CHOICES, Config, rung
from course.training import optimizers
from course.training.memory_prediction import predict

NAMES = CHOICES["optimizer"]
STATE = {  # numbers that an optimizer keeps for each weight, beside single ones
    "sgd": 1,
    "nesterov": 1,
    "adamw": 2,
    "lars": 1,
    "lamb": 2,
    "lion": 1,
    "schedulefree": 1,
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 4)
    )


def config(**changes) -> Config:
    return Config(**{"epochs": 2, "steps": 10, "warmup_steps": 0, "lr": 0.01} | changes)


def trained(cfg: Config, net: nn.Module, updates: int = 20) -> tuple[list[float], list[float]]:
    """The learning rate and the loss of each update, of the same batch."""
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
        net.validated = {name: each.clone() for name, each in net.validated.items()}
    net.optimizer = optimizer
    return rates, losses


@pytest.mark.slow
@for_all("name", NAMES)
def test_each_learns(name: str) -> None:
    lr = 1.0 if name == "lars" else 0.01
    rates, losses = trained(config(optimizer=name, lr=lr), network())
    assert losses[-1] < 0.7 * losses[0], losses
    assert {*rates} == {lr}


def test_the_compilers_limit_stays() -> None:
    before = torch._dynamo.config.recompile_limit
    for name in [each for each in sys.modules if each.split(".")[0] == "timm"]:
        del sys.modules[name]  # timm lifts it as it is imported
    optimizers.create(network().parameters(), config(optimizer="lamb"))
    assert torch._dynamo.config.recompile_limit == before


@for_all("name", STATE)
def test_state_is_as_large_as_is_said(name: str) -> None:
    net = network()
    trained(config(optimizer=name), net, updates=2)
    weights = sum(each.numel() for each in net.parameters())
    kept = [
        each
        for state in net.optimizer.state.values()
        for each in state.values()
        if torch.is_tensor(each) and each.numel() > 1
    ]
    assert sum(each.numel() for each in kept) == STATE[name] * weights


@pytest.mark.slow
@for_all("name", NAMES)
def test_memory_of_the_state_is_predicted(name: str) -> None:
    found = predict(rung("device", optimizer=name, model="resnet8_patches", image_px=32))
    kept = STATE.get(name, 1)  # Muon: of matrices one, and nearly all weights are in these
    assert found.optimizer_gib == pytest.approx(kept * found.weights_gib, rel=0.01)


def test_sgd_is_as_the_script_had_it() -> None:
    ours, theirs = network(), network()
    trained(config(momentum=0.9, weight_decay=0.1), ours, updates=5)
    optimizer = torch.optim.SGD(theirs.parameters(), 0.01, momentum=0.9, weight_decay=0.1)
    torch.manual_seed(0)
    network()  # the same random numbers for the batch
    images, labels = torch.randn(16, 3, 8, 8), torch.randint(4, (16,))
    for _ in range(5):
        nn.functional.cross_entropy(theirs(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    for one, other in zip(ours.parameters(), theirs.parameters()):
        assert torch.equal(one, other)


def test_learning_rates_follow_their_schedules() -> None:
    assert {*trained(config(), network())[0]} == {0.01}
    ramp = trained(config(lr_warmup=4), network())[0]
    assert ramp == pytest.approx([0.002, 0.004, 0.006, 0.008] + [0.01] * 16)
    linear = trained(config(schedule="linear", lr_warmup=4), network())[0]
    assert linear[4:] == pytest.approx([0.01 * (16 - each) / 16 for each in range(16)])
    cosine = trained(config(schedule="cosine"), network())[0]
    assert cosine == pytest.approx(
        [0.005 * (1 + math.cos(math.pi * each / 20)) for each in range(20)]
    )
    cycle = trained(config(schedule="one_cycle"), network())[0]
    assert max(cycle) == pytest.approx(0.01, rel=0.05) and cycle.index(max(cycle)) in range(4, 8)
    assert cycle[0] == pytest.approx(0.01 / 25) and cycle[-1] < 0.001


@for_all("schedule", CHOICES["schedule"])
def test_no_schedule_warns(schedule: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(
            config(schedule=schedule, lr_warmup=0 if schedule in ("one_cycle", "find") else 3),
            network(),
        )


@pytest.mark.parametrize("fused", [False, True])  # which is called all the same, and looks itself
def test_a_step_that_was_left_out_is_no_update(fused: bool) -> None:
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
    assert all(each.isfinite().all() for each in net.parameters())


def test_averages_of_weights_are_what_is_validated() -> None:
    net = network()
    trained(config(ema=0.9), net, updates=8)
    plain, kept = net.validated["0.weight"], net[0].weight
    assert not torch.allclose(plain, kept)
    twin = network()
    mean = None
    cfg = config()
    optimizer = optimizers.create(twin.parameters(), cfg)
    images, labels = torch.randn(16, 3, 8, 8), torch.randint(4, (16,))
    for _ in range(8):
        nn.functional.cross_entropy(twin(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        now = twin[0].weight.detach()
        mean = now.clone() if mean is None else 0.9 * mean + 0.1 * now
    assert torch.allclose(plain, mean, atol=1e-6)


def test_schedule_free_is_validated_at_its_averages_and_goes_on_from_its_weights() -> None:
    net = network()
    trained(config(optimizer="schedulefree"), net)
    assert not torch.allclose(net.validated["0.weight"], net[0].weight)
    assert net.optimizer.param_groups[0]["train_mode"]
