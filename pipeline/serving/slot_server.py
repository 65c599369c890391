"""`python -m pipeline.serving.slot_server FOLDER PORT NAME[,ALIAS...] LIMIT`: one model by the APIs of core/apis.py
on 127.0.0.1, in place of vLLM where there is no GPU, with adapters beside it that come and go by vLLM's two requests.
What waits is answered in one batch, whichever adapter it is for."""

import asyncio
import secrets
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.core.apis import APIS, CHAT, COUNT, Api
from pipeline.core.conversation import TOOLS, as_message, in_one_form
from pipeline.core.door import LOOPBACK, refusal
from pipeline.core.processes import raise_file_limit
from pipeline.serving.adapted import BASE, AdaptedModel
from pipeline.serving.chat_request import ChatRequest, read_request
from pipeline.serving.inference import AnswerRequest, Sampling
from pipeline.serving.loaded import RequestRefused
from pipeline.serving.replies import SlotAnswer, body_of, stream_of

BATCH = 64
"""Answers that are drawn at once."""
POLL_S = 0.02
"""While an adapter that goes still answers."""


@dataclass(frozen=True)
class _Drawn:
    text: str
    finish: Literal["stop", "length"]
    ids: list[int]
    cut_at: str | None = None


@dataclass
class _Waiting:
    """A request in the queue, and what is drawn for it."""

    ids: list[int]
    by: str
    """Its adapter's name in a batch."""
    seed: int
    limit: int
    asked: ChatRequest
    offered: tuple[dict[str, str], ...]
    """The message with the definitions of tools; none where the request has no tools."""
    drawn: asyncio.Future[_Drawn]

    @property
    def drawn_from(self) -> tuple[float, float]:
        """What all requests of a batch have in common."""
        return self.asked.temperature, self.asked.top_p


class Batches:
    """Draws what waits, batch after batch, in a thread; everything else happens on the event loop."""

    def __init__(self, model: AdaptedModel) -> None:
        self._model = model
        self.queue: asyncio.Queue[_Waiting] = asyncio.Queue()
        self.idle = asyncio.Lock()
        """Held by a batch, and by who changes the model between two."""

    async def run(self) -> None:
        """Until it is cancelled."""
        held: list[_Waiting] = []
        while True:
            waiting = held or [await self.queue.get()]
            while not self.queue.empty():
                waiting.append(self.queue.get_nowait())
            alike = [each for each in waiting if each.drawn_from == waiting[0].drawn_from][:BATCH]
            held = [each for each in waiting if not any(each is other for other in alike)]
            try:
                async with self.idle:
                    rows = await asyncio.to_thread(self._draw, alike)
                for each, drawn in zip(alike, rows, strict=True):
                    if not each.drawn.done():  # its caller may have gone
                        each.drawn.set_result(drawn)
            except Exception as error:  # boundary: memory that does not suffice must not end the server
                for each in alike:
                    if not each.drawn.done():
                        each.drawn.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))

    def _draw(self, batch: list[_Waiting]) -> list[_Drawn]:
        limit = max(each.limit for each in batch)
        temperature, top_p = batch[0].drawn_from
        sampling = Sampling(temperature=temperature, max_completion_tokens=limit)
        prompts, seeds, names = ([getattr(each, name) for each in batch] for name in ("ids", "seed", "by"))
        rows = self._model.answered(prompts, seeds, sampling, names, top_p)
        return [self._drawn(each, row[: each.limit]) for each, row in zip(batch, rows, strict=True)]

    def _drawn(self, waiting: _Waiting, row: list[int]) -> _Drawn:
        """The answer until the first of its ends: a stop token, a stop text, which is cut off, or the limit."""
        stop = waiting.asked.stop
        end = next((n for n, token in enumerate(row) if token in self._model.stops), len(row))
        text = self._model.text(waiting.ids, row[:end])
        if cuts := [(place, each) for each in stop if (place := text.find(each)) >= 0]:

            def stopped(tokens: int) -> bool:
                return any(each in self._model.text(waiting.ids, row[:tokens]) for each in stop)

            tokens = bisect_left(range(end), True, key=stopped)
            place, each = min(cuts)
            return _Drawn(text[:place], "stop", row[:tokens], each)
        return _Drawn(text, "stop" if end < len(row) else "length", row[:end])


class SlotServer:
    """The HTTP side: one model under its names, and each adapter under its own."""

    def __init__(self, model: AdaptedModel, names: list[str], limit: int) -> None:
        self._model, self._names, self._limit = model, names, limit
        self._batches, self._answering = Batches(model), Counter[str]()

    def app(self) -> ASGIApp:
        routes = [
            Route("/health", self._health),
            Route("/v1/models", self._models),
            *(Route(f"/v1{api.path}", partial(self._answer, api), methods=["POST"]) for api in APIS),
            Route("/v1/load_lora_adapter", self._load, methods=["POST"]),
            Route("/v1/unload_lora_adapter", self._unload, methods=["POST"]),
        ]
        app = Starlette(routes=routes, lifespan=self._lifespan)

        async def checked(scope: Scope, receive: Receive, send: Send) -> None:
            why = refusal(scope, LOOPBACK) if scope["type"] == "http" else None
            await (app if why is None else _refusal(*why))(scope, receive, send)

        return checked

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncGenerator[None]:
        running = asyncio.create_task(self._batches.run())
        yield
        running.cancel()

    async def _health(self, request: Request) -> Response:
        return Response()

    async def _models(self, request: Request) -> Response:
        names = [*self._names, *self._model.adapters]
        return JSONResponse({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})

    async def _load(self, request: Request) -> Response:
        """Body: `lora_name` and `lora_path`, a folder of this machine."""
        asked = await request.json()
        name = asked["lora_name"]
        if name in self._model.adapters:
            return _refusal(400, f"The lora adapter '{name}' has already been loaded.")
        try:
            async with self._batches.idle:
                await asyncio.to_thread(self._model.put, name, asked["lora_path"])
        except ValueError as error:
            return _refusal(400, str(error))
        return Response(f"Success: LoRA adapter '{name}' added successfully.")

    async def _unload(self, request: Request) -> Response:
        """What was asked before is answered first."""
        name = (await request.json())["lora_name"]
        if (key := self._model.adapters.pop(name, None)) is None:
            return _refusal(404, f"The lora adapter '{name}' cannot be found.")
        while self._answering[key]:
            await asyncio.sleep(POLL_S)
        async with self._batches.idle:
            await asyncio.to_thread(self._model.remove, key)
        return Response(f"Success: LoRA adapter '{name}' removed successfully.")

    async def _answer(self, api: Api, request: Request) -> Response:
        try:
            asked = read_request(api, await request.body())
            key = BASE if asked.model in self._names else self._model.adapters.get(asked.model)
            if key is None:
                names = " or ".join([*self._names, *self._model.adapters])
                return _refusal(404, f"the model {asked.model!r} is not here. Ask {names}.", api)
            waiting = self._waiting(asked, key)
            if api is COUNT:
                return JSONResponse({"input_tokens": len(waiting.ids)})
            reply = _reply(await self._drawn(waiting), waiting, self._names[0] if key == BASE else asked.model)
        except RequestRefused as error:
            return _refusal(400, str(error), api)
        except RuntimeError as error:
            return _refusal(500, str(error), api)
        if asked.stream:
            return Response(stream_of(api, reply), media_type="text/event-stream")
        return JSONResponse(body_of(api, reply))

    async def _drawn(self, waiting: _Waiting) -> _Drawn:
        self._answering[waiting.by] += 1
        try:
            self._batches.queue.put_nowait(waiting)
            return await waiting.drawn
        finally:
            self._answering[waiting.by] -= 1

    def _waiting(self, asked: ChatRequest, by: str) -> _Waiting:
        """Raises RequestRefused for what template or context do not take."""
        limit = min(asked.max_completion_tokens or asked.max_tokens or self._limit, self._limit)
        seed = secrets.randbits(31) if asked.seed is None else asked.seed % 2**31
        messages = asked.conversation
        offered = tuple(message for message in messages if message["role"] == TOOLS)
        ids = self._model.prompt(AnswerRequest(key="", messages=messages, seed=seed), limit)
        return _Waiting(ids, by, seed, limit, asked, offered, asyncio.get_running_loop().create_future())


def _reply(drawn: _Drawn, waiting: _Waiting, model: str) -> SlotAnswer:
    """Calls are looked for where tools were offered."""
    asked, message = waiting.asked, {"role": "assistant", "content": drawn.text}
    if waiting.offered:
        made = sum(len(each.get("tool_calls", [])) for each in asked.messages)
        most = None if asked.parallel_tool_calls else 1
        message = as_message(in_one_form(drawn.text, waiting.offered), most, made)
    finish = "tool_calls" if "tool_calls" in message and drawn.finish == "stop" else drawn.finish
    return SlotAnswer(asked, secrets.token_hex(12), model, message, finish, drawn.cut_at, waiting.ids, drawn.ids)


def _refusal(status: int, message: str, api: Api = CHAT) -> Response:
    return JSONResponse(api.error(status, message), status)


def main(folder: str, port: str, names: str, limit: str) -> None:
    raise_file_limit()
    torch.set_num_threads(1)
    model = AdaptedModel(folder, BATCH)
    model.generate([[0]], [0], Sampling(max_completion_tokens=1))  # loads the weights before it says that it is ready
    app = SlotServer(model, names.split(","), int(limit)).app()
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning", access_log=False)


if __name__ == "__main__":
    main(*sys.argv[1:5])
