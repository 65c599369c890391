"""The commands that Dagster's documentation leads with, of the package dagster-dg-cli, where a clone's files are."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.definitions import definitions
from tests.iterations import Iterations
from tests.loop import ROOT, environment

DG = shutil.which("dg", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(DG is None, reason="there is no dg here: pip install dagster-dg-cli"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    for name in ("dagster.yaml", ".env", "pyproject.toml"):
        shutil.copy(ROOT / name, root)
    (root / "jobs").symlink_to(ROOT / "jobs")  # dg check wants to find the module in the project
    return root


def typed(folder: Path, data: Path, *words: str) -> subprocess.CompletedProcess[str]:
    assert DG is not None
    variables = {
        **environment(folder, data),
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(DG).parent}:{os.environ['PATH']}",
    }
    return subprocess.run([DG, *words], cwd=folder, env=variables, capture_output=True, text=True, check=False)


def test_dg_lists_and_checks_what_dagster_sees(folder: Path, tmp_path: Path) -> None:
    listed = typed(folder, tmp_path / "data", "list", "defs", "--json")
    assert listed.returncode == 0, listed.stderr
    seen = json.loads(listed.stdout)
    repository = definitions.get_repository_def()
    assert {each["name"] for each in seen["jobs"]} == {*repository.job_names} - {"__ASSET_JOB"}
    assert {each["name"] for each in seen["sensors"]} == {each.name for each in repository.sensor_defs}
    keys = definitions.resolve_asset_graph().get_all_asset_keys()
    assert {tuple(each["asset_key_parts"]) for each in seen["assets"]} == {tuple(key.path) for key in keys}
    checked = typed(folder, tmp_path / "data", "check", "defs")
    assert checked.returncode == 0, checked.stderr
    assert "All definitions loaded successfully" in checked.stdout + checked.stderr


@pytest.mark.variant
def test_dg_launches_the_loop(folder: Path, iterations: Iterations, tmp_path: Path) -> None:
    """Over an iteration that has ended: it says so, and changes nothing."""
    data = iterations.first(tmp_path / "first") / "data"
    launched = typed(folder, data, "launch", "--job", "preference_tuning")
    assert launched.returncode == 0, launched.stderr
    assert "Nothing new since iteration" in launched.stdout + launched.stderr
