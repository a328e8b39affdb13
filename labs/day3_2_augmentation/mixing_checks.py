"""Check a script's mixup or cutmix: call it on batches that show where each pixel came from."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np

from course.checks.lab import Unexpected, expect
from course.config import Config

IMAGES, SIDE = 64, 64  # of a batch
CODED = 16  # side of images to blend: as many pixels as needed to tell IMAGES images apart
FEW = 8
CALLS = 40  # with each alpha
ALPHAS = (0.5, 4.0)  # neither is close to the uniform distribution
APART = 0.03  # for means and deviations of 2,560 shares; other distributions differ by 0.06
CLOSE = 0.002  # for shares that are equal except for rounding
UNSHOWN = ("DynamicOutputShapeException", "DataDependentOutputException")  # fake tensors only
SEEDS = "leave the seeds to main"
PAIRS = f"choose them with torch.randperm, and {SEEDS}"


@dataclass(frozen=True)
class Drawn:
    """The result of one call, on a batch in which every image has its own class.

    pixels, labels: (N, N), the share of each source image (a column) in each image and in its
    label. cut: (N,), whether an image's box touches the border. middles: (N, 2), the centres of the
    boxes, in pixels.
    """

    pixels: np.ndarray
    labels: np.ndarray
    cut: np.ndarray
    middles: np.ndarray | None = None

    @property
    def partners(self) -> np.ndarray:
        """Return each image's partner; -1 if no partner is visible."""
        others = self.pixels * (1 - np.eye(len(self.pixels)))
        return np.where(others.max(axis=1) > CLOSE, others.argmax(axis=1), -1)

    @property
    def shares(self) -> np.ndarray:
        """Return the partner's share of each image that has a partner."""
        rows = np.flatnonzero(self.partners >= 0)
        return self.pixels[rows, self.partners[rows]]


def mixing(text: str, cfg: Config) -> Iterator[str]:
    """Yield the first mistake in a script's mixup or cutmix, whichever the config selects."""
    import torch

    from course.checks.fake_accelerator import first_step

    name, script = cfg.mix, ModuleType("train")
    with torch.random.fork_rng(devices=[]):
        try:
            exec(compile(text, "train.py", "exec"), vars(script))
            expect(hasattr(script, name), "there is no such function, and the loop calls it")
            _check(name, getattr(script, name))
        except Unexpected as error:
            yield f"`{name}(…)`: {error}"
            return
        except Exception as error:  # whatever the learner's function raises
            first_line = str(error).partition("\n")[0]
            yield f"`{name}(…)` fails on {IMAGES} images: {type(error).__name__}: {first_line}"
            return
    step = first_step(text, replace(cfg, device="auto", uint8=True))
    if step.error and not step.error.startswith(UNSHOWN):
        yield f"on a fake accelerator: {step.error}. What is drawn must be on images.device"


def _check(name: str, mix: Callable) -> None:
    import torch

    from labs.day3_2_augmentation.measurements import count_operators

    batch, observed = (_codes, _blended) if name == "mixup" else (_constants, _pasted)
    few, many = (
        count_operators(functools.partial(mix, *batch(count), 1.0)) for count in (FEW, IMAGES)
    )
    expect(
        many <= 2 * few,
        f"for {FEW} images it calls {few} operators of PyTorch, and for {IMAGES} {many}: "
        f"one call for all images, instead of a loop over them",
    )
    for alpha in ALPHAS:
        torch.manual_seed(0)
        drawn = [observed(*_mixed(mix, batch(IMAGES), alpha)) for _ in range(CALLS)]
        for result in drawn:
            _check_labels(name, result)
        expect(
            any((result.partners >= 0).any() for result in drawn),
            "the images come back as they were: mix each one with a different image of the batch",
        )
        _check_pairs(drawn, "every call")
        _check_shares(name, drawn, alpha)
    drawn = []
    for seed in (5, 6):  # as on two ranks
        torch.manual_seed(seed)
        drawn.append(observed(*_mixed(mix, batch(IMAGES), 1.0)))
    _check_pairs(drawn, "each rank, whatever its seed,")


def _codes(count: int) -> tuple:
    """Return images with one bright pixel each, at different places, and their one-hot labels."""
    import torch

    images = torch.zeros(count, 3, CODED * CODED)
    images[torch.arange(count), :, torch.arange(count)] = 1
    return images.view(count, 3, CODED, CODED), torch.eye(count)


def _constants(count: int) -> tuple:
    """Return images of one value each, all different, and their one-hot labels."""
    import torch

    values = torch.arange(float(count)).view(count, 1, 1, 1)
    return values.expand(count, 3, SIDE, SIDE).clone(), torch.eye(count)


def _mixed(mix: Callable, batch: tuple, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """Call the function; return its results as arrays: images (N, H, W), labels (N, N)."""
    images, labels = batch
    result = mix(images, labels, alpha)
    is_pair = isinstance(result, tuple) and len(result) == 2
    expect(is_pair, "it must return two tensors: return images, labels")
    for what, before, after in zip(("images", "labels"), batch, result):
        if getattr(after, "shape", None) != before.shape or after.dtype != before.dtype:
            result = f"{tuple(after.shape)} in {after.dtype}" if hasattr(after, "dtype") else after
            raise Unexpected(
                f"{what} of shape {tuple(before.shape)} in {before.dtype} come back as {result}"
            )
    pictures, labels = (tensor.detach().cpu().numpy() for tensor in result)
    is_alike = np.abs(pictures - pictures[:, :1]).max() < CLOSE
    expect(is_alike, "the channels of an image are not mixed alike")
    return pictures[:, 0], labels


def _blended(pictures: np.ndarray, labels: np.ndarray) -> Drawn:
    """Return what mixup did to images from `_codes`."""
    pixels = pictures.reshape(len(pictures), -1)
    sums = pixels.sum(axis=1)
    wrong = sums[np.abs(sums - 1).argmax()]
    expect(
        not pixels[:, len(pixels) :].any() and abs(wrong - 1) < CLOSE,
        f"the shares in an image must add up to 1, and they add up to {wrong:.3f}",
    )
    expect(((pixels > CLOSE).sum(axis=1) <= 2).all(), "an image is made of more than two")
    return Drawn(pixels[:, : len(pixels)], labels, np.zeros(len(labels), bool))


def _pasted(pictures: np.ndarray, labels: np.ndarray) -> Drawn:
    """Return what CutMix did to images from `_constants`."""
    count, values = len(pictures), np.round(pictures).astype(int)
    is_pasted = np.abs(pictures - values).max() < CLOSE
    expect(is_pasted, "pixels are blended: a box has the pixels of the other image only")
    pixels = np.stack([np.bincount(image.ravel(), minlength=count) for image in values]) / SIDE**2
    expect(((pixels > 0).sum(axis=1) <= 2).all(), "an image is made of more than two")
    box = values != np.arange(count)[:, None, None]
    rows, columns = box.any(axis=2), box.any(axis=1)
    is_box = (box == rows[:, :, None] & columns[:, None, :]).all()
    expect(is_box, "what is pasted is no box: all rows and columns from one to another")
    cut = rows[:, [0, -1]].any(axis=1) | columns[:, [0, -1]].any(axis=1)
    middles = np.stack(
        [side @ np.arange(SIDE) / np.maximum(side.sum(1), 1) for side in (rows, columns)], axis=1
    )
    return Drawn(pixels, labels, cut, middles)


def _check_labels(name: str, drawn: Drawn) -> None:
    """Expect labels with the same shares as the pixels."""
    pixels, labels = drawn.pixels, drawn.labels
    sums = labels.sum(axis=1)
    wrong = sums[np.abs(sums - 1).argmax()]
    expect(
        abs(wrong - 1) < CLOSE,
        f"the shares in a label must add up to 1, and they add up to {wrong:.3f}: one share for "
        f"the image, and the rest for its partner",
    )
    differ = np.abs(pixels - labels).max(axis=1)
    if differ.max() <= CLOSE:
        return
    row, rows = differ.argmax(), np.flatnonzero(drawn.partners >= 0)
    part, counted = (table[row, drawn.partners[row]] for table in (pixels, labels))
    label, partner = labels[rows, rows], pixels[rows, drawn.partners[rows]]
    wrong = f"an image has {part:.2f} of another one, and its label counts {counted:.2f} of it"
    expect((labels != np.eye(len(labels))).any(), "the images are mixed, and the labels are not")
    expect(np.abs(label - partner).max() >= CLOSE, f"{wrong}: the two shares are swapped")
    expect(counted > CLOSE or part < CLOSE, f"{wrong}: pixels and label have different partners")
    expect(
        name == "mixup" or (differ[~drawn.cut] > 2 / SIDE).any(),
        f"{wrong}: where the border cuts off part of a box, the label must count what is left",
    )
    raise Unexpected(f"{wrong}: draw one share for both")


def _check_pairs(drawn: list[Drawn], who: str) -> None:
    """Expect partners that are a permutation, and two draws that differ."""
    first, second = drawn[:2]
    both = (first.partners >= 0) & (second.partners >= 0)
    kept = (np.diag(batch.pixels)[both] for batch in (first, second))
    expect(np.abs(np.subtract(*kept)).max() > CLOSE, f"{who} draws the same shares: {SEEDS}")
    for batch in drawn:
        partners = batch.partners[batch.partners >= 0]
        expect(len({*partners}) == len(partners), f"an image is the partner of several: {PAIRS}")
    places = np.arange(IMAGES)
    steps = (first.partners - places, first.partners + places)
    is_shift = any(len({*(step % IMAGES)[both]}) == 1 for step in steps)  # fine if shuffled before
    expect(
        is_shift or (first.partners != second.partners)[both].any(),
        f"{who} makes the same pairs: {PAIRS}",
    )


def _check_shares(name: str, drawn: list[Drawn], alpha: float) -> None:
    """Expect one share per image, from Beta(alpha, alpha), and one centre per box."""
    rows = [np.flatnonzero((batch.partners >= 0) & ~batch.cut) for batch in drawn]
    uncut = [(batch, row) for batch, row in zip(drawn, rows) if len(row) >= FEW]
    shares = [batch.pixels[row, batch.partners[row]] for batch, row in uncut]
    expect(
        not uncut or max(map(np.ptp, shares)) > 3 / SIDE,
        "all images of a batch have the same share: draw one for each",
    )
    if name == "cutmix":
        apart = [np.ptp(batch.middles[row], axis=0).min() for batch, row in uncut]
        expect(
            max(apart, default=SIDE) > 3,
            "all boxes of a batch have the same centre: draw one for each",
        )
    shares, expected = np.concatenate([batch.shares for batch in drawn]), _references(name, alpha)
    distances = [max(abs(shares.mean() - x.mean()), abs(shares.std() - x.std())) for x in expected]
    root = "; a box covers 1 - share of the area, so its sides are the root of that"
    expect(
        min(distances) < APART,
        f"with alpha={alpha:g} the shares have the mean {shares.mean():.2f} and the deviation "
        f"{shares.std():.2f}, expected {expected[-1].mean():.2f} and {expected[-1].std():.2f}: "
        f"draw from Beta(alpha, alpha){root * (name == 'cutmix')}",
    )


@functools.lru_cache(maxsize=4)
def _references(name: str, alpha: float) -> tuple[np.ndarray, ...]:
    """Return correct shares: boxes may be moved inside the image, or cut off at its border."""
    random = np.random.default_rng(0)
    shares = random.beta(alpha, alpha, 200_000)
    if name == "mixup":
        return (shares,)
    half = np.sqrt(shares) / 2
    middles = random.random((2, len(shares)))
    sides = np.minimum(middles + half, 1) - np.maximum(middles - half, 0)
    return shares, sides.prod(axis=0)
