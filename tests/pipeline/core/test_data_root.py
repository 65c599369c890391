"""What is refused as a data root, where an erasure would delete and a sweep would tidy."""

from pathlib import Path

import pytest

from pipeline.recipe import load
from pipeline.recipe.data_root import data_root_problem
from tests.loop import EMBEDDED


@pytest.mark.parametrize("mark", [".git", "pyproject.toml", "dagster.yaml"])
def test_a_project_is_no_data_root(mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / mark).mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=rf"data_root: {tmp_path} is a project \(it holds {mark}\)\. Name a folder"):
        load(EMBEDDED, ["data_root=."])
    assert load(EMBEDDED, []).data_root == "data", "below a project is where it is meant to be"


@pytest.mark.parametrize(
    ("place", "what"),
    [("/", "mount point"), ("/proc/self", "the system's"), ("/dev/null", "a device"), ("~", "a home"), ("/dev", "the")],
)
def test_a_home_a_device_and_a_disk_are_none(
    place: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert what in data_root_problem(place)


def test_a_link_to_a_project_is_one_too(tmp_path: Path) -> None:
    (tmp_path / "project" / ".git").mkdir(parents=True)
    (tmp_path / "data").symlink_to(tmp_path / "project")
    assert "a project" in data_root_problem(str(tmp_path / "data"))
    assert data_root_problem(str(tmp_path / "project" / "data")) == ""
