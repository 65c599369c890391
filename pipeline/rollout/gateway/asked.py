"""A caller's request: its body, what the gateway looks at, and the body with the model's name exchanged. Values are
kept as the bytes that came."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from pipeline.core.apis import tools_of, turns_of
from pipeline.rollout.gateway.dialects import Dialect

MOST_BODY_BYTES = 8 << 20
"""Of a request: a conversation of a million tokens has some four."""


class BadRequest(HTTPException):
    """A request that reaches no model."""


class Shortage(BadRequest):
    """The gateway lacks files or room, which says nothing of a model. The connection, a file too, is closed."""

    def __init__(self, what: str) -> None:
        super().__init__(503, f"The gateway {what} Try again.", {"connection": "close", "retry-after": "1"})


async def limited_body(request: Request) -> bytearray:
    """Raises BadRequest for one that is too long, or compressed."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise BadRequest(415, "The body is compressed. Send it as it is.")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MOST_BODY_BYTES:
                raise BadRequest(413, f"The body has more than {MOST_BODY_BYTES:,} bytes. Send a shorter conversation.")
    except ClientDisconnect as gone:
        raise BadRequest(400, "The body broke off.") from gone
    return body


class CallerRequest:
    """A request for an answer. `unit` and `unit_kind` (user or session): "" where it names neither."""

    __slots__ = ("dialect", "fields", "metadata", "session", "stream", "unit", "unit_kind", "user")

    def __init__(
        self, dialect: Dialect, body: bytes | bytearray, headers: Mapping[bytes, bytes], trusted: bool
    ) -> None:
        """`trusted`: whether `x-user-id` is believed. Raises BadRequest for a body that is no request."""
        self.dialect = dialect
        try:
            str(body, "utf-8")  # what is kept as bytes is not looked at otherwise
            self.fields: dict[str, Any] = _FIELDS.decode(body)
            self._check_conversation()
            self.stream = "stream" in self.fields and bytes(self.fields["stream"]) == b"true"
            metadata = msgspec.json.decode(self.fields.get("metadata") or b"null")
            self.metadata: dict[str, Any] = metadata if isinstance(metadata, dict) else {}
            user, session = _user_and_session(_as_text(self.metadata.get("user_id")))
            user = self.text("safety_identifier") or self.text("user") or user
            self.user = (_header(headers, b"x-user-id") if trusted else "") or user
            self.session = _header(headers, b"x-session-id") or self.text("prompt_cache_key") or session
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            what = f"The body is no JSON object ({error}). Send one with `{dialect.conversation}`."
            raise BadRequest(400, what) from error
        self.unit, self.unit_kind = self.user or self.session, "user" if self.user else "session"

    def body(self, model: str) -> bytes:
        """The request as the slot of `model` gets it. Metadata, such as the expected answer, is the traces' alone."""
        fields = {**self.fields, "model": model}
        fields.pop("metadata", None)
        return _ENCODER.encode(fields)

    def text(self, name: str) -> str:
        """A field that is a text or a whole number; "" for any other, and for one of spaces."""
        raw = self.fields.get(name)
        return "" if raw is None else _as_text(msgspec.json.decode(raw))

    def texts(self) -> dict[str, str]:
        """Conversation and tools, as attributes of a span. A conversation of another shape stays as it came."""
        dialect, decode = self.dialect, msgspec.json.decode
        conversation = self.fields[dialect.conversation]
        rules, tools = (decode(self.fields.get(name) or b"null") for name in (dialect.rules, "tools"))
        try:
            messages = _ENCODER.encode(turns_of(decode(conversation), rules)).decode()
            offered = {"gen_ai.tool.definitions": _ENCODER.encode(tools_of(tools)).decode()} if tools else {}
        except (AttributeError, KeyError, TypeError):
            messages, offered = bytes(conversation).decode(), {}
        kept = self.text("previous_response_id") or self.text("conversation")
        return {"gen_ai.input.messages": messages, **offered, **({"gen_ai.conversation.id": kept} if kept else {})}

    def _check_conversation(self) -> None:
        name = self.dialect.conversation
        raw = self.fields.get(name)
        if raw is None or bytes(raw) in (b"null", b"[]", b'""'):
            raise BadRequest(400, f"The request has no `{name}`. Send at least one message.")
        try:
            self.dialect.items.decode(raw)
        except msgspec.ValidationError as error:
            raise BadRequest(400, f"`{name}` is no list of messages with a role ({error}). Send one.") from error


def _user_and_session(named: str) -> tuple[str, str]:
    """Of Anthropic's `metadata.user_id`: coding agents put the session into it, as JSON or at its end."""
    if named.startswith("{"):
        with suppress(msgspec.DecodeError):
            held = msgspec.json.decode(named, type=dict[str, Any])
            user = _as_text(held.get("account_uuid")) or _as_text(held.get("device_id"))
            return user, _as_text(held.get("session_id"))
    user, _, session = named.partition("_session_")
    return user, session


def _as_text(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) and value.strip() else ""


def _header(headers: Mapping[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("utf-8", "backslashreplace").strip()


_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENCODER = msgspec.json.Encoder()
