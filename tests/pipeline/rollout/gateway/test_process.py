"""The gateway's processes: started, restarted, killed, ended; the lock that says whether it runs; slots that speak."""

import os
import signal
import threading

import httpx2
import pytest

from pipeline.core import layout
from pipeline.core.processes import process_start
from pipeline.core.storage import Store
from pipeline.rollout.gateway.process import GatewaySettings, running_address, running_gateway
from pipeline.rollout.gateway.split import GatewaySplit
from pipeline.rollout.router import Unsettled
from pipeline.serving.served_names import served_name
from tests.pipeline.rollout.gateway.slot_server import slot_server
from tests.pipeline.rollout.gateway.world import (
    CANARY,
    CHAMPION,
    NAME,
    awaited,
    in_a_thread,
    split_of,
    text_of,
    user_of,
    world,
)

pytestmark = pytest.mark.slow


def workers_of(gateway):
    folder = gateway.store.path(layout.gateway(NAME, "counts"))
    pids = [int(path.name.partition("-")[0]) for path in folder.glob("*-*")]
    return {pid for pid in pids if process_start(pid) is not None}


def ask_until(gateway, ends):
    """Ask without retries until the event; statuses, and errors of connections."""
    seen = []
    with httpx2.Client(base_url=gateway.gateway.url, trust_env=False, timeout=30) as client:
        body = {"messages": [{"role": "user", "content": "x"}], "user": "u"}
        while not ends.is_set():
            try:
                seen.append(client.post("/v1/chat/completions", json=body).status_code)
            except httpx2.TransportError as error:
                seen.append(type(error).__name__)
    return seen


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """Two workers, which end with the block; each test waits until both are there again."""
    with world(tmp_path_factory.mktemp("processes"), is_process=True, workers=2) as gateway:
        gateway.split(50)
        yield gateway
        pids = {gateway.gateway.pid, *workers_of(gateway)}
    assert len(pids) == 3 and not [pid for pid in pids if process_start(pid) is not None]
    assert running_address(gateway.store.path(layout.gateway(NAME))) is None


def test_reload_keeps_answering(processes):
    before, ends, seen = workers_of(processes), threading.Event(), []
    asking = threading.Thread(target=lambda: seen.extend(ask_until(processes, ends)))
    asking.start()
    os.kill(processes.gateway.pid, signal.SIGHUP)
    after = awaited(lambda: workers_of(processes) if not workers_of(processes) & before else None)
    ends.set()
    asking.join()
    assert len(after) == 2 and len(seen) > 10
    # A connection that is idle at that moment may be closed under its next request: clients retry those.
    assert len([each for each in seen if each != 200]) <= 2
    awaited(lambda: processes.state().counts.served == processes.state().counts.recorded)


def test_a_killed_worker_comes_again_and_its_counts_stay(processes):
    processes.post(user="u")
    awaited(lambda: processes.state().counts.served == processes.state().counts.recorded)
    before, workers = processes.state().counts.served, workers_of(processes)
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    awaited(lambda: len(workers_of(processes) - workers) == 2)
    assert awaited(lambda: ask_again(processes)).status_code == 200
    awaited(lambda: processes.state().counts.recorded == before + 1)
    assert (processes.state().counts.served, processes.state().counts.workers) == (before + 1, 2)


def ask_again(gateway):
    try:
        return gateway.post(user="u")
    except httpx2.TransportError:
        return None


def test_a_second_gateway_is_refused(processes, monkeypatch):
    monkeypatch.setattr("pipeline.rollout.gateway.process.START_TIMEOUT_S", 30.0)
    settings = GatewaySettings(root=str(processes.store.root), model_name=NAME, port=0)
    with (
        pytest.raises(RuntimeError, match="Another gateway runs for desk"),
        running_gateway(settings, lambda line: None),
    ):
        pass
    assert processes.state().counts.workers == 2


def test_a_gateway_that_hangs_cannot_be_read(processes, monkeypatch):
    split = processes.split(50)
    for worker in workers_of(processes):
        os.kill(worker, signal.SIGSTOP)
    try:
        with monkeypatch.context() as short, pytest.raises(OSError, match="holds its lock and does not answer"):
            short.setattr("pipeline.rollout.gateway.split.TIMEOUT_S", 0.5)
            processes.port.read()
        processes.port.apply(split_of(0, split.epoch + 1))  # who cannot be read may still obey
    finally:
        for worker in workers_of(processes):
            os.kill(worker, signal.SIGCONT)
    assert awaited(lambda: processes.port.read()) == split_of(0, split.epoch + 1)
    processes.epoch += 1


def test_slots_say_themselves_what_they_serve(tmp_path):
    names = [served_name(NAME, ref.digest) for ref in (CHAMPION, CANARY)]
    with slot_server(names[0]) as first, slot_server(names[1]) as second:
        settings = GatewaySettings(root=str(tmp_path), model_name=NAME, port=0, slot_urls=(first.url, second.url))
        with in_a_thread(settings) as running:
            port = GatewaySplit(Store(tmp_path), NAME, lambda digest: None, lambda url: "")
            port.apply(split_of(50, 1))
            assert port.read() == split_of(50, 1)
            with httpx2.Client(base_url=running.url) as client:
                body = {"messages": [{"role": "user", "content": "x"}], "user": user_of("canary")}
                assert text_of(client.post("/v1/chat/completions", json=body)) == f"It is {names[1]}."
                second.name = names[0]  # both hold one model
                awaited(lambda: f"{second.url} both hold model aaaaaaaaaaaa" in port.state().slots_fault)
                assert text_of(client.post("/v1/chat/completions", json=body)) == f"It is {names[0]}."
                second.name = "another"
                port.apply(split_of(50, 2))
                awaited(lambda: not port.state().slots_fault)
                assert len(port.state().slots) == 1
                port.apply(split_of(50, 3))
                read = port.read()
                assert isinstance(read, Unsettled) and "No slot serves model bbb" in read.reason


def test_a_user_header_is_believed_where_it_is_trusted(tmp_path):
    with world(tmp_path, trust_user_header=False) as gateway:
        gateway.split(50)
        forged, own = user_of("canary"), user_of("champion")
        answer = gateway.post(user=own, headers={"x-user-id": forged})
        assert gateway.request(answer).marks["user.id"] == own
        assert gateway.post(headers={"x-rollout-arm": "canary"}).status_code == 403
        assert gateway.post(headers={"x-rollout-arm": "canary", "origin": gateway.gateway.url}).status_code == 200
