"""A gateway that runs as processes, with two slots behind it, and what its callers and its files say."""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import uvicorn

from pipeline.core import layout
from pipeline.core.storage import ModelRef, Store
from pipeline.recipe.rollout import GatewayTraffic
from pipeline.rollout.gateway.__main__ import TimedConnection
from pipeline.rollout.gateway.app import application
from pipeline.rollout.gateway.process import GatewayAddress, GatewaySettings, held_lock, running_gateway
from pipeline.rollout.gateway.spans import RecordedRequest, recorded
from pipeline.rollout.gateway.split import GatewaySplit, GatewayState, ServedSlot, SlotTable, read_slots
from pipeline.rollout.router import Split, route
from pipeline.serving.endpoint import served_name
from tests.contexts import KEYS
from tests.pipeline.rollout.gateway.slot_server import SlotServer, slot_server

NAME = "desk"
CHAMPION, CANARY, UNKNOWN = (ModelRef(uri=f"/models/{letter}", digest=letter * 64) for letter in "abc")
ROLLOUT = "rollout-1"
WAIT_S = 15.0


def split_of(weight: int, epoch: int, **changes: Any) -> Split:
    split = Split(
        rollout=ROLLOUT,
        epoch=epoch,
        champion=CHAMPION,
        champion_weight=100 - weight,
        canary=CANARY,
        canary_weight=weight,
    )
    return split.model_copy(update=changes)


def user_of(arm: str, weight: int = 50, number: int = 0) -> str:
    """The `number`-th user whom a split of this weight sends to the arm."""
    split, users = split_of(weight, 1), (f"user-{n}" for n in range(100_000))
    return [next(user for user in users if route(split, user) == arm) for _ in range(number + 1)][-1]


class World:
    """A gateway, its slots and a caller."""

    def __init__(self, store: Store, gateway: GatewayAddress, champion: SlotServer, canary: SlotServer) -> None:
        self.store, self.gateway, self.champion, self.canary = store, gateway, champion, canary
        self.client = httpx2.Client(base_url=gateway.url, trust_env=False, timeout=30)
        self.port = GatewaySplit(store, NAME, self.slot_of, lambda url, name: "")
        self.epoch = 0

    def slot_of(self, digest: str) -> ServedSlot | None:
        table = read_slots(self.store, NAME)
        return None if table is None else table.slot_of(digest)

    def split(self, weight: int, **changes: Any) -> Split:
        """Apply the next epoch."""
        self.epoch += 1
        split = split_of(weight, self.epoch, **changes)
        self.port.apply(split)
        return split

    def write_file(self, content: bytes) -> None:
        """Leave anything where the split should be."""
        self.store.path(layout.split_file(NAME)).write_bytes(content)

    def reset(self) -> None:
        """Right answers, a closed breaker, half of the users on the canary."""
        for slot in (self.champion, self.canary):
            slot.answer = lambda server, body: None
        self.split(50)
        awaited(lambda: text_of(self.post(user=user_of("canary"))) == f"It is {self.canary.name}.")
        awaited(lambda: self.state().served == self.state().recorded)
        for slot in (self.champion, self.canary):
            slot.asked.clear()
            slot.headers.clear()

    def post(self, user: str | None = None, headers: dict[str, str] | None = None, **fields: Any) -> httpx2.Response:
        named = {} if user is None else {"user": user}
        body = {"model": "any", "messages": [{"role": "user", "content": "What is it?"}], **named, **fields}
        return self.client.post("/v1/chat/completions", json=body, headers=headers)

    def state(self) -> GatewayState:
        state = self.port.state()
        assert state is not None, "the gateway runs"
        return state

    def request(self, response: httpx2.Response) -> RecordedRequest:
        """What was recorded of an answered request."""
        trace_id = response.headers["x-trace-id"]

        def recording() -> RecordedRequest | None:
            rows = recorded(self.store.path(layout.served(NAME)), 0, time.time())
            return next((row for row in rows if row.spans[0].record["traceId"] == trace_id), None)

        return awaited(recording)

    def lines(self) -> list[dict[str, Any]]:
        files = sorted(self.store.path(layout.served(NAME)).glob("*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def awaited(value: Callable[[], Any]) -> Any:
    """The first value that is there."""
    deadline = time.monotonic() + WAIT_S
    while not (result := value()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)
    return result


def text_of(response: httpx2.Response) -> str:
    return response.json()["choices"][0]["message"]["content"]


@contextmanager
def in_a_thread(settings: GatewaySettings) -> Generator[GatewayAddress]:
    """In this process, which starts in no time; test_process.py has it as a process."""
    with socket.socket() as listener, held_lock(Store(settings.root).path(layout.gateway(NAME))) as publish:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        how: dict[str, Any] = {"http": TimedConnection, "lifespan": "on", "ws": "none", "log_level": "critical"}
        server = uvicorn.Server(uvicorn.Config(application(settings), **how))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        awaited(lambda: server.started)
        address = GatewayAddress(url=f"http://127.0.0.1:{listener.getsockname()[1]}", pid=os.getpid())
        publish(address)
        try:
            yield address
        finally:
            server.should_exit = True
            thread.join()


def settings_of(root: Path, **traffic: Any) -> GatewaySettings:
    return GatewaySettings(root=str(root), model_name=NAME, traffic=GatewayTraffic(port=0, **traffic))


@contextmanager
def world(root: Path, is_process: bool = False, **traffic: Any) -> Generator[World]:
    store = Store(root, KEYS)
    with (
        slot_server(served_name(NAME, CHAMPION.digest)) as champion,
        slot_server(served_name(NAME, CANARY.digest)) as canary,
    ):
        refs = ((CHAMPION, champion), (CANARY, canary))
        slots = tuple(ServedSlot(digest=ref.digest, url=each.url, name=each.name) for ref, each in refs)
        store.write(layout.slot_file(NAME), SlotTable(slots=slots))
        given = settings_of(root, **traffic)
        with running_gateway(given, lambda line: None) if is_process else in_a_thread(given) as gateway:
            yield World(store, gateway, champion, canary)
