"""The race's fourth entry combines techniques of all four days for crops of 32 pixels.

It trains a network on patches, with Muon, which learns in one pass what SGD learns in three. Each
batch is shifted as one tensor, so augmentation is a view. Small crops come first. On a GPU, a step
is one CUDA graph, because the kernels of a small network take less time than their launches.
"""

import torch
from torch import nn
from torch.nn import functional as F

from course.data.loader import image_sets, normalised
from course.training.precision import HALF
from course.training.recorder import recording

SETTINGS = {
    "quick": {"epochs": 1, "steps": 24, "batch_size": 128, "lr": 0.1, "label_smoothing": 0.1},
    "cpu": {"epochs": 2, "steps": 112, "batch_size": 256, "lr": 0.2, "label_smoothing": 0.1},
    "gpu": {"epochs": 3, "steps": 128, "batch_size": 512, "lr": 0.15, "label_smoothing": 0.1},
}
WIDTH = {"cpu": 16}  # of the first layer; with more, a CPU needs longer for the same accuracy
WIDE = 64  # elsewhere
SMALL = {
    "cpu": 0.25
}  # this share of the training has a quarter of the pixels; a graph has one size
RISE, PAD = 0.2, 4  # share of the updates in which the learning rate rises; pixels of a shift
MOMENTUM, VECTORS_LR, DECAY = 0.9, 0.1, 5e-4  # for all weights; for biases and BatchNorm; for SGD


def main(run):
    cfg = run.config
    torch.manual_seed(cfg.seed)
    found = torch.accelerator.current_accelerator(check_available=True)
    device = found if cfg.device == "auto" and found else torch.device("cpu")
    sets = image_sets(cfg)
    crops = sets.train.images.to(device), sets.train.labels.to(device)
    net = network(sets.classes, WIDTH.get(device.type, WIDE))
    net = net.to(device, memory_format=torch.channels_last)
    rate = torch.zeros((), device=device)  # a tensor, so that each replay of a graph reads it
    update = Update(net, rate)
    criterion = nn.CrossEntropyLoss(label_smoothing=cfg.label_smoothing)
    half = HALF.get(cfg.precision)

    def step(images, labels):
        with torch.autocast(device.type, half, enabled=half is not None, cache_enabled=False):
            loss = criterion(net(images), labels)
        loss.backward()
        update()

    total = cfg.epochs * cfg.steps
    small = round(SMALL.get(device.type, 0) * total)
    if device.type == "cuda":
        first = next(batches(crops, cfg, small))
        step = captured(step, first, [net, update])
    run.ready()
    for number, (images, labels) in enumerate(batches(crops, cfg, small)):
        risen, fallen = number / (RISE * total), (total - number) / ((1 - RISE) * total)
        rate.fill_(cfg.lr * min(1.0, risen, fallen))
        step(images, labels)
        if (number + 1) % cfg.steps == 0:
            run.keep_weights(net)
    run.save_weights(net)
    run.save_network(net)  # the referee needs it: it is not a network of the course


def network(classes, width):
    """Patches of 2 × 2 pixels become places with 12 channels: no pixel is lost, three of four
    places are saved, where layers cost most."""

    def layer(inputs, outputs):
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))

    two, four, eight = 2 * width, 4 * width, 8 * width
    return nn.Sequential(
        *(nn.PixelUnshuffle(2), layer(12, two)),
        *(Residual(layer(two, two), layer(two, two)), nn.MaxPool2d(2), layer(two, four)),
        *(Residual(layer(four, four), layer(four, four)), nn.MaxPool2d(2), layer(four, eight)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(eight, classes)),
    )


class Residual(nn.Sequential):
    """Layers, and their input added to what comes out."""

    def forward(self, x):
        return x + super().forward(x)


def batches(crops, cfg, small):
    """Batches, shuffled anew in each epoch. A batch is shifted and mirrored as a whole: a view."""
    images, labels = crops
    for number in range(cfg.epochs * cfg.steps):
        place = number % cfg.steps
        if place == 0:
            order = torch.randperm(len(labels), device=labels.device)
        taken = order[place * cfg.batch_size : (place + 1) * cfg.batch_size]
        batch = F.pad(normalised(images[taken]), (PAD,) * 4, mode="reflect")
        y, x, mirror = torch.randint(2 * PAD + 1, (3,)).tolist()
        batch = batch[:, :, y : y + cfg.image_px, x : x + cfg.image_px]
        batch = batch.flip(3) if mirror % 2 else batch
        batch = F.avg_pool2d(batch, 2) if number < small else batch
        yield batch.contiguous(memory_format=torch.channels_last), labels[taken]


class Update:
    """Muon for filters: the momentum's nearest orthogonal matrix, so that all directions move
    alike (Jordan 2024). SGD with momentum for the rest."""

    def __init__(self, net, rate):
        self.rate = rate
        self.filters = [each for each in net.parameters() if each.ndim == 4]
        self.others = [each for each in net.parameters() if each.ndim != 4]
        self.means = {each: torch.zeros_like(each) for each in net.parameters()}

    @torch.no_grad()
    def __call__(self):
        for weight, mean in self.means.items():
            mean.mul_(MOMENTUM).add_(weight.grad)
        for weight in self.filters:
            moved = weight.grad.add(self.means[weight], alpha=MOMENTUM).flatten(1)  # Nesterov's
            moved = orthogonal(moved) * max(1, moved.shape[0] / moved.shape[1]) ** 0.5
            weight.sub_(moved.view_as(weight) * self.rate)
        for weight in self.others:
            moved = weight.grad.add(self.means[weight], alpha=MOMENTUM)
            moved = moved.add(weight, alpha=DECAY if weight.ndim > 1 else 0.0)
            weight.sub_(moved * (self.rate * VECTORS_LR))
        for weight in self.means:
            weight.grad = None

    def state_dict(self):
        return {str(number): mean for number, mean in enumerate(self.means.values())}


def orthogonal(matrix, iterations=5):
    """Newton and Schulz's iteration: singular values become about 1."""
    a, b, c = 3.4445, -4.7750, 2.0315  # Jordan's: steep at zero, so few iterations are enough
    x = matrix.bfloat16() / (matrix.norm() + 1e-7)
    for _ in range(iterations):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.to(matrix.dtype)


def captured(step, batch, stateful):
    """The step as one CUDA graph, for batches of this one's shape."""
    images, labels = (each.clone() for each in batch)
    before = [{name: value.clone() for name, value in each.state_dict().items()}
              for each in stateful]  # fmt: skip
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(images, labels)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(images, labels)
    for each, values in zip(stateful, before):
        for name, value in each.state_dict().items():
            value.copy_(values[name])

    def replay(new_images, new_labels):
        images.copy_(new_images)
        labels.copy_(new_labels)
        graph.replay()

    return replay


if __name__ == "__main__":
    with recording() as run:
        main(run)
