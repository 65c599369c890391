"""The gateway's process: started, killed, hung, ended; the lock that says whether it runs; slots that say what they
serve."""

import os
import signal

import httpx2
import pytest

from pipeline.core import layout
from pipeline.core.storage import Store
from pipeline.rollout.gateway.process import running_address, running_gateway
from pipeline.rollout.gateway.split import GatewaySplit
from pipeline.rollout.router import Unsettled
from pipeline.serving.endpoint import served_name
from tests.pipeline.rollout.gateway.slot_server import slot_server
from tests.pipeline.rollout.gateway.world import (
    CANARY,
    CHAMPION,
    NAME,
    awaited,
    in_a_thread,
    settings_of,
    split_of,
    text_of,
    user_of,
    world,
)

pytestmark = pytest.mark.slow


def test_a_process_holds_the_lock_until_it_ends(tmp_path, monkeypatch):
    with world(tmp_path, is_process=True) as gateway:
        split, pid = gateway.split(50), gateway.gateway.pid
        with (
            pytest.raises(RuntimeError, match="Another gateway runs for desk"),
            running_gateway(settings_of(tmp_path), lambda line: None),
        ):
            pass
        assert gateway.post(user="u").status_code == 200
        awaited(lambda: gateway.state().served == gateway.state().recorded == 1)
        os.kill(pid, signal.SIGSTOP)
        with monkeypatch.context() as short, pytest.raises(OSError, match="holds its lock and does not answer"):
            short.setattr("pipeline.rollout.gateway.split.TIMEOUT_S", 0.5)
            gateway.port.read()
        gateway.port.apply(split_of(0, split.epoch + 1))  # who cannot be read may still obey
        os.kill(pid, signal.SIGCONT)
        assert awaited(gateway.port.read) == split_of(0, split.epoch + 1)
        folder = gateway.store.path(layout.gateway(NAME))
        os.kill(pid, signal.SIGKILL)
        awaited(lambda: running_address(folder) is None)
        assert gateway.port.read() == split_of(0, split.epoch + 1), "what the next one begins with"
    assert running_address(folder) is None


def test_slots_say_themselves_what_they_serve(tmp_path):
    names = [served_name(NAME, ref.digest) for ref in (CHAMPION, CANARY)]
    with slot_server(names[0]) as first, slot_server(names[1]) as second:
        settings = settings_of(tmp_path, slots=(first.url, second.url))
        with in_a_thread(settings) as running:
            port = GatewaySplit(Store(tmp_path), NAME, lambda digest: None, lambda url, name: "")
            port.apply(split_of(50, 1))
            assert port.read() == split_of(50, 1)
            with httpx2.Client(base_url=running.url) as client:
                body = {"messages": [{"role": "user", "content": "x"}], "user": user_of("canary")}
                assert text_of(client.post("/v1/chat/completions", json=body)) == f"It is {names[1]}."
                second.name = names[0]  # both hold one model: where one fails, the other one answers
                awaited(lambda: [each.name for each in port.state().slots] == [names[0], names[0]])
                first.answer = lambda server, body: b""
                assert text_of(client.post("/v1/chat/completions", json=body)) == f"It is {names[0]}."
                second.name = "another"
                port.apply(split_of(50, 2))
                awaited(lambda: len(port.state().slots) == 1)
                port.apply(split_of(50, 3))
                read = port.read()
                assert isinstance(read, Unsettled) and "No slot serves model bbb" in read.reason


def test_a_user_header_is_believed_where_it_is_trusted(tmp_path):
    with world(tmp_path, trust_user_header=False) as gateway:
        gateway.split(50)
        forged, own = user_of("canary"), user_of("champion")
        answer = gateway.post(user=own, headers={"x-user-id": forged})
        assert gateway.request(answer).marks["user.id"] == own
