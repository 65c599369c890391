"""The tick that promotes a canary, with MLflow's aliases behind it, and what it leaves: for kills at each write."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

from mlflow import MlflowClient

from pipeline.core import audit
from pipeline.core.storage import Store
from pipeline.registry.versions import project
from pipeline.rollout.record import Phase, read_events
from tests.pipeline.rollout.conftest import NAME, World

BEGUN = 1000.0
EVERY_S = 50.0


def registry_of(root: Path) -> str:
    return f"sqlite:///{root}/mlflow.db"


def world_of(root: Path, now: float) -> World:
    return World(Store(root), registry=partial(project, registry_of(root)), now=now)  # pyright: ignore[reportArgumentType]


def fill(root: Path, scratch: Path) -> None:
    """A rollout whose next tick promotes it."""
    root.mkdir()
    client = MlflowClient(registry_of(root), registry_of(root))
    client.create_registered_model(NAME)
    client.create_model_version(NAME, source="file:///models/b", run_id=None)
    world = world_of(root, BEGUN)
    world.propose("b")
    while True:
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(root, scratch)
        world.tick(EVERY_S)
        if world.state.phase is Phase.PROMOTED:
            break
    (scratch / "now").write_text(str(world.now))
    shutil.rmtree(root)
    scratch.rename(root)


def work(root: Path) -> None:
    world = world_of(root, float((root / "now").read_text()))
    for _ in range(2):
        assert world.tick().errors == ()


def state(root: Path) -> dict[str, Any]:
    store, client = Store(root), MlflowClient(registry_of(root), registry_of(root))
    split = world_of(root, BEGUN).router.read()
    return {
        "events": [event.model_dump(mode="json") for event in read_events(store, NAME)],
        "split": split and split.model_dump(mode="json"),
        "aliases": client.get_registered_model(NAME).aliases,
        "tags": client.get_model_version(NAME, "1").tags,
        "logged": [(entry.kind, entry.subject, entry.detail) for entry in audit.entries(store)],
        "log is whole": audit.verify(store).flaw == "",
    }
