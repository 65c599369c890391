"""What one gateway is started with: a file that its worker processes read."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from pipeline.core.storage import Record

MOST_BODY_BYTES = 8 << 20
"""Of a request: a conversation of a million tokens has some four."""


class GatewaySettings(Record):
    """One model's gateway. Its split and its slots are files below `root` (core/layout.py), read while it runs."""

    root: str
    """The data root."""
    model_name: str
    """Names the rollout; callers may ask for any model."""
    port: int = Field(ge=0, le=65_535)
    """On 127.0.0.1; 0: one that is free."""
    workers: PositiveInt = 1
    """Processes that share the port."""
    record: Literal["text", "operations"] = "text"
    """`operations`: spans hold no text, no user and no metadata."""
    trust_user_header: bool = True
    """Whether `x-user-id` and `x-rollout-arm` are believed."""
    allowed_hosts: tuple[str, ...] = ()
    """Names that callers may reach it by, besides this machine's own."""
    slot_urls: tuple[str, ...] = ()
    """Root URLs of servers that say themselves what they serve (`<model>@<digest12>`); (): the slot file says it."""
    timeout_s: PositiveFloat = 600.0
    """Longest silence of a slot."""
