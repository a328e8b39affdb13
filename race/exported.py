"""An exported network, read so that nothing in its file is run as Python.

PyTorch's reader trusts its file: it unpickles, loads compiled libraries, and evaluates the sizes'
expressions. So the referee gives it a copy, of the parts alone that hold operations and numbers,
and of these only what cannot be anything else.
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

# What `torch.export.save` writes of a network; anything else may be code.
PARTS = re.compile(
    r"archive_format|archive_version|byteorder|\.data/(version|serialization_id)"
    r"|models/model\.json|data/sample_inputs/model\.pt"
    r"|data/weights/(weight_\d+|model_weights_config\.json)"
    r"|data/constants/(tensor_\d+|model_constants_config\.json)"
)
NUMBERS = re.compile(r"(weight|tensor)_\d+")
OPERATION = re.compile(r"torch\.ops\.(aten|prims|higher_order)\.\w+(\.\w+)?|_operator\.\w+")
READS_FILES = "torch.ops.aten.from_file"
# An expression of sizes: these words, symbols such as 's31', numbers and signs.
WORDS = re.compile(
    r"Symbol|Integer|Rational|Add|Mul|Pow|Mod|PythonMod|FloorDiv|CeilDiv|CleanDiv|Max|Min"
    r"|Eq|Ne|Lt|Le|Gt|Ge|And|Or|Not|TruncToInt|FloorToInt|CeilToInt|ToFloat|IntTrueDiv"
    r"|PowByNatural|ModularIndexing|[Tt]rue|[Ff]alse|positive|integer|nonnegative|[su]\d+"
)
SYMBOL = re.compile(r"'[su]\d+'")
SIGNS = re.compile(r"[\w\s(),=+*/<>-]*")


class Unsafe(Exception):
    """Something in the file may be more than operations and numbers; the message says what."""


def load(path: Path) -> torch.export.ExportedProgram:
    """The network in a file that `torch.export.save` wrote.

    Raises:
        Unsafe: it holds something that would be run, or that nobody knows.
        OSError, zipfile.BadZipFile: it is no such file.
    """
    parts = _parts(path)
    for name, content in parts.items():
        if name.endswith("_config.json"):
            _check_numbers(name, json.loads(content))
    _check_operations(json.loads(parts["models/model.json"]))
    copy = io.BytesIO()
    with zipfile.ZipFile(copy, "w", zipfile.ZIP_STORED) as archive:
        for name, content in parts.items():
            archive.writestr(f"network/{name}", content)
    copy.seek(0)
    return torch.export.load(copy)


def _parts(path: Path) -> dict[str, bytes]:
    """The file's parts by their names, without the folder in which all are."""
    with zipfile.ZipFile(path) as archive:
        parts = {each.partition("/")[2]: archive.read(each) for each in archive.namelist()}
    unknown = [name for name in parts if not PARTS.fullmatch(name)]
    if unknown:
        raise Unsafe(f"it holds {unknown[0]}, which may be code")
    if "models/model.json" not in parts:
        raise Unsafe("it holds no network")
    try:
        torch.load(io.BytesIO(parts["data/sample_inputs/model.pt"]), weights_only=True)
    except Exception as error:  # pickle's, zipfile's; PyTorch itself would run them then
        raise Unsafe("its example holds pickled objects, which would run when read") from error
    return parts


def _check_numbers(name: str, about: Any) -> None:
    """Raise Unsafe if weights or constants are stored as anything else than their bytes."""
    for each in about["config"].values():
        if each.get("use_pickle") or not NUMBERS.fullmatch(each["path_name"]):
            raise Unsafe(f"{name} tells of pickled objects, which would run when they are read")


def _check_operations(network: Any) -> None:
    """Raise Unsafe for what is no operation on tensors, or no expression of sizes."""
    for key, value in _texts(network):
        if key == "expr_str" and not _is_size(value):
            raise Unsafe(f"a size is no arithmetic: {value[:60]}")
        if key == "target" and (not OPERATION.fullmatch(value) or value.startswith(READS_FILES)):
            raise Unsafe(f"{value[:60]} is no operation on tensors")
        if key in ("in_spec", "out_spec") and re.search(r"enum|\\u", value):  # which are imported
            raise Unsafe("what it takes or answers is no tensor")


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """All texts in parsed JSON, each with the key under which it lies."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _texts(each, name)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each, key)
    elif isinstance(value, str):
        yield key, value


def _is_size(text: str) -> bool:
    """Is this arithmetic on symbols? SymPy would evaluate it as Python."""
    rest = SYMBOL.sub("", text)
    words = re.findall(r"[^\W\d]\w*", rest)
    return bool(SIGNS.fullmatch(rest)) and all(map(WORDS.fullmatch, words))
