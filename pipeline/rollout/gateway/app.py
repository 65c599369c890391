"""The gateway as an ASGI application. A path below `/v1` that is not named here leads nowhere: servers keep
administration there, such as vLLM's `/v1/load_lora_adapter`."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.core.door import LOOPBACK, refusal
from pipeline.core.storage import Store
from pipeline.rollout.gateway.asked import BadRequest, Shortage, limited_body
from pipeline.rollout.gateway.dialects import CHAT, DIALECTS
from pipeline.rollout.gateway.feedback import record_feedback
from pipeline.rollout.gateway.process import GatewaySettings
from pipeline.rollout.gateway.proxy import Proxy
from pipeline.rollout.gateway.spans import Recorder
from pipeline.rollout.gateway.split import (
    GatewayState,
    SlotReport,
    SplitWatch,
    listed_slots,
    read_slots,
)
from pipeline.rollout.gateway.upstream import CONNECT_S

REFRESH_S = 1.0
"""Between two looks at the slots."""


class Gateway:
    def __init__(self, settings: GatewaySettings) -> None:
        self._settings, self._store = settings, Store(settings.root)
        self._with_text = settings.traffic.record == "text"
        self._recorder = Recorder(self._store, settings.model_name, self._with_text)
        self._watch = SplitWatch(self._store, settings.model_name, self._has_slot)
        self.proxy = Proxy(settings, self._watch, self._recorder)
        self._fault = ""

    def _has_slot(self, digest: str) -> bool:
        """Of a digest that no slot has, the slot file may know since a moment ago."""
        if self.proxy.table.slot_of(digest) is None and not self._settings.traffic.slots:
            with suppress(ValueError):
                self.proxy.table = read_slots(self._store, self._settings.model_name)
        return self.proxy.table.slot_of(digest) is not None

    @asynccontextmanager
    async def running(self, app: Starlette) -> AsyncGenerator[None]:
        """What answering takes; the rest is written when it ends."""
        async with self.proxy.upstream:
            self._recorder.start()
            await self._refresh()
            refreshing = asyncio.create_task(self._keep_fresh())
            try:
                yield
            finally:
                refreshing.cancel()
        self._recorder.close()

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            await self._refresh()

    async def _refresh(self) -> None:
        """Read the slots again. A table that can't be read, and a server that doesn't answer, leave what was."""
        try:
            table, self._fault = read_slots(self._store, self._settings.model_name), ""
            if urls := self._settings.traffic.slots:
                name, before = self._settings.model_name, self.proxy.table
                table = await asyncio.to_thread(listed_slots, name, urls, CONNECT_S, before)
        except (OSError, ValueError) as error:
            self._fault = str(error)
            return
        if table != self.proxy.table:
            self.proxy.table = table
            self._watch.reload()

    def _state(self) -> GatewayState:
        split, proxy = self._watch.in_force(), self.proxy
        return GatewayState(
            split=split,
            expired=self._watch.expired,
            refused=self._watch.refused,
            slots=tuple(SlotReport(**dict(slot), in_flight=proxy.in_flight[slot.digest]) for slot in proxy.table.slots),
            slots_fault=self._fault,
            served=proxy.served,
            recorded=self._recorder.recorded,
            unrecorded=max(0, proxy.served - self._recorder.recorded - len(self._recorder.waiting)),
            recorder_fault=self._recorder.fault,
            pid=os.getpid(),
        )

    async def state(self, request: Request) -> Response:
        return Response(self._state().model_dump_json(), media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        text = exposition(self._state(), self._settings.model_name)
        return Response(text, headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def models(self, request: Request) -> Response:
        """GET /v1/models: one model, whichever arm answers for it."""
        model = {"id": self._settings.model_name, "object": "model", "created": 0, "owned_by": "gateway"}
        return JSONResponse({"object": "list", "data": [model]})

    async def feedback(self, request: Request) -> Response:
        """POST /v1/feedback: what a user says of an answer."""
        body, name = await limited_body(request), self._settings.model_name
        trace_id = await asyncio.to_thread(record_feedback, self._store, name, body, self._with_text)
        return JSONResponse({"object": "feedback", "trace_id": trace_id})


def exposition(state: GatewayState, model: str) -> str:
    """Prometheus's text format 0.0.4; each series has the label `model`."""
    weight = 0 if state.split is None else state.split.canary_weight
    own = f"model={json.dumps(model)}"
    in_flight = {f"{own},slot={json.dumps(slot.name)}": slot.in_flight for slot in state.slots}
    families: dict[str, tuple[str, dict[str, int]]] = {
        "served_total": ("Answers that callers got, errors included.", {own: state.served}),
        "recorded_total": ("Of those, the ones whose spans are in a file.", {own: state.recorded}),
        "unrecorded_total": ("Of those, the ones whose spans will be in none.", {own: state.unrecorded}),
        "canary_weight_percent": ("Share of the traffic that the split gives to the canary.", {own: weight}),
        "lease_ended": ("1 where the split's lease was not renewed: the champion serves alone.", {own: state.expired}),
        "in_flight": ("Requests that a slot is answering.", in_flight),
    }
    lines: list[str] = []
    for short, (help, values) in families.items():
        name = f"preference_tuning_gateway_{short}"
        lines += [f"# HELP {name} {help}", f"# TYPE {name} {'counter' if short.endswith('_total') else 'gauge'}"]
        lines += [f"{name}{{{labels}}} {value:d}" for labels, value in values.items()]
    return "\n".join(lines) + "\n"


async def _refused(request: Request, error: Exception) -> Response:
    """Also a path or a method that is not the gateway's, and what its disk does not take."""
    error = Shortage(f"cannot do this now ({os.strerror(error.errno or 0)}).") if isinstance(error, OSError) else error
    assert isinstance(error, HTTPException), "it is the handler of those two"
    message = f"The gateway has no {request.method} {request.url.path}. It serves {', '.join(DIALECTS)}."
    message = error.detail if isinstance(error, BadRequest) else message
    body = DIALECTS.get(request.url.path, CHAT).error(error.status_code, message)
    return JSONResponse(body, error.status_code, error.headers)


def application(settings: GatewaySettings) -> ASGIApp:
    """The gateway, without the requests of other pages and hosts."""
    gateway = Gateway(settings)
    routes = [
        *(Route(path, gateway.proxy, methods=["POST"]) for path in DIALECTS),
        Route("/v1/feedback", gateway.feedback, methods=["POST"]),
        Route("/v1/models", gateway.models),
        Route("/health", gateway.health),
        Route("/-/split", gateway.state),
        Route("/-/metrics", gateway.metrics),
    ]
    handlers = {HTTPException: _refused, OSError: _refused}
    app = Starlette(routes=routes, lifespan=gateway.running, exception_handlers=handlers)
    app.router.redirect_slashes = False
    hosts = frozenset((*LOOPBACK, *(host.lower() for host in settings.traffic.allowed_hosts)))

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        why = refusal(scope, hosts) if scope["type"] == "http" else None
        answer: ASGIApp = app if why is None else await _refused(Request(scope), BadRequest(*why))
        await answer(scope, receive, send)

    return checked
