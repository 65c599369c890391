"""What the gateway itself lacks, files or room on its disk, says nothing of a model, and costs no record."""

import asyncio
import json
import resource
import sys
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from pipeline.core import layout
from pipeline.recipe.sources import DemoSource
from pipeline.recipe.traces import Traces
from pipeline.rollout.evidence import LookRequest
from pipeline.rollout.gateway import proxy, spans
from pipeline.rollout.gateway.metrics import SpanMetrics
from pipeline.rollout.gateway.spans import recorded
from pipeline.rollout.grading import by_thumbs
from tests.full_disk import full_disk
from tests.pipeline.rollout.gateway.slot_server import stream
from tests.pipeline.rollout.gateway.world import NAME, World, awaited, text_of, user_of, world

pytestmark = pytest.mark.slow

FILES = resource.RLIMIT_NOFILE


def served_file(gateway: World) -> Path:
    awaited(lambda: gateway.state().served == gateway.state().recorded)
    (file,) = gateway.store.path(layout.served(NAME)).glob("*.jsonl")
    return file


def refused_of(gateway: World, answer: httpx2.Response) -> str:
    """The reason of a refusal in the gateway's own name, which is of no arm on record."""
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    row, reason = gateway.request(answer), answer.json()["error"]["message"]
    assert reason.startswith("The gateway ") and row.spans[0].record["status"]["message"] == reason
    assert row.marks["error.type"] == "gateway" and row.marks["rollout.id"] == ""
    assert not row.marks.keys() & {"rollout.arm", "rollout.served_by", "model.digest"}
    return reason


@pytest.mark.situation("15-gateway-full-disk", "right")
@pytest.mark.parametrize("room", [0, 300])
def test_what_waits_for_a_full_disk_is_written_later(gateway: World, room: int) -> None:
    file = served_file(gateway)
    before = file.read_bytes()
    with full_disk(file, room):
        answers = [gateway.post(user=f"user-{n}", messages=[{"role": "user", "content": "x" * 500}]) for n in range(4)]
        assert {answer.status_code for answer in answers} == {200}, "answers go on"
        awaited(lambda: f"{file} cannot be written" in gateway.state().recorder_fault)
        until = time.time()
        assert file.read_bytes() == before, "no half of a line, and no part of a batch"
        time.sleep(0.1)  # what is stamped by now is refused by now
    awaited(lambda: gateway.state().served == gateway.state().recorded)
    later = file.read_bytes().removeprefix(before).splitlines()
    assert [json.loads(line)["trace_id"] for line in later] == [answer.headers["x-trace-id"] for answer in answers]
    assert all(json.loads(line)["recorded_at"] > until for line in later), "a look of then has not missed them"


def test_a_thumb_without_room_is_sent_again(gateway: World) -> None:
    thumb = {"id": gateway.post(user="ada").headers["x-request-id"], "score": "up", "comment": "x" * 3000}
    file = served_file(gateway)
    assert gateway.client.post("/v1/feedback", json=thumb).is_success
    (thumbs,) = gateway.store.path(layout.feedback(NAME)).glob("*.jsonl")
    before = thumbs.read_bytes()
    with full_disk(thumbs, 50):
        refused = gateway.client.post("/v1/feedback", json=thumb)
    assert refused.status_code == 503 and "The gateway cannot do this now (File too large)" in refused.text
    assert str(file.parent) not in refused.text and thumbs.read_bytes() == before
    assert gateway.client.post("/v1/feedback", json=thumb).is_success
    assert len(thumbs.read_bytes().splitlines()) == 2


def test_a_full_queue_refuses_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (proxy, spans):
        monkeypatch.setattr(module, "MOST_WAITING", 3)
    with world(tmp_path) as gateway:
        gateway.split(50)
        gateway.post(user="first")
        with full_disk(served_file(gateway), 0):
            assert [gateway.post(user="ada").status_code for _ in range(5)] == [200] * 3 + [503] * 2
            assert "The gateway has too many requests that wait for its disk." in gateway.post(user="ada").text
            awaited(lambda: gateway.state().recorder_fault)
        awaited(lambda: gateway.state().recorded == 4)
        state = gateway.state()
        assert (state.served, state.unrecorded) == (7, 3) and "cannot be written" in state.recorder_fault
        assert gateway.post(user="ada").is_success


@contextmanager
def without_files(pid: int) -> Generator[None]:
    """A process that can open no file more."""
    is_open = {int(each.name) for each in Path(f"/proc/{pid}/fd").iterdir()}
    soft, hard = resource.prlimit(pid, FILES)
    resource.prlimit(pid, FILES, (min(set(range(len(is_open) + 1)) - is_open), hard))
    try:
        yield
    finally:
        resource.prlimit(pid, FILES, (soft, hard))


@pytest.mark.situation("14-gateway-open-files", "right")
def test_a_gateway_without_files_blames_no_model(tmp_path: Path) -> None:
    own = resource.getrlimit(FILES)
    resource.setrlimit(FILES, (min(256, own[1]), own[1]))
    since = time.time()
    with world(tmp_path, is_process=True) as gateway:
        resource.setrlimit(FILES, own)
        pid = gateway.gateway.pid
        assert resource.prlimit(pid, FILES) == (own[1], own[1]), "raised at its start"
        split = gateway.split(50)
        assert gateway.client.get("/-/split").json()["split"]["canary_weight"] == 50, "the file is read by now"
        with without_files(pid):
            refused = [gateway.post(user=user_of("canary")) for _ in range(5)]
            assert not gateway.canary.asked and not gateway.champion.asked
            gateway.split(100)
            refused.append(gateway.post(user=user_of("champion")))
        assert "b" * 12 in text_of(gateway.post(user=user_of("champion"))), "the split that could not be read"
        reasons = Counter(refused_of(gateway, each) for each in refused)
        assert all("Too many open files" in reason for reason in reasons)
        state = awaited(lambda: (state := gateway.state()).served == state.recorded and state)
        assert (state.served, state.unrecorded) == (7, 0)
        metrics = SpanMetrics(gateway.store, NAME, by_thumbs(0.0), Traces(source=DemoSource()))
        look = metrics.look(split, LookRequest(since=since, now=time.time() + 1, slow_over_s=None))
        assert look is not None
        assert [(arm.sum().requests, arm.sum().errors) for arm in (look.champion, look.canary)] == [(0, 0), (0, 0)]


@pytest.mark.situation("14-gateway-open-files", "right")
def test_more_callers_than_files_are_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python, callers, streams = tmp_path / "python", 200, 32
    python.write_text(f'#!/bin/sh\nulimit -n 128\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with world(tmp_path, is_process=True) as gateway:
        slots, reasons = (gateway.champion, gateway.canary), Counter[str]()
        for slot in slots:
            slot.answer = lambda server, body: stream(server.name) if server.release.wait(30) else b""
        gateway.split(50)

        async def ask(client: httpx2.AsyncClient, number: int) -> None:
            body = {"messages": [{"role": "user", "content": "x"}], "user": f"user-{number}", "stream": True}
            answer = await client.post("/v1/chat/completions", json=body)
            reasons["" if answer.is_success else answer.json()["error"]["message"]] += 1
            if reasons.total() == callers - streams:
                for slot in slots:
                    slot.release.set()

        async def ask_at_once() -> None:
            url, unlimited = gateway.gateway.url, httpx2.Limits()
            async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=60, limits=unlimited) as client:
                await asyncio.gather(*(ask(client, number) for number in range(callers)))

        asyncio.run(ask_at_once())
        refused = f"The gateway answers {streams} requests at once, and no more. Try again."
        assert reasons == {"": streams, refused: callers - streams}
        awaited(lambda: gateway.state().recorded == callers)
        rows = recorded(gateway.store.path(layout.served(NAME)), 0, time.time())
        errors = Counter((row.marks.get("rollout.arm"), row.marks.get("error.type")) for row in rows)
        assert errors.pop((None, "gateway")) == callers - streams
        assert errors.total() == streams and errors.keys() == {("champion", None), ("canary", None)}
