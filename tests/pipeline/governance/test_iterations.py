"""What retention takes of old iterations, and what it leaves, on a disk and in a real MLflow."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipeline.core import audit, layout
from pipeline.core.iteration import Iteration
from pipeline.core.storage import Store
from pipeline.governance.iterations import overdue, sweep
from pipeline.registry.runs import MlflowAddresses
from tests.pipeline.rollout.conftest import BASE, World, iteration_over, model

WEIGHTS = ("training/model", "training/adapter", "training/checkpoints/step-000002", "reward_model/model")
RECORDS = ("training/result.json", "training/metrics.jsonl", "evidence/provenance.json", "reward_labels.json")


def laid(store: Store, iteration: Iteration) -> Iteration:
    """With weights and records."""
    for name in (*(f"{each}/weights" for each in WEIGHTS), *RECORDS):
        path = store.path(iteration.path(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("0123456789", encoding="utf-8")
    named = f'{{"iteration": {iteration.model_dump_json()}}}'
    store.path(iteration.path(layout.GOVERNED)).write_text(named, encoding="utf-8")
    return iteration


def has_weights(store: Store, iteration: Iteration) -> bool:
    there = {store.path(iteration.path(each)).exists() for each in WEIGHTS}
    assert len(there) == 1
    return there.pop()


@pytest.mark.slow
def test_weights_go_where_nothing_rests_on_them(tmp_path: Path) -> None:
    """The promoted one and the one in the traffic stay, however old they are."""
    world, names = World(Store(tmp_path)), ("refused", "served", "again", "last")
    store = world.store
    world.propose("m1", data="promoted")
    world.tick_until("promoted")
    of = {"promoted": laid(store, iteration_over(BASE, 0, "promoted"))}
    of |= {name: laid(store, iteration_over(model("m1"), 1, name)) for name in names}
    begun = {each.id: 100.0 * n for n, each in enumerate(of.values(), 1)}
    world.propose("m2", number=2, data="served")
    for at in (450.0, 550.0):
        journal = store.path(layout.answers("m", f"{at}"))
        journal.parent.mkdir(parents=True, exist_ok=True)
        journal.write_text("{}\n", encoding="utf-8")
        os.utime(journal, (at, at))
    due = list(overdue(store, begun, 1))
    assert [each.subject for each in due] == [
        *sorted(f"iteration {of[name].id}" for name in ("refused", "again")), "answers of gates"
    ]  # fmt: skip
    assert [each.bytes for each in due] == [40, 40, 3]
    sweep(store, due, MlflowAddresses(f"sqlite:///{tmp_path}/mlflow.db"), datetime.now(UTC), print)
    assert {name: has_weights(store, each) for name, each in of.items()} == {
        "promoted": True, "refused": False, "served": True, "again": False, "last": True
    }  # fmt: skip
    assert all(store.path(each.path(name)).is_file() for each in of.values() for name in RECORDS)
    assert [path.name for path in store.path(layout.ANSWERS).rglob("*.jsonl")] == ["550.0.jsonl"]
    entries = [each for each in audit.entries(store) if each.kind == "retention"]
    assert [each.subject for each in entries] == [each.subject for each in due]
    assert [each.detail["bytes"] for each in entries] == [40, 40, 3]
    assert list(overdue(store, begun, 1)) == [] and list(overdue(store, begun, 9)) == []


def test_what_people_deploy_by_themselves_stays(tmp_path: Path) -> None:
    """Where no rollout ever was, a registered version may serve."""
    store = Store(tmp_path)
    registered, refused, last = (
        laid(store, iteration_over(BASE, 0, name)) for name in ("registered", "refused", "last")
    )
    store.path(registered.path(layout.MODEL_VERSION)).write_text("{}", encoding="utf-8")
    begun = {each.id: float(n) for n, each in enumerate((registered, refused, last))}
    assert [each.subject for each in overdue(store, begun, 1)] == [f"iteration {refused.id}"]
