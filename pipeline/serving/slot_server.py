"""`python -m pipeline.serving.slot_server FOLDER PORT NAME[,ALIAS...] LIMIT`: one model as an OpenAI-compatible server
on 127.0.0.1, in place of vLLM where there is no GPU. What waits is answered in one batch."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import uvicorn
from pydantic import BaseModel, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from pipeline.core.conversation import TOOLS, as_message, from_request, in_one_form
from pipeline.serving.inference import AnswerRequest, Sampling
from pipeline.serving.loaded import LoadedModel, RequestRefused

BATCH = 64
"""Answers that are drawn at once."""


class _Message(BaseModel):
    role: str
    content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class ChatRequest(BaseModel):
    """What a caller asks, as far as this server goes by it; other fields are left alone."""

    model: str
    messages: list[_Message] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None
    """Definitions, as OpenAI has them."""
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=100)
    seed: int | None = None
    stream: bool = False
    n: Literal[1] = 1


@dataclass
class _Waiting:
    """A request in the queue, and where its text goes: pieces as they are drawn, then how it ended."""

    ids: list[int]
    seed: int
    limit: int
    temperature: float
    streamed: bool = False
    """Whether its text is wanted as it is drawn, or whole."""
    offered: tuple[dict[str, str], ...] = ()
    """The message with the definitions of tools; none where the request has no tools."""
    pieces: asyncio.Queue[str | _Ended] = field(default_factory=lambda: asyncio.Queue())
    sent: int = 0
    """Characters of the text that were handed out."""
    ended: _Ended = field(default_factory=lambda: _Ended("error", 0))
    """How it ended, once the last piece was taken."""
    over: bool = False


@dataclass(frozen=True)
class _Ended:
    finish: Literal["stop", "length", "error"]
    tokens: int
    detail: str = ""


class Batches:
    """Draws what waits, batch after batch, in a thread; everything else happens on the event loop."""

    def __init__(self, model: LoadedModel, loop: asyncio.AbstractEventLoop) -> None:
        self._model, self._loop = model, loop
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue()

    def put(self, waiting: _Waiting) -> None:
        self._queue.put_nowait(waiting)

    async def run(self) -> None:
        """Until it is cancelled."""
        held: list[_Waiting] = []
        while True:
            waiting = held or [await self._queue.get()]
            while not self._queue.empty():
                waiting.append(self._queue.get_nowait())
            alike = [each for each in waiting if each.temperature == waiting[0].temperature][:BATCH]
            held = [each for each in waiting if not any(each is other for other in alike)]
            await asyncio.to_thread(self._draw, alike)

    def _draw(self, batch: list[_Waiting]) -> None:
        limit = max(each.limit for each in batch)
        sampling = Sampling(temperature=batch[0].temperature, max_completion_tokens=limit)
        try:
            rows = self._model.generate(
                [each.ids for each in batch],
                [each.seed for each in batch],
                sampling,
                lambda rows: self._hand_out(batch, rows, last=False),
            )
            self._hand_out(batch, rows, last=True)
        except Exception as error:  # boundary: memory that does not suffice must not end the server
            for each in batch:
                self._give(each, _Ended("error", 0, f"{type(error).__name__}: {error}"))

    def _hand_out(self, batch: list[_Waiting], rows: list[list[int]], last: bool) -> None:
        for each, row in zip(batch, rows, strict=True):
            if each.over:
                continue
            end = next((n for n, token in enumerate(row) if token in self._model.stops), len(row))
            stopped, end = end < len(row), min(end, each.limit)
            over = last or stopped or end == each.limit
            if not (over or each.streamed):
                continue
            text = self._model.tokenizer.decode(row[:end], skip_special_tokens=True)
            whole = text if over else text.rstrip("\N{REPLACEMENT CHARACTER}")  # the rest of a character may come yet
            if len(whole) > each.sent:
                self._give(each, whole[each.sent :])
                each.sent = len(whole)
            if over:
                each.over = True
                self._give(each, _Ended("stop" if stopped else "length", end))

    def _give(self, each: _Waiting, piece: str | _Ended) -> None:
        self._loop.call_soon_threadsafe(each.pieces.put_nowait, piece)


class SlotServer:
    """The HTTP side: one model under its names."""

    def __init__(self, model: LoadedModel, names: list[str], limit: int) -> None:
        self._model, self._names, self._limit = model, names, limit
        self._batches: Batches | None = None

    def app(self) -> Starlette:
        routes = [
            Route("/health", self._health),
            Route("/v1/models", self._models),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
        ]
        return Starlette(routes=routes, lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncGenerator[None]:
        self._batches = Batches(self._model, asyncio.get_running_loop())
        running = asyncio.create_task(self._batches.run())
        yield
        running.cancel()

    async def _health(self, request: Request) -> Response:
        return Response()

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": name, "object": "model"} for name in self._names]})

    async def _chat(self, request: Request) -> Response:
        try:
            asked = ChatRequest.model_validate_json(await request.body())
            if asked.model not in self._names:
                return _refusal(404, f"the model {asked.model!r} is not here. Ask {' or '.join(self._names)}.")
            waiting = self._waiting(asked)
        except ValidationError as error:
            first = error.errors()[0]
            return _refusal(400, f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}")
        except RequestRefused as error:
            return _refusal(400, str(error))
        assert self._batches is not None, "requests come after the start"
        self._batches.put(waiting)
        head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": self._names[0]}
        if asked.stream:
            return StreamingResponse(_events(head, waiting), media_type="text/event-stream")
        return await _whole(head, waiting)

    def _waiting(self, asked: ChatRequest) -> _Waiting:
        """Raises RequestRefused for what template or context do not take."""
        limit = min(asked.max_completion_tokens or asked.max_tokens or self._limit, self._limit)
        seed = secrets.randbits(31) if asked.seed is None else asked.seed % 2**31
        messages = from_request([message.model_dump() for message in asked.messages], asked.tools)
        offered = tuple(message for message in messages if message["role"] == TOOLS)
        ids = self._model.prompt(AnswerRequest(key="", messages=messages, seed=seed), limit)
        return _Waiting(ids, seed, limit, asked.temperature, asked.stream and not asked.tools, offered)


async def _pieces(waiting: _Waiting) -> AsyncIterator[str]:
    while isinstance(piece := await waiting.pieces.get(), str):
        yield piece
    waiting.ended = piece


async def _whole(head: dict[str, Any], waiting: _Waiting) -> Response:
    text = "".join([piece async for piece in _pieces(waiting)])
    ended = waiting.ended
    if ended.finish == "error":
        return _refusal(500, ended.detail)
    message, finish = _message(text, waiting)
    choices = [{"index": 0, "message": message, "finish_reason": finish}]
    usage = _usage(waiting)
    return JSONResponse({**head, "object": "chat.completion", "choices": choices, "usage": usage})


def _message(text: str, waiting: _Waiting) -> tuple[dict[str, Any], str]:
    """An answer's message and how it ended; calls are looked for where tools were offered."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    message = as_message(in_one_form(text, waiting.offered)) if waiting.offered else message
    return message, "tool_calls" if "tool_calls" in message and waiting.ended.finish == "stop" else waiting.ended.finish


async def _events(head: dict[str, Any], waiting: _Waiting) -> AsyncIterator[str]:
    def event(delta: dict[str, Any], finish: str | None = None) -> str:
        choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
        return f"data: {json.dumps({**head, 'object': 'chat.completion.chunk', 'choices': choices})}\n\n"

    yield event({"role": "assistant", "content": ""})
    text = ""
    async for piece in _pieces(waiting):
        text += piece
        if not waiting.offered:
            yield event({"content": piece})
    if waiting.ended.finish == "error":
        yield f"data: {json.dumps({'error': {'message': waiting.ended.detail, 'code': 500}})}\n\n"
    else:
        message, finish = _message(text, waiting)
        if waiting.offered:
            called = [{**call, "index": n} for n, call in enumerate(message.get("tool_calls", []))]
            yield event({"content": message["content"], **({"tool_calls": called} if called else {})})
        yield event({}, finish)
        usage = _usage(waiting)
        yield f"data: {json.dumps({**head, 'object': 'chat.completion.chunk', 'choices': [], 'usage': usage})}\n\n"
    yield "data: [DONE]\n\n"


def _usage(waiting: _Waiting) -> dict[str, int]:
    prompt, tokens = len(waiting.ids), waiting.ended.tokens
    return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}


def _refusal(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "code": status}}, status_code=status)


def main(folder: str, port: str, names: str, limit: str) -> None:
    torch.set_num_threads(1)
    model = LoadedModel(folder, BATCH)
    model.generate([[0]], [0], Sampling(max_completion_tokens=1))  # loads the weights before it says that it is ready
    app = SlotServer(model, names.split(","), int(limit)).app()
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning", access_log=False)


if __name__ == "__main__":
    main(*sys.argv[1:5])
