"""Check a script's mixup or cutmix: call it on batches that show where each pixel came from.

Images of one colour show shares and boxes; random pixels show whether each is at its place.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np
import torch

from course import Config
from course.checks.fake_accelerator import first_step
from course.checks.script_edits import compile_script
from course.lab import Unexpected, expect
from labs.augmentation.measurements import count_operators

IMAGES, HEIGHT, WIDTH = 64, 64, 48  # of a batch
FEW = 8
PHOTOS, CLASSES, SIDES = 21, 30, (23, 37)  # of the other batch: all differ, and are odd or unequal
CALLS = 40  # with each alpha
ALPHAS = (0.5, 4.0)  # neither is close to the uniform distribution
APART = 0.06  # between two distribution functions, for 2,560 shares, in boxes of whole pixels
VISIBLE = 0.05  # for shares that may differ because boxes have complete pixels
UNMIXED = 0.25  # of the images: a permutation leaves some, and some shares are nearly 0
CLOSE = 0.002  # for shares that are equal except for rounding
UNSHOWN = ("DynamicOutputShapeException", "DataDependentOutputException")  # fake tensors only
SEEDS = "leave the seeds to main"
PAIRS = f"choose them with torch.randperm, and {SEEDS}"
KINDS = np.eye(3)[np.arange(IMAGES) % 3]  # each image is all red, all green or all blue


@dataclass(frozen=True)
class Drawn:
    """The result of one call, on a batch in which every image has its own class.

    shares: (N,), the partner's share of each image. partners: (N,), each image's partner. mixed:
    (N,), whether the partner is visible. boxes: (N, H, W), where the own colour is gone.
    """

    shares: np.ndarray
    partners: np.ndarray
    mixed: np.ndarray
    boxes: np.ndarray

    def sides(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return middles and lengths of some images' boxes, as fractions of height and width.

        Both have the shape (2, boxes).
        """
        places = [self.boxes[rows].any(axis=axis) for axis in (2, 1)]
        lengths = np.array([place.mean(axis=1) for place in places])
        middles = [(place @ (np.arange(place.shape[1]) + 0.5)) for place in places]
        counts = np.array([[HEIGHT], [WIDTH]])
        return np.array(middles) / np.maximum(lengths * counts, 1) / counts, lengths

    def inside(self) -> np.ndarray:
        """Return the numbers of the images with a visible box that the border does not cut off."""
        border = self.boxes.copy()
        border[:, 1:-1, 1:-1] = False
        differ = self.partners % 3 != np.arange(IMAGES) % 3
        return np.flatnonzero(self.mixed & differ & ~border.any(axis=(1, 2)))


def mixing(text: str, cfg: Config) -> Iterator[str]:
    """Yield the first mistake in a script's mixup or cutmix, whichever the config selects."""
    name, script = cfg.mix, ModuleType("train")
    with torch.random.fork_rng(devices=[]):
        try:
            exec(compile_script(text), vars(script))
            expect(hasattr(script, name), "there is no such function, and the loop calls it")
            _check(name, getattr(script, name))
        except Exception as error:  # whatever the learner's function raises
            yield _in_words(name, error)
            return
    step = first_step(text, replace(cfg, device="auto", uint8=True))
    if step.error and not step.error.startswith(UNSHOWN):
        yield f"on a fake accelerator: {step.error}. What is drawn must be on images.device"


def _in_words(name: str, error: Exception) -> str:
    if isinstance(error, Unexpected):
        return f"`{name}(…)`: {error}"
    first_line = str(error).partition("\n")[0]
    size = f"{IMAGES} images of {HEIGHT} × {WIDTH} pixels"
    return f"`{name}(…)` fails on {size}: {type(error).__name__}: {first_line}"


def _check(name: str, mix: Callable) -> None:
    for alpha in ALPHAS:
        torch.manual_seed(0)
        drawn = [draw(name, mix, alpha) for _ in range(CALLS)]
        same = 1 - np.mean([result.mixed for result in drawn])
        expect(
            same < UNMIXED,
            f"the images come back as they were: mix each one with a different image of the batch, "
            f"in every call ({same:.0%} of them are unchanged)",
        )
        _check_pairs(drawn)
        is_mixed = np.any([result.mixed for result in drawn], axis=0)
        expect(
            is_mixed.all(),
            f"image {is_mixed.argmin()} of {IMAGES} is never mixed: each image gets a partner",
        )
        _check_shares(name, drawn, alpha)
    for count in (PHOTOS, 1):  # of an epoch's last batch
        _check_places(name, mix, count)
    results = []
    for _ in range(2):
        torch.manual_seed(1)
        results.append(mix(*batch(FEW), 1.0))
    expect(
        all(map(torch.equal, *results)),
        "after the same torch.manual_seed, two calls differ: draw with torch, whose seed main sets",
    )
    few, many = (
        count_operators(functools.partial(mix, *batch(count), 1.0)) for count in (FEW, IMAGES)
    )
    expect(
        many <= 2 * few,
        f"for {FEW} images it calls {few} operators of PyTorch, and for {IMAGES} {many}: "
        f"one call for all images, instead of a loop over them",
    )


def batch(count: int) -> tuple:
    """Return images of one colour each, and their one-hot labels, all different."""
    images = torch.tensor(KINDS[:count], dtype=torch.float32)[:, :, None, None]
    return images.expand(count, 3, HEIGHT, WIDTH).clone(), torch.eye(count)


def draw(name: str, mix: Callable, alpha: float) -> Drawn:
    """Call the function; expect labels with the shares of the pixels, and in CutMix boxes."""
    before = batch(IMAGES)
    originals = [tensor.clone() for tensor in before]
    result = mix(*before, alpha)
    expect(
        all(map(torch.equal, before, originals)),
        "it changes the tensors that it gets, which the next epoch may get again: return new ones",
    )
    is_pair = isinstance(result, tuple) and len(result) == 2
    expect(is_pair, "it must return two tensors: return images, labels")
    for what, given, after in zip(("images", "labels"), before, result):
        is_alike = getattr(after, "shape", None) == given.shape and after.dtype == given.dtype
        words = f"{tuple(after.shape)} in {after.dtype}" if hasattr(after, "dtype") else after
        shape = tuple(given.shape)
        expect(is_alike, f"{what} of shape {shape} in {given.dtype} come back as {words}")
    pixels, labels = (tensor.detach().cpu().numpy() for tensor in result)
    boxes = (pixels * KINDS[:, :, None, None]).sum(axis=1) < 0.5
    if name == "cutmix":
        is_pasted = np.abs(pixels - pixels.round()).max() < CLOSE
        expect(is_pasted, "pixels are blended: a box has the pixels of the other image only")
        rows, columns = boxes.any(axis=2), boxes.any(axis=1)
        is_box = (boxes == rows[:, :, None] & columns[:, None, :]).all()
        expect(is_box, "what is pasted is no box: all rows and columns from one to another")
    _check_labels(name, pixels.mean(axis=(2, 3)), labels)
    expect(((labels > CLOSE).sum(axis=1) <= 2).all(), "an image is made of more than two")
    partner_labels = labels * (1 - np.eye(IMAGES))
    shares, partners = partner_labels.sum(axis=1), partner_labels.argmax(axis=1)
    return Drawn(shares, partners, shares > CLOSE, boxes & (name == "cutmix"))


def _check_places(name: str, mix: Callable, count: int) -> None:
    """Expect each pixel at its place, in images of which no two pixels are equal."""
    images, kinds = torch.randn(count, 3, *SIDES), torch.randperm(CLASSES)[:count]
    before = images.clone(), torch.eye(CLASSES)[kinds]
    try:
        pixels, labels = mix(*before, 1.0)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        expect(
            False,
            f"it fails on a batch of {count}, of {SIDES[0]} × {SIDES[1]} pixels and {CLASSES} "
            f"classes: {type(error).__name__}: {reason}",
        )
    own = labels[range(count), kinds].view(-1, 1, 1, 1)
    others = labels[:, kinds] * (1 - torch.eye(count))
    partners = images[others.argmax(dim=1)]
    mixed = own * images + (1 - own) * partners
    if name == "cutmix":
        mixed = torch.where((pixels - images).abs() < CLOSE, images, partners)
    expect(
        (pixels - mixed).abs().max() < CLOSE,
        f"in {count} images of {SIDES[0]} × {SIDES[1]} pixels, what comes from the partner is "
        f"not what the partner has at the same place: take its pixels as they are, `images[other]`",
    )


def _check_labels(name: str, pixels: np.ndarray, labels: np.ndarray) -> None:
    """Expect labels whose shares of the three colours (N, 3) are those of the pixels."""
    kept, others = labels.diagonal(), labels * (1 - np.eye(IMAGES))
    rows = np.flatnonzero(others.max(axis=1) > CLOSE)
    is_by_column = np.abs(others.max(axis=1) + kept[others.argmax(axis=1)] - 1)[rows] < CLOSE
    expect(
        not len(rows) or np.ptp(kept[rows]) < CLOSE or not is_by_column.all(),
        "a label's entries have the shares of several images, by their columns: a share for each "
        "row of labels (N, classes) has the shape (N, 1)",
    )
    for what, shares in (("a label", labels), ("an image", pixels)):
        sums = shares.sum(axis=1)
        wrong = sums[np.abs(sums - 1).argmax()]
        expect(
            abs(wrong - 1) < CLOSE,
            f"the shares in {what} must add up to 1, and they add up to {wrong:.3f}: one share for "
            f"the image, and the rest for its partner, as it was before it was mixed",
        )
    is_mixed = np.abs(pixels - KINDS).max() > CLOSE
    expect(
        not is_mixed or (labels != np.eye(IMAGES)).any(),
        "the images are mixed, and the labels are not",
    )
    counted = labels @ KINDS
    if np.abs(pixels - counted).max() < CLOSE:
        return
    is_one = labels.max(axis=1) > 1 - CLOSE
    expect(not is_one.all(), "a mixed image has a label of one class: keep the shares of both")
    kept = labels.diagonal()[:, None]
    partners = (labels * (1 - np.eye(IMAGES))).argmax(axis=1)
    exchanged = kept * KINDS[partners] + (1 - kept) * KINDS
    expect(
        np.abs(pixels - exchanged).max() >= CLOSE,
        "the label is the wrong way round: it gives the image the other image's share",
    )
    in_pixels, in_label = ((colours * (1 - KINDS) > VISIBLE) for colours in (pixels, counted))
    is_third = (in_pixels.sum(axis=1) == 1) & (in_label.sum(axis=1) == 1)
    is_third &= (in_pixels & in_label).sum(axis=1) == 0
    expect(
        not is_third.any(),
        "the label counts a third image, which the pixels do not have: take the same partner for "
        "both",
    )
    row = np.abs(pixels - counted).max(axis=1).argmax()
    parts, counts = (1 - (colours * KINDS).sum(axis=1) for colours in (pixels, counted))
    hint = "draw one share for both"
    if name == "cutmix":
        hint = "count the box's pixels"
        if (counts > parts - VISIBLE).all():
            hint = "where the border cuts off part of a box, the label must count what is left"
    expect(
        False,
        f"an image has {parts[row]:.2f} of another one, and its label counts {counts[row]:.2f} of "
        f"it: {hint}",
    )


def _check_pairs(drawn: list[Drawn]) -> None:
    """Expect partners that are a permutation, and two draws that differ."""
    first, second = drawn[:2]
    both = first.mixed & second.mixed
    differ = np.abs(first.shares - second.shares)[both].max(initial=0) > CLOSE
    expect(differ, f"every call draws the same shares: {SEEDS}")
    for result in drawn:
        partners = result.partners[result.mixed]
        expect(len({*partners}) == len(partners), f"an image is the partner of several: {PAIRS}")
    places = np.arange(IMAGES)
    steps = (first.partners - places, first.partners + places)
    is_shift = any(len({*(step % IMAGES)[both]}) == 1 for step in steps)  # fine if shuffled before
    expect(
        is_shift or (first.partners != second.partners)[both].any(),
        f"every call makes the same pairs: {PAIRS}",
    )


def _check_shares(name: str, drawn: list[Drawn], alpha: float) -> None:
    """Expect one share per image, from Beta(alpha, alpha), and one centre per box."""
    inside = [(result, rows) for result in drawn if len(rows := result.inside()) >= FEW]
    expect(
        not inside or max(np.ptp(result.shares[rows]) for result, rows in inside) > 3 / WIDTH,
        "all images of a batch have the same share: draw one for each",
    )
    if name == "cutmix":
        expect(
            inside,
            "nearly all boxes touch the border: the root of 1 - share is the length of a side, and "
            "the centre is anywhere in the image",
        )
        sides = [result.sides(rows) for result, rows in inside]
        is_spread = max(np.ptp(middles, axis=1).min() for middles, _ in sides) > 3 / WIDTH
        expect(is_spread, "all boxes of a batch have the same centre: draw one for each")
        (y, x), (heights, widths) = np.concatenate(sides, axis=2)
        expect(
            np.abs(y - x).max() > 3 / WIDTH,
            "the centres of all boxes are on the diagonal: draw one number for the row and another "
            "for the column",
        )
        expect(
            np.abs(heights - widths).max() < 3 / WIDTH,
            "in images that are not square, a box's sides are different fractions of the height "
            "and the width: both must be the root of 1 - share",
        )
    shares = np.concatenate([result.shares[result.mixed] for result in drawn])
    expected = _references(name, alpha)
    distances = [_distance(np.sort(shares), reference) for reference in expected]
    root = "; a box covers 1 - share of the area, so its sides are the root of that, and its "
    root += "centre is anywhere in the image"
    expect(
        min(distances) < APART,
        f"with alpha={alpha:g} the shares have the mean {shares.mean():.2f} and the deviation "
        f"{shares.std():.2f}, expected {expected[-1].mean():.2f} and {expected[-1].std():.2f}: "
        f"draw from Beta(alpha, alpha){root * (name == 'cutmix')}",
    )


def _distance(shares: np.ndarray, reference: np.ndarray) -> float:
    """Return the largest difference between two distribution functions (Kolmogorov-Smirnov)."""
    visible = np.sort(reference[reference > CLOSE])
    expected = np.searchsorted(visible, shares) / len(visible)
    return np.abs(expected - np.arange(len(shares)) / len(shares)).max()


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
