"""Which events of a rollout go into the audit log, and under what name."""

import pytest

from pipeline.rollout.reconcile import audited
from pipeline.rollout.record import Phase, RolloutEvent


@pytest.mark.parametrize(
    ("before", "phase", "fields", "entry"),
    [
        (Phase.GATED, Phase.SHIFTING, {}, ("weight", "raise")),
        (Phase.OBSERVING, Phase.SHIFTING, {"stage": 1}, ("weight", "raise")),
        (Phase.HELD, Phase.SHIFTING, {}, None),
        (Phase.HELD, Phase.SHIFTING, {"action": "resume"}, ("decision", "resume")),
        (Phase.GATED, Phase.APPROVED, {"action": "approve"}, ("approval", "approve")),
        (Phase.OBSERVING, Phase.OBSERVING, {}, None),
        (Phase.OBSERVING, Phase.HELD, {}, ("hold", "hold")),
        (Phase.OBSERVING, Phase.HELD, {"weight": 0}, ("weight", "hold")),
        (Phase.HELD, Phase.HELD, {}, None),
        (Phase.OBSERVING, Phase.ROLLING_BACK, {}, ("rollback", "abort")),
        (Phase.OBSERVING, Phase.ROLLING_BACK, {"quarantine": True}, ("rollback", "quarantine")),
        (Phase.GATED, Phase.SUPERSEDED, {}, ("decision", "supersede")),
        (Phase.OBSERVING, Phase.PROMOTED, {}, ("promotion", "")),
    ],
)
def test_what_is_decided_is_audited_and_no_look(before, phase, fields, entry):
    event = RolloutEvent(epoch=5, at=1.0, rollout="r", phase=phase, **fields)
    assert audited(before, event) == entry
