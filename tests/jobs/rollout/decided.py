"""What a rollout's commands leave behind, and looks at it that see nothing."""

from assets.resources import Deployment
from pipeline.core import audit
from pipeline.rollout.controller import tick
from pipeline.rollout.fold import read_state
from pipeline.rollout.record import Phase, RolloutState, RolloutStep, append, step_event
from pipeline.rollout.router import RolloutPorts
from tests.pipeline.rollout.local_router import LocalRouter

NAME = "arithmetic"


def look(settings: Deployment, now: float) -> None:
    store = settings.store()
    tick(RolloutPorts(store, NAME, LocalRouter(store, NAME), lambda state: None), now)


def state(settings: Deployment) -> RolloutState:
    return read_state(settings.store(), NAME)


def weight(settings: Deployment) -> int:
    split = LocalRouter(settings.store(), NAME).read()
    assert split is not None
    return split.canary_weight


def decided(settings: Deployment) -> list[tuple[str, str, str]]:
    """Action, who and why of each person's decision in the audit log."""
    entries = [e.detail for e in audit.entries(settings.store()) if e.detail.get("by")]
    return [(e["action"], e["by"], e["reason"]) for e in entries]


def hold_again(settings: Deployment) -> str:
    """The rollout is held again; returns its candidate's digest."""
    now = state(settings)
    assert now.proposal is not None
    append(settings.store(), NAME, now, step_event(now, 2000.0, RolloutStep(phase=Phase.HELD, reason="again")))
    return now.proposal.version.model.digest
