"""What the gateway costs and whether it keeps its promises: `python -m benchmarks.gateway [--small]`. Latencies are
those of 100 requests a second over the slot's own; errors are those of OpenAI's client while weights change and
the canary is killed; then both arms are on one server (gateway_arms.py). The last line is JSON."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.gateway_arms import memory, switched
from benchmarks.measure import cpu_s
from benchmarks.parts import options
from pipeline.core import layout
from pipeline.core.storage import ModelRef, Store
from pipeline.recipe.rollout import GatewayTraffic
from pipeline.rollout.gateway.process import GatewayAddress, GatewaySettings, running_gateway
from pipeline.rollout.gateway.spans import recorded
from pipeline.rollout.gateway.split import GatewaySplit, ServedSlot, SlotTable
from pipeline.rollout.router import Split
from pipeline.serving.endpoint import served_name
from pipeline.serving.server_process import held_port

NAME = "bench"
CHAMPION, CANARY = (ModelRef(uri=f"/models/{letter}", digest=letter * 64) for letter in "ab")
CALLERS, CONNECTIONS, RATE = 12, 16, 100
QUESTION = "A shop sells pens at 3 and books at 8. What do 4 pens and 2 books cost? " * 4


class SlotProcess:
    """A server that can be killed and comes again at its port."""

    def __init__(self, model: ModelRef) -> None:
        self._held = held_port()
        self.port: int = self._held.getsockname()[1]
        self.slot = ServedSlot(
            digest=model.digest, url=f"http://127.0.0.1:{self.port}/v1", name=served_name(NAME, model.digest)
        )

    def __enter__(self) -> SlotProcess:
        command = [sys.executable, "-m", "benchmarks.gateway_slot", str(self.port), self.slot.name, str(os.getpid())]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._process.stdout.readline()
        return self

    def __exit__(self, *raised: object) -> None:
        self._process.kill()
        self._process.wait()


class Bench:
    """A gateway over two slots that answer at once."""

    def __init__(self, store: Store, gateway: GatewayAddress, champion: SlotProcess, canary: SlotProcess) -> None:
        self.store, self.gateway, self.champion, self.canary = store, gateway, champion, canary
        self._port = GatewaySplit(store, NAME, lambda digest: None, lambda url, name: "")
        self._epoch = 0

    def split(self, weight: int) -> None:
        self._epoch += 1
        fields = {"champion": CHAMPION, "canary": CANARY, "champion_weight": 100 - weight, "canary_weight": weight}
        self._port.apply(Split(rollout="bench", epoch=self._epoch, **fields))  # pyright: ignore[reportArgumentType]


@contextmanager
def bench() -> Generator[Bench]:
    with tempfile.TemporaryDirectory() as root, SlotProcess(CHAMPION) as champion, SlotProcess(CANARY) as canary:
        store = Store(root)
        store.write(layout.slot_file(NAME), SlotTable(slots=(champion.slot, canary.slot)))
        settings = GatewaySettings(root=root, model_name=NAME, traffic=GatewayTraffic(port=0))
        with running_gateway(settings, lambda line: None) as gateway:
            yield Bench(store, gateway, champion, canary)


class Connection:
    """HTTP/1.1 at next to no cost: a response is read by its length."""

    @classmethod
    async def to(cls, url: str) -> Connection:
        self, host = cls(), url.removeprefix("http://").partition("/")[0]
        self._reader, self._writer = await asyncio.open_connection(*host.split(":"))
        return self

    async def post(self, user: str) -> bytes:
        fields: dict[str, Any] = {"model": "any", "messages": [{"role": "user", "content": QUESTION}], "user": user}
        body = json.dumps({**fields, "max_tokens": 64, "metadata": {"user_consent": "true"}}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        self._writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        headers = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        size = int(headers.partition(b"content-length:")[2].partition(b"\r\n")[0])
        answer = await self._reader.readexactly(size)
        assert headers.startswith(b"http/1.1 200"), answer
        return answer

    def close(self) -> None:
        self._writer.close()


async def latencies(url: str, count: int) -> list[float]:
    """Seconds of `count` requests at RATE a second, ascending."""
    connections = [await Connection.to(url) for _ in range(4)]
    begun, seconds = time.perf_counter(), list[float]()
    for number in range(count):
        await asyncio.sleep(max(0.0, begun + number / RATE - time.perf_counter()))
        asked = time.perf_counter()
        await connections[number % 4].post(f"user-{number % 500}")
        seconds.append(time.perf_counter() - asked)
    for connection in connections:
        connection.close()
    return sorted(seconds)


async def posted(at: Bench, users: Sequence[str]) -> list[bytes]:
    """The answers to these users, asked over CONNECTIONS connections that don't wait for each other."""

    async def call(first: int) -> list[bytes]:
        connection = await Connection.to(at.gateway.url)
        answers = [await connection.post(user) for user in users[first::CONNECTIONS]]
        connection.close()
        return answers

    return [each for some in await asyncio.gather(*map(call, range(CONNECTIONS))) for each in some]


async def throughput(at: Bench, count: int) -> dict[str, float]:
    """Under CONNECTIONS callers that don't wait."""

    asked = count // CONNECTIONS * CONNECTIONS
    users = [f"user-{n % CONNECTIONS}-{n // CONNECTIONS % 50}" for n in range(asked)]
    await posted(at, users)  # warm
    cpu, begun = cpu_s(at.gateway.pid), time.perf_counter()
    await posted(at, users)
    wall = time.perf_counter() - begun
    await asyncio.sleep(0.3)  # what is written afterwards is a part of the cost
    return {"requests_per_cpu_s": asked / (cpu_s(at.gateway.pid) - cpu), "requests_per_s": asked / wall}


async def split_of_users(at: Bench, users: int) -> float:
    """Standard deviations between the users on the canary and a quarter of them."""
    at.split(25)
    answers = await posted(at, [f"person-{number}" for number in range(users)])
    on_canary = sum(b"b" * 12 in each for each in answers)
    return abs(on_canary - users * 0.25) / math.sqrt(users * 0.25 * 0.75)


async def disturbed(at: Bench, small: bool) -> dict[str, int]:
    """What clients with their default retries see of weights that change and of a canary that dies."""
    import openai

    shifts, deaths = (4, 2) if small else (20, 5)
    errors, answers, done = list[str](), 0, asyncio.Event()

    async def call(number: int) -> None:
        nonlocal answers
        client = openai.AsyncOpenAI(base_url=f"{at.gateway.url}/v1", api_key="none", timeout=30)
        turn = 0
        while not done.is_set():
            turn += 1
            asked: dict[str, Any] = {"model": "any", "messages": [{"role": "user", "content": QUESTION}]}
            try:
                user = f"caller-{number}-{turn % 40}"
                if turn % 3:
                    answer = await client.chat.completions.create(**asked, user=user)
                    text = answer.choices[0].message.content
                else:
                    pieces = await client.chat.completions.create(**asked, user=user, stream=True)
                    text = "".join([piece.choices[0].delta.content or "" async for piece in pieces])
                assert text and text.strip() == "The answer is 42.", text
                answers += 1
            except Exception as error:  # each is counted, and the first ones are shown
                errors.append(f"{type(error).__name__}: {error}")
        await client.close()

    calls = [asyncio.create_task(call(number)) for number in range(CALLERS)]
    for turn in range(shifts):
        at.split((5, 25, 95, 0)[turn % 4] if turn % 4 != 3 else 50)
        await asyncio.sleep(0.5)
        if turn < deaths:
            at.canary.__exit__()
            await asyncio.sleep(0.3)
            at.canary.__enter__()
    done.set()
    await asyncio.gather(*calls)
    for error in errors[:5]:
        print(error)
    return {"errors_with_default_retries": len(errors), "answers": answers}


def on_both_arms(at: Bench) -> int:
    """Users whom one weight sent to both arms."""
    arms: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
    for row in recorded(at.store.path(layout.served(NAME)), 0, math.inf):
        arms[row.marks["rollout.unit"], row.marks["rollout.weight"]].add(row.marks["rollout.arm"])
    return sum(len(each) > 1 for each in arms.values())


def measure(small: bool) -> dict[str, float]:
    figures: dict[str, float] = {}
    with bench() as at:
        at.split(25)
        count = 300 if small else 3_000
        asyncio.run(latencies(at.gateway.url, 100))
        direct, through = (asyncio.run(latencies(url, count)) for url in (at.champion.slot.url, at.gateway.url))
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            rank = math.ceil(share * count) - 1
            figures[f"added_{name}_ms"] = 1e3 * (through[rank] - direct[rank])
        figures |= asyncio.run(throughput(at, 2_000 if small else 20_000))
        figures["split_z"] = asyncio.run(split_of_users(at, 1_000 if small else 10_000))
        figures["users_on_both_arms"] = on_both_arms(at)
    with bench() as at:
        figures |= asyncio.run(disturbed(at, small))
        figures["users_on_both_arms"] += on_both_arms(at)
        time.sleep(0.3)
        state = GatewaySplit(at.store, NAME, lambda digest: None, lambda url, name: "").state()
        assert state is not None, "it runs"
        figures["unrecorded"] = state.served - state.recorded
    figures |= asyncio.run(switched(small)) | memory(small)
    return {name: round(value, 3) for name, value in figures.items()}


if __name__ == "__main__":
    print(json.dumps(measure(options(__doc__, "whether it runs, not how fast").parse_args().small)))
