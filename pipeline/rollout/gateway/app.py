"""The gateway as an ASGI application. A path below `/v1` that is not named here leads nowhere: servers keep
administration there, such as vLLM's `/v1/load_lora_adapter`."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from importlib.resources import files

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.core.processes import die_with_parent
from pipeline.core.storage import Store
from pipeline.rollout.gateway.asked import BadRequest
from pipeline.rollout.gateway.caller import error_body, limited_body
from pipeline.rollout.gateway.counters import CONTENT_TYPE, Counters, GatewayState, SlotReport, exposition, read_counts
from pipeline.rollout.gateway.door import LOOPBACK, check
from pipeline.rollout.gateway.feedback import FeedbackRecorder
from pipeline.rollout.gateway.process import GatewaySettings
from pipeline.rollout.gateway.proxy import Proxy
from pipeline.rollout.gateway.spans import Recorder
from pipeline.rollout.gateway.tables import SlotTable, SplitWatch, read_slots, slots_of_names
from pipeline.rollout.gateway.upstream import CONNECT_S
from pipeline.serving.endpoint import Endpoint
from pipeline.serving.served_names import served_names

REFRESH_S = 1.0
"""Between two looks at the slots."""
_PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"


class Gateway:
    """One worker."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings, self._store = settings, Store(settings.root)
        self._counters = Counters(self._store, settings.model_name)
        self._recorder = Recorder(self._store, settings.model_name, settings.record == "text", self._counters)
        self._watch = SplitWatch(self._store, settings.model_name, self._has_slot)
        self._feedback = FeedbackRecorder(self._store, settings.model_name, settings.record == "text")
        self.proxy = Proxy(settings, self._watch, self._counters, self._recorder)
        self._fault = ""

    def _has_slot(self, digest: str) -> bool:
        """Of a digest that no slot has, the slot file may know since a moment ago."""
        if self.proxy.table.slot_of(digest) is None and not self._settings.slot_urls:
            with suppress(ValueError):
                self.proxy.table = self._written()
        return self.proxy.table.slot_of(digest) is not None

    @asynccontextmanager
    async def running(self, app: Starlette) -> AsyncGenerator[None]:
        """What a worker needs while it answers; the rest is written when it ends."""
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
            table, self._fault = await self._listed() if self._settings.slot_urls else (self._written(), "")
        except ValueError as error:
            self._fault = str(error)
            return
        if table != self.proxy.table:
            self.proxy.table = table
            self._watch.reload()

    def _written(self) -> SlotTable:
        return read_slots(self._store, self._settings.model_name) or SlotTable(slots=())

    async def _listed(self) -> tuple[SlotTable, str]:
        names: dict[str, list[str]] = {}
        for url in self._settings.slot_urls:
            with suppress(OSError):
                names[url] = await asyncio.to_thread(served_names, Endpoint(url), CONNECT_S)
        table, fault = slots_of_names(self._settings.model_name, names)
        silent = [slot for slot in self.proxy.table.slots if not names.get(slot.url)]
        kept = (slot for slot in silent if table.slot_of(slot.digest) is None)
        return SlotTable(slots=(*table.slots, *kept)), fault

    async def state(self, request: Request) -> Response:
        return Response(self._state().model_dump_json(), media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        text = exposition(self._state(), self._settings.model_name)
        return Response(text, headers={"content-type": CONTENT_TYPE})

    def _state(self) -> GatewayState:
        split, counts = self._watch.in_force(), read_counts(self._store, self._settings.model_name)
        slots = tuple(
            SlotReport(**dict(slot), in_flight=counts.in_flight[place])
            for place, slot in enumerate(self.proxy.table.slots)
        )
        return GatewayState(
            split=split,
            expired=self._watch.expired,
            refused=self._watch.refused,
            slots=slots,
            slots_fault=self._fault,
            counts=counts,
            pid=os.getppid(),
        )

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def models(self, request: Request) -> Response:
        """GET /v1/models: one model, whichever arm answers for it."""
        model = {"id": self._settings.model_name, "object": "model", "created": 0, "owned_by": "gateway"}
        return JSONResponse({"object": "list", "data": [model]})

    async def feedback(self, request: Request) -> Response:
        """POST /v1/feedback: what a user says of an answer."""
        trace_id = await asyncio.to_thread(self._feedback.take, await limited_body(request))
        return JSONResponse({"object": "feedback", "trace_id": trace_id})

    async def page(self, request: Request) -> Response:
        """GET /: chat with both arms side by side."""
        page = files("pipeline.rollout.gateway").joinpath("page.html").read_text()
        return HTMLResponse(page, headers={"content-security-policy": _PAGE_POLICY, "x-frame-options": "DENY"})


async def _refused(request: Request, error: Exception) -> Response:
    """Also a path or a method that is not the gateway's."""
    assert isinstance(error, HTTPException), "it is the handler of those"
    message = f"The gateway has no {request.method} {request.url.path}. It serves chat and text completions below /v1."
    message = error.detail if isinstance(error, BadRequest) else message
    return JSONResponse(error_body(error.status_code, message), error.status_code)


def behind_door(app: ASGIApp, settings: GatewaySettings) -> ASGIApp:
    """The application, without the requests that door.py refuses."""
    hosts = frozenset((*LOOPBACK, *(host.lower() for host in settings.allowed_hosts)))

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["type"] == "http":
                check(scope, hosts)
        except BadRequest as refused:
            await (await _refused(Request(scope), refused))(scope, receive, send)
        else:
            await app(scope, receive, send)

    return checked


def application(settings: GatewaySettings) -> ASGIApp:
    gateway = Gateway(settings)
    routes = [
        *(Route(f"/v1/{path}", gateway.proxy, methods=["POST"]) for path in ("chat/completions", "completions")),
        Route("/v1/feedback", gateway.feedback, methods=["POST"]),
        Route("/v1/models", gateway.models),
        Route("/health", gateway.health),
        Route("/-/split", gateway.state),
        Route("/-/metrics", gateway.metrics),
        Route("/", gateway.page),
    ]
    app = Starlette(routes=routes, lifespan=gateway.running, exception_handlers={HTTPException: _refused})
    app.router.redirect_slashes = False
    return behind_door(app, settings)


def create(settings: GatewaySettings, supervisor: int) -> ASGIApp:
    """The application of one worker, which ends with its supervisor (a pid)."""
    die_with_parent(signal.SIGTERM, supervisor)
    return application(settings)
