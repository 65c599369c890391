from dataclasses import dataclass, replace

import pytest

from pipeline.rollout.evidence import LookRequest
from pipeline.rollout.replay import ReplayedTraffic
from pipeline.serving.inference import Sampling
from tests.answers import answer
from tests.pipeline.rollout.conftest import model, split_at

REQUESTS = [([{"role": "user", "content": str(n)}], str(n)) for n in range(50)]


@dataclass
class Grade:
    outcome: str


def grader(answered):
    return [Grade(outcome_of(each.answer.text, each.reference)) for each in answered]


def outcome_of(text, gold):
    return "correct" if text == gold else text if text in ("no_answer", "timeout") else "wrong"


class Server:
    """The champion echoes the question; the canary answers as told. Latencies count up."""

    def __init__(self, canary="wrong"):
        self.canary, self.calls = canary, []

    def __call__(self, served, prompts, sampling):
        self.calls.append((served, [p[0]["content"] for p in prompts], sampling))
        texts = [p[0]["content"] if served == model("a") else self.canary for p in prompts]
        return [[answer(t, latency_s=float(n + 1))] for n, t in enumerate(texts)]


def asked(number=1, since=0.0, now=1.0):
    return LookRequest(number=number, since=since, now=now, slow_over_s=None)


def traffic(server, requests=REQUESTS):
    return ReplayedTraffic(requests, server, grader, count=400, sampling=Sampling(samples=4, temperature=0.5))


def test_each_arm_gets_its_share_is_served_and_graded():
    server = Server()
    seen = traffic(server).look(split_at(25), asked(1, 100.0, 160.0))
    assert seen.champion.sum().requests + seen.canary.sum().requests == 400
    assert 70 <= seen.canary.sum().requests <= 130
    champion, canary = seen.champion.sum(), seen.canary.sum()
    assert champion.correct == champion.graded == champion.requests
    assert (canary.correct, canary.errors) == (0, 0)
    assert (seen.window_start, seen.window_end) == (100.0, 160.0)
    assert seen.canary.latencies.edges_s[-1] == canary.requests == seen.canary.latencies.total
    assert [call[0] for call in server.calls] == [model("a"), model("b")]
    assert all(call[2].samples == 1 and call[2].temperature == 0.5 for call in server.calls)


@pytest.mark.parametrize(("said", "graded", "errors"), [("no_answer", True, True), ("timeout", False, False)])
def test_replay_counts_no_answer_as_an_error(said, graded, errors):
    canary = traffic(Server(said)).look(split_at(25), asked()).canary.sum()
    assert (canary.graded, canary.errors) == (canary.requests * graded, canary.requests * errors)


def test_replay_draws_each_look_independently():
    def drawn(look, rollout="r"):
        server = Server()
        traffic(server).look(split_at(25, rollout=rollout), asked(look))
        return server.calls

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert drawn(1) != drawn(1, "next")


def test_at_100_percent_only_the_canary_is_served():
    server = Server()
    seen = traffic(server).look(split_at(100), asked())
    assert seen.champion.units == {}
    assert len(server.calls) == 1


def test_without_requests_it_says_why():
    with pytest.raises(ValueError, match="Materialise the traces"):
        traffic(Server(), []).look(split_at(5), asked())
    with pytest.raises(ValueError, match="too few are new"):
        replace(traffic(Server(), []), missing_reason="too few are new").look(split_at(5), asked())
