"""A made-up class: messages of learners, and a drop box for them."""

import json
import os
import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from course.checks import discovery
from course.checks.shared_progress import DROP
from course.runs.shared_files import user_name

CAUSES = {
    "dataloader": "correct: number of images … : cfg.batch_size is for all ranks",
    "amp": "correct: number of updates per step … update once per batch",
    "compile": "mechanism: NameError",
}
PREDICTIONS = {"amp": 2.6, "channels_last": 1.2, "small_8_workers": 4.0}


def make_class(folder: Path) -> Path:
    """Create a class folder with a drop box, as `course class init` does."""
    (folder / DROP).mkdir(parents=True)
    folder.chmod(0o755)
    (folder / DROP).chmod(0o3733)
    return folder


def put(folder: Path, uid: int, content: Any, user: str = "", *, number: int = 0) -> Path:
    """Write a learner's file, as that learner if this is root."""
    path = folder / DROP / f"{user or user_name(uid)}-{number:016x}.json"
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(data)
    path.chmod(0o640)
    if os.getuid() == 0:
        os.chown(path, uid, -1)
    return path


def ago(minutes: float) -> str:
    """Return a time in the past, as it is sent."""
    at = datetime.now().astimezone() - timedelta(minutes=minutes)
    return at.isoformat(timespec="seconds")


def message(**changes: Any) -> dict[str, Any]:
    """Return a message of a learner who failed one check."""
    failed = {"state": "failed", "tries": 3, "checked_at": ago(2), "failing_since": ago(12)}
    return {
        "schema": 1,
        "sent_at": ago(2),
        "hand": None,
        "todos": {"device": "edited", "amp": "edited"},
        "checks": {
            "device": {"state": "passed", "tries": 1, "checked_at": ago(30)},
            "amp": failed | {"cause": CAUSES["amp"]},
        },
        "quizzes": {"gpu": {"answered": 3, "right": 2}},
        "predictions": {"amp": {"value": 2.0, "measured": 2.6}},
    } | changes


def some_message(seed: int) -> dict[str, Any]:
    """Return a message of a learner somewhere on Day 2."""
    draw = random.Random(seed)
    names = [*discovery.exercises()][:12]
    done = draw.randint(4, 10)
    checks, todos = {}, {}
    for at, name in enumerate(names[: done + 1]):
        failed = at == done or draw.random() < 0.06
        tries = draw.randint(1, 9 if failed else 3)
        minutes = 6 * (done - at) + draw.random() * 5
        checks[name] = {"state": "passed", "tries": tries, "checked_at": ago(minutes)}
        todos[name] = "given" if draw.random() < 0.05 else "edited"
        if failed:
            checks[name] |= {"state": "failed", "failing_since": ago(minutes + 4 * tries)}
        if failed or tries > 1:
            checks[name]["cause"] = CAUSES.get(name, f"correct: {name} … {draw.choice('AB')}")
    todos |= {names[done + 1]: "edited"} if draw.random() < 0.5 else {}
    predictions = {
        key: {"value": round(value * draw.lognormvariate(0, 0.5), 1), "measured": value}
        for key, value in PREDICTIONS.items()
        if draw.random() < 0.9
    }
    predictions["sizes"] = {"value": draw.choice(["large", "small", "neither"])}
    hand = {"text": "Why is the loss NaN after two steps?", "check": "amp", "at": ago(seed + 1)}
    return message(
        sent_at=ago(draw.choice([0, 1, 2, 3, 5, 40])),
        hand=hand if seed in (3, 11) else None,
        todos=todos,
        checks=checks,
        predictions=predictions,
    )
