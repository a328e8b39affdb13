"""Every use of a network: the converted one does the same as torchvision's, or names what it does
not support.

The kernels run in Triton's interpreter, which computes in fp32 as well:

    TRITON_INTERPRET=1 python -m pytest fast_resnet/tests/test_uses.py
"""

from __future__ import annotations

import copy
import gc
import io
import pickle
import warnings
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from small import (
    batch,
    gradients,
    interpreter_problem,
    nearest_zero,
    network,
    network_and_batch,
    relative,
)
from torch import nn
from torch.func import functional_call, grad
from torch.nn.functional import cross_entropy
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint
from torchvision.models.feature_extraction import create_feature_extractor

from fast_resnet import convert
from fast_resnet.model import FastResNet, Step, is_interpreted

problem = interpreter_problem()
pytestmark = [
    pytest.mark.skipif(not is_interpreted(), reason="needs TRITON_INTERPRET=1"),
    pytest.mark.skipif(bool(problem), reason=problem),
]
OFF = 3e-4  # relative error of a gradient in fp32 between two orders of addition
Tensors = list[torch.Tensor]
USES: dict[str, tuple[Callable[[nn.Module], Tensors], str]] = {}


def use(falls_back: str = "") -> Callable:
    """Register a use, and the reason for which torchvision's code computes it, if it does."""

    def add(function: Callable[[nn.Module], Tensors]) -> Callable:
        USES[function.__name__.replace("_", " ")] = function, falls_back
        return function

    return add


@cache
def quiet_network() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.set_num_threads(1)
    return network_and_batch([slice(0, 4)])


def images_and_labels(size: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    _, images, labels = quiet_network()
    return images[:size].clone(), labels[:size]


def step(net: nn.Module, size: int = 4) -> Tensors:
    net.zero_grad()
    return gradients(net, *images_and_labels(size))


def results_of(net: nn.Module) -> Tensors:
    """Return what a step changes: gradients and running statistics."""
    return [w.grad for w in net.parameters() if w.grad is not None] + [*net.buffers()]


@use()
def one_step(net):
    step(net)
    return results_of(net)


@use()
def gradient_accumulation(net):
    net.zero_grad()
    gradients(net, *images_and_labels())
    gradients(net, *images_and_labels())
    return results_of(net)


@use()
def other_batch_and_image_sizes(net):
    for size, pixels in ((1, 64), (4, 32)):
        net.zero_grad()
        gradients(net, *batch(size, pixels)) if size != 4 else step(net)
    return [w.grad for w in net.parameters()]


@use("not square")
def images_that_are_not_square(net):
    images, labels = images_and_labels()
    return [g.clone() for g in gradients(net, images[:, :, :, :24], labels)]


@use("images require gradients")
def gradients_of_images(net):
    images, labels = images_and_labels()
    cross_entropy(net(images.requires_grad_()), labels).backward()
    return [images.grad]


@use()
def frozen_layers(net):
    for layer in (net.conv1, net.bn1, net.layer1):
        layer.requires_grad_(False)
    gradients(net, *images_and_labels())
    return results_of(net)


@use()
def frozen_batchnorm(net):
    net.layer1.eval()
    step(net)
    return results_of(net)


@use()
def requires_grad_toggled(net):
    step(net)
    net.layer1.requires_grad_(False)
    step(net)
    net.layer1.requires_grad_(True)
    step(net)
    return results_of(net)


@use()
def an_average_of_weights(net):
    averaged = AveragedModel(net, use_buffers=True)
    step(net)
    averaged.update_parameters(net)
    with torch.no_grad():
        return [averaged.eval()(images_and_labels()[0])]


@use()
def saved_and_loaded_as_a_whole(net):
    step(net)
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    step(loaded)
    return results_of(loaded)


@use()
def weights_assigned(net):
    step(net)
    net.load_state_dict(copy.deepcopy(net.state_dict()), assign=True)
    step(net)
    return results_of(net)


@use()
def evaluation_and_training_without_gradients(net):
    images, _ = images_and_labels()
    with torch.no_grad():
        net(images)
        return [net.eval()(images), *net.buffers()]


@use("has a hook")
def features_by_a_forward_hook(net):
    features = []
    handle = net.layer3[0].conv3.register_forward_hook(lambda *args: features.append(args[2]))
    step(net)
    handle.remove()
    return features


@use()
def features_of_whole_stages_in_the_loss(net):
    features = []
    for stage in (net.layer1, net.layer3):
        stage.register_forward_hook(lambda _, x, out: features.extend((*x, out)))
    net.layer4.register_forward_hook(
        lambda _, x, keywords, out: features.append(out), with_kwargs=True
    )
    images, labels = images_and_labels()
    loss = cross_entropy(net(images), labels)
    (loss + sum(f.sigmoid().mean() for f in features)).backward()
    return [*features, *results_of(net)]


@use()
def a_loss_of_features_only(net):
    features = []
    net.layer2.register_forward_hook(lambda _, x, out: features.append(out))
    net(images_and_labels()[0])
    features[0].square().mean().backward()
    return [*features, *results_of(net)]


@use()
def gradients_of_features(net):
    """As Grad-CAM does: also where the ReLU has passed nothing on."""
    features = []
    for stage in (net.layer2, net.layer4):
        stage.register_forward_hook(lambda _, x, out: features.append(out))
    step(net)
    images, labels = images_and_labels()
    features[:] = []
    loss = cross_entropy(net(images), labels)
    features[1].retain_grad()
    features[0].register_hook(lambda d: features.append(d) or 2 * d)
    loss.backward()
    return [features[1].grad, features[2], *results_of(net)]


@use()
def stage_outputs_that_hooks_replace(net):
    handles = [
        net.layer2.register_forward_hook(lambda _, x, out: out / 2),
        net.layer2.register_forward_hook(lambda _, x, out: out + x[0].mean()),
        net.layer4.register_forward_hook(lambda _, x, out: out),
    ]
    step(net)
    with_hooks = [w.grad for w in net.parameters()]
    for handle in handles:
        handle.remove()
    step(net)
    return [*with_hooks, *results_of(net)]


@use()
def hooks_of_the_whole_network(net):
    received = []
    net.register_forward_hook(lambda *args: received.append(args[2]))
    net.register_full_backward_hook(lambda _, below, above: received.append(above[0]))
    step(net)
    assert len(received) == 2
    return received


@use()
def a_replaced_layer(net):
    step(net)
    torch.manual_seed(1)
    net.layer3 = copy.deepcopy(network(1).layer3)
    net.zero_grad()
    gradients(net, *images_and_labels())
    return [w.grad for w in net.layer4.parameters()]


@use("layer2.0.relu is SiLU, not ReLU")
def a_replaced_activation(net):
    step(net)
    net.layer2[0].relu = nn.SiLU()
    step(net)
    return results_of(net)


@use()
def a_new_momentum_of_batchnorm(net):
    step(net)
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 0.5
    step(net)
    return results_of(net)


@use("has dilation=(2, 2), not 1")
def an_attribute_changed_after_a_step(net):
    step(net)
    net.layer1[0].conv2.padding = net.layer1[0].conv2.dilation = (2, 2)
    step(net)
    return results_of(net)


@use("a forward method is replaced")
def a_replaced_forward_method(net):
    plain = net.layer1[0].forward
    net.layer1[0].forward = lambda x: 2 * plain(x)
    step(net)
    return results_of(net)


@use("not contiguous in memory")
def a_transposed_weight(net):
    conv = net.layer1[0].conv1
    transposed = conv.weight.detach()[:, :, 0, 0].t().contiguous().t()
    conv.weight = nn.Parameter(transposed[:, :, None, None])
    step(net)
    return results_of(net)


@use()
def inference_mode_before_the_first_step(net):
    with torch.inference_mode():
        net(images_and_labels()[0])
    step(net)
    return results_of(net)


@use("layer1.0.conv3 is ParametrizedConv2d")
def weight_norm(net):
    step(net)
    parametrizations.weight_norm(net.layer1[0].conv3)
    step(net)
    return results_of(net)


@use("not in fp32")
def a_new_dtype(net):
    step(net)
    net.double()
    net.zero_grad()
    images, labels = images_and_labels()
    gradients(net, images.double(), labels)
    return results_of(net)


@use()
def two_networks_in_turns(net):
    step(net)
    twin = copy.deepcopy(net)
    assert twin.layer1[0].conv1.weight.data_ptr() != net.layer1[0].conv1.weight.data_ptr()
    for model in (twin, net):
        step(model)
    return [*results_of(net), *results_of(twin)]


@use()
def a_smaller_last_batch(net):
    for size in (4, 3, 4):
        step(net, size)
    return [w.grad for w in net.parameters()]


@use()
def functional_weights(net):
    step(net)
    weights = {n: w.detach().requires_grad_() for n, w in net.named_parameters()}
    images, labels = images_and_labels()
    cross_entropy(functional_call(net, weights, (images,)), labels).backward()
    return [w.grad for w in weights.values()]


@use("torch.func transforms it")
def gradients_by_torch_func(net):
    images, labels = images_and_labels()
    weights = {n: w.detach() for n, w in net.named_parameters()}
    buffers = {n: b.clone() for n, b in net.named_buffers()}

    def loss(weights, buffers):
        return cross_entropy(functional_call(net, (weights, buffers), (images,)), labels)

    return list(grad(loss)(weights, buffers).values())


@use()
def recomputed_in_backward(net):
    images, labels = images_and_labels()
    out = checkpoint(net, images, use_reentrant=False)
    cross_entropy(out, labels).backward()
    return [w.grad for w in net.parameters()]


@use()
def compiled(net):
    net.zero_grad()
    gradients(torch.compile(net, backend="eager"), *images_and_labels())
    return results_of(net)


@pytest.mark.parametrize("name", USES)
def test_it_does_the_same_as_torchvisions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, falls_back = USES[name]
    steps = []
    monkeypatch.setattr(Step, "__call__", counted(Step.__call__, steps))
    stock, _, _ = quiet_network()
    theirs = [t.detach().clone() for t in function(copy.deepcopy(stock))]
    net = convert(copy.deepcopy(stock))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = [t.detach().clone() for t in function(net)]
    reasons = {str(w.message) for w in caught if "fast_resnet" in str(w.message)}
    assert bool(reasons) == bool(falls_back) and all(falls_back in reason for reason in reasons)
    assert len(reasons) <= 1
    assert len(ours) == len(theirs) > 0
    values = [(a.double(), b.double()) for a, b in zip(ours, theirs)]
    assert relative(*zip(*[(a, b) for a, b in values if b.norm() > 0])) < OFF
    batchnorm_frozen = name in ("frozen batchnorm", "evaluation and training without gradients")
    assert steps or falls_back or batchnorm_frozen


@pytest.mark.parametrize("tma", [True, False])
def test_tiles_of_a_gpus_size_by_descriptor_and_by_address(
    tma: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several tiles in each direction, the last one incomplete, and several steps in depth."""
    from fast_resnet import products, rows

    stock, images, labels = network_and_batch([slice(0, 3)])
    ours, theirs = (convert(copy.deepcopy(stock)), stock)
    for module in (products, rows):
        monkeypatch.setattr(module, "IS_INTERPRETED", False)
    monkeypatch.setattr(products, "has_tma", lambda device: tma)
    results = [gradients(net, images[:3], labels[:3]) for net in (ours, theirs)]
    assert ours._step is not None and relative(*results) < OFF


@pytest.mark.parametrize("kind", [{"base_width": 128}, {"groups": 4, "base_width": 16 * 4}])
def test_wide_and_grouped_bottlenecks(kind: dict[str, int]) -> None:
    stock, images, labels = network_and_batch([slice(0, 4)], **kind)
    net = convert(copy.deepcopy(stock))
    theirs, ours = (gradients(model, images, labels) for model in (stock, net))
    assert net._step is not None and relative(ours, theirs) < OFF


def counted(call: Callable, steps: list) -> Callable:
    def count(self: Step, images: torch.Tensor) -> torch.Tensor:
        steps.append(images.shape)
        return call(self, images)

    return count


def test_a_second_derivative_is_refused_with_the_reason() -> None:
    net, (images, labels) = convert(copy.deepcopy(quiet_network()[0])), images_and_labels()
    loss = cross_entropy(net(images), labels)
    slopes = torch.autograd.grad(loss, [net.fc.weight, net.conv1.weight], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        sum(s.square().sum() for s in slopes).backward()


def test_two_forward_passes_before_backward_are_refused_with_the_reason() -> None:
    net, (images, labels) = convert(copy.deepcopy(quiet_network()[0])), images_and_labels()
    first, second = net(images), net(images)
    with pytest.raises(RuntimeError, match="call backward before the next forward"):
        cross_entropy(first + second, labels).backward()


@pytest.mark.parametrize("by_stage", [False, True])
def test_fsdp_trains_by_kernels_if_it_shards_the_whole_network(
    tmp_path: Path, by_stage: bool
) -> None:
    from torch import distributed
    from torch.distributed.fsdp import fully_shard

    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1
    )
    try:
        stock = copy.deepcopy(quiet_network()[0])
        theirs = step(stock)
        net = convert(copy.deepcopy(quiet_network()[0]))
        net.to(memory_format=torch.contiguous_format)  # FSDP2 takes no other
        mesh = distributed.device_mesh.init_device_mesh("cpu", (1,))
        for layer in [*net.children()][4:8] * by_stage + [net]:
            fully_shard(layer, mesh=mesh)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step(net)
            first = net._step
            ours = [gradient.full_tensor() for gradient in step(net)]
    finally:
        distributed.destroy_process_group()
    assert relative(ours, theirs) < OFF
    assert by_stage == any("FSDP2 shards single layers" in str(w.message) for w in caught)
    assert by_stage == (net._step is None) and net._step is first


def test_timms_network_has_timms_gradients() -> None:
    timm = pytest.importorskip("timm.models.resnet")
    images, labels = batch(4, 64)
    for seed in range(100):
        torch.manual_seed(seed)
        stock = timm.ResNet(timm.Bottleneck, [2, 1, 1, 1], 8, channels=(16, 16, 16, 64))
        stock.init_weights(zero_init_last=False)
        if nearest_zero(stock, images) > 2e-6:
            break
    stock.to(memory_format=torch.channels_last)
    net = convert(copy.deepcopy(stock))
    theirs, ours = (gradients(model, images, labels) for model in (stock, net))
    assert net._step is not None and relative(ours, theirs) < OFF
    statistics = ([*map(torch.Tensor.double, model.buffers())] for model in (net, stock))
    assert relative(*statistics) < OFF
    copied = pickle.loads(pickle.dumps(net))
    assert type(copied) is type(net) and isinstance(copied, timm.ResNet)
    net.drop_rate = 0.5
    with pytest.warns(UserWarning, match="by timm's own code: drop_rate is 0.5"):
        net(images)
    net.forward_head = net.forward_head
    with pytest.warns(UserWarning, match="by timm's own code: a forward method is replaced"):
        net(images)


def test_layers_of_a_converted_network_can_be_exported_and_tapped() -> None:
    """In training mode, and as stock: exported programs, a trace, and a feature extractor."""
    stock, images, _ = quiet_network()
    results = []
    for net in (stock, convert(copy.deepcopy(stock))):
        extractor = create_feature_extractor(copy.deepcopy(net), {"layer3.0.conv3": "features"})
        programs = [
            torch.export.export(copy.deepcopy(net), (images,), strict=strict).module()
            for strict in (False, True)
        ]
        programs.append(torch.jit.trace(copy.deepcopy(net), (images,), check_trace=False))
        results.append((extractor(images)["features"], *(p(images) for p in programs)))
    assert all(map(torch.equal, *results))


@pytest.mark.slow
def test_onnx_gives_the_scores_of_a_converted_network() -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    stock, images, _ = quiet_network()
    net = convert(copy.deepcopy(stock)).eval()
    file = io.BytesIO()
    torch.onnx.export(net, (images,), dynamo=True).save(file)
    session = runtime.InferenceSession(file.getvalue())
    (scores,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    torch.testing.assert_close(torch.from_numpy(scores), net(images), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("frozen", [[], ["conv1", "bn1", "layer1"]])
def test_a_step_leaves_nothing_in_memory(frozen: list[str]) -> None:
    net = convert(copy.deepcopy(quiet_network()[0]))
    for name in frozen:
        net.get_submodule(name).requires_grad_(False)
    step(net)
    activations = weakref.ref(net._step.segments)
    assert net._step._tape is None
    del net
    gc.collect()
    assert activations() is None


@pytest.mark.parametrize("case", ["frozen", "hook"])
def test_backward_stops_above_frozen_layers_and_hooks_run_at_once(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, ran = convert(copy.deepcopy(quiet_network()[0])), []
    step(net)
    segments = type(net._step.segments)
    below = segments._backward
    monkeypatch.setattr(
        segments, "_backward", lambda self, n, *others: ran.append(n) or below(self, n, *others)
    )
    if case == "hook":
        net.layer4[0].conv1.weight.register_hook(lambda gradient: ran.append("hook"))
    else:
        for name in ("conv1", "bn1", "layer1", "layer2"):
            net.get_submodule(name).requires_grad_(False)
    step(net)
    assert ran == ([5, 4, "hook", 3, 2, 1, 0] if case == "hook" else [5, 4, 3])


def test_converting_twice_changes_nothing() -> None:
    net = convert(convert(network()))
    assert type(net) is FastResNet
