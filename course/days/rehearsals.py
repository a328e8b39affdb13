"""What a processor, or one node, does not show is rehearsed on a pretended accelerator.

Each takes a training script's text and a config, and yields what would be otherwise than the
config asks. Nothing is computed, so a run that failed can be rehearsed as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from course.config import Config

ON = "rehearsed with a pretended accelerator,"
# A pretended rank whose numbers all differ: the second process of the second of two nodes.
RANK, LOCAL_RANK, RANKS = 5, 1, 8
ELSEWHERE = "rehearsed as rank 5 of 8, process 1 of the second of two nodes,"


def moving(text: str, cfg: Config) -> Iterator[str]:
    """Do weights, images and labels come to the device that the config asks for?"""
    from course.training.pretended import rehearse

    found = rehearse(text, replace(cfg, device="auto", uint8=True))
    if found.error:
        yield f"{ON} the first step fails: {found.error}"
    elif found.computed_on.type == "cpu":
        yield f"{ON} the first step still computes on the CPU"
    elif {kind for kind, _ in found.copied.get("images", ())} - {"uint8"}:
        yield (
            f"{ON} images that are bytes come there as numbers four times as large: copy first, "
            f"and normalise there"
        )
    on_host = rehearse(text, replace(cfg, device="cpu"))
    if on_host.error and on_host.error == found.error:
        return
    if on_host.error or on_host.computed_on.type != "cpu":
        yield f'with cfg.device == "cpu" it must stay on the CPU: {on_host.error or "it does not"}'


def loading(text: str, cfg: Config) -> Iterator[str]:
    """Is memory pinned, and does nobody wait for copies, just where the config says so?"""
    from course.training.pretended import rehearse

    for pins in (True, False):
        asked = not pins  # that nobody waits: two fields, so they are told apart
        cfg = replace(cfg, device="auto", pin_memory=pins, non_blocking=asked)
        found = rehearse(text, cfg)
        pinned = bool(found.loading.get("pin_memory"))
        if found.loading and pinned != pins:
            yield f"{ON} the DataLoader has pin_memory={pinned}, and the config asks {pins}"
            return
        if found.error:
            yield f"{ON} the first step fails: {found.error}"
            return
        otherwise = [what for what, ways in found.copied.items() if {not asked} & _flags(ways)]
        if otherwise:
            yield (
                f"{ON} {' and '.join(sorted(otherwise))} come with non_blocking={not asked}, and "
                f"the config asks {asked}: non_blocking=cfg.non_blocking in `images.to(…)` and in "
                f"labels' own"
            )
            return


def _flags(ways: set[tuple[str, bool]]) -> set[bool]:
    return {non_blocking for _, non_blocking in ways}


def joining(text: str, cfg: Config) -> Iterator[str]:
    """Does a rank of another node join the others, and take its own node's device?"""
    from course.training.pretended import FIRST_NODE, rehearse

    cfg = replace(cfg, device="auto")
    found = rehearse(text, cfg, rank=RANK, local_rank=LOCAL_RANK, world_size=RANKS)
    if (joined := found.joined) is None:
        # A run whose ranks joined no group has failed, and says so itself.
        yield f"{ELSEWHERE} it joins no group: {found.error or 'init_process_group is not called'}"
        return
    due = {"rank": RANK, "world_size": RANKS}
    said = {name: joined.get(name) for name in due}
    if any(value not in (None, -1, due[name]) for name, value in said.items()):
        words = " and ".join(f"{name}={value}" for name, value in said.items())
        yield f"{ELSEWHERE} it joins with {words}: leave both to the launcher, who knows them"
    address = joined["init_method"] or "env://"
    if address != "env://" and FIRST_NODE not in address:
        yield f"{ELSEWHERE} it joins at {address}: leave the place to the launcher, who knows it"
    if joined["backend"] == "gloo":
        yield f"{ELSEWHERE} it sends through gloo, by way of the host: leave the backend out"
    if not found.computed_on:
        yield f"{ELSEWHERE} its first step fails: {found.error}"
        return
    # A device without a number is the current one; here, where there is none, it gets number 0.
    by_selection = found.computed_on.index == 0 and found.selected == LOCAL_RANK
    if found.computed_on.index != LOCAL_RANK and not by_selection:
        yield f"{ELSEWHERE} it computes on {found.computed_on}: take run.local_rank's device"
    elif found.selected != LOCAL_RANK:
        yield (
            f"{ELSEWHERE} device {found.selected or 0} stays the current one: "
            f"torch.accelerator.set_device_index(run.local_rank)"
        )
