"""What a look counts of the span files."""

import time

import pytest

from pipeline.recipe.sources import ExportSource
from pipeline.recipe.traces import Traces
from pipeline.rollout.evidence import LookRequest
from pipeline.rollout.gateway.metrics import SpanMetrics
from pipeline.rollout.gateway.spans import unit_hash
from pipeline.rollout.grading import Grading
from pipeline.rollout.router import route
from pipeline.traces.erased import ErasedUser, add
from tests.contexts import mark_of
from tests.pipeline.rollout.gateway.slot_server import response
from tests.pipeline.rollout.gateway.world import NAME, ROLLOUT, awaited, user_of

pytestmark = pytest.mark.slow

METADATA = {"user_consent": "true", "expected_answer": "It is desk@bbbbbbbbbbbb."}
TRACES = Traces(source=ExportSource(kind="otel", uri="unread"))
"""Without a list of regions: only rows that name none are readable."""


def exact(answers):
    return ["correct" if answer.text == answer.reference else "wrong" for answer in answers]


def look(gateway, since, grade=exact, split=None, **changes):
    """A look at what was served since, once all of it is written."""
    awaited(lambda: gateway.state().served == gateway.state().recorded)
    time.sleep(0.15)
    metrics = SpanMetrics(gateway.store, NAME, Grading(grade), **{"traces": TRACES, **changes.pop("port", {})})
    request = LookRequest(**{"since": since, "now": time.time(), "slow_over_s": None, **changes})
    return metrics.look(split or gateway.state().split, request)


def test_look_counts_each_unit_in_its_arm(gateway):
    split, since = gateway.split(50), time.time()
    users = [f"user-{n % 7}" for n in range(21)]
    for user in users:
        gateway.post(user=user, metadata=METADATA)
    seen = look(gateway, since)
    for arm, counted in (("champion", seen.champion), ("canary", seen.canary)):
        own = {unit_hash(ROLLOUT, user) for user in users if route(split, user) == arm}
        assert counted.units.keys() == own
        assert {(each.requests, each.graded, each.errors) for each in counted.units.values()} == {(3, 3, 0)}
        assert {each.correct for each in counted.units.values()} == {3 if arm == "canary" else 0}
        assert sum(counted.latencies.counts) == 3 * len(own)
    assert seen.window_start == since < seen.window_end == seen.graded_until <= time.time()


def test_what_the_champion_answers_for_the_canary_is_an_error(gateway):
    gateway.split(50)
    since, user = time.time(), user_of("canary")
    gateway.canary.answer = lambda server, body: response(b"{}", 503)
    for _ in range(5):
        assert gateway.post(user=user, metadata=METADATA).status_code == 200
    seen = look(gateway, since)
    (counts,) = seen.canary.units.values()
    assert (counts.requests, counts.errors, counts.graded) == (5, 5, 0)
    assert not seen.champion.units


def test_look_leaves_out_what_is_no_evidence(gateway):
    before = gateway.split(5)
    user = next(user for n in range(99) if route(before, user := user_of("canary", 25, n)) == "champion")
    since = time.time()
    gateway.post(user=user, metadata=METADATA)  # under another weight
    gateway.split(25)
    gateway.post(user=user, metadata={**METADATA, "user_consent": "false"})
    gateway.post(user=user, metadata={})
    gateway.post(user=user, metadata=METADATA)
    seen = look(gateway, since)
    (counts,) = seen.canary.units.values()
    assert (counts.requests, counts.graded, counts.correct) == (3, 1, 1)
    assert not seen.champion.units


def test_who_may_be_read_is_asked_of_the_recipes_gates(gateway):
    split, since, user = gateway.split(50), time.time(), user_of("canary")
    other = next(name for n in range(99) if route(split, name := f"forgotten-{n}") == "canary")
    traces = TRACES.model_copy(update={"consent_key": "agrees", "confidential_key": "secret", "region_key": "law"})
    says = {"agrees": " YES ", "expected_answer": METADATA["expected_answer"]}
    for more in ({}, {"agrees": "no"}, {"secret": "true"}, {"law": "EU"}, {"secret": "false"}):
        gateway.post(user=user, metadata={**says, **more})
    gateway.post(user=user, metadata=METADATA)  # a yes under another key
    gateway.post(user=other, metadata=says)
    port = {"traces": traces}
    seen = look(gateway, since, port=port)
    assert sum(unit.graded for unit in seen.canary.units.values()) == 3
    add(gateway.store, ErasedUser(mark=mark_of(other), proof="p"))
    later = look(gateway, since, port=port)
    assert sum(unit.graded for unit in later.canary.units.values()) == 2


def test_each_request_is_in_one_look(gateway):
    gateway.split(50)
    first = since = time.time()
    total, posted, looks = 0, 0, 0
    while looks < 4 or since == first:  # a look's window ends before what the gateway has yet to write
        looks += 1
        for _ in range(6):
            gateway.post(user="u")
            posted += 1
        metrics = SpanMetrics(gateway.store, NAME, Grading(exact), TRACES)
        now = LookRequest(since=since, now=time.time(), slow_over_s=None)
        seen = metrics.look(gateway.state().split, now)
        total += sum(unit.requests for arm in (seen.champion, seen.canary) for unit in arm.units.values())
        assert seen.window_end >= since
        since = seen.window_end
    seen = look(gateway, since)
    total += sum(unit.requests for arm in (seen.champion, seen.canary) for unit in arm.units.values())
    assert total == posted


def test_grades_that_are_late_hold_the_watermark(gateway):
    gateway.split(95)
    since = time.time()
    users = [user_of("canary", 95, number) for number in range(20)]
    for user in users:
        gateway.post(user=user, metadata=METADATA)
        time.sleep(0.06)

    def half(answers):
        return ["correct" if n < 10 else "" for n in range(len(answers))]

    seen = look(gateway, since, grade=half)
    units = seen.canary.units.values()
    assert sum(unit.requests for unit in units) == 20
    assert since < seen.graded_until < seen.window_end
    assert (sum(unit.graded for unit in units), sum(unit.ungraded for unit in units)) == (10, 0)
    later = look(gateway, seen.window_end, graded_since=seen.graded_until)
    units = later.canary.units.values()
    assert (sum(unit.requests for unit in units), sum(unit.graded for unit in units)) == (0, 10)
