"""Load an exported network without running any Python code from its file.

PyTorch's reader trusts the file: it unpickles, loads compiled libraries, and evaluates expressions
for sizes. So it only gets a copy, with the parts that contain operations and numbers, after a
check that these cannot be anything else.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

# What `torch.export.save` writes for a network; anything else may be code.
PARTS = re.compile(
    r"archive_format|archive_version|byteorder|\.data/(version|serialization_id)"
    r"|models/model\.json|data/sample_inputs/model\.pt"
    r"|data/weights/(weight_\d+|model_weights_config\.json)"
    r"|data/constants/(tensor_\d+|model_constants_config\.json)"
)
NUMBERS = re.compile(r"(weight|tensor)_\d+")
OPERATION = re.compile(r"torch\.ops\.(aten|prims|higher_order)\.\w+(\.\w+)?|_operator\.\w+")
READS_FILES = "torch.ops.aten.from_file"
# An expression for a size: these words, symbols such as 's31', numbers and signs.
WORDS = re.compile(
    r"Symbol|Integer|Rational|Add|Mul|Pow|Mod|PythonMod|FloorDiv|CeilDiv|CleanDiv|Max|Min"
    r"|Eq|Ne|Lt|Le|Gt|Ge|And|Or|Not|TruncToInt|FloorToInt|CeilToInt|ToFloat|IntTrueDiv"
    r"|PowByNatural|ModularIndexing|[Tt]rue|[Ff]alse|positive|integer|nonnegative|[su]\d+"
)
SYMBOL = re.compile(r"'[su]\d+'")
SIGNS = re.compile(r"[\w\s(),=+*/<>-]*")


class Unsafe(Exception):
    """Something in the file may be more than operations and numbers."""


def load(path: Path) -> torch.export.ExportedProgram:
    """Load a network that `torch.export.save` wrote.

    Raises:
        Unsafe: the file has something that would be run, or that is unknown.
        OSError, zipfile.BadZipFile: it is not such a file.
    """
    with zipfile.ZipFile(path) as archive:  # all parts are in one folder
        parts = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    _check_parts(parts)
    _check_operations(json.loads(parts["models/model.json"]))
    copy = io.BytesIO()
    with zipfile.ZipFile(copy, "w", zipfile.ZIP_STORED) as archive:
        for name, content in parts.items():
            archive.writestr(f"network/{name}", content)
    copy.seek(0)
    return torch.export.load(copy)


def _check_parts(parts: dict[str, bytes]) -> None:
    """Raise Unsafe for unknown parts, and for pickled objects in the known ones."""
    unknown = [name for name in parts if not PARTS.fullmatch(name)]
    if unknown:
        raise Unsafe(f"it has {unknown[0]}, which may be code")
    if "models/model.json" not in parts:
        raise Unsafe("it has no network")
    try:
        torch.load(io.BytesIO(parts["data/sample_inputs/model.pt"]), weights_only=True)
    except Exception as error:  # from pickle or zipfile
        raise Unsafe("its example has pickled objects, which would run when read") from error
    for name in parts:
        if name.endswith("_config.json"):
            for entry in json.loads(parts[name])["config"].values():
                if entry.get("use_pickle") or not NUMBERS.fullmatch(entry["path_name"]):
                    raise Unsafe(f"{name} refers to pickled objects, which would run when read")


def _check_operations(network: Any) -> None:
    """Raise Unsafe for anything but operations on tensors and arithmetic on sizes."""
    for key, value in _texts(network):
        if key == "expr_str" and not _is_size(value):
            raise Unsafe(f"a size is not arithmetic: {value[:60]}")
        if key == "target" and (not OPERATION.fullmatch(value) or value.startswith(READS_FILES)):
            raise Unsafe(f"{value[:60]} is not an operation on tensors")
        if key in ("in_spec", "out_spec") and re.search(r"enum|\\u", value):  # would be imported
            raise Unsafe("its inputs or outputs are not tensors")


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Return all texts in parsed JSON, each with its key."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _texts(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, key)
    elif isinstance(value, str):
        yield key, value


def _is_size(text: str) -> bool:
    """Return whether a text is arithmetic on symbols; SymPy would evaluate it as Python."""
    remainder = SYMBOL.sub("", text)
    words = re.findall(r"[^\W\d]\w*", remainder)
    return bool(SIGNS.fullmatch(remainder)) and all(map(WORDS.fullmatch, words))
