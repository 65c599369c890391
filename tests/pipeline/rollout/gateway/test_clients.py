"""OpenAI's and Anthropic's Python clients, and requests of coding agents, through the gateway to a slot's own server;
what was served, read back as traces.

The requests have the shape of recorded ones, with values of our own: Crush's by Anthropic's messages are in
`internal/agent/testdata/TestCoderAgent` of charmbracelet/crush, Codex's by OpenAI's responses in
`codex-rs/core/tests/suite/client.rs` of openai/codex."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from pipeline.core import layout
from pipeline.core.storage import Store, model_ref
from pipeline.rollout.gateway.split import ServedSlot, SlotTable
from pipeline.serving.endpoint import served_name
from pipeline.serving.server_process import model_slot
from pipeline.traces.rows import Trace
from tests.fork_server import ForkServer
from tests.loop import forked
from tests.pipeline.core.tool_models import QUESTION, TOOL, calling_model
from tests.pipeline.rollout.gateway.test_spans import read
from tests.pipeline.rollout.gateway.world import NAME, awaited, in_a_thread, settings_of

pytestmark = pytest.mark.slow


class Clients:
    """A gateway over one slot, its clients, and what was read of it."""

    def __init__(self, store: Store, url: str) -> None:
        self.store, self.url = store, url
        self.openai = openai.OpenAI(base_url=f"{url}/v1", api_key="k", http_client=httpx2.Client(trust_env=False))
        self.anthropic = anthropic.Anthropic(base_url=url, api_key="k", http_client=httpx2.Client(trust_env=False))

    def trace(self, id: str) -> Trace:
        def row() -> Trace | None:
            return next((row for block in read(self.store) for row in block.traces if row.trace_id == id), None)

        return awaited(row)

    def thumbs(self, id: str) -> list[float | None]:
        return [score.value for block in read(self.store) for score in block.scores if score.trace_id == id]


@pytest.fixture(scope="module")
def served(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    root = tmp_path_factory.mktemp("clients")
    model = model_ref(calling_model(root / "model"))
    with forked(fork_server), model_slot(NAME, model, 64, root / "slot") as slot:
        listed = ServedSlot(digest=model.digest, url=slot.url, name=served_name(NAME, model.digest))
        Store(root).write(layout.slot_file(NAME), SlotTable(slots=(listed,)))
        with in_a_thread(settings_of(root)) as gateway:
            yield Clients(Store(root), gateway.url)


Ask = Callable[[Clients, list[Any], bool], tuple[str, list[Any]]]
"""Returns an answer's id, and what it adds to the conversation."""


def by_chat(served: Clients, asked: list[Any], stream: bool) -> tuple[str, list[Any]]:
    body: dict[str, Any] = {"model": "any", "messages": asked, "tools": [TOOL], "user": "ada", "temperature": 0}
    if stream:
        with served.openai.chat.completions.stream(**body) as events:
            whole, id = events.get_final_completion(), events._response.headers["x-request-id"]  # pyright: ignore[reportPrivateUsage]
    else:
        whole = served.openai.chat.completions.create(**body)
        id = str(whole._request_id)
    message = whole.choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "2"} for call in message.tool_calls or []]
    return id, [message.model_dump(), *results]


def by_responses(served: Clients, asked: list[Any], stream: bool) -> tuple[str, list[Any]]:
    tool: Any = {"type": "function", **TOOL["function"]}
    body: dict[str, Any] = {"model": "any", "input": asked, "tools": [tool], "temperature": 0, "store": False}
    body["safety_identifier"] = "ada"
    if stream:
        with served.openai.responses.stream(**body) as events:
            whole, id = events.get_final_response(), events._raw_stream.response.headers["x-request-id"]  # pyright: ignore[reportPrivateUsage]
    else:
        whole = served.openai.responses.create(**body)
        id = str(whole._request_id)
    ids = [item.call_id for item in whole.output if item.type == "function_call"]
    results = [{"type": "function_call_output", "call_id": id, "output": "2"} for id in ids]
    return id, [*(item.model_dump() for item in whole.output), *results]


def by_messages(served: Clients, asked: list[Any], stream: bool) -> tuple[str, list[Any]]:
    tool: Any = {"name": "f", "input_schema": {}}
    body: dict[str, Any] = {"model": "any", "messages": asked, "tools": [tool], "max_tokens": 64}
    more: Any = {"extra_body": {"temperature": 0}, "metadata": {"user_id": "ada"}}
    if stream:
        with served.anthropic.messages.stream(**body, **more) as events:
            whole, id = events.get_final_message(), events.response.headers["request-id"]
    else:
        whole = served.anthropic.messages.create(**body, **more)
        id = str(whole._request_id)
    counted = served.anthropic.messages.count_tokens(model="any", messages=asked, tools=[tool])
    assert whole.usage.input_tokens == counted.input_tokens
    ids = [each.id for each in whole.content if each.type == "tool_use"]
    results = [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": "2"}]} for id in ids]
    return id, [{"role": "assistant", "content": [each.model_dump() for each in whole.content]}, *results]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_round_trip_of_a_tool_is_one_trace_by_every_client(served: Clients, stream: bool) -> None:
    asks: tuple[Ask, ...] = (by_chat, by_responses, by_messages)
    said: list[list[dict[str, Any]]] = []
    for ask in asks:
        first, added = ask(served, [QUESTION], stream)
        second, _ = ask(served, [QUESTION, *added], stream)
        thumb = {"id": second, "score": "up"}
        assert httpx2.post(f"{served.url}/v1/feedback", json=thumb, trust_env=False).is_success
        names = ("messages", "completion", "tool_calls", "tools", "finish_reason", "output_tokens", "user_id", "model")
        said.append([{name: getattr(served.trace(id), name) for name in names} for id in (first, second)])
        assert served.thumbs(second) == [1.0]
    assert said[0] == said[1] == said[2]
    call, answer = said[0]
    assert (call["finish_reason"], call["completion"], answer["completion"]) == ("tool_calls", "", "2")
    assert json.loads(call["tool_calls"])[0]["function"] == {"name": "f", "arguments": '{"a":"b"}'}
    assert [message["role"] for message in answer["messages"]] == ["user", "assistant", "tool"] and answer["tools"]


def test_clients_raise_what_a_slot_refuses(served: Clients) -> None:
    with pytest.raises(openai.BadRequestError, match="previous_response_id: this server does not go by it"):
        served.openai.responses.create(model="any", input="1+1=", previous_response_id="resp_1")
    with pytest.raises(anthropic.BadRequestError, match="a part of type 'image'"):
        image: Any = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
        served.anthropic.messages.create(model="any", max_tokens=8, messages=[{"role": "user", "content": [image]}])


AGENTS = json.loads((Path(__file__).parent / "agents.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("agent", AGENTS)
def test_requests_of_coding_agents_are_answered_and_read(served: Clients, agent: str) -> None:
    path, headers, body, whose, roles = (AGENTS[agent][name] for name in ("path", "headers", "body", "whose", "roles"))
    reply = httpx2.post(f"{served.url}{path}", json=body, headers=headers, trust_env=False, timeout=60)
    assert reply.status_code == 200, reply.text
    kinds = [line.removeprefix("event: ") for line in reply.text.splitlines() if line.startswith("event: ")]
    assert kinds[-1] in ("response.completed", "response.incomplete", "message_stop")
    row = served.trace(reply.headers["request-id"])
    assert (row.unreadable, row.user_id, row.session_id) == (None, *whose)
    assert [message["role"] for message in row.messages] == roles
    assert len(json.loads(row.tools or "[]")) == len(body["tools"])
