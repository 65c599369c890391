"""What people and slots do to a rollout of the tests' world."""

from pipeline.rollout.decision import DecisionResult, RolloutDecision, decide
from pipeline.rollout.propose import RolloutCandidate, propose
from pipeline.rollout.record import JudgedCandidate, Phase
from pipeline.rollout.router import Readiness
from tests.pipeline.rollout.conftest import BASE, POLICY, World, iteration_over, version_of

ASKS = POLICY.model_copy(update={"approvers": ("operator", "ada@example.org")})
WARM = POLICY.model_copy(update={"keep_warm_s": 5000.0})


def decided(world: World, action: str, by: str = "operator") -> DecisionResult:
    decision = RolloutDecision(action=action, reason="a reason", by=by, rollout=world.state.rollout)
    return decide(world.ports(), decision, world.now)


def waiting(world: World, proposed_by: str = "launcher") -> None:
    iteration = iteration_over(BASE)
    judged = JudgedCandidate("PASS", "new", "bundle")
    propose(
        world.store, iteration, RolloutCandidate(version_of("new", 1, iteration), judged, proposed_by), ASKS, world.now
    )
    for _ in range(5):
        world.tick(50.0)
    assert (world.state.phase, world.weight()) == (Phase.GATED, 0)


def slot(world: World, **change: object) -> None:
    world.router.ready = lambda m: Readiness(served_digest=m.digest, replicas=1).model_copy(update=change)
