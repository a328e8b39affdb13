"""The elective labs on a GPU: kernels are compiled, CUDA graphs return results."""

from dataclasses import replace

import pytest
import torch

from course.training import models
from electives import inference as inference
from electives import kernel as kernels
from electives.inference.variants import create_call, random_images
from electives.kernel import cuda, solutions
from electives.microscope.wmma import run_wmma

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["add", "softmax", "norm_relu", "matmul"])
def test_a_learners_kernel_is_timed_where_it_is_compiled(name: str) -> None:
    table = kernels.time_on_gpu(getattr(solutions, name))
    assert {"Triton", "PyTorch"} <= {*table["by"]} and (table["seconds"] > 0).all()


@pytest.mark.skipif(cuda.nvcc() is None, reason="nvcc is missing")
def test_kernels_in_cuda_compute_what_pytorch_computes(capsys: pytest.CaptureFixture) -> None:
    compiled = cuda.load_kernels()
    x, y, out = torch.randn(3, 1000, 1000, device="cuda")
    compiled.cuda_add(x, y, out)
    assert torch.equal(out, x + y)
    compiled.cuda_row_maximum(x, most := torch.empty(1000, device="cuda"))
    assert torch.equal(most, x.amax(1))
    run_wmma()
    assert float(capsys.readouterr().out.rsplit("by ", 1)[1].split()[0]) < 1e-4


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_a_graph_gives_the_scores_that_kernels_give(name: str) -> None:
    torch.manual_seed(0)
    net = models.create("resnet18_cifar", 16).cuda()
    images = random_images(net, 4, 32)
    net(images)
    eager = inference.Variant(name, channels_last=True, folded=True)
    one = create_call(net, images, eager)()
    graph = create_call(net, images, replace(eager, graph=True))
    for _ in range(2):  # the same memory each time
        assert torch.allclose(
            graph().float(), one.float(), rtol=0.02, atol=0.02 * float(one.abs().max())
        )
