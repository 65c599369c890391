"""A caller's request: what the gateway looks at, and the body with the model's name exchanged. Values are kept as the
bytes that came."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from starlette.exceptions import HTTPException

_NOT_FORWARDED = ("metadata",)
"""Fields that are of the caller and of the traces, such as the expected answer: no server needs them."""


class BadRequest(HTTPException):
    """A request that reaches no model."""


class TurnRole(msgspec.Struct):
    role: str


class RoutedUnit(NamedTuple):
    id: str
    kind: str
    """`user`, `session` or `request`."""


class CallerRequest:
    """One request. `path`: of the API, `chat/completions` or `completions`."""

    __slots__ = ("fields", "first_turn", "metadata", "path", "session", "stream", "unit", "user")

    def __init__(self, path: str, body: bytes | bytearray, headers: Mapping[bytes, bytes], trusted: bool) -> None:
        """Raises BadRequest for a body that is no request."""
        self.path = path
        try:
            str(body, "utf-8")  # what is kept as bytes is not looked at otherwise
            self.fields: dict[str, Any] = _FIELDS.decode(body)
            self.first_turn = self._is_first_turn()
            self.stream = "stream" in self.fields and bytes(self.fields["stream"]) == b"true"
            self.metadata = self._metadata()
            named = self.text("safety_identifier") or self.text("user") or _as_text(self.metadata.get("user_id"))
            self.user = (_header(headers, b"x-user-id") if trusted else "") or named
            self.session = _header(headers, b"x-session-id") or self.text("prompt_cache_key")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadRequest(400, f"The body is no JSON object ({error}). Send one with `messages`.") from error
        self.unit = RoutedUnit(self.user, "user") if self.user else RoutedUnit(self.session, "session")

    def of(self, trace_id: str) -> RoutedUnit:
        """The unit: the request itself where it names neither user nor session."""
        return self.unit if self.unit.id else RoutedUnit(trace_id, "request")

    def body(self, model: str, stream: bool = True) -> bytes:
        """The request as the slot of `model` gets it. `stream`: whether it may be answered piece by piece."""
        fields = {**self.fields, "model": model}
        for name in _NOT_FORWARDED if stream else (*_NOT_FORWARDED, "stream", "stream_options"):
            fields.pop(name, None)
        return _ENCODER.encode(fields)

    def text(self, name: str) -> str:
        """A field that is a text or a whole number; "" for any other, and for one of spaces."""
        raw = self.fields.get(name)
        return "" if raw is None else _as_text(msgspec.json.decode(raw))

    def _is_first_turn(self) -> bool:
        name = "messages" if self.path == "chat/completions" else "prompt"
        raw = self.fields.get(name)
        if raw is None or bytes(raw) in (b"null", b"[]", b'""'):
            raise BadRequest(400, f"The request has no `{name}`. Send at least one.")
        if name == "prompt":
            return True
        try:
            turns = _TURNS.decode(raw)
        except msgspec.ValidationError as error:
            raise BadRequest(400, f"`messages` is no list of messages with a role ({error}). Send one.") from error
        return not any(turn.role == "assistant" for turn in turns)

    def _metadata(self) -> dict[str, Any]:
        raw = self.fields.get("metadata")
        value = None if raw is None else msgspec.json.decode(raw)
        return value if isinstance(value, dict) else {}


def _as_text(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) and value.strip() else ""


def _header(headers: Mapping[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("utf-8", "backslashreplace").strip()


_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TURNS = msgspec.json.Decoder(list[TurnRole])
_ENCODER = msgspec.json.Encoder()
