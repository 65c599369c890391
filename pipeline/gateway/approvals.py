"""GET and POST /-/approval: a person approves a candidate behind a proxy that authenticates people.

Owns whom the gateway believes: the proxy alone says who a person is, and a secret that only it sends says that it is
the proxy, for everything on this machine reaches the port. A form is taken from the page itself alone, made for this
person and this candidate. Refuses to decide whether the candidate may be approved: the record does (decision.py).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import parse_qs

from starlette.responses import HTMLResponse
from starlette.types import Receive, Scope, Send

from pipeline.gateway.approval_page import ApprovalForm, proposal_page, word_page
from pipeline.recipe.approval import ApprovalProxy
from pipeline.rollout.approval import named_by_proxy, own_candidate
from pipeline.rollout.decision import RolloutDecision, approve
from pipeline.rollout.fold import read_state
from pipeline.rollout.record import Phase, Proposal, RolloutState
from pipeline.storage import Store

PATH = "/-/approval"
SECRET = "APPROVAL_PROXY_SECRET"
"""The variable whose value the proxy sends along."""
SHORTEST_SECRET = 16
MOST_BODY_BYTES = 16_384
MOST_REASON = 500
FORM = b"application/x-www-form-urlencoded"
APPROVERS = "the approvers"
HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # without a referrer, browsers send forms with the origin `null`
}

Headers = Iterable[tuple[bytes, bytes]]


class ApprovalRefused(Exception):
    """A request that is not answered with what it asked for; `status` is for the browser."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ApprovalSecret(NamedTuple):
    """Proves the proxy, and signs the page's forms. Its repr shows nothing."""

    value: str

    def __repr__(self) -> str:
        return "ApprovalSecret(***)"


def checked_secret(value: str) -> ApprovalSecret:
    """Raises ValueError for a secret that is missing, or short enough to be guessed."""
    if len(value) < SHORTEST_SECRET:
        raise ValueError(
            f"The recipe has rollout.approval.proxy, and {SECRET} has {len(value)} characters. Set it to at least "
            f"{SHORTEST_SECRET} random ones, and have the proxy send them."
        )
    return ApprovalSecret(value)


class Approvals:
    """The page of one model."""

    def __init__(self, store: Store, model_name: str, proxy: ApprovalProxy, secret: ApprovalSecret) -> None:
        self._store, self._model_name, self._proxy = store, model_name, proxy
        self._secret = secret.value.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = 200
        try:
            person = self.person(scope["headers"])
            if scope["method"] == "POST":
                self.check_own_page(scope["headers"])
                form = read_form(await _body(receive))
                page = await asyncio.to_thread(self._decided, person, form)
            else:
                page = await asyncio.to_thread(self._shown, person)
        except ApprovalRefused as refused:
            status, page = refused.status, word_page("Not approved", str(refused))
        except (OSError, ValueError) as error:  # a record that is damaged, or a disk that is away
            status, page = 503, word_page("Not approved", f"The rollout's record cannot be used: {error}")
        await HTMLResponse(page, status, headers=HEADERS)(scope, receive, send)

    def person(self, headers: Headers) -> str:
        """The approver whom the proxy names. Raises ApprovalRefused for anybody else."""
        secret = _single(headers, self._proxy.secret_header)
        if not hmac.compare_digest(secret, self._secret):
            raise ApprovalRefused(
                403, f"This page is behind a proxy: {self._proxy.secret_header} is not what it sends."
            )
        name = _single(headers, self._proxy.user_header).decode("utf-8", "replace").strip()
        if name not in self._proxy.approvers:
            raise ApprovalRefused(403, f"{name or 'Nobody'} is not among rollout.approval.proxy.approvers.")
        return name

    def check_own_page(self, headers: Headers) -> None:
        """Raises ApprovalRefused for a form that a page of elsewhere made a browser send."""
        if _single(headers, "origin") != self._proxy.origin.encode():
            raise ApprovalRefused(403, f"The form is of another origin than {self._proxy.origin}. Open the page there.")
        if _single(headers, "sec-fetch-site") not in (b"", b"same-origin"):
            raise ApprovalRefused(403, "A page of another site sent this form.")
        if _single(headers, "content-type").partition(b";")[0].strip().lower() != FORM:
            raise ApprovalRefused(415, "The page sends a form.")

    def token(self, person: str, rollout: str, model: str, bundle: str) -> str:
        """Good for one person's approval of one candidate."""
        about = json.dumps([self._model_name, person, rollout, model, bundle]).encode()
        return hmac.new(self._secret, about, hashlib.sha256).hexdigest()

    def _shown(self, person: str) -> str:
        state = read_state(self._store, self._model_name)
        proposal = state.proposal
        if proposal is None:
            return word_page("Nothing to approve", f"No candidate of {self._model_name} was ever proposed.")
        token = self.token(person, proposal.rollout, proposal.version.model.digest, proposal.bundle_digest)
        return proposal_page(proposal, person, token, _not_now(state, proposal, person))

    def _decided(self, person: str, form: ApprovalForm) -> str:
        token = self.token(person, form.rollout, form.model, form.bundle)
        if not hmac.compare_digest(form.token.encode(), token.encode()):
            raise ApprovalRefused(403, "The form was not made for you and this candidate. Open the page again.")
        proposal = read_state(self._store, self._model_name).proposal
        assert proposal is not None, "the token is of one"
        try:
            word = named_by_proxy(person, self._proxy.user_header, proposal)
            decision = RolloutDecision(
                action="approve",
                reason=form.reason,
                by=person,
                rollout=form.rollout,
                approval=word.model_copy(
                    update={"rollout": form.rollout, "model_digest": form.model, "bundle_digest": form.bundle}
                ),
            )
            done = approve(self._store, self._model_name, decision, time.time())
        except ValueError as error:
            raise ApprovalRefused(403, str(error)) from error
        if done.refused:
            raise ApprovalRefused(409, f"Nothing was done: {done.refused}.")
        text = f"Rollout {form.rollout} is approved by {person}: it gets its first weight once its slot serves it."
        return word_page("Approved", " ".join([text, *done.errors]))


def _not_now(state: RolloutState, proposal: Proposal, person: str) -> str:
    """Why there is nothing for this person to approve, or ""."""
    if state.phase is not Phase.GATED or not proposal.policy.needs_approval:
        return f"The rollout is {state.phase}, and nothing is there to approve."
    return own_candidate(proposal, person, APPROVERS)


def read_form(body: bytes) -> ApprovalForm:
    """The form's fields. Raises ApprovalRefused for another body, and for a reason that nobody can read."""
    try:
        fields = parse_qs(
            body.decode("utf-8"), strict_parsing=True, keep_blank_values=True, max_num_fields=8, errors="strict"
        )
    except ValueError as error:
        raise ApprovalRefused(400, "The form cannot be read. Open the page again.") from error
    if fields.keys() != set(ApprovalForm._fields) or any(len(values) != 1 for values in fields.values()):
        raise ApprovalRefused(400, "The form has other fields than the page's. Open the page again.")
    form = ApprovalForm(**{name: values[0] for name, values in fields.items()})
    reason = " ".join(form.reason.split())
    if not reason or len(reason) > MOST_REASON or not reason.isprintable():
        raise ApprovalRefused(
            400, f"Give a reason of one line, up to {MOST_REASON} characters: it goes into the audit log."
        )
    return form._replace(reason=reason)


async def _body(receive: Receive) -> bytes:
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ApprovalRefused(400, "The form did not come whole.")
        body += message.get("body", b"")
        if len(body) > MOST_BODY_BYTES:
            raise ApprovalRefused(413, "The form is too long.")
        more = message.get("more_body", False)
    return bytes(body)


def _single(headers: Headers, name: str) -> bytes:
    """A header's value; b"" where it is not there. Raises ApprovalRefused where it is there twice: which one did the
    proxy set?"""
    values = [value for each, value in headers if each == name.encode()]
    if len(values) > 1:
        raise ApprovalRefused(400, f"The header {name} is there twice. Have the proxy replace it.")
    return values[0] if values else b""
