"""Dagster's PostgreSQL killed in the midst of a launch and started again: the same command ends the run."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.jobs.test_launch import DEADLINE_S, REPOSITORY, Clone
from tests.marked import kill
from tests.servers import postgres, restart_postgres

pytestmark = [pytest.mark.slow, pytest.mark.variant]


@pytest.fixture
def database() -> Iterator[tuple[Path, str]]:
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as folder, postgres(Path(folder)) as url:
        yield Path(folder), url.replace("postgresql:", "postgresql+psycopg2:", 1)


@pytest.fixture
def clone(database: tuple[Path, str], tmp_path: Path) -> Iterator[Clone]:
    root, outputs = tmp_path / "clone", tmp_path / "outputs"
    for folder in (root, outputs):
        folder.mkdir()
    for source in (REPOSITORY / ".env", Path(__file__).with_name("toy_definitions.py")):
        shutil.copy(source, root)
    instance = yaml.safe_load((REPOSITORY / "dagster.yaml").read_text())
    instance["storage"] = {"postgres": {"postgres_url": database[1]}}
    (root / "dagster.yaml").write_text(yaml.safe_dump(instance))
    (root / "pyproject.toml").write_text('[tool.dagster]\nmodule_name = "toy_definitions"\n')
    (root / ".dagster").mkdir()
    clone = Clone(root, outputs)
    yield clone
    kill(clone.mark)


def test_a_database_killed_in_a_launch_loses_no_run(clone: Clone, database: tuple[Path, str]) -> None:
    launch, (_, step, _) = clone.launch_and_hang()
    restart_postgres(database[0])
    os.kill(step, signal.SIGKILL)
    assert launch.wait(timeout=DEADLINE_S) == 1
    assert "to try again: dagster job launch -j toy" in clone.output.read_text()
    status, output = clone.launch("hang")  # hangs once
    assert status == 0, output
    assert clone.last_run().is_success
