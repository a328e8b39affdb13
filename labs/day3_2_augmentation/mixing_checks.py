"""Are images and labels mixed as they should? The script's own function is called, and looked at.

Its batches show where each pixel came from: then shares of pixels and of labels can be compared,
and over many calls so can what was drawn. A processor is enough for all of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np

from course.checks.dry_runs import ON
from course.config import Config

IMAGES, SIDE = 64, 64  # of a batch: more would take seconds
CODED = 16  # a side of images that are blended: of these as many pixels tell as there are images
FEW = 8
CALLS = 40  # with each alpha
ALPHAS = (0.5, 4.0)  # which neither the uniform distribution nor one another resemble
# Of the largest distance between two distribution functions (Kolmogorov and Smirnov). Of 2,560
# draws it is above once in ten million times; uniform ones have 0.1 and more.
FARTHEST = 0.06
CLOSE = 0.002  # shares that are the same, but for rounding
SEEDS = (5, 6)  # of two ranks
UNSHOWN = ("DynamicOutputShapeException", "DataDependentOutputException")  # of pretended numbers
TORCH = "draw it with torch.randperm, and leave the seeds to main"


@dataclass(frozen=True)
class Drawn:
    """What one call did to a batch in which every image has a class of its own.

    pixels, labels: (N, N), how much of each source, a column, is in each image and in its label.
    cut: (N,), does an image's box touch the border?
    """

    pixels: np.ndarray
    labels: np.ndarray
    cut: np.ndarray

    @property
    def partners(self) -> np.ndarray:
        """Of each image the other one in it; -1 where there is none to be seen."""
        others = self.pixels * (1 - np.eye(len(self.pixels)))
        return np.where(others.max(axis=1) > CLOSE, others.argmax(axis=1), -1)

    @property
    def shares(self) -> np.ndarray:
        """Of each image with a partner, the partner's share of its pixels."""
        rows = np.flatnonzero(self.partners >= 0)
        return self.pixels[rows, self.partners[rows]]


class Unlike(ValueError):
    """What came back is no mixture; the message says what it is."""


def mixing(text: str, cfg: Config) -> Iterator[str]:
    """What the script's mixup or cutmix, as the config asks, does otherwise than it should."""
    yield from _found(text, replace(cfg, rung="rehearsed"))


@functools.lru_cache(maxsize=8)
def _found(text: str, cfg: Config) -> tuple[str, ...]:
    """The first thing that is wrong; it is asked for twice where all is well."""
    import torch

    from course.data.images import one_thread

    name, script = cfg.mix, ModuleType("rehearsed")
    with torch.random.fork_rng(devices=[]), one_thread():  # several would mostly wait
        try:
            exec(compile(text, "train.py", "exec"), vars(script))
            mix = getattr(script, name, None)
            if mix is None:
                return (f"there is no function {name} in the script: the loop calls it",)
            told = next(_otherwise(name, mix), "")
        except Unlike as error:
            told = str(error)
        except Exception as error:  # whatever the learner's function raises
            said = str(error).partition("\n")[0]
            told = f"it fails on {IMAGES} images: {type(error).__name__}: {said}"
    if told:
        return (f"`{name}(…)`: {told}",)
    return (*_elsewhere(text, cfg),)


def _elsewhere(text: str, cfg: Config) -> Iterator[str]:
    """Does all that it makes lie on the images' device?"""
    from course.training.fake.pretended import rehearse

    found = rehearse(text, replace(cfg, device="auto", uint8=True))
    if found.error and not found.error.startswith(UNSHOWN):
        yield (
            f"{ON} the first step fails: {found.error}. What is drawn must come to images.device"
        )


def _otherwise(name: str, mix: Callable) -> Iterator[str]:
    from labs.day3_2_augmentation.measurements import count_operators

    batch, seen = (_codes, _blended) if name == "mixup" else (_constants, _pasted)
    few, many = (
        count_operators(functools.partial(mix, *batch(count), 1.0)) for count in (FEW, IMAGES)
    )
    if many > 2 * few:
        yield (
            f"for {FEW} images it calls {few} operators of PyTorch, and for {IMAGES} {many}: "
            f"one call for the whole batch, instead of a loop over images"
        )
    for alpha in ALPHAS:
        _seed(0)
        drawn = [seen(*_mixed(mix, batch(IMAGES), alpha)) for _ in range(CALLS)]
        for each in drawn:
            yield from _unlike_labels(name, each)
        if not any((each.partners >= 0).any() for each in drawn):
            yield "the images come back as they were: no pixel of another one is in them"
            return
        yield from _shares_unlike(name, drawn, alpha)
        yield from _pairs_unlike(drawn)
    drawn = []
    for seed in SEEDS:
        _seed(seed)
        drawn.append(seen(*_mixed(mix, batch(IMAGES), 1.0)))
    yield from _ranks_alike(*drawn)


def _seed(seed: int) -> None:
    import torch

    torch.manual_seed(seed)


def _codes(count: int) -> tuple:
    """Images of which each has a pixel of its own, and their labels, of as many classes."""
    import torch

    images = torch.zeros(count, 3, CODED * CODED)
    images[torch.arange(count), :, torch.arange(count)] = 1
    return images.view(count, 3, CODED, CODED), torch.eye(count)


def _constants(count: int) -> tuple:
    """Images of which each has a value of its own, and their labels, of as many classes."""
    import torch

    values = torch.arange(float(count)).view(count, 1, 1, 1)
    return values.expand(count, 3, SIDE, SIDE).clone(), torch.eye(count)


def _mixed(mix: Callable, batch: tuple, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """What comes back, as arrays: images (N, H, W) of one channel, labels (N, N)."""
    images, labels = batch
    result = mix(images, labels, alpha)
    if not isinstance(result, tuple) or len(result) != 2:
        raise Unlike("it must give back two tensors: return images, labels")
    for what, before, after in zip(("images", "labels"), batch, result):
        if getattr(after, "shape", None) != before.shape or after.dtype != before.dtype:
            found = f"{tuple(after.shape)} in {after.dtype}" if hasattr(after, "dtype") else after
            raise Unlike(
                f"{what} of shape {tuple(before.shape)} in {before.dtype} come back as {found}"
            )
    pictures, labels = (each.detach().cpu().numpy() for each in result)
    if np.abs(pictures - pictures[:, :1]).max() > CLOSE:
        raise Unlike("the channels of an image are not mixed alike")
    return pictures[:, 0], labels


def _blended(pictures: np.ndarray, labels: np.ndarray) -> Drawn:
    """What mixup did to `_codes`."""
    pixels = pictures.reshape(len(pictures), -1)
    if pixels[:, len(pixels) :].any() or np.abs(pixels.sum(axis=1) - 1).max() > CLOSE:
        raise Unlike(
            f"in an image the shares add up to {pixels.sum(axis=1).max():.2f} instead of 1"
        )
    if ((pixels > CLOSE).sum(axis=1) > 2).any():
        raise Unlike("an image is made of more than two")
    return Drawn(pixels[:, : len(pixels)], labels, np.zeros(len(labels), bool))


def _pasted(pictures: np.ndarray, labels: np.ndarray) -> Drawn:
    """What CutMix did to `_constants`."""
    count, values = len(pictures), np.round(pictures).astype(int)
    if np.abs(pictures - values).max() > CLOSE:
        raise Unlike("pixels are blended: a box holds the other image alone")
    pixels = np.stack([np.bincount(each.ravel(), minlength=count) for each in values]) / SIDE**2
    if ((pixels > 0).sum(axis=1) > 2).any():
        raise Unlike("an image is made of more than two")
    box = values != np.arange(count)[:, None, None]
    rows, columns = box.any(axis=2), box.any(axis=1)
    if (box != rows[:, :, None] & columns[:, None, :]).any():
        raise Unlike("what is pasted is no box: rows and columns from one to another")
    cut = rows[:, [0, -1]].any(axis=1) | columns[:, [0, -1]].any(axis=1)
    return Drawn(pixels, labels, cut)


def _unlike_labels(name: str, drawn: Drawn) -> Iterator[str]:
    """Labels that do not say what is in the images."""
    pixels, labels = drawn.pixels, drawn.labels
    sums = labels.sum(axis=1)
    if abs(wrong := sums[np.abs(sums - 1).argmax()] - 1) > CLOSE:
        yield f"a label's shares add up to {1 + wrong:.2f} instead of 1"
    differ = np.abs(pixels - labels).max(axis=1)
    if differ.max() <= CLOSE:
        return
    row, rows = differ.argmax(), np.flatnonzero(drawn.partners >= 0)
    there, said = (each[row, drawn.partners[row]] for each in (pixels, labels))
    own, other = (each[rows, to] for each, to in ((labels, rows), (pixels, drawn.partners[rows])))
    counted = f"of an image {there:.2f} is another one, which its label counts {said:.2f}"
    if (labels == np.eye(len(labels))).all():
        yield "the images are mixed, and their labels are not"
    elif np.abs(own - other).max() < CLOSE:
        yield f"{counted}: the two shares are swapped"
    elif said < CLOSE < there:
        yield f"{counted}: the label is mixed with another image's than the pixels are"
    elif name == "cutmix" and (differ[~drawn.cut] <= 2 / SIDE).all():
        yield (
            f"{counted}: where the border cuts off some of a box, the label must count what was "
            f"really pasted"
        )
    else:
        yield f"{counted}: one share for both"


def _shares_unlike(name: str, drawn: list[Drawn], alpha: float) -> Iterator[str]:
    """Shares that were not drawn for each image from Beta(alpha, alpha)."""
    whole = [
        each.pixels[rows, each.partners[rows]]
        for each in drawn
        if len(rows := np.flatnonzero((each.partners >= 0) & ~each.cut)) >= FEW
    ]
    if whole and max(map(np.ptp, whole)) < 3 / SIDE:  # but for whole pixels of a box
        yield "all images of a batch have the same share: draw one for each"
    found = np.concatenate([each.shares for each in drawn])
    if _same_shares(*drawn[:2]):
        yield f"every call draws the same shares: {TORCH}"
    slack = 0 if name == "mixup" else 2 / SIDE  # a box has whole pixels
    far = min(_distance(found, due, slack) for due in _references(name, alpha))
    if far > FARTHEST:
        what = "shares" if name == "mixup" else "areas of the boxes"
        yield (
            f"with alpha={alpha:g} the {what} are not those of Beta(alpha, alpha): their "
            f"distribution function is {far:.2f} away, and chance allows {FARTHEST:g}"
        )


@functools.lru_cache(maxsize=4)
def _references(name: str, alpha: float) -> tuple[np.ndarray, ...]:
    """Shares as they are due: for boxes, cut off at the border, or moved inside."""
    random = np.random.default_rng(0)
    shares = random.beta(alpha, alpha, 200_000)
    if name == "mixup":
        return (shares,)
    half = np.sqrt(shares) / 2
    middles = random.random((2, len(shares)))
    sides = np.minimum(middles + half, 1) - np.maximum(middles - half, 0)
    return shares, sides.prod(axis=0)


def _distance(found: np.ndarray, due: np.ndarray, slack: float = 0) -> float:
    """Kolmogorov and Smirnov's: the largest between two distribution functions.

    Args:
        slack: so far each number may have been moved.
    """
    found, due = np.sort(found), np.sort(due)
    at = np.concatenate([found, due])

    def below(values: np.ndarray, moved: float = 0) -> np.ndarray:
        return np.searchsorted(values, at + moved, side="right") / len(values)

    more, less = below(found) - below(due, slack), below(due, -slack) - below(found)
    return float(max(more.max(), less.max(), 0))


def _pairs_unlike(drawn: list[Drawn]) -> Iterator[str]:
    """Partners that are no permutation, or always the same one."""
    for each in drawn:
        seen = each.partners[each.partners >= 0]
        if len({*seen}) < len(seen):
            yield f"an image is the other one of several: {TORCH}"
            return
    first, second = (each.partners for each in drawn[:2])
    if _same(first, second) and not _is_shifted(first):
        yield f"every call makes the same pairs: {TORCH}"


def _ranks_alike(first: Drawn, second: Drawn) -> Iterator[str]:
    """What two ranks draw alike, whose random numbers begin with seeds of their own."""
    if _same_shares(first, second):
        yield f"two ranks, of other seeds, draw the same shares: {TORCH}"
    if _same(first.partners, second.partners) and not _is_shifted(first.partners):
        yield f"two ranks, of other seeds, make the same pairs: {TORCH}"


def _same_shares(first: Drawn, second: Drawn) -> bool:
    both = (first.partners >= 0) & (second.partners >= 0)
    kept = (np.diag(each.pixels)[both] for each in (first, second))
    return bool(both.any() and np.abs(np.subtract(*kept)).max() < CLOSE)


def _same(partners: np.ndarray, others: np.ndarray) -> bool:
    both = (partners >= 0) & (others >= 0)  # a small share is not seen
    return bool((partners == others)[both].all())


def _is_shifted(partners: np.ndarray) -> bool:
    """Is each image's partner so many places further? In a shuffled batch that is chance enough."""
    places, count = np.arange(len(partners)), len(partners)
    forward, mirrored = (partners - places) % count, (partners + places) % count
    seen = partners >= 0
    return len({*forward[seen]}) == 1 or len({*mirrored[seen]}) == 1
