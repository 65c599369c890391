"""Whole rollouts on operations and what users say alone: no text is recorded, no reference is known, nobody judges."""

import random
from dataclasses import dataclass, field

import msgspec
import pytest

from pipeline.core import layout
from pipeline.core.storage import Store
from pipeline.recipe import Rewards, Rollout
from pipeline.recipe.traces import DemoSource, Traces
from pipeline.rollout.evidence import LiveMetrics, LookRequest
from pipeline.rollout.gateway.asked import CallerRequest
from pipeline.rollout.gateway.metrics import SpanMetrics
from pipeline.rollout.gateway.spans import RECORDED_AT, Served, Try, line, otlp_attributes
from pipeline.rollout.grading import by_thumbs
from pipeline.rollout.policy import policy_of
from pipeline.rollout.record import Phase, read_events
from pipeline.rollout.router import Split, route
from pipeline.rollout.status import status
from pipeline.traces.sources.otlp import ID, RESULT, SOURCE, VALUE
from pipeline.traces.sources.otlp import NAME as SCORE
from tests.pipeline.rollout.conftest import BASE, NAME, World, iteration_over, version_of
from tests.pipeline.rollout.conftest import world as world

SECTION = Rollout(
    weights=(40, 100), dwell_s=(100, 100), holdback=40, max_quality_drop=0.2, max_wait_s=150, rated_within_s=20
)
POLICY = policy_of(SECTION, gradable=False, rated=True).model_copy(update={"keep_warm_s": 0.0, "max_look_s": 100.0})
GRADING = by_thumbs(Rewards().feedback, SECTION.rated_within_s)
TRACES = Traces(source=DemoSource())
ASKED = CallerRequest("chat/completions", b'{"messages": [{"role": "user", "content": "Hi"}]}', {}, trusted=False)


@dataclass
class Users:
    """LiveMetricsPort over what a gateway without texts recorded of 300 users who ask 300 times a look, of whom so many
    say something, and so many like what they got; shares by arm."""

    store: Store
    says: dict[str, float] = field(default_factory=lambda: {"champion": 0.3, "canary": 0.3})
    likes: dict[str, float] = field(default_factory=lambda: {"champion": 0.8, "canary": 0.8})
    draw: random.Random = field(default_factory=lambda: random.Random(7))

    def look(self, split: Split, request: LookRequest) -> LiveMetrics | None:
        served, said = bytearray(), bytearray()
        for number in range(300):
            at = request.since + (number + 1) * (request.now - request.since - 1) / 300
            user, trace_id = f"user-{self.draw.randrange(300)}", f"{self.draw.getrandbits(128):032x}"
            arm, start = route(split, user), int(at * 1e9)
            tried = Try(arm, "d", "m", start, start + int(1e8))
            marks = {"rollout": split.rollout, "epoch": split.epoch, "weight": split.canary_weight, "tries": [tried]}
            served += line(Served(ASKED, trace_id, arm, user, "user", **marks), with_text=False, now=at)
            if self.draw.random() < self.says[arm]:
                said += thumb(trace_id, self.draw.random() < self.likes[arm], at)
        for folder, lines in ((layout.served, served), (layout.feedback, said)):
            path = self.store.path(folder(NAME), "day.jsonl")
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.write(lines)
        return SpanMetrics(self.store, NAME, GRADING, TRACES).look(split, request)


def thumb(trace_id: str, liked: bool, at: float) -> bytes:
    marks = [(SCORE, "thumb"), (VALUE, float(liked)), (SOURCE, "user"), (ID, trace_id)]
    record = {"timeUnixNano": str(int(at * 1e9)), "eventName": RESULT, "traceId": trace_id}
    logs = [{"scopeLogs": [{"logRecords": [{**record, "attributes": otlp_attributes(marks)}]}]}]
    return msgspec.json.encode({RECORDED_AT: at, "trace_id": trace_id, "resourceLogs": logs}) + b"\n"


@pytest.fixture
def users(world: World) -> Users:
    world.metrics = Users(world.store)  # type: ignore[assignment]
    assert not world.propose("new", policy=POLICY).refused
    return world.metrics  # type: ignore[return-value]


def test_an_equal_candidate_is_promoted(world: World, users: Users) -> None:
    world.tick_until("observing")
    world.tick(50.0)
    world.tick(50.0)
    assert world.state.watch.dwell_s < 100, "what users say is waited for"
    version = version_of("base", 0, iteration_over(BASE))
    seen = status(NAME, version, read_events(world.store, NAME), world.router.read(), world.now)
    assert any("quality: only users grade" in spot and "who say nothing" in spot for spot in seen.cannot_see)
    state = world.tick_until("promoted", "held", "rolled_back")
    assert state.phase is Phase.PROMOTED, state.reason
    assert state.watch.evidence.canary.graded > 30


def test_a_candidate_that_users_like_less_is_taken_back(world: World, users: Users) -> None:
    users.likes["canary"] = 0.2
    state = world.tick_until("promoted", "held", "rolled_back")
    assert state.phase is Phase.ROLLED_BACK, state.reason
    assert "quality fell" in state.reason and "new" in state.past.quarantined
