"""Checks of functions that are written in a notebook: right answers pass, wrong ones learn why."""

import ast
import re
import signal
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from written_helpers import cell_of, defined, filled

from course.checks import functions
from course.checks.functions import check_written
from course.checks.progress import progress
from electives.rounding import verify
from electives.rounding.updates import add_with_carry

CELLS = {
    "gpu.timing": ("gpu", "device_time_s"),
    "precision.scaled_step": ("mixed_precision", "scaled_step"),
    "layout.first_lost": ("channels_last", "first_lost"),
    "profiler.limit_of": ("profiler", "limit_of"),
    "rounding.carry": ("rounding", "add_with_carry"),
    "rounding.stochastic": ("rounding", "round_stochastically"),
    "refinement.correct": ("refinement", "correct"),
    "microscope.padding": ("microscope", "padded_product"),
    "microscope.prune": ("microscope", "prune"),
    "fast_step.statistics": ("fast_step", "statistics"),
    "inference.latencies": ("inference", "latencies"),
    "inference.serve": ("inference", "serve"),
    "networks.audit": ("networks", "find_problems"),
    "scaling.exposed": ("scaling", "exposed_s"),
    "scaling.gpus": ("scaling", "choose_gpus"),
    "large_batch.noise_scale": ("large_batch", "noise_scale"),
    "large_batch.trust_ratio": ("large_batch", "trust_ratio"),
    "saving_memory.settings": ("saving_memory", "choose_settings"),
    "search.halving": ("search", "successive_halving"),
    "search.asha": ("search", "promote"),
    "tracking.energy": ("scale", "energy_kwh"),
}


def promotion(condition: str, ranked: str = "ranked") -> str:
    """Return the body of ASHA's rule, with this condition and ranking."""
    count = "count = len(results) // factor"
    chosen = f"[trial for trial in ({ranked})[:count] if {condition}]"
    return f"{count}\n    chosen = {chosen}\n    return chosen[0] if chosen else None"


def audit(
    speed: str = "abs(row.batch * row.iterations / row.seconds / row.images_per_s - 1) > 0.02",
    memory: str = "row.weights_gb + row.batch * row.image_gb > row.gpu_gb",
    noise: str = "row.spread / row.iterations**0.5 > 0.02",
    ratio: str = "row.images_per_s > row.largest_ratio * row.fp32_images_per_s",
    end: str = "[name for name, failed in tests.items() if failed]",
) -> tuple[str]:
    """Return the body of networks' audit, with these conditions."""
    tests = f"{{'speed': {speed}, 'memory': {memory}, 'noise': {noise}, 'ratio': {ratio}}}"
    return (f"tests = {tests}\n    return {end}",)


WHOLE = tomllib.loads((Path(__file__).parent / "written.toml").read_text())["answer"]
IMPORTS = """import torch
import triton
import triton.language as tl
from time import perf_counter
from torch import distributed
from torch.nn.functional import cross_entropy
from labs import profiler as lab
"""
SEVERAL_PROCESSES = ("communication.ddp", "fsdp.layer")
PADDED = """k, n = -a.shape[1] % (16 // a.itemsize), -b.shape[1] % (16 // a.itemsize)
    pad = torch.nn.functional.pad
    return (pad({}, {}) @ pad(b, {}))[:, : b.shape[1]]"""
FOURS = "weight.reshape(-1, 4)"
PRUNED = (
    f"({FOURS} * torch.zeros_like({FOURS})"
    f".scatter(1, {FOURS}.abs().topk(2).indices, 1)).reshape(weight.shape)"
)
ANSWERED = "call()\n        wait()"
SINCE = "perf_counter() - begin"
FULL = "arrivals[first + max_batch - 1] if first + max_batch <= len(arrivals) else 1e99"
START = "max(free, min(full, arrivals[first] + max_wait))"
COUNT = "sum(arrival <= start for arrival in arrivals[first : first + max_batch])"
FREE = "start + step_s(count)"
ADDED = "[free - arrival for arrival in arrivals[first : first + count]]"
SUM, GRAM = "z.sum(0)", "z.T @ z"
MEAN, SQUARE, VARIANCE = "W @ s / M", "((W @ G) * W).sum(1) / M", "square - mean**2"

DIVIDED = "for gradient in gradients: gradient /= scale"
OVERFLOW = "not all(gradient.isfinite().all() for gradient in gradients)"
SKIPPED = "return scale / 2, 0"
GROWN = "good_steps += 1\n    if good_steps == interval: scale, good_steps = 2 * scale, 0"

LAST = "output.is_contiguous(memory_format=torch.channels_last)"
NOTE = f"output.dim() == 4 and not {LAST} and lost.append(name)"
HOOK = "module.register_forward_hook(note)"
RUN = "model(images); [hook.remove() for hook in hooks]"
FIRST = "lost[0] if lost else None"
BUSY = "'compute' if found['convolution_share'] > 0.5 else 'memory'"
LOAD = "if found['load_share'] > 0.5: return 'input'"
REST = "'synchronisation' if found['waits'] > 10 else 'launches'"
SHARE = "min(256, largest_batch // gpus)"
TRAINING = "images / (gpus * per_gpu) * step_s(gpus, per_gpu)"
CHEAPEST = "min(costs, key=costs.get, default=None)"
NOISE = "(part_square - batch_square) / (1 / part - 1 / batch)"
GRADIENT = "batch_square - noise / batch"
NORMS, ZERO = "weight.norm(), grad.norm()", "weight_norm == 0 or grad_norm == 0"
RATIO = "coefficient * weight_norm / (grad_norm + weight_decay * weight_norm + eps)"
HALVES = "while sizes[-1] % 2 == 0: sizes.append(sizes[-1] // 2)"
PLAIN, AGAIN = (
    "[(n, '') for n in sizes if n >= min(knee, batch_size)]",
    "[(n, 'every') for n in sizes]",
)
FITS = "peak_gib(size, checkpointing) <= 0.9 * limit_gib"
SCORES = "scores = {trial: train(trial, epoch) for trial in trials}"
RANKED = "ranked = sorted(trials, key=scores.get, reverse=True)"
KEPT = "trials = ranked[:max(1, len(ranked) // factor)]"


def halving_rounds(*lines: str) -> str:
    """Return the lines of a loop."""
    return "\n        ".join(lines)


CHANGES = "changes = [b for a, b in zip(readings, readings[1:]) if a[1] != b[1]]"
TOO_FEW = "if len(changes) < 2: return None"
POWER = "watts = (changes[-1][1] - changes[0][1]) / (changes[-1][0] - changes[0][0])"
SECONDS = "seconds = readings[-1][0] - readings[0][0]"
KWH = "return watts * seconds * host * pue / 3.6e6"


def energy_lines(*changed: str) -> tuple[str]:
    """Return the right lines, with some replaced: by their first word."""
    lines = (CHANGES, TOO_FEW, POWER, SECONDS, KWH)
    new = {line.split()[0]: line for line in changed}
    return ("\n    ".join(new.get(line.split()[0], line) for line in lines),)


WARM, LOOP = "call(); wait(); begin = clock()", "[call() for _ in range(repeats)]"
MEAN_S = "return (clock() - begin) / repeats"


def timing_lines(*lines: str) -> tuple[str]:
    """Return the lines of a timing function."""
    return ("\n    ".join(lines),)


RIGHT = {
    "gpu.timing": [
        timing_lines(WARM, LOOP, "wait()", MEAN_S),
        timing_lines(
            "for _ in range(3): call()",
            "wait(); start = clock()",
            "for _ in range(repeats): call()",
            "wait()",
            "end = clock()",
            "return end / repeats - start / repeats",
        ),
    ],
    "tracking.energy": [
        energy_lines(),
        (
            "times = []\n    for (_, old), (second, new) in zip(readings, readings[1:]):\n"
            "        times += [(second, new)] * (old != new)\n    if not times[1:]:\n"
            "        return\n    (t0, j0), *_, (t1, j1) = times\n"
            "    return (j1 - j0) * (readings[-1][0] - readings[0][0]) / (t1 - t0)"
            " / 1000 / 3600 * pue * host",
        ),
    ],
    "search.halving": [
        (halving_rounds(SCORES, RANKED, KEPT), "trials[0]"),
        (
            halving_rounds(
                "if epoch == epochs[-1]: break",
                "order = sorted(trials, key=lambda trial: -train(trial, epoch))",
                "trials = order[:len(order) // factor or 1]",
            ),
            "max(trials, key=lambda trial: train(trial, epochs[-1]))",
        ),
    ],
    "saving_memory.settings": [
        (HALVES, f"{PLAIN} + {AGAIN}", FITS),
        (
            "sizes += [batch_size // k for k in (2, 4, 8, 16, 32, 64) if batch_size % k == 0]",
            f"[*filter(lambda pair: pair[0] in (batch_size, *range(knee, 9999)), "
            f"[(n, '') for n in sizes]), *{AGAIN}]",
            "limit_gib >= 1.1 * peak_gib(size, checkpointing)",
        ),
    ],
    "large_batch.noise_scale": [
        (NOISE, GRADIENT),
        (
            "(part_square - batch_square) * part * batch / (batch - part)",
            "part_square - noise / part",
        ),
    ],
    "large_batch.trust_ratio": [
        (NORMS, ZERO, RATIO),
        (
            "(tensor.square().sum().sqrt().item() for tensor in (weight, grad))",
            "not weight_norm * grad_norm",
            "coefficient / (grad_norm / weight_norm + weight_decay + eps / weight_norm)",
        ),
    ],
    "precision.scaled_step": [
        (DIVIDED, OVERFLOW, SKIPPED, GROWN),
        (
            "[gradient.div_(scale) for gradient in gradients]",
            "any(gradient.isinf().any() or gradient.isnan().any() for gradient in gradients)",
            "return scale * 0.5, 0",
            "good_steps = (good_steps + 1) % interval; scale *= 1 if good_steps else 2",
        ),
    ],
    "layout.first_lost": [
        (NOTE, HOOK, RUN, FIRST),
        (
            f"lost.append(name) if output.ndim == 4 and not {LAST} else None",
            HOOK,
            "model(images); list(map(lambda hook: hook.remove(), hooks))",
            "next(iter(lost), None)",
        ),
    ],
    "profiler.limit_of": [
        ("0.9", BUSY, LOAD, REST),
        (
            "0.8",
            "'memory' if found['convolution_share'] < 0.5 else 'compute'",
            "if found['waits'] > 20: return 'synchronisation'",
            "'input' if found['load_share'] > 1 - found['busy_share'] - 0.1 else 'launches'",
        ),
    ],
    "scaling.exposed": [
        ("max(free, ready) + message", "max(0, free - backward_s)"),
        ("(free if free > ready else ready) + message", "free - min(free, backward_s)"),
    ],
    "scaling.gpus": [
        (SHARE, TRAINING, "seconds <= deadline_s", "gpus * seconds", CHEAPEST),
        (
            "largest_batch // gpus if largest_batch < 256 * gpus else 256",
            "-(-images // (gpus * per_gpu)) * step_s(gpus, per_gpu)",
            "not seconds > deadline_s",
            "seconds * gpus / 3600",
            "sorted(costs, key=lambda gpus: costs[gpus])[0] if costs else None",
        ),
    ],
    "search.asha": [
        (promotion("trial not in promoted"),),
        (promotion("not trial in promoted", "sorted(results, key=results.get)[::-1]"),),
    ],
    "networks.audit": [
        audit(),
        audit(
            speed="not 0.98 < row.images_per_s * row.seconds / row.batch / row.iterations < 1.02",
            noise="row.iterations < (row.spread / 0.02) ** 2",
            end="list(filter(tests.get, tests))",
        ),
    ],
    "fast_step.statistics": [
        (SUM, GRAM, MEAN, SQUARE, VARIANCE),
        ("z.mean(0)", "torch.cov(z.T, correction=0)", "W @ s", "((W @ G) * W).sum(1)", "square"),
        (
            "torch.ones(1, M).to(z) @ z",
            'torch.einsum("mk,ml->kl", z, z)',
            "(W @ s.T).squeeze(1) / M",
            'torch.einsum("nk,kl,nl->n", W, G, W) / M',
            VARIANCE,
        ),
    ],
    "rounding.carry": [
        ("update + carry", "update - (new - total)"),
        ("carry + update", "(total - new) + update"),
    ],
    "rounding.stochastic": [
        ("bits + random_bits", "bits >> 16 << 16"),
        ("bits + random_bits", "bits & -65536"),
        ("bits.add_(random_bits)", "bits & -65536"),
        ("random_bits + bits", "bits - bits % 65536"),
    ],
    "refinement.correct": [
        ("b - a @ x", "x + solve(residual)"),
        ("torch.mv(-a, x) + b", "solve(residual) + x"),
        ("a @ x - b", "x - solve(residual)"),
        ("b - a @ x", "x.add_(solve(residual))"),
    ],
    "microscope.padding": [
        (PADDED.format("a", "(0, k)", "(0, n, 0, k)"),),
        (PADDED.format("a.T", "(0, 0, 0, k)", "(0, n, 0, k)").replace(" @", ".T @"),),
    ],
    "microscope.prune": [
        (f"return {PRUNED}",),
        (
            "least = weight.abs().reshape(-1, 4).argsort(1)[:, :2]; "
            "return weight.reshape(-1, 4).scatter(1, least, 0.0).view_as(weight)",
        ),
    ],
    "inference.latencies": [(ANSWERED, ANSWERED, SINCE)],
    "inference.serve": [
        (FULL, START, COUNT, FREE, ADDED),
        (
            "([*arrivals, *[float('inf')] * max_batch])[first + max_batch - 1]",
            "sorted([free, min(full, max_wait + arrivals[first])])[-1]",
            "len([a for a in arrivals[first:] if a <= start][:max_batch])",
            "step_s(count) + start",
            "list(map(lambda i: free - arrivals[i], range(first, first + count)))",
        ),
    ],
}
WRONG = {
    "gpu.timing": {
        timing_lines(WARM, LOOP, MEAN_S): "the clock stops before the device has finished",
        timing_lines("begin = clock()", LOOP, "wait()", MEAN_S): "the first call counts",
        timing_lines("call(); begin = clock()", LOOP, "wait()", MEAN_S): "still in the queue",
        timing_lines(WARM, "[(call(), wait()) for _ in range(repeats)]", MEAN_S): "wait once",
        timing_lines(WARM, LOOP, "wait()", "return clock() - begin"): "divide by `repeats`",
        timing_lines("[(call(), wait()) for _ in range(9)]", WARM, LOOP, "wait()", MEAN_S): (
            "it makes 11 calls, expected 1 that count"
        ),
        timing_lines(WARM, LOOP, "wait()", "return begin"): "read `clock\\(\\)` right before",
    },
    "tracking.energy": {
        energy_lines("return watts * seconds * host * pue"): "these are joules: divide by 3.6 mil",
        energy_lines("return watts * seconds * host * pue / 3600"): "these are watt-hours",
        energy_lines("return watts * host * pue / 3.6e6"): "mean power: multiply it by the time",
        energy_lines("return watts * seconds / 3.6e6"): "the factors host and pue are missing",
        energy_lines("return watts * seconds * host / 3.6e6"): "the factor pue is missing",
        energy_lines("return watts * seconds * (host + pue - 1) / 3.6e6"): "multiply by both",
        energy_lines("changes = [readings[0], readings[-1]]"): "both ends are old readings",
        energy_lines(CHANGES.replace("[b for", "readings[:1] + [b for")): "is not a change",
        energy_lines("seconds = changes[-1][0] - changes[0][0]"): "between the first change and",
        energy_lines("if False: pass"): "raised|the counter changed",
        energy_lines(TOO_FEW.replace("None", "0.0")): "the counter changed never: it returns 0.0",
        energy_lines(POWER.replace(" - changes[0][1]", "")): "did not begin at 0: subtract",
    },
    "search.halving": {
        (
            halving_rounds(SCORES, RANKED.replace(", reverse=True", ""), KEPT),
            "trials[0]",
        ): "the worst trials continue: sort in the other direction",
        (
            halving_rounds(SCORES, RANKED, KEPT.replace("[:", "[1:1 + ")),
            "trials[0]",
        ): "its best trial, 4, is dropped, and .0, 2, 7. continue",
        (
            halving_rounds(SCORES, RANKED, "trials = ranked[:max(1, len(ranked) // 2)]"),
            "trials[0]",
        ): "after epoch 1, 4 trials continue instead of 3: this spends more epochs than the budget",
        (
            halving_rounds(SCORES, RANKED),
            "ranked[0]",
        ): "9 trials continue instead of 3: this spends",
        (
            halving_rounds(SCORES.replace("epoch)", "epochs[-1])"), RANKED, KEPT),
            "trials[0]",
        ): "trains until epoch 6 in the first round, expected 1. This looks at later accuracies",
        (
            halving_rounds(SCORES, RANKED, KEPT.replace("max(1, len(ranked) // factor)", "3")),
            "trials[0]",
        ): "after epoch 3, 3 trials continue instead of 1",
        (
            halving_rounds(SCORES, RANKED, "trials = ranked[:len(ranked) // factor]"),
            "ranked[0]",
        ): "no trial is left to train, expected 1: keep at least one",
        (
            halving_rounds(SCORES, "trials = trials[:max(1, len(trials) // factor)]"),
            "trials[0]",
        ): "its best trial, 4, is dropped",
        (
            halving_rounds(
                SCORES,
                "scores = {trial: train(trial, 1) for trial in trials}",
                RANKED,
                KEPT,
            ),
            "trials[0]",
        ): "after epoch 3, its best trial, 2, is dropped, and .4. continue: compare the acc",
        (halving_rounds(SCORES, RANKED, KEPT), "max(scores.values())"): "return a trial's number",
        (halving_rounds(SCORES, RANKED, KEPT), "trials"): "expected the number of one trial",
        ("pass", "trials[0]"): r"it has not called train\(trial, epoch\)",
    },
    "saving_memory.settings": {
        (HALVES, f"{PLAIN} + {AGAIN}", FITS.replace("0.9 * ", "")): "leave a tenth of the limit",
        (HALVES, f"{PLAIN} + {AGAIN}", "True"): "takes 86.5 GiB: compare .* with the limit",
        (HALVES, f"{AGAIN} + {PLAIN}", FITS): "nothing is computed twice",
        (HALVES, f"[(n, '') for n in sizes] + {AGAIN}", FITS): "the GPU waits for Python",
        (HALVES, PLAIN, FITS): r"10 GiB: None. Expected \(64, 'every'\), which takes 8.4",
        (HALVES, f"[*reversed({PLAIN})] + {AGAIN}", FITS): "begin with the largest",
        (HALVES, f"{PLAIN.replace('knee', '32')} + {AGAIN}", FITS): "8 GiB, knee=8: .32, 'every'.",
        ("pass", f"{PLAIN} + {AGAIN}", FITS): r"Expected \(64, ''\)|the batch, halved|nothing is",
        (
            "sizes += range(batch_size - 1, 0, -1)",
            f"{PLAIN} + {AGAIN}",
            FITS,
        ): "Expected the batch, halved once or several times: 64",
        (
            "sizes = [n for n in range(batch_size, 0, -1) if batch_size % n == 0]",
            f"{PLAIN} + {AGAIN}",
            FITS,
        ): r"96 images, 14 GiB: \(32, ''\). Expected the batch, halved",
        (HALVES, "[(n, 'all') for n in sizes]", FITS): 'expected "" or "every"',
        (HALVES, "sizes", FITS): "cannot unpack",
    },
    "large_batch.noise_scale": {
        ("part_square - batch_square", GRADIENT): "the squares differ by noise",
        (NOISE, "batch_square"): "batch's square still contains",
        (NOISE, "part_square"): "part's square still contains",
        ("batch_square - noise_of(part)", GRADIENT): "noise_of",
        (NOISE, "batch_square - noise / part"): "solve the two equations",
    },
    "large_batch.trust_ratio": {
        (NORMS, ZERO, RATIO.replace(" + weight_decay * weight_norm", "")): "decay is forgotten",
        (NORMS, ZERO, "coefficient * (grad_norm + weight_decay * weight_norm) / weight_norm"): (
            "upside down"
        ),
        (NORMS, ZERO, RATIO.replace("weight_norm /", "(grad + weight_decay * weight).norm() /")): (
            "divide the norm of the weights"
        ),
        (
            NORMS,
            ZERO,
            "coefficient * weight_norm / ((grad + weight_decay * weight).norm() + eps)",
        ): ("add the norms, not the tensors"),
        (NORMS, ZERO, RATIO.replace("weight_decay * weight_norm", "weight_decay")): (
            "decay is multiplied by the norm of the weights"
        ),
        (NORMS, ZERO, RATIO.replace(" + eps", "")): "eps is added to the denominator",
        (NORMS, ZERO, RATIO.replace(" + eps)", ") + eps")): "eps belongs in the denominator",
        (NORMS, ZERO, f"min(1.0, {RATIO})"): "1, expected 5.7",
        (NORMS, ZERO, RATIO.removeprefix("coefficient * ")): "multiply by the coefficient",
        (NORMS, "grad_norm == 0", RATIO): "zero weights: 0, expected 1",
        (NORMS, "weight_norm == 0", RATIO): "a zero gradient: .*, expected 1",
        ("weight.abs().sum(), grad.abs().sum()", ZERO, RATIO): "the root of the sum of squares",
        ("weight.norm(dim=1), grad.norm(dim=1)", "False", RATIO): "16 numbers of shape .4, 2, 2.",
        ("weight.mul_(2).norm(), grad.norm()", ZERO, RATIO): "it changes its argument `weight`",
    },
    "precision.scaled_step": {
        ("gradients = [g / scale for g in gradients]", OVERFLOW, SKIPPED, GROWN): "in place",
        ("pass", OVERFLOW, SKIPPED, GROWN): "Divide every gradient",
        (DIVIDED, "any(g.isinf().any() for g in gradients)", SKIPPED, GROWN): "an element nan",
        (DIVIDED, "any(g.max().isinf() for g in gradients)", SKIPPED, GROWN): "an element -inf",
        (DIVIDED, "not gradients[0].isfinite().all()", SKIPPED, GROWN): "an element inf",
        (DIVIDED, "not gradients[-1].isfinite().all()", SKIPPED, GROWN): "an element inf",
        (DIVIDED, "False", SKIPPED, GROWN): "an element inf",
        (DIVIDED, OVERFLOW, "scale /= 2", GROWN): "the weights or the momentum changed",
        (DIVIDED, OVERFLOW, "return scale / 2, good_steps", GROWN): "half the scale, and no good",
        (DIVIDED, OVERFLOW, "return scale / 2", GROWN): "expected two numbers",
        (DIVIDED, OVERFLOW, SKIPPED, "good_steps += 1"): "after 3 good steps with interval=3",
        (DIVIDED, OVERFLOW, SKIPPED, "pass"): "after 1 good steps",
        (DIVIDED, OVERFLOW, SKIPPED, GROWN.replace("2 * scale, 0", "2 * scale, good_steps")): (
            "count from 0"
        ),
    },
    "layout.first_lost": {
        ("lost.append(name)", HOOK, RUN, FIRST): "is_contiguous.. without an argument",
        (f"{LAST} or lost.append(name)", HOOK, RUN, FIRST): "fc: its output has 2 dimensions",
        (
            "output.dim() == 4 and output.is_contiguous() and lost.append(name)",
            HOOK,
            RUN,
            FIRST,
        ): "avgpool: its output has one pixel per channel",
        (NOTE, HOOK, RUN, "min(lost, default=None)"): "'layer1' contains 'layer1.1'",
        (NOTE, HOOK, "pass", FIRST): r"call model\(images\)",
        (NOTE.replace("append(name)", "append(module)"), HOOK, RUN, FIRST): "Return one name",
        (NOTE, HOOK, RUN, "lost"): "Return one name, or None",
        (NOTE, HOOK, "model(images)", FIRST): r"call remove\(\) on each",
    },
    "profiler.limit_of": {
        ("0", BUSY, LOAD, REST): "its own speed isn't the limit",
        ("1", BUSY, LOAD, REST): "it hardly waits for the host",
        ("0.9", "'compute'", LOAD, REST): "the other operators only move numbers",
        ("0.9", "'memory'", LOAD, REST): "device on nvidia-h100: .*the other operators only move",
        ("0.9", BUSY, "pass", REST): "of the time in load",
        ("0.9", BUSY, "return 'input'", REST): "of the time in load",
        ("0.9", BUSY, LOAD, "'launches'"): "the host waited for the device 53.5 times per step",
        ("0.9", BUSY, LOAD, "'synchronisation'"): "the host waited for the device 0.5 times",
        ("0.9", BUSY, LOAD, "'launch'"): "expected one of compute, memory, input",
        (
            "0.9",
            "'compute' if trace.source else 'memory'",
            LOAD,
            REST,
        ): "the other operators only move numbers",
    },
    "scaling.exposed": {
        ("max(free, ready) + message", "free - backward_s"): "never below 0",
        ("ready + message", "max(0, free - backward_s)"): "until the link has sent the one before",
        ("free + message", "max(0, free - backward_s)"): "by the end of the last one",
        ("max(free, ready) + message", "free"): "subtract backward|expected 0",
    },
    "scaling.gpus": {
        (SHARE, TRAINING, "seconds <= deadline_s", "seconds", CHEAPEST): "has the fewest GPU-sec",
        (SHARE, TRAINING, "True", "gpus * seconds", CHEAPEST): "has the fewest GPU-seconds",
        (SHARE, TRAINING, "seconds < deadline_s", "gpus * seconds", CHEAPEST): "equal to the dead",
        ("256", TRAINING, "seconds <= deadline_s", "gpus * seconds", CHEAPEST): "at most largest",
        (
            SHARE,
            "images / (gpus * 256) * step_s(gpus, per_gpu)",
            "seconds <= deadline_s",
            "gpus * seconds",
            CHEAPEST,
        ): "smaller shares make more steps|at most largest_batch",
        (
            SHARE,
            TRAINING,
            "seconds <= deadline_s",
            "gpus * seconds",
            "min(costs, default=None)",
        ): "fewer GPUs aren't always cheaper",
        (
            SHARE,
            TRAINING,
            "seconds <= deadline_s",
            "gpus * seconds",
            "min(costs, key=costs.get, default=counts[-1])",
        ): "return None",
        (
            "min(256, largest_batch / gpus)",
            TRAINING,
            "seconds <= deadline_s",
            "gpus * seconds",
            CHEAPEST,
        ): r"step_s\(3, 170.6.*\), expected 170 images on each of 3 GPUs",
        ("largest_batch // gpus", TRAINING, "seconds <= deadline_s", "gpus * seconds", CHEAPEST): (
            r"step_s\(1, 65536\), expected 256 images on each of 1 GPUs: at most 256"
        ),
    },
    "search.asha": {
        (promotion("True"),): "one of five may continue, and it already has",
        (promotion("trial not in promoted and len(promoted) < count"),): "3 has overtaken it",
        (promotion("trial not in promoted", "ranked[::-1]"),): "return the best trial of the best",
        ("return max(results, key=results.get)",): "with two results, no third may continue yet",
        (promotion("trial not in promoted").replace("factor", "3"),): "use `factor`",
        (promotion("trial not in promoted").replace("chosen[0]", "chosen[-1]"),): "the best one",
        (
            promotion("trial not in promoted").replace("[0] if chosen else", " and chosen[0] or"),
        ): "0 is a trial",
        (f"promoted.add(0)\n    {promotion('trial not in promoted')}",): "changes its argument",
    },
    "networks.audit": {
        audit(
            speed="row.batch * row.iterations / row.seconds > 1.02 * row.images_per_s"
        ): "too high isn't .* absolute",
        audit(speed="row.batch * row.iterations / row.seconds != row.images_per_s"): "are rounded",
        audit(speed="False"): "batch × iterations ÷ seconds",
        audit(memory="row.batch * row.image_gb > row.gpu_gb"): "add weights_gb",
        audit(memory="row.batch * (row.weights_gb + row.image_gb) > row.gpu_gb"): "2 GB . 100",
        audit(memory="row.weights_gb + row.image_gb > row.gpu_gb"): "weights_gb . batch × image_gb",
        audit(noise="row.spread > 0.02"): "more exact than one step: divide by √iterations",
        audit(noise="row.spread / row.iterations > 0.02"): "with the .root. of the number",
        audit(noise="row.iterations < 25"): "use spread",
        audit(ratio="row.images_per_s < row.largest_ratio * row.fp32_images_per_s"): "'ratio': ",
        audit(end="[name for name, failed in tests.items() if failed][:1]"): "after the first",
        audit(end="{name for name, failed in tests.items() if failed}"): "returns set; expected a",
        audit(end="['it fails ' + name for name in tests if tests[name]]"): "the names are speed,",
    },
    "fast_step.statistics": {
        (SUM, GRAM, "W @ s", SQUARE, VARIANCE): "the mean: it is the sum of y: divide it by M",
        (SUM, GRAM, "W @ s / (M - 1)", SQUARE, VARIANCE): "divide by M, not by M - 1",
        (SUM, GRAM, MEAN, "((W @ G) * W).sum(1) / (M - 1)", VARIANCE): "BatchNorm.* y², too",
        (SUM, GRAM, MEAN, SQUARE, "(square - mean**2) * M / (M - 1)"): "BatchNorm divides by M",
        (SUM, GRAM, MEAN, SQUARE, "square"): "G is not centred",
        (SUM, GRAM, MEAN, SQUARE, "(square - mean**2).sqrt()"): "it is the standard deviation",
        (SUM, GRAM, MEAN, SQUARE, "W**2 @ z.var(0, correction=0)"): "of single channels are not",
        (SUM, GRAM, MEAN, SQUARE, "square - mean"): "subtract the square of the mean, not",
        (SUM, GRAM, MEAN, "(W @ G).sum(1) / M", VARIANCE): "y² contains W twice",
        (SUM, GRAM, MEAN, "((W @ G) * W).sum(1)", VARIANCE): "the sum of y² has to be divided by M",
        (SUM, "torch.diag(z.square().sum(0))", MEAN, SQUARE, VARIANCE): "vary together",
        (SUM, GRAM, MEAN, "W @ G @ W.T / M", VARIANCE): "only its diagonal",
        (SUM, GRAM, MEAN, "(W @ G @ W.T).diagonal() / M", VARIANCE): "a table of 3600 numbers",
        (SUM, GRAM, MEAN, "(z @ W.T).square().mean(0)", VARIANCE): "240,000 .*y itself",
        (
            "z.sum(1)",
            GRAM,
            "s.mean() / M",
            SQUARE,
            VARIANCE,
        ): "mean has shape .., expected .60,.: one",
        (SUM, "z @ z.T", MEAN, SQUARE, VARIANCE): "cannot be multiplied",
    },
    "rounding.carry": {
        ("update", "update - (new - total)"): "`left` is 0.00015; .* the carry is missing",
        ("update + carry", "(new - total) - update"): "the update .minus. what arrived",
        ("update - carry", "(new - total) - update"): "the carry is what did .not. arrive",
        ("total + carry", "update - (new - total)"): "the new total is 2; expected 1",
        ("update + carry", "update - new - total"): "`left` is -2; expected 0.0002: it is the",
        ("update", "update + carry - (new - total)"): "the total is still 1: add the carry to",
        ("update.float() + carry", "update - (new - total)"): "both must stay fp16",
        ("update + carry", "update - new + total"): "`left` is 0; .* this bracket first",
        ("update + carry", "update - (new - total) + carry"): "`left` is 0.00025; expected 0.0002",
    },
    "rounding.stochastic": {
        ("bits", "bits >> 16 << 16"): "with every random number: add it to the bits before",
        ("bits + random_bits", "bits"): "cut off the lower 16 bits without rounding",
        ("bits + random_bits", "bits >> 8 << 8"): "cut off the lower 16 bits without rounding",
        ("bits + random_bits", "bits >> 16"): "shift the bits .* back to the left",
        ("bits + random_bits", "bits << 16 >> 16"): "shift the bits .* back to the left",
        (
            "bits + torch.randint(2**16, bits.shape, dtype=bits.dtype)",
            "bits >> 16 << 16",
        ): "random even if all random_bits are 0",
        ("bits + random_bits * 2", "bits >> 16 << 16"): "on average|becomes anything",
        ("bits + random_bits + 1", "bits >> 16 << 16"): "on average 1.000488 becomes",
    },
    "refinement.correct": {
        ("b - a @ x", "solve(residual)"): "it returns only the correction: add it to x",
        ("a @ x - b", "x + solve(residual)"): "the correction goes the wrong way",
        ("b - a @ x", "x"): "x is returned unchanged",
        ("b - a @ x", "x + residual"): "solve.. is not called: it turns the residual into",
        ("b - a @ x", "torch.linalg.solve(a, b)"): "solve.. is not called",
        ("b - x @ a", "x + solve(residual)"): "the argument of solve.. is not the residual",
        ("b - a * x", "x + solve(residual)"): "expected a vector of 64 numbers: `@` multiplies",
        ("b - a @ x", "solve(b) + solve(residual)"): "solve.. is called 2 times",
        ("(b - a @ x).half()", "x + solve(residual)"): "in which precision do you",
        ("b.half() - a.half() @ x.half()", "x + solve(residual)"): "in which precision do you",
        ("b - a @ x", "(x + solve(residual)).float()"): "x has become torch.float32: keep it",
        ("b - a @ x", "x + solve(residual) + solve(b) - solve(b)"): "solve.. is called 3 times",
    },
    "microscope.padding": {
        ("return a @ b",): "a row of a has 9 numbers, 36 bytes, expected a multiple of 16",
        (PADDED.format("a", "(0, k)", "(0, n, 0, k)").removesuffix("[:, : b.shape[1]]"),): (
            "has the shape .5, 8., expected .5, 7.: cut off the columns"
        ),
        (PADDED.format("a", "(0, k)", "(0, n, 0, k)").replace("16 //", "32 //"),): (
            "torch.float32: a row of a has 64 bytes, but 48 are enough"
        ),
        (PADDED.format("a", "(0, k)", "(0, 0, 0, k)"),): "a row of b has 7 numbers, 28 bytes",
        (PADDED.format("a", "(0, k, 0, 3)", "(0, n, 0, k)") + "[: len(a)]",): (
            "a has 8 rows instead of 5"
        ),
        ("return torch.stack([row @ b for row in a])",): "5 matrix products, expected one",
    },
    "microscope.prune": {
        (f"return weight - {PRUNED}",): "the two smallest magnitudes remain",
        (f"return {PRUNED.replace('.abs()', '')}",): "compare absolute values",
        (f"weight = weight.t(); return {PRUNED}.t()",): "take them from a row",
        (f"return ({PRUNED} != 0).float()",): "multiply the weight by that",
        (f"return {PRUNED.removesuffix('.reshape(weight.shape)')}",): "a tensor of shape .6, 8.",
        ("return weight * (weight.abs() > weight.abs().median())",): "choose two in each group",
        ("return weight * (weight.abs() > 1)",): "numbers remain, expected half",
        (f"return weight.copy_({PRUNED})",): "it changes its argument `weight`",
        (
            "least = weight.abs().reshape(-1, 4).sort(1).values[:, 2:3]; "
            "return weight * (weight.abs().reshape(-1, 4) >= least).view_as(weight)",
        ): "of four equal numbers, 4 remain",
    },
    "inference.serve": {
        (FULL, START, "max_batch", FREE, ADDED): "called for 4 requests in all, but 1 arrive",
        (FULL, START, "min(max_batch, len(arrivals) - first)", FREE, ADDED): "exactly the requests",
        (
            FULL,
            START,
            "sum(a <= start for a in arrivals[first:])",
            FREE,
            ADDED,
        ): "has 4 requests, but max_batch",
        (FULL, START, "1", FREE, ADDED): "a full batch .*full|arrived when a batch starts",
        (FULL, START, COUNT.replace("<=", "<"), FREE, ADDED): "a batch of 0 requests",
        (FULL, "max(free, arrivals[first])", COUNT, FREE, ADDED): "it waits max_wait for others",
        (
            FULL,
            "max(free, arrivals[first] + max_wait)",
            COUNT,
            FREE,
            ADDED,
        ): "as soon as it is full",
        (FULL, "min(full, arrivals[first] + max_wait)", COUNT, FREE, ADDED): "the GPU is free",
        (FULL, "max(free, full)", COUNT, FREE, ADDED): "even if the batch never becomes full",
        ("arrivals[-1]", START, COUNT, FREE, ADDED): "it waits max_wait for others",
        (FULL, START, COUNT, "start + step_s(max_batch)", ADDED): "called for 4 requests in all",
        (FULL, START, COUNT, FREE, "[free - start] * count"): "counts from its arrival",
        (FULL, START, COUNT, FREE, "[free - arrivals[first]]"): "1 latencies for 2 requests",
        (
            FULL,
            START,
            COUNT,
            FREE,
            "[free - arrivals[first]] * count",
        ): "arrival of its own request",
        (FULL, START, COUNT, FREE, ADDED.replace("free -", "start -")): "ends when its batch does",
        (FULL, START, COUNT, "free + step_s(count)", ADDED): "step_s.count. after `start`",
        (FULL, START.replace("arrivals[first] +", "free +"), COUNT, FREE, ADDED): (
            "`start` can't be before the oldest request"
        ),
    },
    "inference.latencies": {
        (ANSWERED, "call()", SINCE): "call.. returns before the device is done. Look",
        (ANSWERED, "wait()\n        call()", SINCE): "call.. returns before the device is done",
        ("call()", ANSWERED, SINCE): "it waited for calls that warm up",
        ("pass", ANSWERED, SINCE): "9 calls were made: 3 should warm up, and 9 be timed",
        (ANSWERED, ANSWERED, "perf_counter()"): "that is the clock itself",
        (ANSWERED, ANSWERED, "begin - perf_counter()"): "it is perf_counter.. - begin",
        (ANSWERED, ANSWERED, "1000 * (perf_counter() - begin)"): "return seconds",
    },
}


@pytest.fixture
def define(tmp_path: Path, runs_root: Path) -> Callable[..., Callable]:
    """Return a function that defines a lab's function with its blanks filled by answers."""

    def make(name: str, *answers: str) -> Callable:
        notebook, function = CELLS[name]
        return defined(filled(cell_of(notebook, function), *answers), function, tmp_path)

    return make


@pytest.mark.parametrize("name", CELLS)
def test_an_untouched_cell_says_where_its_blank_is(name: str, define: Callable) -> None:
    checked = check_written(name, untouched := define(name))
    assert checked.failed and "a blank is left" in checked.parts[0].evidence
    assert "..." in checked.parts[0].look_at
    assert checked.function is not untouched and "ours, until yours is right" in repr(checked)


@pytest.mark.parametrize("name", CELLS)
def test_right_answers_pass(name: str, define: Callable) -> None:
    for answers in RIGHT[name]:
        checked = check_written(name, mine := define(name, *answers))
        assert checked.passed, checked
        assert checked.function is mine and "goes on with yours" in checked._repr_html_()
    states = progress().checks.set_index("check")["state"]
    assert states[name] == "passed" and (states.drop(name) == "open").all()


@pytest.mark.parametrize("name", CELLS)
def test_wrong_answers_hear_what_is_wrong(name: str, define: Callable) -> None:
    for answers, words in WRONG[name].items():
        checked = check_written(name, define(name, *answers))
        text = repr(checked)
        assert checked.failed and re.search(words, text), f"{answers}: {text}"
    assert progress().checks.set_index("check").loc[name, "state"] == "failed"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in SEVERAL_PROCESSES))
        for name in sorted({each["check"] for each in WHOLE})
    ],
)
def test_whole_functions_pass_or_hear_what_is_wrong(
    name: str, tmp_path: Path, runs_root: Path
) -> None:
    for each in (each for each in WHOLE if each["check"] == name):
        checked = check_written(name, defined(each["text"], each["function"], tmp_path, IMPORTS))
        words = each.get("words")
        right = re.search(words, repr(checked)) if words else checked.passed
        assert right and checked.passed == (not words), f"{each['text']}: {checked}"


def test_the_solutions_pass_their_checks() -> None:
    from course.checks import discovery

    for name in CELLS:
        looks = discovery.functions()[name].load()
        assert looks.correct(looks.solution) and looks.mechanism(looks.solution)


def test_a_sum_may_be_right_and_what_is_left_wrong() -> None:
    def keeps_half_of_most(total, carry, update):
        new, left = add_with_carry(total, carry, update)
        return new, left.where(total < 2, left / 2)

    verify.check_sum(keeps_half_of_most)
    with pytest.raises(AssertionError, match="a carry that differs from what rounding removed"):
        verify.check_carry(keeps_half_of_most)


def test_an_error_is_reported_with_its_line(define: Callable) -> None:
    checked = check_written("refinement.correct", define("refinement.correct", "b - a @ y", "x"))
    assert "it raised NameError: name 'y' is not defined" in checked.parts[0].evidence
    assert checked.parts[0].look_at.startswith("line 2: residual = b - a @ y")


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(ValueError, match="name 'rounding': there are .*rounding.carry, "):
        check_written("rounding", print)


SPARE = "        first += count\n"


@pytest.mark.parametrize("loop", ["pass", "try: first += 1\n            except: pass"])
def test_an_endless_function_is_ended(loop: str, tmp_path, runs_root, monkeypatch) -> None:
    """Even if it catches everything."""
    monkeypatch.setattr(functions, "LIMIT_S", 0.5)
    before = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    cell = filled(cell_of("inference", "serve"), FULL, START, COUNT, FREE, ADDED)
    cell = cell.replace(SPARE, f"        while True:\n            {loop}\n")
    checked = check_written("inference.serve", defined(cell, "serve", tmp_path))
    assert "it had not ended after 0.5 s: an endless loop?" in checked.parts[0].evidence
    assert re.match(r"line \d+: (while True|pass|try|except)", checked.parts[0].look_at)
    assert (signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)) == before


@pytest.mark.parametrize("end", ["raise SystemExit(0)", "exit()", "__import__('sys').exit('no')"])
def test_a_function_that_ends_python_fails(end: str, define: Callable) -> None:
    checked = check_written("microscope.prune", define("microscope.prune", end))
    assert checked.failed and "it raised SystemExit" in checked.parts[0].evidence
    assert end in checked.parts[0].look_at


def test_an_interrupt_interrupts(define: Callable) -> None:
    with pytest.raises(KeyboardInterrupt):
        check_written("microscope.prune", define("microscope.prune", "raise KeyboardInterrupt"))


def test_in_another_thread_a_function_is_checked_without_a_limit(define: Callable) -> None:
    mine = define("microscope.prune", f"return {PRUNED}")
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(check_written, "microscope.prune", mine).result().passed


def test_dots_in_an_index_are_no_blank(define: Callable) -> None:
    right = f"weight = weight[..., :]; return {PRUNED}[...]"
    assert check_written("microscope.prune", define("microscope.prune", right)).passed
    for blank in ("weight = ...", "weight[0] = ...", "weight[0, f(...)].copy_(...)", "..."):
        checked = check_written("microscope.prune", define("microscope.prune", blank))
        assert "a blank is left" in checked.parts[0].evidence
        assert checked.parts[0].look_at.endswith(blank)


def test_the_first_blank_is_named(define: Callable) -> None:
    checked = check_written("scaling.exposed", define("scaling.exposed"))
    assert checked.parts[0].look_at == "line 5: free = ..."


def test_no_blank_of_a_notebook_is_in_an_index() -> None:
    for notebook, function in CELLS.values():
        nodes = [*ast.walk(ast.parse(cell_of(notebook, function)))]
        indices = [part for node in nodes if isinstance(node, ast.Subscript)
                   for part in ast.walk(node.slice)]  # fmt: skip
        assert not [x for x in indices if isinstance(x, ast.Constant) and x.value is ...]
