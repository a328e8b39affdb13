"""The lab of a first kernel says what was recorded, and what is published."""

from functools import cache

import pandas as pd
from claims import text_of

from course.runs import recordings
from course.runs.run import PROJECT
from course.topics import gpus, kernels

TEXT = text_of("lab_kernel")


def said(words: str) -> None:
    assert words in TEXT, words


@cache
def h100() -> pd.DataFrame:
    return kernels.recorded("nvidia-h100")


def of(kernel: str) -> pd.DataFrame:
    return h100()[h100()["kernel"] == kernel]


def test_an_addition() -> None:
    said("An H100 copies 3.02 TB a second")
    copied = recordings.load("nvidia-h100")["ceilings"]["copy_tb_per_s"]
    assert round(copied, 2) == 3.02
    said("3.2 GB at 3.02 TB/s are 1.07 ms, and 1.06 were recorded")
    assert round(12 * 2**28 / 1e9, 1) == 3.2 and round(12 * 2**28 / copied / 1e9, 2) == 1.07
    added = of("add")
    largest = added[added["size"] == 2**28].set_index(["by", "block"])
    assert round(1e3 * largest.loc[("Triton", 1024), "seconds"], 2) == 1.06
    pytorch = largest.loc["PyTorch", "seconds"].item()
    assert round(1e3 * pytorch, 2) == 1.06
    said("short vectors take 4 µs, however short")
    short = added[added["size"] <= 2**14]["seconds"]
    assert {round(each * 1e6) for each in short} <= {4, 5} and round(short.min() * 1e6) == 4
    said("with 32 numbers a program reaches 21 %, since it has 128 threads (4 warps)")
    shares = largest.loc["Triton", "share"]
    assert round(shares[32], 2) == 0.21 and (shares[shares.index >= 256] > 0.98).all()
    said("CUDA C++, with one number a thread, [stays at 92 %]")
    assert round(largest.loc["CUDA C++", "share"].item(), 2) == 0.92


def test_fused_kernels() -> None:
    normed = of("norm_relu").set_index("by")["seconds"]
    said("Half of the bytes, and even 2.4 times as fast")
    assert round(normed["PyTorch"] / normed["Triton"], 1) == 2.4
    said("`torch.compile` finds the same")
    assert normed["PyTorch, compiled"] / normed["Triton"] < 1.15
    soft = of("softmax").pivot(index="size", columns="by", values="seconds").loc[[1024, 16384]]
    ratio = (soft["PyTorch, step by step"] / soft["Triton"]).round(1)
    said(
        "Five operators for a softmax take 4.5 to 4.7 times as long as one, where the bytes said 4."
    )
    assert (ratio.min(), ratio.max()) == (4.5, 4.7)
    said("with long rows yours is a little faster")
    assert 1.1 < soft.loc[16384, "PyTorch"] / soft.loc[16384, "Triton"] < 1.3


def test_a_product_beside_cublas() -> None:
    products = of("matmul").query("dtype == 'bf16'").fillna({"block": 0})
    speed = products.set_index(["size", "by", "block"])["tflop_per_s"].sort_index()
    said("Your kernel's squares of 16 reach 20 TFLOP/s, those of 128 reach 477")
    assert speed.loc[4096, "Triton"][[16, 128]].round().tolist() == [20, 477]
    said("The large tiles reach 636 of cuBLAS's 704, from ten lines.")
    tuned, cublas = (speed[:, each, 0] for each in ("Triton, tuned", "PyTorch"))
    assert (round(tuned[4096]), round(cublas[4096])) == (636, 704)
    tall, wide, deep, *_ = kernels.measured.TILES[2]
    said("with tiles of 128 × 256, in steps of 64")
    assert (tall, wide, deep) == (128, 256, 64)
    said("1,024 rows make 32 large tiles, and the GPU has 132 multiprocessors")
    assert (1024 // tall) * (1024 // wide) == 32 and gpus.summary().loc["H100", "sms"] == 132
    said("There your tile of 64 is faster than they are")
    assert tuned[1024] < speed[1024, "Triton", 64] < cublas[1024]


def test_what_is_published() -> None:
    said("From the V100 to the B200, products in fp16 became 18 times as fast, and the memory 9")
    table = gpus.summary()
    assert table.loc["B200", "fp16"] / table.loc["V100", "fp16"] == 18
    assert round(table.loc["B200", "tb_per_s"] / table.loc["V100", "tb_per_s"]) == 9
    said("fp8 came with Hopper, fp4 with Blackwell, and int4 went")
    cores = gpus.precisions()["tensor_cores"]
    assert "fp8" in cores["Hopper"] and "fp8" not in cores["Ampere"]
    assert "fp4" in cores["Blackwell"] and "fp4" not in cores["Hopper"]
    assert "int4" in cores["Ampere"] and "int4" not in cores["Hopper"]


def test_tf32_behind_the_lab() -> None:
    page = " ".join((PROJECT / "docs/behind-the-labs.md").read_text().split())
    assert "they reached 84 TFLOP/s at 8,192 rows where cuBLAS has 344" in page
    speed = of("matmul").query("dtype == 'tf32' and size == 8192").set_index("by")["tflop_per_s"]
    assert speed[["Triton, tuned", "PyTorch"]].round().tolist() == [84, 344]
