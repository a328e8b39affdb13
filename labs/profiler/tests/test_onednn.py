"""The kernels of a CPU, from oneDNN's verbose lines."""

from pathlib import Path

import pytest
import torch
from torch import nn
from trace_files import onednn_line

from course.training.profiling import onednn_log
from trainspeed.tensor_cores.onednn import onednn, onednn_summary

# They depend on the 16-bit hardware of the CPU: make test-formats.
pytestmark = pytest.mark.formats


def test_onednn_account_of_a_real_convolution(tmp_path: Path) -> None:
    path = tmp_path / "onednn.csv"
    model, images = nn.Conv2d(16, 32, 3), torch.randn(4, 16, 32, 32)
    with onednn_log(path):
        model(images).sum().backward()
    table = onednn(path)
    if not torch.backends.mkldnn.is_available() or table.empty:
        pytest.skip("PyTorch computes convolutions without oneDNN on this machine")
    work = table[table["primitive"] == "convolution"]
    assert set(work["pass"]) >= {"forward_training", "backward_weights"}
    assert set(work["type"]) == {"f32"} and table.attrs["isa"]
    assert table["share"].sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("kernel", "kind", "words"),
    [
        ("brgconv:avx512_core_amx", "bf16", "AMX tiles did their work"),
        ("brgconv:avx512_core_bf16", "bf16", "AVX-512 bf16 units did their work"),
        ("ref:any", "bf16", "emulated"),
        ("jit:avx512_core", "f32", "No kernel of oneDNN ran in half precision"),
    ],
)
def test_onednn_summary_names_the_units(tmp_path: Path, kernel: str, kind: str, words: str) -> None:
    path = tmp_path / "onednn.csv"
    cut_off = "onednn_verbose,v1,primitive,exec,cpu,conv"
    path.write_text(onednn_line(kernel, kind, 30) + onednn_line("jit:avx2", "f32", 10) + cut_off)
    table = onednn(path)
    assert table["seconds"].tolist() == pytest.approx([0.03, 0.01])
    assert words in onednn_summary(table) and "75%" in onednn_summary(table)
