"""To TensorBoard: event files, a folder a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course.config import Config
from course.runs.trackers.content import Content

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import Summary

EVENTS = "events.out.tfevents.*"  # as TensorBoard names its files
ALWAYS = ("batch_size", "lr", "seed")  # hyperparameters that are shown, whatever they are
TYPES = ("DATA_TYPE_FLOAT64", "DATA_TYPE_STRING")  # of hyperparameters: is it a text?
SUMMARY = "summary/"  # in front of the record's numbers: one value a run


def write(folder: Path, content: Content) -> None:
    """Write a run's event files, in place of those that are there. Nothing else is removed.

    By TensorBoard's own writer: PyTorch's would do the same, but to import it takes seconds.
    """
    from tensorboard.plugins.text.summary_v2 import text_pb

    for known in (folder / content.name).glob(EVENTS):
        known.unlink()
    with _adding(folder / content.name) as add:
        for row in content.rows:
            for name, value in row.values.items():
                add(_scalar(name, value), row.at_s, row.step)
        ended_s = content.rows[-1].at_s if content.rows else content.began_s
        numbers = {SUMMARY + name: value for name, value in content.numbers.items()}
        for each in _hyperparameters(_asked(content), numbers):
            add(each, content.began_s)
        for name, value in numbers.items():
            add(_scalar(name, value), ended_s)
        words = {"tags": ", ".join(content.tags), "config": json.dumps(content.config)}
        words |= {key: each for key, each in content.summary.items() if isinstance(each, str)}
        for name, text in words.items():
            add(text_pb(f"{name}/text_summary", [text]), ended_s)


@contextmanager
def _adding(folder: Path) -> Iterator[Callable[..., None]]:
    """What adds a summary to a new event file: it is given its time, and its step."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    try:
        yield lambda summary, at_s, step=0: writer.add_event(
            Event(wall_time=at_s, step=step, summary=summary)
        )
    finally:
        writer.close()


def _scalar(name: str, value: float) -> Summary:
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary(value=[Summary.Value(tag=name, simple_value=value)])


def _hyperparameters(asked: dict[str, Any], numbers: dict[str, float]) -> Iterator[Summary]:
    """Of a run: first all names, then its values, then that it is over."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import metadata
    from tensorboard.plugins.hparams.api_pb2 import Experiment, HParamInfo, MetricInfo, Status
    from tensorboard.plugins.hparams.plugin_data_pb2 import (
        HParamsPluginData,
        SessionEndInfo,
        SessionStartInfo,
    )

    began = SessionStartInfo()
    for name, value in asked.items():
        kind = "string_value" if isinstance(value, str) else "number_value"
        setattr(began.hparams[name], kind, value)
    infos = [
        HParamInfo(name=name, type=TYPES[isinstance(value, str)]) for name, value in asked.items()
    ]
    metrics = [MetricInfo(name={"tag": name}) for name in numbers]
    experiment = Experiment(hparam_infos=infos, metric_infos=metrics)
    ended = SessionEndInfo(status=Status.Value("STATUS_SUCCESS"))
    for tag, told in (
        (metadata.EXPERIMENT_TAG, {"experiment": experiment}),
        (metadata.SESSION_START_INFO_TAG, {"session_start_info": began}),
        (metadata.SESSION_END_INFO_TAG, {"session_end_info": ended}),
    ):
        data = HParamsPluginData(version=metadata.PLUGIN_DATA_VERSION, **told)
        about = {"plugin_name": metadata.PLUGIN_NAME, "content": data.SerializeToString()}
        yield Summary(value=[Summary.Value(tag=tag, metadata={"plugin_data": about})])


def _asked(content: Content) -> dict[str, Any]:
    """What of the config differs from the defaults: TensorBoard has no room for sixty columns."""
    usual = asdict(Config())
    named = ("rung", *ALWAYS)
    return {
        name: value
        for name, value in content.config.items()
        if name in named or (name in usual and value != usual[name])
    }
