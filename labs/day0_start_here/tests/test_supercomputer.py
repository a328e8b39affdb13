"""The machine that one is on, the cluster around it, and the figures of Day 0."""

import itertools
import os
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import psutil
import pytest
from cases import for_all
from job_helpers import eventually, small_disk
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from course.config import GIB
from course.jobs.own_slurm import environment
from labs.day0_start_here import figures as plots
from labs.day0_start_here import history, nodes
from labs.day0_start_here.drawing import size
from labs.day0_start_here.figures import USE_COLOURS
from labs.day0_start_here.nodes import Cluster, Disk, Gpu, Machine, Node

HERE = Disk(("runs", "data", "home"), "/", "ext4", False, 252, 45)
LAPTOP = Machine("laptop", "AMD EPYC", 1, 2, 2, 2, 24, 20, (), (HERE,))
LARGE_NODE = Machine(
    host="gpu017",
    cpu="AMD EPYC 7763 64-Core Processor",
    sockets=2,
    cores=128,
    threads=256,
    usable=4,
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


def made_up(number: int, partition: str, gpus: int, state: str) -> Node:
    used = {"mixed": 1, "allocated": 2}.get(state, 0)
    gpus_used = gpus * used // 2
    return Node(f"n{number:03}", (partition,), state, 40, 20 * used, 187, gpus, gpus_used)


STATES = ("idle", "mixed", "allocated", "drained", "idle*")
CLUSTER = Cluster(
    nodes=(
        *(made_up(n, "cpu", 0, STATES[n % 5]) for n in range(150)),
        *(made_up(n, "gpu", 4, STATES[n % 5]) for n in range(140)),
        *(made_up(n, "large", 8, STATES[n % 5]) for n in range(10)),
    ),
    limits_min={"cpu": 1200, "gpu": 6000, "large": float("inf")},
    waiting=312,
    running=540,
)


@for_all(
    "gres, count",
    [
        ("gpu:4", 4),
        ("gpu:a100:8(S:0-1),nvme:2", 8),
        ("gpu:v100:3(IDX:0,2-3)", 3),
        ("(null)", 0),
        ("", 0),
        ("gpu", 1),
        ("nvme:2", 0),
        ("gpu:a100:2,gpu:mig:7", 9),
    ],
)
def test_counts_gpus_in_words_of_slurm(gres: str, count: int) -> None:
    assert nodes.gpu_count(gres) == count


def test_a_node_in_two_partitions_is_one_node() -> None:
    told = """n1|gpu|mixed|16|5/11/0/16|4096|gpu:4|gpu:3(IDX:0-2)|
    n1|urgent|mixed|16|5/11/0/16|4096|gpu:4|gpu:3(IDX:0-2)|
    a line of another form
    n2|gpu|drained|16|0/0/16/16|4096|gpu:4|gpu:0|"""
    first, second = nodes.nodes(told)
    assert first == Node("n1", ("gpu", "urgent"), "mixed", 16, 5, 4.0, 4, 3)
    assert (first.free_gpus, second.free_gpus) == (1, 0)


@for_all(
    "state, up, free",
    [
        ("idle", True, True),
        ("mixed", True, False),
        ("allocated", True, False),
        ("idle*", False, False),
        ("idle~", True, True),
        ("drained", False, False),
        ("down*", False, False),
    ],
)
def test_only_a_node_that_answers_is_free(state: str, up: bool, free: bool) -> None:
    node = made_up(1, "gpu", 4, state)
    assert (node.is_up, node.is_free) == (up, free)
    assert node.free_gpus == (0 if not up else 4 - node.gpus_used)


def test_the_table_of_partitions_counts() -> None:
    rows = CLUSTER.table().set_index("partition")
    assert rows.loc["gpu"].to_dict() == {
        "nodes": 140,
        "free nodes": 28,
        "GPUs a node": "4",
        "GPUs": 560,
        "free GPUs": 28 * 4 + 28 * 2,
        "cores a node": "40",
        "longest job": "4.17 days",
    }
    assert rows.loc["large", "longest job"] == "no limit"


def test_this_machine_is_what_the_system_says() -> None:
    found = nodes.machine()
    assert found.threads == psutil.cpu_count()
    assert found.memory_gib * GIB == psutil.virtual_memory().total
    assert 1 <= found.sockets <= found.cores <= found.threads
    assert {use for disk in found.disks for use in disk.uses} == {"runs", "data", "home"}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be chosen here")
def test_only_cores_that_may_be_used_are_called_usable() -> None:
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(own)})
    try:
        assert nodes.machine().usable == 1
    finally:
        os.sched_setaffinity(0, own)


def test_folders_on_one_disk_are_one_disk_and_others_another(tmp_path: Path) -> None:
    places = {"runs": tmp_path / "not" / "made" / "yet", "data": tmp_path}
    (only,) = nodes.disks(places)
    assert only.uses == ("runs", "data")
    assert only.total_gib * GIB == shutil.disk_usage(tmp_path).total
    with small_disk(tmp_path / "small", "64M") as small:
        own, other = nodes.disks({"runs": tmp_path, "data": small / "data"})
        assert (other.kind, other.path, other.total_gib) == ("tmpfs", str(small), 64 / 1024)
        assert own.uses == ("runs",)


@for_all("kind, shared", [("nfs4", True), ("lustre", True), ("fuse.beegfs", True), ("ext4", False)])
def test_knows_file_systems_that_nodes_share(kind: str, shared: bool) -> None:
    assert nodes.is_shared(kind) == shared


def test_no_cluster_without_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert nodes.cluster() is None


def test_a_real_cluster_tells_nodes_and_what_is_free(slurm: Path) -> None:
    found = nodes.cluster()
    assert [(node.name, node.gpus, node.is_free) for node in found.nodes] == [
        ("node1", 4, True),
        ("node2", 4, True),
    ]
    assert set(found.limits_min) == {"gpu", "urgent"}
    assert {*found.nodes[0].partitions} == {"gpu", "urgent"}
    assert found.table()["free GPUs"].tolist() == [8, 8]
    env = {**os.environ, **environment()}
    words = ["sbatch", "--parsable", "--gres=gpu:3", "--cpus-per-task=5", "--output=/dev/null"]
    job = subprocess.run([*words, "--wrap=sleep 60"], env=env, capture_output=True, text=True)
    assert job.returncode == 0, job.stderr
    eventually(lambda: nodes.cluster().running == 1, "the job runs", timeout_s=30)
    busy = nodes.cluster()
    subprocess.run(["scancel", job.stdout.strip()], env=env, check=True)
    assert sum(node.free_gpus for node in busy.nodes) == 5
    assert sorted(node.cores_used for node in busy.nodes) == [0, 5]


@pytest.mark.parametrize("here", [LAPTOP, LARGE_NODE], ids=["laptop", "large"])
def test_the_drawing_of_a_node_has_each_core_and_gpu(here: Machine) -> None:
    picture = plots.plot_node(here)
    assert_words_are_on_the_page(picture)
    squares = [patch for patch in picture.axes[0].patches if isinstance(patch, Rectangle)]
    gauges = 2 * (1 + len(here.disks))
    assert len(squares) == here.cores + len(here.gpus) + gauges


def test_cores_that_may_not_be_used_are_grey() -> None:
    picture = plots.plot_node(LARGE_NODE)  # 4 of 256 threads: 2 cores
    assert len(drawn(picture, USE_COLOURS["full"])) == 2
    assert "you may use 4 of 256 threads" in picture.alt and "GPU 7 79 GiB" in picture.alt


def test_the_drawing_of_a_cluster_has_each_node_in_the_colour_of_its_use() -> None:
    picture = plots.plot_cluster(CLUSTER, LARGE_NODE)
    assert_words_are_on_the_page(picture)
    legend = [text.get_text() for text in picture.legends[0].get_texts()]
    assert legend == ["free: 60", "partly used: 60", "full: 60", "not available: 120"]
    for use, count in (("partly used", 60), ("not available", 120)):
        assert len(drawn(picture, USE_COLOURS[use])) == count, use


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 10, 11, 3000])
def test_a_cluster_of_any_size_fits(count: int) -> None:
    nodes = tuple(made_up(n, "all", 8, STATES[n % 5]) for n in range(count))
    picture = plots.plot_cluster(Cluster(nodes, {"all": 60}, 0, 0), LAPTOP)
    assert_words_are_on_the_page(picture)
    assert picture.get_size_inches()[1] < 8


@for_all("gib, words", [(3.91, "3.9 GiB"), (252, "252 GiB"), (2015, "2.0 TiB"), (4.6e6, "4.4 PiB")])
def test_sizes_for_people(gib: float, words: str) -> None:
    assert size(gib) == words


@for_all(
    "minutes, words",
    [(45, "45 min"), (120, "2 h"), (1200, "20 h"), (7200, "5 days"), (float("inf"), "no limit")],
)
def test_times_for_people(minutes: float, words: str) -> None:
    assert nodes.clock(minutes) == words


def test_every_published_figure_has_its_source() -> None:
    for table in (history.training_times(), history.power()):
        assert table["source"].str.len().min() > 20
        assert not table["source"].str.contains("http").any()


def test_device_hours_and_speed_are_worked_out() -> None:
    table = history.training_times().set_index("who")
    assert table.loc["Facebook (one node)", "device_hours"] == 8 * 29
    assert table.loc["Facebook", "device_hours"] == 256
    # 90 epochs of 1,281,167 images in 14 days on one GPU.
    assert table.iloc[0]["images_per_s_each"] == pytest.approx(95.3, abs=0.1)
    assert table.loc["Fujitsu", "images_per_s_each"] == pytest.approx(1.73e6 / 2048)
    unknown = table["epochs"].isna() & table["images_per_s"].isna()
    assert table["images_per_s_each"].isna().equals(unknown)
    assert unknown.any()


def test_power_by_performance() -> None:
    table = history.power().set_index("device")
    assert table["performance_per_kw"].idxmax() == "A100 PCIe"
    assert table.loc["A100 SXM", "performance_per_kw"] == 1.00 / 0.400


@for_all(
    "name, watts",
    [
        ("Tesla V100-SXM2-32GB", 300),
        ("NVIDIA A100-SXM4-80GB", 400),
        ("NVIDIA A100-PCIE-40GB", 250),
        ("NVIDIA H200 (recorded 2026-11-21)", 700),
        ("AMD EPYC, 2 cores", None),
        ("", None),
    ],
)
def test_finds_the_most_that_a_gpu_may_draw(name: str, watts: float | None) -> None:
    assert history.max_watts(name) == watts


def test_a_full_training_is_epochs_by_speed() -> None:
    speeds = [history.IMAGENET_IMAGES / 3600, 100.0]  # an epoch an hour
    runs = pd.DataFrame(
        {"rung": ["a", "b"], "machine": ["NVIDIA H200", "a CPU"], "images_per_s": speeds}
    )
    table = history.full_training(runs, epochs=10)
    assert table["hours"][0] == pytest.approx(10)
    assert table["kwh"][0] == pytest.approx(7.0)
    assert table["kwh"].isna()[1]
    assert table["watts_are"].tolist() == ["its maximum", "not known"]


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_what_a_meter_said_goes_before_the_table(missing: float | None) -> None:
    runs = pd.DataFrame(
        {
            "rung": ["a", "b"],
            "machine": ["NVIDIA H200"] * 2,
            "images_per_s": [1000.0] * 2,
            "watts": [512.5, missing],
        }
    )
    table = history.full_training(runs)
    assert table["watts"].tolist() == [512.5, 700]
    assert table["watts_are"].tolist() == ["measured", "its maximum"]


@pytest.mark.parametrize(
    "draw, read",
    [(plots.plot_training_times, history.training_times), (plots.plot_power, history.power)],
)
def test_pictures_of_facts_say_what_was_not_told(draw, read) -> None:
    picture = draw(read())
    assert_words_are_on_the_page(picture)
    said = [text.get_text().strip() for axes in picture.axes for text in axes.texts]
    assert "?" in said


def drawn(picture: plots.Picture, colour: str) -> list[Rectangle]:
    shapes = [each for each in picture.axes[0].patches if isinstance(each, Rectangle)]
    return [each for each in shapes if to_hex(each.get_facecolor()) == colour.lower()]


def assert_words_are_on_the_page(picture: plots.Picture) -> None:
    """No text may leave the page, and none may run into another."""
    picture.draw_without_rendering()
    page = picture.bbox
    for axes in picture.axes:
        labels = [axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label]
        said = [text for text in [*axes.texts, *labels] if text.get_text()]
        extents = {text: text.get_window_extent() for text in said}
        for text, words in extents.items():
            assert page.x0 <= words.x0 and words.x1 <= page.x1, text.get_text()
            assert page.y0 <= words.y0 and words.y1 <= page.y1, text.get_text()
        for one, other in itertools.combinations(extents, 2):
            assert not extents[one].overlaps(extents[other]), (one.get_text(), other.get_text())
