"""Sites: entries of sites.toml, the user's file over them, and messages that help."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from cases import for_all

from course.config import Config
from course.jobs import engines, plan, sites


@pytest.fixture
def user_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own file, empty at first."""
    path = tmp_path / "my_sites.toml"
    path.touch()
    monkeypatch.setenv("COURSE_SITES", str(path))
    return path


def test_local_is_there_without_a_user_file(user_sites: Path) -> None:
    site = sites.get("local")
    assert (site.name, site.executor, site.time_min) == ("local", "local", 60)


def test_unknown_site_lists_the_known_and_the_file(user_sites: Path) -> None:
    user_sites.write_text("[mine]\ntime_min = 5\n")
    with pytest.raises(ValueError, match="no site 'moon': choose local, slurm, .*mine") as caught:
        sites.get("moon")
    assert str(user_sites) in str(caught.value)


def test_user_file_overrides_single_settings(user_sites: Path) -> None:
    user_sites.write_text('[local]\ntime_min = 1.5\n\n[other]\ndata_root = "/images"\n')
    local, other = sites.get("local"), sites.get("other")
    assert (local.time_min, local.executor) == (1.5, "local")
    assert (other.name, other.data_root) == ("other", "/images")


def test_broken_toml_names_the_file(user_sites: Path) -> None:
    user_sites.write_text("[local\ntime_min = 5\n")
    with pytest.raises(ValueError, match="cannot be read as TOML.*line 1") as caught:
        sites.get("local")
    assert str(user_sites) in str(caught.value)


def test_file_that_is_no_text_is_named(user_sites: Path) -> None:
    user_sites.write_bytes(b'[local]\ndata_root = "/donn\xe9es"\n')
    with pytest.raises(ValueError) as caught:
        sites.get("local")
    assert str(user_sites) in str(caught.value)


def test_setting_outside_a_site_is_refused_with_the_file(user_sites: Path) -> None:
    user_sites.write_text("time_min = 5\n")
    with pytest.raises(ValueError) as caught:
        sites.get("local")
    assert str(user_sites) in str(caught.value)


def test_unknown_setting_lists_the_valid_ones(user_sites: Path) -> None:
    user_sites.write_text('[local]\npartitoin = "gpu"\n')
    with pytest.raises(ValueError, match="'partitoin'.*executor, time_min, data_root"):
        sites.get("local")


def test_settings_of_slurm_alone_are_refused_elsewhere(user_sites: Path) -> None:
    user_sites.write_text('[local]\npartition = "gpu"\n')
    with pytest.raises(ValueError, match='partition is a setting of Slurm.*executor = "slurm"'):
        sites.get("local")


@pytest.mark.parametrize(
    "line",
    [
        "nodes = 0",
        "gpus_per_node = 1.5",
        'sbatch = ["--nice=5"]',
        'sbatch = ["nice; touch x=5"]',
        'sbatch = ["comment=a\\ntouch x"]',
        'account = "a\\ntouch x"',
        "qos = 3",
    ],
)
def test_settings_of_slurm_are_checked(user_sites: Path, line: str) -> None:
    user_sites.write_text(f"[slurm]\n{line}\n")
    with pytest.raises(ValueError, match=line.partition(" ")[0]):
        sites.get("slurm")


def test_unknown_setting_names_the_file(user_sites: Path) -> None:
    user_sites.write_text('[local]\npartitoin = "gpu"\n')
    with pytest.raises(ValueError) as caught:
        sites.get("local")
    assert str(user_sites) in str(caught.value)


@pytest.mark.parametrize(
    "line, said",
    [
        ('executor = "pigeon"', "executor must be one of local"),
        ("time_min = 0", "time_min=0: it must be above 0"),
        ('time_min = "long"', "time_min"),
    ],
)
def test_wrong_value_names_site_and_setting(user_sites: Path, line: str, said: str) -> None:
    user_sites.write_text(f"[local]\n{line}\n")
    with pytest.raises(ValueError, match=f"site 'local': {said}"):
        sites.get("local")


@for_all("executor", sites.EXECUTORS)
def test_an_engine_does_all_that_is_asked_of_one(executor: str) -> None:
    asked = [name for name in vars(engines.Engine) if not name.startswith("_")]
    assert {"answer", "submit", "tell"} < set(asked)
    assert [name for name in asked if not callable(getattr(engines.engine(executor), name))] == []


def test_gpus_out_of_range() -> None:
    site = sites.Site("here")
    most = max(sites.ANYWHERE, os.cpu_count() or 1)
    for fitting in (1, most):
        site.check_gpus(fitting)
    for gpus in (-1, 0, most + 1):
        with pytest.raises(ValueError, match=f"gpus={gpus}: site 'here' takes 1 to {most}"):
            site.check_gpus(gpus)


def test_imagenet_takes_the_folder_of_the_config_then_of_the_site(tmp_path: Path) -> None:
    site, wanted = sites.Site("here", data_root=str(tmp_path)), Config(data="imagenet")
    assert plan._with_data_root(wanted, site).data_root == str(tmp_path)
    own = replace(wanted, data_root="/images")
    assert plan._with_data_root(own, site).data_root == "/images"


def test_imagenet_without_a_folder_says_where_to_set_it() -> None:
    with pytest.raises(ValueError, match="needs data_root, a folder with train/ and val/"):
        plan._with_data_root(Config(data="imagenet"), sites.Site("here"))
