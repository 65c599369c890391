"""A slot's answer in the form of each API: whole, or as the events of a stream whose text comes in one piece."""

import json
import time
from collections.abc import Iterator
from typing import NamedTuple

from pipeline.core.apis import CHAT, RESPONSES, Api, Json
from pipeline.serving.chat_request import ChatRequest

_STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class SlotAnswer(NamedTuple):
    """An answer. `message`: of OpenAI's chat completions. `cut_at`: the stop text that ended it."""

    asked: ChatRequest
    id: str
    model: str
    message: Json
    finish: str
    cut_at: str | None
    prompt: list[int]
    drawn: list[int]

    def usage(self, prompt: str, drawn: str) -> dict[str, int]:
        """Under the names of an API."""
        return {prompt: len(self.prompt), drawn: len(self.drawn), "total_tokens": len(self.prompt) + len(self.drawn)}

    def parts(self) -> Iterator[tuple[str, str, str]]:
        """Two empty ones and the text, then each call: id, name, arguments as JSON text."""
        if self.message["content"] is not None:
            yield "", "", self.message["content"]
        for call in self.message.get("tool_calls", []):
            yield call["id"], call["function"]["name"], call["function"]["arguments"]


def body_of(api: Api, reply: SlotAnswer) -> Json:
    if api is CHAT:
        return _chat(reply, "chat.completion", "message")
    return _response(reply, _items(reply)) if api is RESPONSES else _anthropic(reply, _blocks(reply))


def stream_of(api: Api, reply: SlotAnswer) -> str:
    """As server-sent events."""
    if api is CHAT:
        last = _chat(reply, "chat.completion.chunk", "delta")
        first = {name: last[name] for name in last if name != "usage"}
        events = (json.dumps(first), json.dumps({**last, "choices": []}), "[DONE]")
        return "".join(f"data: {event}\n\n" for event in events)
    listed = _response_events(reply) if api is RESPONSES else _anthropic_events(reply)
    numbered = ({**event, "sequence_number": n} for n, event in enumerate(listed))
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in numbered)


def _chat(reply: SlotAnswer, kind: str, said: str) -> Json:
    choice = {"index": 0, said: reply.message, "finish_reason": reply.finish}
    body = {"id": f"chatcmpl-{reply.id}", "object": kind, "created": int(time.time()), "model": reply.model}
    if reply.asked.return_token_ids:
        body, choice = {**body, "prompt_token_ids": reply.prompt}, {**choice, "token_ids": reply.drawn}
    return {**body, "choices": [choice], "usage": reply.usage("prompt_tokens", "completion_tokens")}


def _response(reply: SlotAnswer, output: list[Json], status: str = "completed") -> Json:
    asked, over = reply.asked, reply.finish == "length" and status == "completed"
    head = {"id": f"resp_{reply.id}", "object": "response", "created_at": int(time.time()), "model": reply.model}
    why = {"reason": "max_output_tokens"} if over else None
    state = {"status": "incomplete" if over else status, "incomplete_details": why, "error": None}
    tools = [{"type": "function", **tool["function"]} for tool in asked.tools]
    given = {"tools": tools, "tool_choice": asked.tool_choice, "parallel_tool_calls": asked.parallel_tool_calls}
    return {**head, **state, **given, "output": output, "usage": reply.usage("input_tokens", "output_tokens")}


def _items(reply: SlotAnswer) -> list[Json]:
    items: list[Json] = []
    for id, name, said in reply.parts():
        text = {"type": "output_text", "text": said, "annotations": []}
        message = {"type": "message", "id": f"msg_{reply.id}", "role": "assistant", "content": [text]}
        call = {"type": "function_call", "id": f"fc_{id}", "call_id": id, "name": name, "arguments": said}
        items.append({**(call if id else message), "status": "completed"})
    return items


def _response_events(reply: SlotAnswer) -> Iterator[Json]:
    yield {"type": "response.created", "response": _response(reply, [], "in_progress")}
    for n, item in enumerate(_items(reply)):
        at, said = {"item_id": item["id"], "output_index": n}, item.get("arguments")
        begun = {**item, "status": "in_progress", **({"content": []} if said is None else {"arguments": ""})}
        yield {"type": "response.output_item.added", "output_index": n, "item": begun}
        if said is None:
            (part,) = item["content"]
            at["content_index"] = 0
            yield {"type": "response.content_part.added", **at, "part": {**part, "text": ""}}
            yield {"type": "response.output_text.delta", **at, "delta": part["text"], "logprobs": []}
        else:
            yield {"type": "response.function_call_arguments.delta", **at, "delta": said}
        yield {"type": "response.output_item.done", "output_index": n, "item": item}
    whole = _response(reply, _items(reply))
    yield {"type": f"response.{whole['status']}", "response": whole}


def _anthropic(reply: SlotAnswer, content: list[Json]) -> Json:
    body = {"id": f"msg_{reply.id}", "type": "message", "role": "assistant", "model": reply.model, "content": content}
    stop = {"stop_reason": "stop_sequence" if reply.cut_at else _STOPS[reply.finish], "stop_sequence": reply.cut_at}
    return {**body, **stop, "usage": reply.usage("input_tokens", "output_tokens")}


def _blocks(reply: SlotAnswer) -> list[Json]:
    return [
        {"type": "tool_use", "id": id, "name": name, "input": json.loads(said)}
        if id
        else {"type": "text", "text": said}
        for id, name, said in reply.parts()
    ]


def _anthropic_events(reply: SlotAnswer) -> Iterator[Json]:
    whole = _anthropic(reply, [])
    stop = {name: whole[name] for name in ("stop_reason", "stop_sequence")}
    yield {"type": "message_start", "message": {**whole, **dict.fromkeys(stop)}}
    for n, (block, (id, _, said)) in enumerate(zip(_blocks(reply), reply.parts(), strict=True)):
        begun = {**block, **({"input": {}} if id else {"text": ""})}
        delta = {"type": "input_json_delta", "partial_json": said} if id else {"type": "text_delta", "text": said}
        yield {"type": "content_block_start", "index": n, "content_block": begun}
        yield {"type": "content_block_delta", "index": n, "delta": delta}
        yield {"type": "content_block_stop", "index": n}
    yield {"type": "message_delta", "delta": stop, "usage": whole["usage"]}
    yield {"type": "message_stop"}
