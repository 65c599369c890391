"""A model that learned from erased data: not let in, and taken out of its rollout; and promotions on the audit log."""

import pytest

from pipeline.core import audit
from pipeline.rollout.blocks import ErasureBlock, block, blocked
from pipeline.rollout.record import Phase
from tests.pipeline.rollout.conftest import BASE, World, iteration_over, version_of


def by_digest(digest: str) -> ErasureBlock:
    return ErasureBlock(proof="p1", digests=(digest,), iterations=())


def test_a_blocked_model_or_iteration_is_not_let_in(world: World) -> None:
    block(world.store, by_digest("bad"))
    refused = world.propose("bad").refused
    assert refused == "version 1 is blocked: it learned from data that erasure p1 removed"
    assert world.state.phase is Phase.IDLE
    iteration = iteration_over(BASE)
    assert blocked(world.store, version_of("good", 1, iteration)) == ""
    block(world.store, ErasureBlock(proof="p2", digests=(), iterations=(iteration.id,)))
    assert "erasure p2" in blocked(world.store, version_of("made later", 2, iteration))


def test_a_trainer_finds_the_block_beside_its_plan(world: World) -> None:
    blocking = ErasureBlock(proof="p", digests=(), iterations=("one", "two"))
    block(world.store, blocking)
    for iteration in blocking.iterations:
        assert world.store.read(f"iterations/{iteration}/training/blocked.json", ErasureBlock) == blocking


@pytest.mark.parametrize("phase", ["proposed", "gated", "shifting", "observing", "held"])
def test_a_block_takes_an_active_rollout_back_without_blame(world: World, phase: str) -> None:
    if phase == "held":
        world.metrics.spoil = lambda look: None
    world.propose("new")
    world.tick_until(phase)
    block(world.store, by_digest("new"))
    state = world.tick_until("aborted")
    assert world.weight() == 0
    assert "is blocked" in state.reason
    assert "new" not in state.quarantined
    assert world.propose("new").state == state
    assert "is blocked" in world.propose("new", data="other").refused


def test_a_blocked_champion_serves_on(world: World) -> None:
    world.propose("new")
    world.tick_until("promoted")
    block(world.store, by_digest("new"))
    world.tick(50)
    assert world.state.phase is Phase.PROMOTED
    assert world.state.champion is not None
    split = world.router.read()
    assert split is not None
    assert split.champion.digest == "new"


def test_a_promotion_is_on_the_audit_log_once(world: World) -> None:
    world.propose("one")
    world.tick_until("promoted")
    for _ in range(3):
        world.tick(50)
    world.propose("two", number=2)
    world.tick_until("promoted")
    matches = [(e.kind, e.subject, e.detail["digest"]) for e in audit.entries(world.store) if e.kind == "promotion"]
    assert [(kind, digest) for kind, _, digest in matches] == [("promotion", "one"), ("promotion", "two")]
    assert matches[1][1] == world.state.rollout


def test_a_promotion_whose_tick_died_is_recorded_by_a_later_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def dead(*args: object, **kwargs: object) -> None:
        raise OSError("no space left")

    world.propose("one")
    with monkeypatch.context() as patch:
        patch.setattr(audit, "record", dead)
        world.tick_until("promoted")
        assert world.tick(50).errors == ("audit: no space left",)
    world.metrics.canary = {"quality": 0.3}
    world.propose("two", number=2)
    world.tick_until("rolled_back")
    world.tick()
    assert [(e.subject, e.detail["version"]) for e in audit.entries(world.store) if e.kind == "promotion"] == [
        (next(r for r, p in world.state.finished.items() if p is Phase.PROMOTED), 1)
    ]


def test_a_tampered_audit_log_does_not_hold_traffic_up(world: World) -> None:
    audit.record(world.store, "admission", "d", {}, audit.datetime.now(audit.UTC))
    world.store.path(audit.HEAD).unlink()
    world.propose("new")
    world.tick_until("promoted")
    done = world.tick(50)
    assert done.state.phase is Phase.PROMOTED
    assert "verify" in done.errors[0]
