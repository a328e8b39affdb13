"""A training step of ResNet-50 whose memory traffic is cut by algebra, without autograd.

    step = FastResNet(model, torch.float16, batch=256, loss_scale=65536.0)
    images = pad_channels(images.half())
    loss = step.step(images, labels)

Where a 1x1 convolution is followed by BatchNorm (conv3 and the shortcut's), its statistics come
from its input, and one kernel does convolution, BatchNorm, residual add and ReLU; backward needs
neither its output nor that output's gradient. course/training/algebra has it all:
formulas.py is to be read first, then forward.py and backward.py, products.py and rows.py.
"""

import torch
from optimizer import SGD, LossScale
from torch import nn

from course.training.algebra.backward import backward
from course.training.algebra.choices import Choices
from course.training.algebra.forward import forward
from course.training.algebra.pixels import pad_channels
from course.training.algebra.state import State


class FastResNet:
    """Trains a torchvision bottleneck ResNet in place, as autocast with SGD would.

    model: on its device, in train mode; its parameters become views of flat buffers, its running
    statistics are updated (num_batches_tracked is not). dtype: of activations and products.
    batch: images of a step. chosen: tiles from an earlier run (choices.py); others are timed on
    the first step. After some steps, a step may be captured in a CUDA graph; the settings of
    `sgd` are then constants of the graph.
    """

    def __init__(
        self,
        model: nn.Module,
        dtype: torch.dtype,
        batch: int,
        sgd: SGD | None = None,
        loss_scale: float | None = None,
        chosen: dict[str, str] | None = None,
    ) -> None:
        self.model = model
        self.sgd = sgd or SGD()
        self.state = State(model, dtype)
        self.choices = Choices(self.state.device, batch, chosen)
        self.loss_scale = LossScale(loss_scale, self.state.device)

    def step(self, images: torch.Tensor, labels: torch.Tensor, update: bool = True) -> torch.Tensor:
        """The mean cross entropy of one step, as a tensor on the device.

        images [n, 4, h, w] in dtype, channels last; with 3 channels they are padded here, which
        costs a copy. labels [n], int64. Without update only gradients are made.
        """
        if images.shape[1] == 3:
            images = pad_channels(images)
        self.state.clear()
        logits, tape = forward(self.model, self.state, self.choices, images)
        scale = self.loss_scale.scale
        loss = backward(self.model, self.state, self.choices, tape, logits, labels, scale)
        if update:
            self.update()
        return loss

    def update(self) -> None:
        """Apply the gradients of the last step."""
        self.sgd.update(self.state, self.loss_scale)

    def gradients(self) -> dict[str, torch.Tensor]:
        """The last step's gradients, fp32, unscaled, under the module's names for them."""
        inverse = self.loss_scale.inverse
        names = {module: name for name, module in self.model.named_modules()}
        found = {}
        for module, gradient in self.state.weight_gradient.items():
            kept = gradient[:, :3] if module is self.model.conv1 else gradient
            found[f"{names[module]}.weight"] = kept.float() * inverse
        for module, norm in self.state.norms.items():
            found[f"{names[module]}.bias"] = norm.gradients[: norm.channels] * inverse
            found[f"{names[module]}.weight"] = norm.gradients[norm.channels :] * inverse
        found["fc.bias"] = self.state.bias_gradient * inverse
        return found
