"""The machine, the cluster around it, and their figures."""

import itertools

import pytest

from course.charts import Picture
from labs import start_here as lab
from labs.start_here.nodes import Disk, Gpu, Machine, gpu_count

LAPTOP_DISK = Disk(("runs", "data", "home"), "/", "ext4", False, 252, 45)
LAPTOP = Machine("laptop", "AMD EPYC", 1, 2, 2, 2, 24, 20, (), (LAPTOP_DISK,))
LARGE_NODE = Machine(
    host="gpu017",
    cpu="AMD EPYC 7763 64-Core Processor",
    sockets=2,
    cores=128,
    threads=256,
    usable_threads=4,
    memory_gib=2015,
    memory_free_gib=1890,
    gpus=tuple(Gpu("NVIDIA A100-SXM4-80GB", 79.2) for _ in range(8)),
    disks=(
        Disk(("runs",), "/a", "lustre", True, 4.6e6, 2.2e6),
        Disk(("data",), "/b", "lustre", True, 9e5, 1e5),
        Disk(("home",), "/c", "nfs4", True, 9000, 3000),
    ),
    job_id="123456",
)


@pytest.mark.parametrize(
    "gres, count",
    [
        ("gpu:a100:8(S:0-1),nvme:2", 8),
        ("gpu:v100:3(IDX:0,2-3)", 3),
        ("(null)", 0),
        ("gpu", 1),
    ],
)
def test_gpus_in_generic_resources(gres: str, count: int) -> None:
    assert gpu_count(gres) == count


@pytest.mark.slow
def test_words_fit_into_the_figures_of_any_node() -> None:
    for machine in (LAPTOP, LARGE_NODE):
        assert_words_fit(lab.plot_node(machine))
    alt = lab.plot_node(LARGE_NODE).alt
    for words in ("you may use 4 of 256 threads", "GPU 7 79 GiB", "2.1 PiB of 4.4 PiB free"):
        assert words in alt


def assert_words_fit(picture: Picture) -> None:
    """Check that no text leaves the page or overlaps a different one."""
    picture.draw_without_rendering()
    for axes in picture.axes:
        labels = [axes.title, axes.xaxis.label, axes.yaxis.label]
        texts = [text for text in [*axes.texts, *labels] if text.get_text()]
        boxes = [text.get_window_extent() for text in texts]
        for text, box in zip(texts, boxes):
            assert picture.bbox.x0 <= box.x0 and box.x1 <= picture.bbox.x1, text.get_text()
            assert picture.bbox.y0 <= box.y0 and box.y1 <= picture.bbox.y1, text.get_text()
        assert not any(first.overlaps(second) for first, second in itertools.combinations(boxes, 2))
