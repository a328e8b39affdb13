"""Sketch a step of data parallelism: what two ranks compute, and what they send meanwhile."""

from __future__ import annotations

from course.charts import ACCENT, GREY, ORANGE, PHASE_COLOURS, Picture, label, legend, timeline

BACKWARD = ("layer4", "layer3", "layers 2, 1")  # a bucket each
FORWARD, LAYERS, MESSAGE, UPDATE, GAP = 3.0, 2.0, 1.6, 0.7, 0.05  # durations
PACES = {"rank 0": 1.0, "rank 1": 1.15}


def plot_ddp() -> Picture:
    """Sketch (not a measurement) one step of DDP on two ranks, with three buckets."""
    slowest = max(PACES.values())
    begins = [slowest * (FORWARD + LAYERS * count) for count in range(1, len(BACKWARD) + 1)]
    end = begins[-1] + MESSAGE
    lanes = {"rank 0": [], "all-reduce": [], "rank 1": []}
    for rank, pace in PACES.items():
        now = 0.0
        parts = [
            ("forward", FORWARD, "forward"),
            *(("backward", LAYERS, name) for name in BACKWARD),
        ]
        for phase, length, words in parts:
            lanes[rank].append((now, pace * length - GAP, PHASE_COLOURS[phase], words))
            now += pace * length
        lanes[rank].append((now, end - now - GAP, ORANGE, "waits"))
        lanes[rank].append((end, UPDATE, PHASE_COLOURS["optimizer"], "update"))
    for number, begin in enumerate(begins, 1):
        colour = ACCENT if begin == begins[-1] else GREY
        lanes["all-reduce"].append((begin, MESSAGE - GAP, colour, f"bucket {number}"))
    picture = Picture(10, 2.6)
    axes = picture.panel()
    timeline(axes, lanes)
    label(
        axes, "one step on two ranks, of which rank 1 is slower", size=10, xlabel="time", xticks=[]
    )
    axes.set_xlim(0, end + UPDATE)
    phases = {name: PHASE_COLOURS[name] for name in ("forward", "backward", "optimizer")}
    sending = {"all-reduce, hidden": GREY, "exposed": ACCENT}
    legend(picture, 6, phases | sending | {"waits for a message": ORANGE})
    return picture
