"""The gates that a trace passes before anything may learn from it.

In order: schema, personal data (masked; discarded where it cannot be), consent, region, confidentiality, quality. The
first gate that objects gives the one reason. Owns these rules, each a pure function. Refuses to compare traces with
each other (`pipeline.traces.days` does) and fails closed: a gate that raises rejects with `gate_error`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from pipeline.recipe import Traces
from pipeline.traces.pii import Unmaskable, mask, mask_tree, pseudonym
from pipeline.traces.records import Reason, Trace

VERSION = 1
"""Raise it when a gate's rule changes: every day is then made again."""

ROLES = frozenset({"system", "user", "assistant", "tool"})
CUT = frozenset({"length", "max_tokens", "max_output_tokens", "incomplete"})
"""Finish reasons of a completion that hit the token limit, in lower case."""

Gate = Callable[[Trace, Traces], Trace | Reason]


def schema(trace: Trace, settings: Traces) -> Trace | Reason:
    """A trace has an id, a model and a prompt from somebody."""
    if not trace.trace_id or not trace.observation_id or not trace.model:
        return Reason.SCHEMA
    roles = [message["role"] for message in trace.messages]
    return trace if "user" in roles and ROLES.issuperset(roles) else Reason.SCHEMA


def pii(trace: Trace, settings: Traces) -> Trace | Reason:
    """Masks every text that is kept; identities that hold personal data become pseudonyms."""
    if trace.has_payload:
        return Reason.PII
    try:
        return msgspec.structs.replace(
            trace,
            messages=[{key: mask(text) for key, text in message.items()} for message in trace.messages],
            completion=mask(trace.completion),
            reference=None if trace.reference is None else mask(trace.reference),
            error=None if trace.error is None else mask(trace.error),
            model=mask(trace.model),
            user_id=pseudonym(trace.user_id),
            session_id=pseudonym(trace.session_id),
            metadata=mask_tree(trace.metadata),
            feedback=[msgspec.structs.replace(s, name=mask(s.name), source=mask(s.source)) for s in trace.feedback],
        )
    except Unmaskable:
        return Reason.PII


def consent(trace: Trace, settings: Traces) -> Trace | Reason:
    """Only an explicit yes is a yes."""
    if not says_yes(trace.metadata.get(settings.consent_key)):
        return Reason.CONSENT
    return msgspec.structs.replace(trace, consent=True)


def region(trace: Trace, settings: Traces) -> Trace | Reason:
    """A regulated region's trace stays out unless this deployment runs inside the same boundary."""
    value = trace.metadata.get(settings.region_key)
    if value is None or value == "":
        return trace
    if not isinstance(value, str):  # a region that we cannot read may be a regulated one
        return Reason.REGION
    name = value.strip().lower()
    regulated = {r.lower() for r in settings.regulated_regions}
    return Reason.REGION if name in regulated and name != settings.job_region.lower() else trace


def confidential(trace: Trace, settings: Traces) -> Trace | Reason:
    """Anything but an explicit no keeps a marked trace out."""
    value = trace.metadata.get(settings.confidential_key)
    return trace if _says_no(value) else Reason.CONFIDENTIAL


def quality(trace: Trace, settings: Traces) -> Trace | Reason:
    """Errors, completions cut at the token limit, latency outliers and empty answers are no samples of the model."""
    if trace.level.upper() == "ERROR":
        return Reason.ERROR
    if (trace.finish_reason or "").lower() in CUT:
        return Reason.TRUNCATED
    if trace.latency_s is not None and not 0 <= trace.latency_s <= settings.max_latency_s:
        return Reason.LATENCY
    return trace if trace.completion.strip() else Reason.EMPTY_OUTPUT


GATES: tuple[Gate, ...] = (schema, pii, consent, region, confidential, quality)


def check(trace: Trace, settings: Traces, gates: Sequence[Gate] = GATES) -> Trace | Reason:
    """The trace as the table may hold it, or the first reason against it."""
    for gate in gates:
        try:
            verdict = gate(trace, settings)
        except Exception:  # the boundary of one gate: a rule that cannot be applied is a no
            return Reason.GATE_ERROR
        if isinstance(verdict, Reason):
            return verdict
        trace = verdict
    return trace


def says_yes(value: Any) -> bool:
    return value is True or (isinstance(value, (int, str)) and str(value).strip().lower() in ("true", "1", "yes"))


def _says_no(value: Any) -> bool:
    return value is None or str(value).strip().lower() in ("", "false", "0", "no", "none", "null")
