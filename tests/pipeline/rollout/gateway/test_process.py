"""The gateway's processes: started, restarted, killed, ended; the lock that says whether it runs; slots that speak."""

import os
import signal
import subprocess
import sys
import threading

import httpx2
import pytest

from pipeline.core import layout
from pipeline.core.processes import process_start
from pipeline.core.storage import Store
from pipeline.rollout.gateway.process import GatewaySettings, running_address, running_gateway
from pipeline.rollout.gateway.split import GatewaySplit
from pipeline.rollout.gateway.tables import ServedSlot, write_champion
from pipeline.rollout.router import Unsettled
from pipeline.serving.served_names import served_name
from tests.pipeline.rollout.gateway.slot_server import slot_server
from tests.pipeline.rollout.gateway.world import (
    CANARY,
    CHAMPION,
    NAME,
    UNKNOWN,
    awaited,
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


def test_reload_keeps_answering(tmp_path):
    with world(tmp_path, workers=2) as gateway:
        gateway.split(50)
        before, ends, seen = workers_of(gateway), threading.Event(), []
        asking = threading.Thread(target=lambda: seen.extend(ask_until(gateway, ends)))
        asking.start()
        os.kill(gateway.gateway.pid, signal.SIGHUP)
        after = awaited(lambda: workers_of(gateway) if not workers_of(gateway) & before else None)
        ends.set()
        asking.join()
        assert len(after) == 2 and len(seen) > 10
        # A connection that is idle at that moment may be closed under its next request: clients retry those.
        assert len([each for each in seen if each != 200]) <= 2
        awaited(lambda: gateway.state().counts.served == gateway.state().counts.recorded)


def test_a_killed_worker_comes_again_and_its_counts_stay(tmp_path):
    with world(tmp_path) as gateway:
        gateway.split(50)
        gateway.post(user="u")
        awaited(lambda: gateway.state().counts.recorded == 1)
        (worker,) = workers_of(gateway)
        os.kill(worker, signal.SIGKILL)
        awaited(lambda: workers_of(gateway) - {worker})
        answer = awaited(lambda: ask_again(gateway))
        assert answer.status_code == 200
        awaited(lambda: gateway.state().counts.recorded == 2)
        counts = gateway.state().counts
        assert (counts.served, counts.workers) == (2, 1)


def ask_again(gateway):
    try:
        return gateway.post(user="u")
    except httpx2.TransportError:
        return None


def test_processes_end_with_the_block(tmp_path):
    with world(tmp_path) as gateway:
        pids = {gateway.gateway.pid, *workers_of(gateway)}
        assert len(pids) == 2
    assert [pid for pid in pids if process_start(pid) is not None] == []
    assert running_address(gateway.store.path(layout.gateway(NAME))) is None
    assert gateway.port.read() is None


def test_processes_end_with_who_started_them(tmp_path):
    code = (
        "import sys, time\nfrom pipeline.rollout.gateway.process import running_gateway\n"
        "from pipeline.rollout.gateway.process import GatewaySettings\n"
        f"settings = GatewaySettings(root={str(tmp_path)!r}, model_name={NAME!r}, port=0)\n"
        "with running_gateway(settings, lambda line: None) as gateway:\n"
        "    print(gateway.url, gateway.pid, flush=True)\n    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        url, pid = starter.stdout.readline().split()
        assert httpx2.get(f"{url}/health").status_code == 200
        starter.kill()
    awaited(lambda: process_start(int(pid)) is None)
    awaited(lambda: running_address(Store(tmp_path).path(layout.gateway(NAME))) is None)


def test_a_second_gateway_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.rollout.gateway.process.START_TIMEOUT_S", 30.0)
    with world(tmp_path) as gateway:
        settings = GatewaySettings(root=str(tmp_path), model_name=NAME, port=0)
        with (
            pytest.raises(RuntimeError, match="Another gateway runs for desk"),
            running_gateway(settings, lambda line: None),
        ):
            pass
        assert gateway.state().counts.workers == 1


def test_a_port_that_is_taken_is_said(tmp_path):
    with slot_server("other") as other:
        port = int(other.url.rpartition(":")[2].partition("/")[0])
        settings = GatewaySettings(root=str(tmp_path), model_name=NAME, port=port)
        with (
            pytest.raises(RuntimeError, match=r"in use|another server does"),
            running_gateway(settings, lambda line: None),
        ):
            pass


def test_a_gateway_that_hangs_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.rollout.gateway.split.TIMEOUT_S", 0.5)
    with world(tmp_path) as gateway:
        split = gateway.split(50)
        (worker,) = workers_of(gateway)
        os.kill(worker, signal.SIGSTOP)
        try:
            with pytest.raises(OSError, match="holds its lock and does not answer"):
                gateway.port.read()
            gateway.port.apply(split_of(0, split.epoch + 1))  # who cannot be read may still obey
        finally:
            os.kill(worker, signal.SIGCONT)
        assert awaited(lambda: gateway.port.read()) == split_of(0, split.epoch + 1)


def test_slots_say_themselves_what_they_serve(tmp_path):
    names = [served_name(NAME, ref.digest) for ref in (CHAMPION, CANARY)]
    with slot_server(names[0]) as first, slot_server(names[1]) as second:
        settings = GatewaySettings(root=str(tmp_path), model_name=NAME, port=0, slot_urls=(first.url, second.url))
        with running_gateway(settings, lambda line: None) as running:
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


@pytest.mark.slow
def test_a_champion_serves_from_servers_that_others_keep(tmp_path):
    """Before any rollout: in both of them, in one of two, away, and back after one was restarted with another model."""
    names = [served_name(NAME, ref.digest) for ref in (CHAMPION, CANARY, UNKNOWN)]
    write_champion(Store(tmp_path), NAME, CHAMPION, is_rolled_out=False)
    with slot_server(names[0]) as first, slot_server(names[0]) as second:
        settings = GatewaySettings(root=str(tmp_path), model_name=NAME, port=0, slot_urls=(first.url, second.url))
        with running_gateway(settings, lambda line: None) as running, httpx2.Client(base_url=running.url) as client:
            port = GatewaySplit(Store(tmp_path), NAME, lambda digest: None, lambda url: "")

            def served():
                body = {"messages": [{"role": "user", "content": "x"}], "user": "ada"}
                reply = client.post("/v1/chat/completions", json=body)
                return text_of(reply) if reply.status_code == 200 else reply.json()["error"]["message"]

            assert served() == f"It is {names[0]}." and "both hold model aaaaaaaaaaaa" in port.state().slots_fault
            second.name = names[1]
            awaited(lambda: len(port.state().slots) == 2)
            assert {served() for _ in range(8)} == {f"It is {names[0]}."}, "a candidate's server has no users"
            first.name = names[2]
            awaited(lambda: {slot.digest for slot in port.state().slots} == {"b" * 12, "c" * 12})
            assert served() == "No slot serves the champion, model aaaaaaaaaaaa. Load it."
            second.name = names[0]  # the other server may be the champion's as well
            awaited(lambda: port.state().refused == "")
            assert served() == f"It is {names[0]}."


def test_a_user_header_is_believed_where_it_is_trusted(tmp_path):
    with world(tmp_path, trust_user_header=False) as gateway:
        gateway.split(50)
        forged, own = user_of("canary"), user_of("champion")
        answer = gateway.post(user=own, headers={"x-user-id": forged})
        assert gateway.request(answer).marks["user.id"] == own
        assert gateway.post(headers={"x-rollout-arm": "canary"}).status_code == 403
        assert gateway.post(headers={"x-rollout-arm": "canary", "origin": gateway.gateway.url}).status_code == 200


def test_a_single_slot_serves_without_a_split(tmp_path):
    with slot_server(served_name(NAME, CHAMPION.digest)) as only:
        settings = GatewaySettings(root=str(tmp_path), model_name=NAME, port=0, slot_urls=(only.url,))
        with running_gateway(settings, lambda line: None) as running, httpx2.Client(base_url=running.url) as client:
            body = {"messages": [{"role": "user", "content": "x"}]}
            assert text_of(client.post("/v1/chat/completions", json=body)) == f"It is {only.name}."
    with world(tmp_path / "two") as gateway:
        assert gateway.post().status_code == 503


@pytest.mark.parametrize(
    ("served", "ready"),
    [(CANARY.digest, (CANARY.digest, 1, "")), (CHAMPION.digest, (CHAMPION.digest, 1, "serves model aaaaaaaaaaaa"))],
)
def test_readiness_is_what_the_slot_serves(tmp_path, served, ready):
    slot = ServedSlot(digest=CANARY.digest, url="http://127.0.0.1:1/v1", name="desk@bbbbbbbbbbbb")
    port = GatewaySplit(Store(tmp_path), NAME, lambda digest: slot, lambda url: served)
    read = port.ready(CANARY)
    assert (read.served_digest, read.replicas) == ready[:2] and ready[2] in read.reason


def test_a_slot_that_is_silent_or_missing_is_not_ready(tmp_path):
    def away(url):
        raise OSError("refused")

    slot = ServedSlot(digest=CANARY.digest, url="http://127.0.0.1:1/v1", name="desk@bbbbbbbbbbbb")
    for slot_of, why in ((lambda digest: slot, "does not answer"), (lambda digest: None, "No slot holds")):
        read = GatewaySplit(Store(tmp_path), NAME, slot_of, away).ready(CANARY)
        assert (read.served_digest, read.replicas) == ("", 0) and why in read.reason


def test_the_page_is_whole_in_itself(tmp_path):
    with world(tmp_path) as gateway:
        page = gateway.client.get("/")
        assert page.headers["content-security-policy"].startswith("default-src 'none'")
        assert "x-rollout-arm" in page.text
        assert "http://" not in page.text and "https://" not in page.text and " src=" not in page.text
