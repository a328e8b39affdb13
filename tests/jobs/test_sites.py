"""Sites: entries of sites.toml, the user's file over them, and messages that help."""

from dataclasses import replace
from pathlib import Path

import pytest

from course.config import Config
from course.data import folders
from course.data.folders import DataError
from course.jobs import plan, sites


def test_user_file_overrides_single_settings(user_sites: Path) -> None:
    user_sites.write_text('[local]\ntime_min = 1.5\n\n[other]\ndata_root = "/images"\n')
    local, other = sites.get("local"), sites.get("other")
    assert (local.time_min, local.executor) == (1.5, "local")
    assert (other.name, other.data_root) == ("other", "/images")


@pytest.mark.parametrize("content", [b"[local\n", b"time_min = 5\n", b'[local]\nqos = "\xe9"\n'])
def test_a_file_that_cannot_be_read_is_named(user_sites: Path, content: bytes) -> None:
    user_sites.write_bytes(content)
    with pytest.raises(ValueError) as caught:
        sites.get("local")
    assert str(user_sites) in str(caught.value)


def test_settings_of_slurm_alone_are_refused_elsewhere(user_sites: Path) -> None:
    user_sites.write_text('[local]\npartition = "gpu"\n')
    with pytest.raises(ValueError, match='partition is a setting of Slurm.*executor = "slurm"'):
        sites.get("local")


@pytest.mark.parametrize(
    "line, expected",
    [
        ('executor = "pigeon"', "executor='pigeon': expected one of local"),
        ("time_min = 0", "time_min=0: expected minutes, above 0"),
        ("nodes = 0", "nodes=0: expected a whole number above 0"),
        ('account = "a\\ntouch x"', "account='a.*': expected one line of text"),
        ('modules = "cuda"', r'modules=\'cuda\': expected a list of texts: modules = \["'),
        ('sbatch = ["nice; touch x=5"]', "sbatch='nice; touch x=5': write name=value"),
        ('partitoin = "gpu"', r"'partitoin' \(did you mean 'partition'\?\): choose executor, time"),
    ],
)
def test_a_wrong_setting_names_what_was_expected_and_the_file(
    user_sites: Path, line: str, expected: str
) -> None:
    user_sites.write_text(f"[slurm]\n{line}\n")
    with pytest.raises(ValueError, match=f"site 'slurm'.*{expected}") as caught:
        sites.get("slurm")
    assert str(user_sites) in str(caught.value)


def test_imagenet_takes_the_folder_of_the_config_then_of_the_site(tmp_path: Path) -> None:
    site, wanted = sites.Site("here", data_root=str(tmp_path)), Config(data="imagenet")
    own = replace(wanted, data_root=str(tmp_path / "images"))
    for split in ("train", "val", "images/train", "images/val"):
        (tmp_path / split).mkdir(parents=True)
    assert plan._with_data_root(wanted, site).data_root == str(tmp_path)
    assert plan._with_data_root(own, site).data_root == own.data_root


def test_missing_data_is_refused_before_a_job_waits(tmp_path: Path) -> None:
    site, wanted = sites.Site("here"), Config(data="imagenet")
    with pytest.raises(ValueError, match="needs data_root, a folder with train/ and val/"):
        plan._with_data_root(wanted, site)
    wanted = replace(wanted, data_root=str(tmp_path))
    (tmp_path / "train").mkdir()
    with pytest.raises(ValueError, match="data_root=.*: expected .*, and it has no val"):
        plan._with_data_root(wanted, site)
    (tmp_path / "val").mkdir()
    with pytest.raises(DataError, match="not converted yet: course data --from .* --as shards"):
        plan._with_data_root(replace(wanted, format="shards"), site)
    assert plan._with_data_root(wanted, replace(site, executor="slurm"))
    (shards := tmp_path / "shards").mkdir()
    (shards / folders.INDEX).write_text('{"kind": "shards"}')  # they need no other folder
    assert plan._with_data_root(replace(wanted, format="shards", data_root=str(shards)), site)
