"""Defects of an answer that no reference is needed for: it refuses, or it holds personal data that it was not given."""

from __future__ import annotations

from pipeline.serving.inference import Messages
from pipeline.traces.pii import personal_values
from pipeline.training.texts import refuses


def defects(text: str, messages: Messages) -> tuple[str, ...]:
    """The names of an answer's defects, in alphabetical order. `messages`: what was asked."""
    given = "\n".join(f"{message['content']}\n{message.get('tool_calls', '')}" for message in messages)
    leaked = personal_values(text) - personal_values(given) if text else set[str]()
    return (*(("pii",) if leaked else ()), *(("refusal",) if refuses(text) else ()))
