"""The step by kernels, in Triton's interpreter, against autograd."""

import json
import os
import subprocess
import sys

import pytest

from course.runs.run import PROJECT

FOLDER = PROJECT / "benchmarks" / "fast_step"

# One step of a tiny bottleneck ResNet (a block with a shortcut of stride 1, one with none, one of
# stride 2), in fp32 by the kernels, and in float64 by autograd. Prints the relative distances.
STEP = """
import copy, json, torch, torchvision
from torch.nn import BatchNorm2d, Linear, ReLU, Sequential
from torch.nn.functional import cross_entropy
from optimizer import SGD
from step import FastResNet

def make(seed):
    torch.manual_seed(seed)
    net = torchvision.models.ResNet(torchvision.models.resnet.Bottleneck, [2, 1, 1, 1])
    net.layer3, net.layer4, net.fc = Sequential(), Sequential(), Linear(512, 10)
    for m in net.modules():
        if isinstance(m, BatchNorm2d):
            torch.nn.init.uniform_(m.weight, 0.5, 1.5)
            torch.nn.init.uniform_(m.bias, -0.3, 0.3)
    return net, torch.randn(2, 3, 32, 32).to(memory_format=torch.channels_last)

def nearest_zero(net, images):
    found = []
    for m in net.modules():
        if isinstance(m, ReLU):
            m.register_forward_pre_hook(lambda _, x: found.append(x[0].abs().min().item()))
    net(images)
    return min(found)

torch.set_num_threads(1)
for seed in range(100):  # a ReLU that flips in fp32 moves all gradients below it: have none near 0
    net, images = make(seed)
    if nearest_zero(copy.deepcopy(net).double(), images.double()) > 1e-5:
        break
labels = torch.tensor([3, 7])
ref = copy.deepcopy(net).double()
sgd = torch.optim.SGD(ref.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
fast = FastResNet(net, torch.float32, 2, SGD(0.1, 0.9, 1e-4), loss_scale=1024.0)
loss = fast.step(images, labels, update=False)
wanted = cross_entropy(ref(images.double()), labels)
wanted.backward()
gradients = {
    name: ((fast.gradients()[name] - p.grad).norm() / p.grad.norm()).item()
    for name, p in ref.named_parameters()
}
fast.update()
sgd.step()
state = net.state_dict()
far = {n: (state[n] - v).abs().max().item() for n, v in ref.state_dict().items()}
print(json.dumps({
    "loss": abs(loss.item() - wanted.item()),
    "gradients": gradients,
    "running": max(v for n, v in far.items() if "running" in n),
    "weights": max(far[n] for n, _ in ref.named_parameters()),
}))
"""


@pytest.fixture(scope="module")
def step() -> dict:
    pytest.importorskip("triton", reason="the kernels are written in Triton, which is not here")
    return interpreted(STEP)


def interpreted(code: str) -> dict:
    """What the code prints last, as JSON, where kernels run in Triton's interpreter."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment["PYTHONPATH"] = str(FOLDER)
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.slow
class TestStep:
    """fp32 by the kernels against float64; autograd in fp32 is 1e-5 off itself."""

    def test_every_gradient_is_autograds(self, step: dict) -> None:
        assert step["loss"] < 5e-5
        assert len(step["gradients"]) == 38
        assert max(step["gradients"].values()) < 7e-5, step["gradients"]

    def test_running_statistics_are_batchnorms(self, step: dict) -> None:
        assert step["running"] < 5e-5

    def test_updated_parameters_are_sgds(self, step: dict) -> None:
        assert step["weights"] < 1e-4
