"""Profile public training scripts that know nothing of trainspeed, and check what it says.

    python -m research.own_scripts SOURCES [--only NAME] [--step profile|gain|faults]

SOURCES has a folder for each repository, at the commit in `Script.source`. Each script runs in a
copy, with data in the format that it expects (`Script.stand_in`) and small settings, on a CPU, or
with `--gpu` on a GPU.
Three steps append lines to research/own_scripts.jsonl:

- profile: the script with the probe and without it: is what it prints the same, and its exit code?
  Are the counts of an iteration those that we counted in the source (`Script.counts`)?
- gain: the change that the page names, made by hand in a copy, and measured by `compare`.
- faults: slow lines that we planted: does the page name them, and not where there are none?
"""

from __future__ import annotations

import argparse
import difflib
import functools
import gzip
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "research" / "own_scripts.jsonl"
LIMIT_S = 240  # of one run
GAIN_S = 16  # of measuring a change
EXAMPLES, LIGHTNING = "pytorch/examples@77f55b9", "Lightning-AI/pytorch-lightning@7f0c343"
TIMM, ACCELERATE = "huggingface/pytorch-image-models@aa4b5850", "huggingface/accelerate@16cb6eb8"
NANO, MIN = "karpathy/nanoGPT@3adf61e1", "karpathy/minGPT@37baab7"
MAKEMORE, LECTURE = "karpathy/makemore@988aa59", "karpathy/ng-video-lecture@5220142"
AIRBENCH = "KellerJordan/cifar10-airbench@f1c599c"
ON_GPU = "--gpu" in sys.argv  # the stand-ins are larger
OPTIMIZER, BACKWARD = "optimizer steps", "backward passes"


@dataclass(frozen=True)
class Change:
    """A change of a script: lines (file, old, new), or other arguments."""

    title: str
    edits: tuple[tuple[str, str, str], ...] = ()
    arguments: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Script:
    """A script, and what is known about it from its source."""

    name: str
    source: str  # owner/repository@commit
    folder: str  # where it runs, in the repository
    arguments: tuple[str, ...]
    rule: str
    counts: dict[str, float]  # of an iteration: batches, backwards, updates, samples, tokens
    stand_in: str = ""
    prepare: Callable[[Path, Path], None] | None = None  # (its folder, SOURCES)
    env: dict[str, str] = field(default_factory=dict)
    gpu: str = ""  # its arguments on a GPU, with sizes that suit one; "": CPU only


# Stand-ins for data.


def write_mnist(folder: Path, train: int = 4_800, test: int = 500) -> None:
    """Write random digits as the files of MNIST, in the format that torchvision reads."""
    raw, rng = folder / "MNIST" / "raw", np.random.default_rng(0)
    raw.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", train), ("t10k", test)):
        labels = np.arange(count, dtype=np.uint8) % 10
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        images[:, :, :14] //= 1 + labels[:, None, None]  # so that there is something to learn
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
            path = raw / f"{part}-{kind}-ubyte"
            path.write_bytes(head + array.tobytes())
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 1))


def write_jpegs(
    folder: Path, parts: dict[str, int], side: tuple[int, int] = (500, 375), copies: int = 1
) -> None:
    """Write smooth random JPEGs in folders by class, as ImageNet has them: by part, how many.

    Each is there `copies` times, as links.
    """
    from PIL import Image

    rng = np.random.default_rng(0)
    for part, count in parts.items():
        for n in range(count):
            path = folder / part / f"class{n % 4}" / f"{n}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            small = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
            small.resize(side, Image.Resampling.BICUBIC).save(path, quality=90)
            for copy_ in range(1, copies):
                os.link(path, path.with_name(f"{n}-{copy_}.jpg"))


def mnist_next_to(folder: Path, sources: Path) -> None:
    """MNIST in ../data."""
    write_mnist(folder.parent / "data")


def mnist_of_lightning(folder: Path, sources: Path) -> None:
    """MNIST where Lightning's examples look for it."""
    for data in (folder / "data", folder.parent.parent / "Datasets"):
        write_mnist(data, 60_000, 1_000)


def jpegs(folder: Path, sources: Path) -> None:
    """192 images in four classes; on a GPU, small ones, each 40 times."""
    many = {"side": (256, 192), "copies": 40} if ON_GPU else {}  # or no GPU would be kept busy
    write_jpegs(folder / "images", {"train": 192, "val": 16}, **many)


def few_words(folder: Path, sources: Path) -> None:
    """The first lines of WikiText-2's validation text, three times."""
    lines = (folder / "data" / "wikitext-2" / "valid.txt").read_text().splitlines(True)[:900]
    (folder / "words").mkdir()
    for part in ("train", "valid", "test"):
        (folder / "words" / f"{part}.txt").write_text(
            "".join(lines[: 900 if part[1] == "r" else 60])
        )


def shakespeare(folder: Path, sources: Path) -> None:
    """The text of ng-video-lecture, where nanoGPT prepares it."""
    data = folder / "data" / "shakespeare_char"
    shutil.copy(sources / "ng-video-lecture" / "input.txt", data)
    subprocess.run([sys.executable, "prepare.py"], cwd=data, check=True, capture_output=True)


def cifar(folder: Path, sources: Path) -> None:
    """Random images in the file that airbench keeps of CIFAR-10."""
    import torch

    random = torch.Generator().manual_seed(0)
    for name, count in (("train", 50_000), ("test", 10_000)):
        images = torch.randint(0, 256, (count, 32, 32, 3), dtype=torch.uint8, generator=random)
        labels = torch.arange(count) % 10
        (folder / "cifar10").mkdir(exist_ok=True)
        content = {"images": images, "labels": labels, "classes": [*map(str, range(10))]}
        torch.save(content, folder / "cifar10" / f"{name}.pt")


def text(folder: Path, sources: Path) -> None:
    """The text of ng-video-lecture."""
    shutil.copy(sources / "ng-video-lecture" / "input.txt", folder)


MNIST = "random images in MNIST's files"
JPEGS = "192 generated JPEGs of 500 × 375 in 4 classes"
if ON_GPU:
    JPEGS = "192 generated JPEGs of 256 × 192 in 4 classes, 40 times each"
TEXT = "Shakespeare's text from ng-video-lecture"
SCRIPTS = (
    Script(
        "mnist",
        EXAMPLES,
        "mnist",
        ("main.py", "--epochs", "1", "--no-accel"),
        OPTIMIZER,
        {"batches": 1, "backwards": 1, "updates": 1, "samples": 64},
        MNIST,
        mnist_next_to,
        gpu="main.py --epochs 30",
    ),
    Script(
        "vae",
        EXAMPLES,
        "vae",
        ("main.py", "--epochs", "1", "--batch-size", "32"),
        OPTIMIZER,
        {"batches": 1, "backwards": 1, "updates": 1, "samples": 32},
        MNIST,
        mnist_next_to,
        gpu="main.py --epochs 30",
    ),
    Script(
        "siamese",
        EXAMPLES,
        "siamese_network",
        ("main.py", "--epochs", "1", "--batch-size", "4", "--test-batch-size", "16"),
        OPTIMIZER,
        {"batches": 1, "backwards": 1, "updates": 1, "samples": 4},
        MNIST,
        lambda folder, sources: write_mnist(folder.parent / "data", 160, 40),
    ),
    Script(
        "hogwild",
        EXAMPLES,
        "mnist_hogwild",
        ("main.py", "--epochs", "1"),
        OPTIMIZER,
        {"batches": 1, "backwards": 1, "updates": 1, "samples": 64},
        MNIST,
        mnist_next_to,
    ),
    Script(
        "dcgan",
        EXAMPLES,
        "dcgan",
        (
            "main.py",
            "--dataset",
            "fake",
            "--batchSize",
            "16",
            "--ngf",
            "16",
            "--ndf",
            "16",
            "--workers",
            "0",
            "--niter",
            "1",
            "--manualSeed",
            "1",
        ),
        OPTIMIZER,
        {"batches": 1, "backwards": 3, "updates": 2, "samples": 16},
        "--dataset fake",
        gpu=("main.py --accel --dataset fake --workers 8 --niter 30 --manualSeed 1"),
    ),
    Script(
        "imagenet",
        EXAMPLES,
        "imagenet",
        (
            "main.py",
            "images",
            "-a",
            "resnet18",
            "-b",
            "8",
            "-j",
            "0",
            "--epochs",
            "1",
            "--seed",
            "1",
        ),
        OPTIMIZER,
        {"batches": 1, "backwards": 1, "updates": 1, "samples": 8},
        JPEGS,
        jpegs,
        gpu=("main.py images -a resnet50 -b 128 -j 14 --epochs 3 --seed 1"),
    ),
    Script(
        "word_lstm",
        EXAMPLES,
        "word_language_model",
        ("main.py", "--data", "words", "--epochs", "1", "--emsize", "64", "--nhid", "64"),
        BACKWARD,
        {"batches": 0, "backwards": 1, "updates": 0, "tokens": 700},
        "900 lines of WikiText-2's validation text",
        few_words,
        gpu=("main.py --accel --data words --epochs 40 --emsize 650 --nhid 650"),
    ),
    Script(
        "word_transformer",
        EXAMPLES,
        "word_language_model",
        (
            "main.py",
            "--data",
            "words",
            "--epochs",
            "1",
            "--emsize",
            "64",
            "--nhid",
            "64",
            "--model",
            "Transformer",
            "--use-optimizer",
            "--lr",
            "0.001",
        ),
        OPTIMIZER,
        {"batches": 0, "backwards": 1, "updates": 1, "tokens": 700},
        "900 lines of WikiText-2's validation text",
        few_words,
    ),
    Script(
        "regression",
        EXAMPLES,
        "regression",
        ("main.py",),
        BACKWARD,
        {"batches": 0, "backwards": 1, "updates": 0, "samples": 32},
    ),
    Script(
        "timm",
        TIMM,
        ".",
        (
            "train.py",
            "--data-dir",
            "images",
            "--model",
            "mobilenetv3_small_050",
            "--num-classes",
            "4",
            "--img-size",
            "128",
            "-b",
            "16",
            "-j",
            "1",
            "--epochs",
            "5",
            "--device",
            "cpu",
            "--val-split",
            "val",
            "--grad-accum-steps",
            "2",
        ),
        OPTIMIZER,
        {"batches": 2, "backwards": 2, "updates": 1, "samples": 32},
        JPEGS,
        jpegs,
        gpu=(
            "train.py --data-dir images --model resnet50 --num-classes 4 -b 128 -j 14 --epochs 3 "
            "--grad-accum-steps 2 --amp --amp-dtype bfloat16 --channels-last --val-split val"
        ),
    ),
    Script(
        "nanogpt",
        NANO,
        ".",
        (
            "train.py",
            "config/train_shakespeare_char.py",
            "--device=cpu",
            "--compile=False",
            "--eval_iters=2",
            "--eval_interval=40",
            "--block_size=64",
            "--batch_size=12",
            "--n_layer=4",
            "--n_head=4",
            "--n_embd=128",
            "--max_iters=80",
            "--lr_decay_iters=80",
            "--dropout=0.0",
            "--gradient_accumulation_steps=3",
        ),
        OPTIMIZER,
        {"batches": 0, "backwards": 3, "updates": 1, "tokens": 3 * 12 * 64},
        TEXT,
        shakespeare,
        gpu=(
            "train.py config/train_shakespeare_char.py --compile=False --eval_iters=5 "
            "--gradient_accumulation_steps=3 "
            "--eval_interval=2000 --max_iters=2000"
        ),
    ),
    Script(
        "adder",
        MIN,
        ".",
        ("projects/adder/adder.py", "--trainer.max_iters=200", "--trainer.num_workers=0"),
        OPTIMIZER,
        {"batches": 1, "backwards": 1, "updates": 1, "samples": 64, "tokens": 384},
        env={"PYTHONPATH": "."},
    ),
    Script(
        "chargpt",
        MIN,
        ".",
        (
            "projects/chargpt/chargpt.py",
            "--model.model_type=gpt-nano",
            "--trainer.max_iters=60",
            "--trainer.num_workers=0",
        ),
        OPTIMIZER,
        {"batches": 1, "backwards": 1, "updates": 1, "samples": 64, "tokens": 8192},
        TEXT,
        text,
        env={"PYTHONPATH": "."},
        gpu=("projects/chargpt/chargpt.py --trainer.max_iters=2000"),
    ),
    Script(
        "makemore",
        MAKEMORE,
        ".",
        ("makemore.py", "--max-steps", "190", "-n", "1"),
        OPTIMIZER,
        {"batches": 1, "backwards": 1, "updates": 1, "samples": 32, "tokens": 512},
        gpu=("makemore.py --device cuda --max-steps 3000 -n 1"),
    ),
    Script(
        "bigram",
        LECTURE,
        ".",
        ("bigram.py",),
        OPTIMIZER,
        {"batches": 0, "backwards": 1, "updates": 1, "tokens": 256},
        gpu="gpt.py",
    ),
    Script(
        "sync",
        ACCELERATE,
        "src/accelerate/test_utils/scripts",
        ("test_sync.py",),
        OPTIMIZER,
        {"batches": 1, "backwards": 2, "updates": 1.6, "samples": 16},
        env={} if ON_GPU else {"ACCELERATE_USE_CPU": "1"},
        gpu="test_sync.py",
    ),
    Script(
        "autoencoder",
        LIGHTNING,
        "examples/pytorch/basics",
        (
            "autoencoder.py",
            "--trainer.max_steps=150",
            "--trainer.limit_val_batches=2",
            "--trainer.accelerator=cpu",
            "--trainer.logger=false",
        ),
        OPTIMIZER,
        {"batches": 1, "backwards": 1, "updates": 1, "samples": 32},
        "random images in MNIST's files",
        mnist_of_lightning,
        gpu=(
            "autoencoder.py --trainer.max_steps=2000 --trainer.limit_val_batches=2 "
            "--trainer.accelerator=gpu --trainer.logger=false"
        ),
    ),
    Script(
        "airbench",
        AIRBENCH,
        "legacy",
        (),
        OPTIMIZER,
        {"batches": 0, "backwards": 1, "updates": 1},
        "random images in CIFAR-10's sizes",
        cifar,
        gpu="airbench94.py",
    ),
)


WORKER = "num_workers=1"
CHANGES = {  # by script: what the page names first, made by hand
    "makemore": (
        Change(
            "one operator for GELU",
            (
                (
                    "makemore.py",
                    "return 0.5 * x * (1.0",
                    "return F.gelu(x, approximate='tanh')  # (",
                ),
            ),
        ),
        Change(
            "torch.compile",
            (("makemore.py", "    model.to(args.device)\n", "    model.compile()\n"),),
        ),
    ),
    "mnist": (
        Change(
            "torch.compile",
            (
                (
                    "main.py",
                    "    model = Net().to(device)\n",
                    "    model = Net().to(device)\n    model.compile()\n",
                ),
            ),
        ),
        Change(
            WORKER,
            (
                (
                    "main.py",
                    "train_kwargs = {'batch_size': args.batch_size}",
                    "train_kwargs = {'batch_size': args.batch_size, 'num_workers': 1, "
                    "'persistent_workers': True}",
                ),
            ),
        ),
    ),
    "vae": (
        Change(
            "torch.compile",
            (
                (
                    "main.py",
                    "model = VAE().to(device)\n",
                    "model = VAE().to(device)\nmodel.compile()\n",
                ),
            ),
        ),
        Change(
            "num_workers=2",
            (
                (
                    "main.py",
                    "batch_size=args.batch_size, shuffle=True, **kwargs",
                    "batch_size=args.batch_size, shuffle=True, num_workers=2, "
                    "persistent_workers=True",
                ),
            ),
        ),
        Change(
            WORKER,
            (
                (
                    "main.py",
                    "batch_size=args.batch_size, shuffle=True, **kwargs",
                    "batch_size=args.batch_size, shuffle=True, num_workers=1, "
                    "persistent_workers=True",
                ),
            ),
        ),
        Change(
            "ToTensor once before training",
            (
                (
                    "main.py",
                    "    datasets.MNIST('../data', train=True, download=True,\n"
                    "                   transform=transforms.ToTensor()),\n",
                    "    torch.utils.data.TensorDataset(datasets.MNIST('../data').data.float()"
                    ".div(255)[:, None], torch.zeros(4800)),\n",
                ),
            ),
        ),
        Change(
            "fused=True",
            (
                (
                    "main.py",
                    "model.parameters(), lr=1e-3",
                    "model.parameters(), lr=1e-3, fused=True",
                ),
            ),
        ),
    ),
    "bigram": (
        Change(
            "torch.compile", (("bigram.py", "m = model.to(device)", "model.compile()\nm = model"),)
        ),
        Change(
            "batches without a loop",
            (
                (
                    "bigram.py",
                    "x = torch.stack([data[i:i+block_size] for i in ix])",
                    "ix = ix[:, None] + torch.arange(block_size)\n    x = data[ix]",
                ),
                (
                    "bigram.py",
                    "y = torch.stack([data[i+1:i+block_size+1] for i in ix])",
                    "y = data[ix + 1]",
                ),
            ),
        ),
    ),
}
# As CHANGES, by arguments: old and new.
ARGUMENTS = {
    "dcgan": (WORKER, "--workers 0", "--workers 1"),
    "imagenet": (WORKER, "-j 0", "-j 1"),
    "chargpt": (WORKER, "--trainer.num_workers=0", "--trainer.num_workers=1"),
    "adder": (WORKER, "--trainer.num_workers=0", "--trainer.num_workers=1"),
    "nanogpt": ("torch.compile", "--compile=False", "--compile=True"),
}

LONGER = {  # arguments so that a script does not end while it is compared
    "makemore": "--max-steps 99999",
    "mnist": "--epochs 99",
    "vae": "--epochs 99",
    "dcgan": "--niter 99",
    "imagenet": "--epochs 99",
    "chargpt": "--trainer.max_iters=9999",
    "adder": "--trainer.max_iters=9999",
    "nanogpt": "--max_iters=9999 --eval_interval=9999",
}


def changes_of(script: Script) -> Iterator[Change]:
    """Yield the changes of a script."""
    if ON_GPU:
        yield from gpu_changes().get(script.name, ())
        return
    yield from CHANGES.get(script.name, ())
    if script.name in ARGUMENTS:
        title, old, new = ARGUMENTS[script.name]
        yield Change(title, arguments=tuple(" ".join(script.arguments).replace(old, new).split()))


# Running them.

VOLATILE = (  # what differs between two runs of the same script: times, and rates
    r"(?i)(time|dt|ms/batch|data|iter_dt|step time|rate)\W{0,3}\s*[\d.]+\s*(\(\s*[\d.]+\s*\))?",
    r"[\d.]+ ?(ms|s|it/s|/s|%)\b",
    r"\d+:\d\d(:\d\d)?",
    r"mfu -?[\d.]+%",
    r"0x[0-9a-f]+",
    r"/tmp/\S+",
    r"^\d+(?=\tTrain)",
    r"\d{4}-\d\d-\d\d \S+",
    r"\d{8}-\d{6}\S*",
    r"\[[?\dA-Z;]+",
)


def run(
    python: str,
    script: Script,
    sources: Path,
    *before: str,
    change: Change | None = None,
    folder: Path | None = None,
) -> tuple[subprocess.CompletedProcess, float]:
    """Run a script in a copy of its repository; `before` are words in front of the command."""
    with tempfile.TemporaryDirectory(prefix="own-") as temporary:
        place = folder or copy(script, sources, Path(temporary), change)
        arguments = (change and change.arguments) or arguments_of(script)
        command = [*before, python, *arguments]
        begin = time.perf_counter()
        done = subprocess.run(
            command,
            cwd=place,
            env=environment(script, change),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        return done, time.perf_counter() - begin


def arguments_of(script: Script) -> tuple[str, ...]:
    """Return a script's arguments on this machine."""
    return tuple(script.gpu.split()) if ON_GPU else script.arguments


def environment(script: Script, change: Change | None = None) -> dict[str, str]:
    """Return the environment of a script."""
    values = dict(os.environ) | script.env | (change.env if change else {})
    values.pop("COLUMNS", None)
    paths = [values.get("PYTHONPATH", ""), str(ROOT)]
    # One thread: on a shared machine, threads mostly wait for each other.
    one = {} if ON_GPU else {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return values | one | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def copy(script: Script, sources: Path, into: Path, change: Change | None = None) -> Path:
    """Copy a script's repository, write the stand-ins, change it, and return its folder."""
    name = script.source.partition("@")[0].split("/")[1]
    inside = script.folder if name == "examples" else "."
    shutil.copytree(sources / name / inside, into / name / inside)
    place = into / name / script.folder
    if script.prepare:
        script.prepare(place, sources)
    for file, old, new in change.edits if change else ():
        before = (place / file).read_text()
        if before.count(old) != 1:
            raise ValueError(f"{script.name}: {old!r} is in {file} {before.count(old)} times")
        (place / file).write_text(before.replace(old, new))
    return place


def stable(text: str) -> list[str]:
    """Return the lines of an output, sorted, without what differs between any two runs."""
    for pattern in VOLATILE:
        text = re.sub(pattern, "…", text, flags=re.MULTILINE)
    return sorted(text.replace("\r", "\n").splitlines())


def differences(before: str, after: str) -> list[str]:
    """Return the first lines that only one of two outputs has."""
    lines = difflib.unified_diff(stable(before), stable(after), n=0, lineterm="")
    return [line[:120] for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")][:4]


def profile(
    python: str, script: Script, sources: Path, change: Change | None = None, stop: bool = False
) -> dict[str, Any]:
    """Profile a script; return the page's values, and what was printed."""
    with tempfile.TemporaryDirectory() as out:
        before = (
            sys.executable if python is None else python,
            "-m",
            "trainspeed",
            "profile",
            "--seconds=1",
            *(["--stop"] if stop else []),
            "--out",
            out,
            "--",
        )
        done, seconds = run(python, script, sources, *before, change=change)
        path = Path(out, "page.json")
        page = json.loads(path.read_text()) if path.exists() else {}
    return {
        "page": page,
        "code": done.returncode,
        "out": done.stdout,
        "err": done.stderr,
        "seconds": seconds,
    }


def step_profile(python: str, script: Script, sources: Path) -> Iterator[dict[str, Any]]:
    """Run a script with the probe and without it, and check the page's counts."""
    if ON_GPU:  # that nothing else changes was seen on a CPU
        found = profile(python, script, sources, stop=True)
        plain, plain_s = subprocess.CompletedProcess((), 0, found["out"], ""), math.nan
    else:
        plain, plain_s = run(python, script, sources)
        found = profile(python, script, sources)
    page, unlike = found["page"], differences(plain.stdout, found["out"])
    if unlike:  # also without the probe?
        again, _ = run(python, script, sources)
        unlike = [] if differences(plain.stdout, again.stdout) else unlike
    row: dict[str, Any] = {
        "step": "profile",
        "script": script.name,
        "source": script.source,
        "command": [*arguments_of(script)],
        "stand_in": script.stand_in,
        "codes": [plain.returncode, found["code"]],
        "differences": unlike,
        "seconds": [round(plain_s, 1), round(found["seconds"], 1)],
    }
    if not page:
        yield row | {"error": found["err"][-600:]}
        return
    counts = {
        "batches": page["batches_per_iteration"],
        "backwards": page["backwards_per_iteration"],
        "updates": page["updates_per_iteration"],
        "samples": page["samples_per_s"] * page["step_s"] / page["ranks"],
        "tokens": page["tokens_per_s"] * page["step_s"] / page["ranks"],
    }
    expected = script.counts
    if ON_GPU:  # other batch sizes
        expected = {k: v for k, v in expected.items() if k not in ("samples", "tokens")}
    wrong = [
        f"{name}: {counts[name]:.4g}, in the source {value:g}"
        for name, value in expected.items()
        if abs(counts[name] - value) > 0.05 * value
    ]
    if page["rule"] != script.rule:
        wrong.append(f"rule: {page['rule']}, in the source {script.rule}")
    yield row | {
        "rule": page["rule"],
        "iterations": page["iterations"],
        "timed": page["timed"],
        "wrong": wrong,
        "step_s": page["step_s"],
        "quartiles": page["step_s_quartiles"],
        "parts": {
            n: page["parts"][n] / page["step_s"]
            for n in ("data", "compute", "communication", "launch", "optimizer", "products")
        },
        "launches": page["parts"]["launches"],
        "limits": [
            [
                limit["name"],
                round(limit["gain"], 3),
                limit["title"],
                limit["evidence"],
                limit["change"],
            ]
            for limit in page["limits"]
        ],
        "load": os.getloadavg()[0],
        "device": page["machine"]["device_name"],
    }


def step_gain(python: str, script: Script, sources: Path) -> Iterator[dict[str, Any]]:
    """Measure each change that was made by hand, next to the original, in turns."""
    longer = LONGER.get(script.name, "")
    for change in changes_of(script):
        with tempfile.TemporaryDirectory(prefix="own-") as temporary:
            base, other = (Path(temporary, name) for name in ("base", "changed"))
            places = copy(script, sources, base), copy(script, sources, other, change)
            before = arguments_of(script)
            arguments = (before, change.arguments or before)
            commands = [
                ["sh", "-c", f"cd {place} && exec {python} {' '.join(words)} {longer}"]
                for place, words in zip(places, arguments)
            ]
            from trainspeed.comparison import CompareError, compare

            env = {"base": environment(script), "changed": environment(script, change)}
            row = {"step": "gain", "script": script.name, "change": change.title}
            try:
                found = compare(dict(zip(("base", "changed"), commands)), seconds=GAIN_S, env=env)
                row |= found.to_dict()["ratios"].get("changed", {}) | {"turns": found.turns}
            except CompareError as error:
                row |= {"error": str(error)[-400:]}
        yield row


FAULTS = {  # by script: what was planted, the limit that has to be first, words of its evidence
    "mnist": (
        (
            Change(
                "an expensive transform",
                (
                    (
                        "main.py",
                        "transforms.ToTensor(),",
                        "transforms.ElasticTransform(), transforms.ToTensor(),",
                    ),
                ),
            ),
            "data",
            "ElasticTransform",
        ),
        (
            Change(
                "a Python loop over rows",
                (
                    (
                        "main.py",
                        "        optimizer.zero_grad()\n",
                        "        for image in data:\n"
                        "            for row in image[0]: row.mul_(1.0)\n"
                        "        optimizer.zero_grad()\n",
                    ),
                ),
            ),
            "launch",
            "row.mul_(1.0)",
        ),
        (
            Change(
                "a Python loop over pixels",
                (
                    (
                        "main.py",
                        "        optimizer.zero_grad()\n",
                        "        for image in data:\n"
                        "            for row in image[0, ::4]:\n"
                        "                for pixel in row: pixel.mul_(1.0)\n"
                        "        optimizer.zero_grad()\n",
                    ),
                ),
            ),
            "launch",
            "pixel.mul_(1.0)",
        ),
    ),
    "vae": (
        (
            Change(
                "an expensive transform",
                (
                    (
                        "main.py",
                        "download=True,\n                   transform=transforms.ToTensor()",
                        "download=True, transform=transforms.Compose(["
                        "transforms.ElasticTransform(), transforms.ToTensor()])",
                    ),
                ),
            ),
            "data",
            "ElasticTransform",
        ),
    ),
    "chargpt": (
        (
            Change(
                "a Python loop over elements in the dataset",
                (
                    (
                        "projects/chargpt/chargpt.py",
                        "dix = [self.stoi[s] for s in chunk]",
                        "dix = [int(torch.tensor(self.stoi[s])) for s in chunk]",
                    ),
                ),
            ),
            "data",
            "int(torch.tensor(",
        ),
        (
            Change(
                "a Python loop over tokens in training",
                (
                    (
                        "mingpt/trainer.py",
                        "            x, y = batch\n",
                        "            x, y = batch\n"
                        "            total = sum(int(t) for row in x for t in row)\n",
                    ),
                ),
            ),
            "launch",
            "total = sum(",
        ),
    ),
}


# On a GPU: the script made fast by hand, and then each fault planted into that.
LOOP = "        for image in {}:\n            for row in image{}: row.mul_(1.0)\n"
FAST_IMAGENET = (
    (
        "main.py",
        "        # compute output\n        output = model(images)\n"
        "        loss = criterion(output, target)\n\n        # measure",
        "        with torch.autocast('cuda', torch.bfloat16):\n"
        "            output = model(images)\n"
        "            loss = criterion(output, target)\n\n        # measure",
    ),
    (
        "main.py",
        "        acc1, acc5 = accuracy(output, target, topk=(1, 5))\n"
        "        losses.update(loss.item(), images.size(0))\n"
        "        top1.update(acc1[0], images.size(0))\n"
        "        top5.update(acc5[0], images.size(0))\n\n        # compute gradient",
        "        # compute gradient",
    ),
    (
        "main.py",
        "        # move data to the same device as model\n"
        "        images = images.to(device, non_blocking=True)",
        "        images = images.to(device, non_blocking=True, memory_format=torch.channels_last)",
    ),
    (
        "main.py",
        "model = torch.nn.DataParallel(model).cuda()",
        "model = model.cuda().to(memory_format=torch.channels_last)",
    ),
)
FAST_CHARGPT = (
    (
        "mingpt/trainer.py",
        "            logits, self.loss = model(x, y)\n",
        "            with torch.autocast('cuda', torch.bfloat16):\n"
        "                logits, self.loss = model(x, y)\n",
    ),
)
NORMS = "total = sum(p.grad.norm().item() for p in model.parameters())\n"
STEP, MIN_STEP = "        optimizer.step()\n", "            self.optimizer.step()\n"
GPU_FAULTS = {
    "imagenet": (
        FAST_IMAGENET,
        (
            (
                "a norm of each gradient is read",
                "waits",
                "p.grad.norm().item()",
                ("main.py", STEP, f"{STEP}        {NORMS}"),
            ),
            (
                "an expensive transform",
                "data",
                "ElasticTransform",
                (
                    "main.py",
                    "                transforms.RandomHorizontalFlip(),\n",
                    "                transforms.ElasticTransform(),\n",
                ),
            ),
            ("no workers", "data", "num_workers=0", ("-j 14", "-j 0")),
            (
                "no autocast",
                "format",
                "fp32",
                (
                    "main.py",
                    "torch.autocast('cuda', torch.bfloat16)",
                    "torch.autocast('cuda', enabled=False)",
                ),
            ),
            (
                "a loop over rows",
                "launch",
                "row.mul_(1.0)",
                (
                    "main.py",
                    "        with torch.autocast(",
                    LOOP.format("images", "[0]") + "        with torch.autocast(",
                ),
            ),
        ),
    ),
    "chargpt": (
        FAST_CHARGPT,
        (
            (
                "a norm of each gradient is read",
                "waits",
                "p.grad.norm().item()",
                ("mingpt/trainer.py", MIN_STEP, f"{MIN_STEP}            {NORMS}"),
            ),
            (
                "a loop over characters in the dataset",
                "data",
                "int(torch.tensor(",
                (
                    "projects/chargpt/chargpt.py",
                    "dix = [self.stoi[s] for s in chunk]",
                    "dix = [int(torch.tensor(self.stoi[s])) for s in chunk for _ in range(9)][::9]",
                ),
            ),
            (
                "no workers",
                "data",
                "num_workers=0",
                ("--trainer.max_iters", "--trainer.num_workers=0 --trainer.max_iters"),
            ),
            (
                "fp32",
                "format",
                "fp32",
                (
                    "mingpt/trainer.py",
                    "torch.autocast('cuda', torch.bfloat16)",
                    "torch.autocast('cuda', enabled=False)",
                ),
            ),
            (
                "a loop over rows",
                "launch",
                "row.mul_(1)",
                (
                    "mingpt/trainer.py",
                    "            x, y = batch\n",
                    "            x, y = batch\n            for row in x.view(-1, 4): row.mul_(1)\n",
                ),
            ),
        ),
    ),
    "nanogpt": (
        (),
        (
            (
                "the loss is read in each micro-step, and the norms",
                "waits",
                "loss.item()",
                (
                    "train.py",
                    "        scaler.scale(loss).backward()\n",
                    "        scaler.scale(loss).backward()\n        total = loss.item()\n"
                    "        total = sum(p.grad.norm().item() for p in model.parameters())\n",
                ),
            ),
            (
                "a loop over characters in a batch",
                "launch",
                "torch.tensor([int(n)",
                (
                    "train.py",
                    "x = torch.stack([torch.from_numpy((data[i:i+block_size])"
                    ".astype(np.int64)) for i in ix])",
                    "x = torch.stack([torch.cat([torch.tensor([int(n)]) "
                    "for n in data[i:i+block_size]]) for i in ix])",
                ),
            ),
            (
                "fp32",
                "format",
                "fp32",
                ("--compile=False", "--compile=False --dtype=float32"),
                ("train.py", "torch.backends.cuda.matmul.allow_tf32 = True", "pass"),
                ("train.py", "torch.backends.cudnn.allow_tf32 = True", "pass"),
            ),
            (
                "a loop over rows",
                "launch",
                "row.mul_(1)",
                (
                    "train.py",
                    "        with ctx:\n            logits, loss = model(X, Y)\n",
                    "        for row in X.view(-1, 8): row.mul_(1)\n"
                    "        with ctx:\n            logits, loss = model(X, Y)\n",
                ),
            ),
        ),
    ),
}


def gpu_changes() -> dict[str, tuple[Change, ...]]:
    """Return, by script, what the page names first on a GPU, made by hand."""
    autocast = "with torch.autocast('cuda', torch.bfloat16): "
    high = "torch.set_float32_matmul_precision('high')\n"
    step = (
        "gpt.py",
        "    logits, loss = model(xb, yb)",
        f"    {autocast}logits, loss = model(xb, yb)",
    )
    seed = ("gpt.py", "torch.manual_seed(1337)\n", f"torch.manual_seed(1337)\n{high}")
    compiled = "    model.to(args.device)\n    model.compile(mode='reduce-overhead')\n"
    workers = ("main.py", "accel_kwargs = {'num_workers': 1", "accel_kwargs = {'num_workers': 8")
    return {
        "imagenet": (
            Change("channels_last", FAST_IMAGENET[2:]),
            Change("channels_last, bf16, nothing read", FAST_IMAGENET),
        ),
        "bigram": (Change("TF32", (seed,)), Change("bf16", (step,))),
        "chargpt": (Change("bf16", FAST_CHARGPT),),
        "makemore": (
            Change("reduce-overhead", (("makemore.py", "    model.to(args.device)\n", compiled),)),
        ),
        "mnist": (Change("num_workers=8", (workers,)),),
    }


def planted(script: Script) -> tuple[Change, list[tuple[Change, str, str]]]:
    """Return the script made fast, and that with each fault: the limit and words expected."""
    fast, faults = GPU_FAULTS[script.name]
    found = []
    for title, name, words, *edits in faults:
        text = script.gpu
        for old, new in (edit for edit in edits if len(edit) == 2):
            text = text.replace(old, new)
        inside = tuple(edit for edit in edits if len(edit) == 3)
        found.append((Change(title, (*fast, *inside), tuple(text.split())), name, words))
    return Change("fast", fast), found


def step_faults(
    python: str, script: Script, sources: Path, word: str = ""
) -> Iterator[dict[str, Any]]:
    """Plant faults: does the page name each, and nothing of them in the script as it was?

    A loop that waits for a GPU in every step cannot be planted on a CPU; fp32 is not one on a CPU
    without instructions for bf16. On a GPU, the script is first made fast by hand.
    """
    fast, faults = None, FAULTS.get(script.name, ())
    if ON_GPU:
        fast, faults = planted(script) if script.name in GPU_FAULTS else (None, ())
    original = profile(python, script, sources, fast, stop=True)["page"] if faults else {}
    for change, name, words in (fault for fault in faults if word in fault[0].title):
        page = profile(python, script, sources, change, stop=True)["page"]
        limits = page.get("limits", [])
        expected = [li for li in limits if li["name"] == name and words in str(li)]
        yield {
            "step": "faults",
            "script": script.name,
            "planted": change.title,
            "expected": [name, words],
            "is_first": limits[:1] == expected[:1] != [],
            "named": bool(expected),
            "named_without": words in str(original["limits"]),
            "limits": [[li["name"], round(li["gain"], 3), li["evidence"]] for li in limits],
            "limits_without": [[li["name"], round(li["gain"], 3)] for li in original["limits"]],
            "step_s": [original["step_s"], page.get("step_s")],
            "device": original["machine"]["device_name"],
        }


def main() -> None:
    """Run the steps, and append lines to OUT."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sources", type=Path)
    parser.add_argument("--only", action="append")
    parser.add_argument("--planted", default="", help="a word of the faults to plant")
    parser.add_argument("--gpu", action="store_true", help="settings that suit a GPU")
    parser.add_argument("--step", choices=("profile", "gain", "faults"), default="profile")
    parser.add_argument("--python", default=sys.executable, help="that has the scripts' libraries")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    faults = functools.partial(step_faults, word=options.planted)
    steps = {"profile": step_profile, "gain": step_gain, "faults": faults}
    for script in SCRIPTS:
        if options.only and script.name not in options.only or not arguments_of(script):
            continue
        try:
            for row in steps[options.step](options.python, script, options.sources):
                note(options.out, row)
        except subprocess.TimeoutExpired:
            error = f"over {LIMIT_S} s"
            note(options.out, {"step": options.step, "script": script.name, "error": error})


def note(path: Path, row: dict[str, Any]) -> None:
    """Append a row to the file, and print it."""
    with path.open("a") as file:
        print(json.dumps(row), file=file)
    print(json.dumps({k: v for k, v in row.items() if k != "command"}), flush=True)


if __name__ == "__main__":
    main()
