"""The page of approvals on a gateway that runs: who is believed, which forms are taken, and what goes on record."""

import asyncio
import html
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.types import Message

from pipeline import audit, layout
from pipeline.gateway.approvals import SECRET, Approvals, checked_secret
from pipeline.gateway.process import running_gateway
from pipeline.gateway.settings import GatewaySettings
from pipeline.recipe.approval import ApprovalProxy
from pipeline.rollout.fold import read_state
from pipeline.rollout.record import Phase, RolloutEvent, RolloutState, RolloutStep, append, read_events, step_event
from pipeline.storage import Store
from tests.pipeline.gateway.world import NAME, World, world
from tests.pipeline.rollout.reports import proposal

ORIGIN, VALUE = "https://models.example.org", "6f1d0c5e9a7b4832"
PROXY = ApprovalProxy(approvers=("ada@example.org", "bob@example.org"), origin=ORIGIN)
ADA = {"x-forwarded-email": "ada@example.org", "x-approval-secret": VALUE}
BOB = {**ADA, "x-forwarded-email": "bob@example.org"}
OF_PAGE = {"origin": ORIGIN, "content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SECRET, VALUE)
        with world(tmp_path_factory.mktemp("approvals"), approval=PROXY) as each:
            yield each


class Waiting:
    """A candidate of bob's that waits for an approval, the `number`-th of its gateway."""

    number = 0

    def __init__(self, running: World) -> None:
        self.client, self.store = running.client, running.store
        if self.state.phase is not Phase.GATED:
            self.end()
            self.propose()

    @property
    def state(self) -> RolloutState:
        return read_state(self.store, NAME)

    def step(self, phase: Phase) -> None:
        assert append(self.store, NAME, self.state, step_event(self.state, time.time(), RolloutStep(phase, "a step")))

    def propose(self) -> None:
        Waiting.number += 1
        candidate = proposal(rollout=f"{Waiting.number:012x}", digest=f"{Waiting.number:064x}", proposed_by="bob")
        candidate = candidate.model_copy(update={"reasons": ("arithmetic: +7.0 points, <b>p = .001</b>",)})
        event = RolloutEvent(
            epoch=self.state.epoch + 1,
            at=time.time(),
            rollout=candidate.rollout,
            phase=Phase.PROPOSED,
            proposal=candidate,
        )
        assert append(self.store, NAME, self.state, event)
        self.step(Phase.GATED)

    def end(self) -> None:
        if self.state.active:
            self.step(Phase.ROLLING_BACK)
            self.step(Phase.ABORTED)

    def page(self, headers: dict[str, str] = ADA) -> str:
        reply = self.client.get("/-/approval", headers=headers)
        assert reply.status_code == 200
        return reply.text

    def form(self, headers: dict[str, str] = ADA) -> dict[str, str]:
        """As the page has it for this person."""
        named = re.findall(r'name="(\w+)" value="([^"]*)"', self.page(headers))
        return {**dict(named), "reason": "looked at it"}

    def post(self, form: Any, headers: Any = ADA) -> tuple[int, str]:
        given = list({**OF_PAGE, **headers}.items()) if isinstance(headers, dict) else [*OF_PAGE.items(), *headers]
        body = urlencode(form) if isinstance(form, dict) else form
        reply = self.client.post("/-/approval", content=body, headers=[(n, v) for n, v in given if v is not None])
        assert reply.headers["content-type"].startswith("text/html")
        return reply.status_code, html.unescape(reply.text)

    def refused(self, form: Any, headers: Any, status: int, why: str) -> None:
        """And nothing was written."""
        before = read_events(self.store, NAME)
        code, text = self.post(form, headers)
        assert (code, why in text) == (status, True), text
        assert VALUE not in text
        assert read_events(self.store, NAME) == before


@pytest.fixture
def waiting(running: World) -> Waiting:
    return Waiting(running)


def test_an_approval_on_the_page_is_on_record(waiting: Waiting) -> None:
    code, text = waiting.post(waiting.form())
    assert (code, "is approved by ada@example.org" in text) == (200, True), text
    state = waiting.state
    assert (state.phase, state.reason) == (Phase.APPROVED, "looked at it")
    assert state.approval is not None and state.proposal is not None
    assert (state.approval.by, state.approval.header, state.approval.key) == (
        "ada@example.org",
        "x-forwarded-email",
        "",
    )
    assert state.approval.model_digest == state.proposal.version.model.digest


def test_an_approval_on_the_page_is_in_the_audit_log(waiting: Waiting) -> None:
    waiting.post(waiting.form())
    [entry] = [e for e in audit.entries(waiting.store) if e.subject.startswith(f"{waiting.state.rollout}/")]
    candidate = waiting.state.proposal
    assert candidate is not None
    assert entry.kind == "approval"
    detail = {name: entry.detail.get(name) for name in ("by", "reason", "digest", "bundle", "header", "key")}
    assert detail == {
        "by": "ada@example.org",
        "reason": "looked at it",
        "digest": candidate.version.model.digest,
        "bundle": candidate.bundle_digest,
        "header": "x-forwarded-email",
        "key": None,
    }


def test_the_page_shows_what_is_approved(waiting: Waiting) -> None:
    """Texts of records as texts: no page of ours is made by them."""
    page, candidate = waiting.page(), waiting.state.proposal
    assert candidate is not None
    for text in (
        candidate.rollout,
        candidate.version.model.digest,
        candidate.bundle_digest,
        candidate.champion.digest,
        "bob",
    ):
        assert text in page
    assert "&lt;b&gt;p = .001" in page and "<b>" not in page and "<script" not in page


@pytest.mark.parametrize(
    ("headers", "status", "why"),
    [
        ({"x-approval-secret": None}, 403, "x-approval-secret is not what it sends"),
        ({"x-approval-secret": ""}, 403, "x-approval-secret is not what it sends"),
        ({"x-approval-secret": VALUE[:-1]}, 403, "x-approval-secret is not what it sends"),
        ({"x-forwarded-email": None}, 403, "Nobody is not among"),
        ({"x-forwarded-email": "eve@example.org"}, 403, "eve@example.org is not among"),
        ({"x-forwarded-email": "ada@example.org,bob@example.org"}, 403, "is not among"),
        ({"origin": "https://evil.example.org"}, 403, "of another origin"),
        ({"origin": "null"}, 403, "of another origin"),
        ({"origin": None}, 403, "of another origin"),
        ({"origin": f"{ORIGIN}.evil.example.org"}, 403, "of another origin"),
        ({"sec-fetch-site": "cross-site"}, 403, "another site sent this form"),
        ({"sec-fetch-site": "same-site"}, 403, "another site sent this form"),
        ({"content-type": "text/plain"}, 415, "sends a form"),
        ({"content-type": "application/json"}, 415, "sends a form"),
    ],
    ids=lambda value: "-".join(map(str, value.items())) if isinstance(value, dict) else None,
)
def test_a_request_of_somebody_else_is_refused(
    waiting: Waiting, headers: dict[str, str | None], status: int, why: str
) -> None:
    waiting.refused(waiting.form(), {**ADA, **headers}, status, why)


@pytest.mark.parametrize("name", ["x-forwarded-email", "x-approval-secret", "origin"])
@pytest.mark.parametrize("first", [True, False])
def test_a_header_that_is_there_twice_is_refused(waiting: Waiting, name: str, first: bool) -> None:
    """A proxy that adds its header leaves the caller's beside it."""
    own = [(name, {**ADA, **OF_PAGE}[name])]
    others = [(each, value) for each, value in ADA.items() if each != name]
    forged = [(name, "bob@example.org")]
    given = [*others, *(forged + own if first else own + forged)] if name in ADA else [*ADA.items(), *forged]
    waiting.refused(waiting.form(), given, 400, f"{name} is there twice")


def test_a_caller_without_the_proxy_sees_nothing(waiting: Waiting) -> None:
    for headers in ({}, {"x-forwarded-email": "ada@example.org"}, {**ADA, "x-forwarded-email": "eve@example.org"}):
        reply = waiting.client.get("/-/approval", headers=headers)
        assert (reply.status_code, waiting.state.rollout in reply.text) == (403, False)


@pytest.mark.parametrize("field", ["rollout", "model", "bundle"])
def test_a_form_of_another_candidate_is_refused(waiting: Waiting, field: str) -> None:
    form = waiting.form()
    waiting.refused({**form, field: "f" * len(form[field])}, ADA, 403, "not made for you and this candidate")


@pytest.mark.parametrize(
    ("change", "status", "why"),
    [
        ({"token": ""}, 403, "not made for you"),
        ({"token": "é"}, 403, "not made for you"),
        ({"reason": " "}, 400, "Give a reason"),
        ({"reason": "x" * 501}, 400, "Give a reason"),
        ({"reason": "\x1b[2J"}, 400, "Give a reason"),
        ({"by": "bob@example.org"}, 400, "other fields"),
    ],
    ids=["no token", "another token", "no reason", "long reason", "escape", "another field"],
)
def test_a_form_that_lacks_something_is_refused(
    waiting: Waiting, change: dict[str, str], status: int, why: str
) -> None:
    waiting.refused({**waiting.form(), **change}, ADA, status, why)


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 400), (b"\xff\xfe", 400), (b"reason=%ff", 400), (b"&" * 100, 400), (b"reason=" + b"x" * 20_000, 413)],
    ids=["empty", "bytes", "no utf-8", "signs", "long"],
)
def test_what_is_no_form_is_refused(waiting: Waiting, body: bytes, status: int) -> None:
    waiting.refused(body, ADA, status, "form")


def test_an_approval_on_the_page_counts_once(waiting: Waiting) -> None:
    form = waiting.form()
    assert waiting.post(form)[0] == 200
    waiting.refused(form, ADA, 409, "is approved, and nothing is there to approve")


def test_who_proposed_it_gets_no_form_and_is_refused(waiting: Waiting) -> None:
    """Also with a token of his own."""
    assert "bob@example.org proposed this candidate as bob" in waiting.page(BOB)
    assert "<form" not in waiting.page(BOB)
    waiting.refused(waiting.form(), BOB, 403, "not made for you and this candidate")
    token = Approvals(waiting.store, NAME, PROXY, checked_secret(VALUE)).token
    form = waiting.form()
    own = token("bob@example.org", form["rollout"], form["model"], form["bundle"])
    waiting.refused({**form, "token": own}, BOB, 403, "bob@example.org proposed this candidate as bob")


def test_an_approval_after_an_abort_is_refused(waiting: Waiting) -> None:
    form = waiting.form()
    waiting.end()
    waiting.refused(form, ADA, 409, "no rollout is active")
    assert "nothing is there to approve" in waiting.page()


def test_an_approval_of_an_earlier_candidate_is_refused(waiting: Waiting) -> None:
    """A page that was left open."""
    form = waiting.form()
    waiting.end()
    waiting.propose()
    waiting.refused(form, ADA, 409, f"is not the active rollout, which is {waiting.state.rollout}")


def test_no_other_method_approves(waiting: Waiting) -> None:
    before = read_events(waiting.store, NAME)
    for method in ("PUT", "DELETE", "PATCH"):
        assert waiting.client.request(method, "/-/approval", headers={**ADA, **OF_PAGE}).status_code == 405
    waiting.client.get("/-/approval", params=waiting.form(), headers={**ADA, **OF_PAGE})
    assert read_events(waiting.store, NAME) == before


def test_no_page_of_elsewhere_shows_it_in_a_frame(waiting: Waiting) -> None:
    headers = waiting.client.get("/-/approval", headers=ADA).headers
    assert headers["x-frame-options"] == "DENY"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_record_that_cannot_be_read_says_so(tmp_path: Path, method: str) -> None:
    store, sent = Store(tmp_path), list[Any]()
    store.path(layout.rollout(NAME, "events")).mkdir(parents=True)
    store.path(layout.rollout(NAME, "events", "000001.json")).write_text("no event")
    page = Approvals(store, NAME, PROXY, checked_secret(VALUE))
    form = {"rollout": "r", "model": "m", "bundle": "b", "reason": "x"}
    form["token"] = page.token("ada@example.org", "r", "m", "b")
    headers = [(name.encode(), value.encode()) for name, value in {**ADA, **OF_PAGE}.items()]

    async def receive() -> Message:
        return {"type": "http.request", "body": urlencode(form).encode()}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": "/-/approval", "headers": headers}
    asyncio.run(page(scope, receive, send))
    assert sent[0]["status"] == 503 and b"record cannot be used" in sent[1]["body"]


def test_without_its_secret_the_gateway_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET, raising=False)
    settings = GatewaySettings(root=str(tmp_path), model_name=NAME, port=0, approval=PROXY)
    with pytest.raises(RuntimeError, match=f"{SECRET} has 0 characters"), running_gateway(settings, print):
        pass


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="has 15 characters"):
        checked_secret("x" * 15)
    assert VALUE not in repr(checked_secret(VALUE))


def test_no_file_holds_the_secret(running: World) -> None:
    files = [path for path in running.store.root.rglob("*") if path.is_file()]
    assert files and not [path for path in files if VALUE.encode() in path.read_bytes()]
