"""A deployment of the environment whose base model serves, and a rollout of it that three blind looks hold."""

import shlex
from pathlib import Path

import pytest

from assets.resources import Deployment, deployment
from pipeline.rollout.record import Phase
from tests.jobs.rollout.decided import look, state
from tests.loop import EMBEDDED
from tests.opened import open_rollout


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One MLflow for all: its schema takes seconds to lay out, and no test here changes what is in it."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


@pytest.fixture
def overrides(tmp_path: Path) -> list[str]:
    base = EMBEDDED.parents[2] / "pipeline" / "demo" / "model"
    return [f"data_root={tmp_path / 'data'}", f"base_model.uri={base}"]


@pytest.fixture
def settings(overrides: list[str], monkeypatch: pytest.MonkeyPatch, registry: str) -> Deployment:
    """Nothing was ever rolled out."""
    monkeypatch.setenv("PREFERENCE_TUNING_RECIPE", str(EMBEDDED))
    monkeypatch.setenv("PREFERENCE_TUNING_OVERRIDES", shlex.join(overrides))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", registry)
    return deployment()


@pytest.fixture
def held(settings: Deployment, tmp_path: Path) -> str:
    """A rollout at 5% that three looks without metrics hold."""
    rollout = open_rollout(settings, tmp_path, 1000.0, "bob")
    for n in range(1, 8):
        look(settings, 1000.0 + n)
    assert state(settings).phase is Phase.HELD
    return rollout
