"""What scripts that know nothing of trainspeed do: how they are counted, and what limits them."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader

from trainspeed.limits import Limit, limits_of
from trainspeed.lines import direct_line_of, is_own, own_line_of
from trainspeed.page import _bars, _percent, count_inputs
from trainspeed.parts import FUSIBLE, Parts, is_small, usual_windows
from trainspeed.probe import OTHERS, Probe
from trainspeed.profile import Profile, read_processes
from trainspeed.recorder import Iteration, Plan, Recorder, Waits
from trainspeed.sampler import StackSampler

BATCH = torch.zeros(8, 4)


def new_probe(folder: Path, has_optimizer: bool = True) -> Probe:
    """Return a probe that is not installed."""
    probe = Probe(Plan(str(folder), timed=10**6, traced=0))
    if has_optimizer:
        probe._note_line(new_optimizer())
    return probe


def new_optimizer() -> torch.optim.Optimizer:
    """Return an optimizer of one parameter."""
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)


def step(probe: Probe, optimizer: torch.optim.Optimizer) -> None:
    """Report a step of an optimizer."""
    probe._before_step(optimizer, (), {})
    probe._after_step(optimizer, (), {})


def test_an_evaluation_before_training_is_no_iteration(tmp_path: Path) -> None:
    probe, loader, optimizer = new_probe(tmp_path), DataLoader(BATCH), new_optimizer()
    for _ in range(100):
        probe.add_batch(loader, 0.0, 0.1, BATCH)
    assert not probe.recorder.iterations and not probe.recorder.rule
    for _ in range(5):
        probe.add_batch(loader, 0.0, 0.1, BATCH)
        step(probe, optimizer)
    assert probe.recorder.rule == "optimizer steps"
    assert [it.samples for it in probe.recorder.iterations] == [8] * 4


@pytest.mark.parametrize("has_optimizer", [True, False])
def test_accumulated_backward_passes_are_one_iteration(tmp_path: Path, has_optimizer: bool) -> None:
    """Also if it is not known that there is an optimizer."""
    probe, optimizer = new_probe(tmp_path, has_optimizer), new_optimizer()
    backward = probe._backward(lambda: None)
    for _ in range(4):
        for _ in range(40):
            backward()
        step(probe, optimizer)
    assert probe.recorder.rule == "optimizer steps"
    assert [it.backwards for it in probe.recorder.iterations] == [40] * 3


def test_the_optimizer_of_the_next_training_is_counted(tmp_path: Path) -> None:
    probe, first, second = new_probe(tmp_path), new_optimizer(), new_optimizer()
    for _ in range(3):
        step(probe, first)
    for _ in range(OTHERS + 10):
        step(probe, second)
    assert len(probe.recorder.iterations) == 9


def test_two_optimizers_take_turns_in_one_iteration(tmp_path: Path) -> None:
    probe, often, rarely = new_probe(tmp_path), new_optimizer(), new_optimizer()
    for _ in range(6):
        step(probe, rarely)
        for _ in range(5):
            step(probe, often)
    assert [it.updates for it in probe.recorder.iterations] == [6] * 5


def test_a_trace_of_no_complete_iteration_is_none(tmp_path: Path) -> None:
    recorder = Recorder(Plan(str(tmp_path), warm_up=1, timed=2, timed_s=0.0, traced=3), "test")
    for _ in range(4):
        recorder.mark()
    recorder.finish()
    assert recorder.state == "traced" and not recorder.to_dict()["trace"]


@pytest.mark.parametrize(
    "file, own",
    [
        ("/home/me/train.py", True),
        ("/opt/env/lib/python3.11/site-packages/torch/optim/adam.py", False),
        ("/usr/lib/python3/dist-packages/numpy/core.py", False),
    ],
)
def test_libraries_of_other_environments_are_not_the_users(file: str, own: bool) -> None:
    assert is_own(file) is own


def frame_of(file: str) -> Any:
    """Return a frame of a function in a file, called by no one."""
    code: CodeType = compile("import sys\nfound = sys._getframe()", file, "exec")
    values: dict[str, Any] = {}
    thread = threading.Thread(target=exec, args=(code, values))
    thread.start()
    thread.join()
    return values["found"]


def test_an_installed_script_has_a_line() -> None:
    assert own_line_of(frame_of("/e/site-packages/timm/train.py")).startswith("train.py:2")
    assert not own_line_of(frame_of("/e/site-packages/torch/nn/functional.py"))


def test_the_line_of_a_loop_over_elements_is_sampled() -> None:
    sampler = StackSampler(threading.get_ident())
    sampler.start()
    text = "for _ in range(10**7):\n    if 'mine.py' in str([*sampler.lines]): break"
    exec(compile(text, "/home/me/mine.py", "exec"), {"sampler": sampler})
    sampler.is_over = True
    assert any(line.startswith("mine.py:") for line in sampler.lines)


def test_nothing_is_sampled_after_the_script(tmp_path: Path, monkeypatch: Any) -> None:
    """What libraries registered earlier for the end of the process runs later, and is not its."""
    at_end: list[Any] = []
    before = threading.enumerate()
    monkeypatch.setattr("atexit.register", lambda *call: at_end.append(call))
    recorder = Recorder(Plan(str(tmp_path), warm_up=1, timed=2, timed_s=0.0, traced=0), "test")
    while recorder.state != "observed":
        recorder.mark()
    (sampler,) = (thread for thread in threading.enumerate() if thread not in before)
    for function, *arguments in at_end[::-1]:
        function(*arguments)
    sampler.join(timeout=60)
    assert not sampler.is_alive()
    recorder.finish()


@pytest.mark.parametrize(
    "name, is_fusible",
    [
        ("aten::add_", True),
        ("aten::native_layer_norm_backward", True),
        ("aten::_log_softmax_backward_data", True),
        ("aten::max_pool2d_with_indices", False),
        ("aten::embedding_dense_backward", False),
        ("aten::addmm", False),
        ("aten::sort", False),
    ],
)
def test_what_a_compiler_fuses(name: str, is_fusible: bool) -> None:
    assert bool(FUSIBLE.search(name)) is is_fusible


def cpu_limits(threads: int = 1, processes: int = 1, **parts: Any) -> dict[str, Limit]:
    """Return the limits of a step of one second on two cores."""
    loader = {"line": "train.py:1", "batches": 9, "wait_s": 1.0, "workers": 0, "dataset": ""}
    values = {
        "iterations": [],
        "machine": {"device": "cpu", "cores": 2, "threads": threads},
        "loaders": [loader] if parts.get("data") else [],
        "waits": {"item, train.py:9": 3},
        "forwards": [],
        "optimizers": [],
        "stages": [],
        "lines": {"train.py:7: for x in batch:": 0.8, "train.py:8: loss.backward()": 0.2},
        "is_compiled": False,
        "processes": processes,
    }
    profile = Profile(values, Path("none"))
    profile.stages = []
    rows = [{"name": "aten::max_pool2d", "seconds": 0.3, "calls": 1}]
    found = limits_of(profile, Parts(1.0, top=rows, launches=100, **parts), {"fp32": 1.0})
    return {limit.name: limit for limit in found}


def gpu_limits(waits: dict[str, float], *lines: str, **parts: Any) -> dict[str, Limit]:
    """Return the limits of a step of one second on a GPU."""
    values = {
        "machine": {"device": "cuda", "cores": 16, "threads": 8},
        "loaders": [],
        "waits": waits,
        "forwards": [
            {"line": "train.py:3: return self.transform(image)", "parameters": 0},
            {"line": "train.py:5: output = model(images)", "parameters": 9},
        ],
        "optimizers": [],
        "lines": {line: 0.4 for line in lines},
        "is_compiled": False,
        "processes": 1,
    }
    rates = {"fp32": 1.0, "tf32": 8.0, "bf16": 16.0}
    found = limits_of(Profile(values, Path("none")), Parts(1.0, launches=100, **parts), rates)
    return {limit.name: limit for limit in found}


@pytest.mark.parametrize(
    "data, host, gain",
    [
        (0.0, 0.4, 1 / 0.6),  # then the GPU sets the speed
        (0.0, 0.8, 1 / 0.8),  # then the host
        (0.2, 0.4, 1 / 0.8),  # and batches come no sooner
        (0.0, 1.2, None),  # the host is slow anyway
    ],
)
def test_a_wait_can_gain_what_the_host_has_left(
    data: float, host: float, gain: float | None
) -> None:
    waits = {"item, train.py:9: total += loss.item()": 1.0}
    found = gpu_limits(waits, data=data, host=host, compute=0.6)
    assert (found["waits"].gain if "waits" in found else None) == (gain and pytest.approx(gain))
    assert gain is None or "loss.item() (item, 1×)" in found["waits"].evidence[0]


def test_a_value_that_is_read_now_and_then_is_no_wait_in_every_step() -> None:
    assert "waits" not in gpu_limits({"item, train.py:9: log(loss)": 0.1}, host=0.4, compute=0.6)


@pytest.mark.parametrize(
    "parts, gain",
    [
        ({"slow_products": 0.8, "host": 0.2}, 1 / (1 - 0.8 * 7 / 8)),  # at most 8 times as fast
        ({"slow_products": 0.8, "host": 0.9}, 1 / 0.81),  # the host still launches as much
        ({"tf32_products": 0.8, "host": 0.2}, 1 / 0.6),
        ({"tf32_products": 0.4, "host": 0.2, "others": 0.4}, 1 / 0.6),  # half as many bytes
    ],
)
def test_what_half_precision_can_gain(parts: dict[str, float], gain: float) -> None:
    products = parts.get("slow_products", 0.0) + parts.get("tf32_products", 0.0)
    compute = products + parts.pop("others", 0.0)
    found = gpu_limits({}, types="fp32", products=products, compute=compute, **parts)
    assert found["format"].gain == pytest.approx(gain)
    assert "train.py:5: output = model(images)" in found["format"].evidence  # not the transform


def test_a_line_that_waits_is_not_taken_for_a_loop() -> None:
    read, loop = "train.py:5: print(loss.item())", "train.py:7: for row in images:"
    waits = {f"item, {read}": 0.1}
    limit = gpu_limits(waits, read, host=1.0, compute=0.4, launch=0.6)["launch"]
    assert len(limit.evidence) == 1 and "compile" in limit.change
    limit = gpu_limits(waits, read, loop, host=1.0, compute=0.4, launch=0.6)["launch"]
    assert limit.evidence[1].endswith(loop) and "a loop in train.py:7;" in limit.change


def test_what_a_module_or_a_library_does_is_no_line_of_the_user(tmp_path: Path) -> None:
    found: list[str] = []
    names: dict[str, Any] = {"note": lambda: found.append(direct_line_of(sys._getframe(1)))}
    packages, own = tmp_path / "site-packages", str(tmp_path / "mine.py")
    for file, name in (("library.py", "library"), ("torch/module.py", "_call_impl")):
        code = compile(f"def {name}(call): call()", str(packages / file), "exec")
        exec(code, names)
    for line in ("note()", "library(note)", "_call_impl(note)", "library(lambda: note())"):
        exec(compile(line, own, "exec"), names)
    assert found == ["mine.py:1", "", "", "mine.py:1"]  # the last calls the user's own function


def test_calls_that_wait_count_in_iterations_that_only_train() -> None:
    device, waits = SimpleNamespace(read=lambda: None), Waits()
    device.show = lambda: device.read()  # this waits, too, but only once
    with waits.counted(device, "read"), waits.counted(device, "show"):
        for loops in (0, 0, 1):
            device.read()
            device.show()
            waits.end(Iteration(0.0, 1.0, loops=loops))
    names = {key.partition(",")[0]: count for key, count in waits.counts.items()}
    assert names == {"read": 2, "show": 2} and len(waits.blocked_s) == 2
    assert not hasattr(device.read, "__wrapped__")


def test_what_no_compiler_fuses_is_no_limit_on_a_cpu() -> None:
    assert not cpu_limits(compute=1.0, products=0.5)
    assert set(cpu_limits(compute=1.0, products=0.5, fusible=0.3)) == {"memory"}


def test_small_operators_are_named_with_the_lines_that_call_them() -> None:
    limit = cpu_limits(compute=0.6, small=0.5, launch=0.4)["launch"]
    assert limit.gain == pytest.approx(10)
    assert any("train.py:7" in line for line in limit.evidence)
    assert "a loop in train.py:7;" in limit.change and "compile" not in limit.change
    assert not any("backward" in line for line in limit.evidence)


@pytest.mark.parametrize(
    "threads, processes, gain",
    [
        (1, 1, 1 / 0.6),  # a worker on the other core loads all the time
        (2, 1, 1 / 0.7),  # loading takes a part of the cores that train
        (1, 2, None),  # the other core trains, too
    ],
)
def test_a_worker_needs_a_core(threads: int, processes: int, gain: float | None) -> None:
    found = cpu_limits(threads, processes, data=0.6, compute=0.4)
    assert (found["data"].gain if found else None) == (gain and pytest.approx(gain))


def test_an_interrupted_call_of_a_small_operator_is_still_small() -> None:
    seconds = [2e-6] * 9 + [5e-3] + [1e-3] * 3
    rows = pd.DataFrame({
        "name": ["aten::select"] * 10 + ["aten::mm"] * 3,
        "input_shapes": [((32, 8),)] * 10 + [((512, 512), (512, 512))] * 3,
        "self_s": seconds,
    })  # fmt: skip
    assert rows.loc[is_small(rows), "name"].unique() == ["aten::select"]
    assert is_small(rows).sum() == 10


def test_processes_without_ranks_are_counted(tmp_path: Path) -> None:
    common = {"loaders": [], "optimizers": [{}], "world_size": 1, "rank": 0}
    for process, (count, rule) in enumerate([(9, "optimizer steps"), (8, "optimizer steps"),
                                             (3, "batches")]):  # fmt: skip
        values = common | {"iterations": [{}] * count, "rule": rule}
        (tmp_path / f"process-{process}.json").write_text(json.dumps(values))
    (found,) = read_processes(tmp_path)
    assert len(found["iterations"]) == 9 and found["processes"] == 2


def test_tokens_of_a_script_without_a_loader_are_the_models_input() -> None:
    forward = {"parameters": 9, "samples": 12, "tokens": 768, "calls": 3.0}
    small = {"parameters": 1, "samples": 1, "tokens": 0, "calls": 1.0}
    iteration = {"kind": "timed", "begin_s": 0.0, "end_s": 1.0, "loops": 0, "batches": 0}
    values = {"iterations": [iteration] * 4, "forwards": [small, forward]}
    assert count_inputs(Profile(values, Path("none"))) == (0.0, 3 * 768)


def test_steps_of_another_profiler_are_no_windows(tmp_path: Path) -> None:
    traced = {"kind": "traced", "loops": 0}
    profile = Profile({"iterations": [traced] * 3}, tmp_path)
    steps = pd.DataFrame({"step": [0, 13, 1, 14, 2], "start_s": [0, 1, 10, 11, 20]})
    windows = usual_windows(profile, steps.assign(end_s=steps["start_s"] + 10))
    assert list(windows["step"]) == [0, 1, 2]


def test_a_small_share_is_not_shown_as_nothing() -> None:
    top = [{"name": "aten::conv2d", "seconds": 0.015}, {"name": "aten::mm", "seconds": 0.004}]
    parts = Parts(1.0, data=0.86, compute=0.02, launch=0.12, top=top)
    page = "\n".join(_bars({"machine": {"device": "cuda"}, "has_trace": True}, parts))
    assert "aten::conv2d" in page and "aten::mm" not in page and " 0%" not in page
    assert (_percent(0.004), _percent(0.006), _percent(0)) == ("less than 1%", "1%", "0%")
