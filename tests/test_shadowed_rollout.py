"""A rollout that begins with copies, on the embedded gateway: the candidate answers nobody before it is compared."""

import time
from pathlib import Path

import pytest

from assets.rollout import follow_rollout
from pipeline import layout
from pipeline.gateway.span_files import recorded
from pipeline.rollout.record import Phase, read_events
from tests.loop import deployment
from tests.opened import open_rollout

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
STAGES = (
    *("rollout.weights=[20,50,100]", "rollout.dwell_s=[0.5,0.5,0.5]", "rollout.holdback=20"),
    *("rollout.shadow_share=0.5", "rollout.requests_per_look=300", "rollout.min_canary_requests=30"),
)


@pytest.mark.variant
def test_copies_come_before_the_first_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    settings = deployment(tmp_path / "data", STAGES)
    open_rollout(settings, tmp_path, time.time())
    state = follow_rollout(settings, print, 300.0)
    assert state.phase is Phase.PROMOTED, state.reason
    store, name = settings.store(), settings.recipe().base_model.name
    phases = [event.phase for event in read_events(store, name)]
    assert phases.index(Phase.SHADOWING) < phases.index(Phase.SHIFTING)
    copies = recorded(store.path(layout.mirrored(name)), 0.0, time.time())
    served = recorded(store.path(layout.served(name)), 0.0, time.time())
    assert len(copies) > 30 and all(row.marks["rollout.weight"] == 0 for row in copies)
    by_weight = {weight: [r for r in served if r.marks["rollout.weight"] == weight] for weight in (0, 20, 50, 80)}
    assert all(by_weight.values()), {weight: len(rows) for weight, rows in by_weight.items()}
    arms = {row.marks["rollout.served_by"] for row in by_weight[0]}
    assert arms == {"champion"}, "nobody gets a copy's answer"
