"""Requests that are mirrored to the canary: recorded, and nobody waits for them or gets them."""

import threading
import time

import pytest

from pipeline import layout
from pipeline.gateway import shadow
from tests.pipeline.gateway.slot_server import response
from tests.pipeline.gateway.world import NAME, awaited, text_of, user_of

pytestmark = pytest.mark.slow

LATER = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"},
]


def copies(gateway):
    folder = gateway.store.path(layout.mirrored(NAME))
    return sum(len(file.read_text().splitlines()) for file in folder.glob("*.jsonl"))


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
def test_first_turns_are_mirrored(gateway, streamed):
    gateway.split(0, shadow_share=1.0)
    answer = gateway.post(user="u", stream=streamed, stream_options={"include_usage": True})
    assert gateway.champion.name in answer.text and gateway.canary.name not in answer.text
    copy = gateway.request(answer, shadow=True)
    assert copy.texts()[1] == f"It is {gateway.canary.name}."
    assert (copy.marks["rollout.arm"], copy.marks["rollout.shadow"]) == ("canary", True)
    served = gateway.request(answer)
    assert (served.marks["rollout.arm"], served.marks["rollout.unit"]) == ("champion", copy.marks["rollout.unit"])
    assert "stream" not in gateway.canary.asked[-1]


def test_later_turns_pinned_and_canary_requests_are_not(gateway):
    gateway.split(0, shadow_share=1.0)
    before, asked = copies(gateway), len(gateway.canary.asked)
    gateway.post(user="u", messages=LATER)
    gateway.post(user="u", headers={"x-rollout-arm": "champion"})
    gateway.split(50, shadow_share=1.0)
    gateway.post(user=user_of("canary"))
    time.sleep(0.3)
    assert (copies(gateway), len(gateway.canary.asked)) == (before, asked + 1)


def test_a_share_is_mirrored(gateway):
    gateway.split(0, shadow_share=0.5)
    before = gateway.state().counts.shadowed
    for number in range(100):
        gateway.post(user=f"user-{number}")
    assert 20 <= gateway.state().counts.shadowed - before <= 80


def test_no_caller_waits_for_a_mirror(gateway):
    gateway.split(0, shadow_share=1.0)
    gateway.canary.release = threading.Event()

    def waits(server, body):
        server.release.wait(20)
        return None

    gateway.canary.answer = waits
    before = gateway.state().counts
    answers = [gateway.post(user="u") for _ in range(shadow.MOST + 4)]  # while no copy is answered
    assert {text_of(answer) for answer in answers} == {f"It is {gateway.champion.name}."}
    counts = gateway.state().counts
    assert counts.shadow_dropped - before.shadow_dropped == 4
    gateway.canary.release.set()
    awaited(lambda: gateway.request(answers[0], shadow=True))


def test_a_mirror_that_fails_harms_nobody(gateway):
    gateway.split(0, shadow_share=1.0)
    gateway.canary.answer = lambda server, body: response(b"{}", 503)
    answer = gateway.post(user="u")
    assert text_of(answer) == f"It is {gateway.champion.name}."
    assert gateway.request(answer, shadow=True).failed and not gateway.request(answer).failed


def test_a_lease_that_ended_mirrors_nothing(gateway):
    gateway.split(0, shadow_share=1.0, expires_at=time.time() - 1)
    asked = len(gateway.canary.asked)
    gateway.post(user="u")
    time.sleep(0.2)
    assert len(gateway.canary.asked) == asked
