"""The gates (`GATES`) that a batch of traces passes before anything may learn from it. The first one that objects
gives a row its one reason; rows on which a gate raises are rejected with `gate_error`."""

import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.recipe.traces import Traces
from pipeline.traces.arrow import pc
from pipeline.traces.erased import NOBODY, Forgotten
from pipeline.traces.pii.columns import (
    mask_calls,
    mask_column,
    mask_messages,
    mask_metadata,
    mask_repeated,
    pseudonyms,
)
from pipeline.traces.pii.recogniser import mask_recognised
from pipeline.traces.records import Reason
from pipeline.traces.sources.shapes import names
from pipeline.traces.texts import read_texts

VERSION = 8
"""Raise it when a gate's rule changes: every day is then made again."""

ROLES = ("system", "user", "assistant", "tool")
YES = ("true", "1", "yes")
NO = ("", "false", "0", "no", "none", "null")
ENDED = names("ended")
UNSTATED = ("", "none", "null")
"""Many sources do not say why a completion ended."""
AHEAD = timedelta(days=1)
"""Clocks differ; a trace dated later than this after now is an error of its clock."""


class GateRules(NamedTuple):
    """`erased`: the forgotten users."""

    settings: Traces
    now: datetime
    erased: Forgotten = NOBODY


Gate = Callable[[pa.RecordBatch, GateRules], Any]
"""The rows that it objects to, as booleans; a null counts as an objection."""


def schema(batch: pa.RecordBatch, rules: GateRules) -> Any:
    """A trace has an id, a model and a prompt from somebody, and knows only the roles of a chat."""
    lacks = pc.equal(batch["trace_id"], "")
    for name in ("observation_id", "model"):
        lacks = pc.or_(lacks, pc.equal(batch[name], ""))
    roles = batch["messages"].flatten().field("role")
    parents = pc.list_parent_indices(batch["messages"]).to_numpy()
    asked = _any(parents, pc.equal(roles, "user"), batch.num_rows)
    strange = _any(parents, pc.invert(pc.is_in(roles, pa.array(ROLES))), batch.num_rows)
    silent = pc.and_(pa.array(~asked), pc.is_null(batch["unreadable"]))
    return pc.or_(lacks, pc.or_(silent, pa.array(strange)))


def future(batch: pa.RecordBatch, rules: GateRules) -> Any:
    """A trace is not dated ahead of the clock."""
    return pc.greater(batch["timestamp"], pa.scalar(rules.now + AHEAD, pa.timestamp("us", tz="UTC")))


def erased(batch: pa.RecordBatch, rules: GateRules) -> Any:
    """A forgotten user stays forgotten when the source brings the rows again."""
    objections = _nobody(batch)
    users = batch["user_id"].dictionary_encode()
    for n, user in enumerate(users.dictionary.to_pylist() if rules.erased else ()):
        if rules.erased.entry(user):
            objections = pc.or_(objections, pc.fill_null(pc.equal(users.indices, n), False))
    return objections


def consent(batch: pa.RecordBatch, rules: GateRules) -> Any:
    """Only an explicit yes is a yes."""
    return pc.invert(says_yes(batch["consent_said"]))


def region(batch: pa.RecordBatch, rules: GateRules) -> Any:
    """A trace stays out unless its region, or the part of the name before a separator, is on the list."""
    name, allowed = pc.fill_null(_word(batch["region_said"]), ""), rules.settings.regions
    if not allowed:
        return pc.not_equal(name, "")
    return pc.invert(pc.match_substring_regex(name, f"^(?:{'|'.join(map(re.escape, allowed))})(?:[^a-z0-9]|$)"))


def confidential(batch: pa.RecordBatch, rules: GateRules) -> Any:
    """Anything but an explicit no keeps a marked trace out."""
    return pc.invert(pc.is_in(pc.fill_null(_word(batch["confidential_said"]), ""), pa.array(NO)))


def error(batch: pa.RecordBatch, rules: GateRules) -> Any:
    return pc.equal(pc.utf8_upper(pc.fill_null(batch["level"], "")), "ERROR")


def truncated(batch: pa.RecordBatch, rules: GateRules) -> Any:
    """A completion counts only when it ended for a known good reason."""
    reasons = pc.replace_substring(_word(pc.fill_null(batch["finish_reason"], "")), "-", "_")
    return pc.invert(pc.is_in(reasons, pa.array([*ENDED, *UNSTATED])))


def latency(batch: pa.RecordBatch, rules: GateRules) -> Any:
    """An answer may take `max_latency_s` at most."""
    seconds = batch["latency_s"]
    inside = pc.and_(pc.greater_equal(seconds, 0.0), pc.less_equal(seconds, rules.settings.max_latency_s))
    return pc.invert(pc.fill_null(inside, True))


def tool_call_only(batch: pa.RecordBatch, rules: GateRules) -> Any:
    """An answer that consists of calls which the provider executes cannot be learned."""
    provided = pc.and_(pc.is_valid(batch["tool_calls"]), pc.invert(_calls_function(batch)))
    return pc.and_(_is_silent(batch, rules), provided)


def empty_output(batch: pa.RecordBatch, rules: GateRules) -> Any:
    """An empty answer cannot be learned; a prompt set has no answers."""
    return pc.and_(_is_silent(batch, rules), pc.invert(_calls_function(batch)))


def _calls_function(batch: pa.RecordBatch) -> Any:
    """Whether the answer calls a tool of the client: then it needs no text."""
    return pc.fill_null(pc.match_substring(batch["tool_calls"], '"type":"function"'), False)


def _is_silent(batch: pa.RecordBatch, rules: GateRules) -> Any:
    if rules.settings.source.kind == "prompts":
        return _nobody(batch)
    return pc.equal(pc.utf8_trim_whitespace(batch["completion"]), "")


GATES: tuple[tuple[Reason, Gate | None], ...] = (
    (Reason.SCHEMA, schema),
    (Reason.FUTURE, future),
    (Reason.ERASED, erased),
    (Reason.HELPER, lambda batch, _: batch["helper"]),
    (Reason.UNREADABLE, lambda batch, _: pc.is_valid(batch["unreadable"])),
    (Reason.NO_CONTENT, lambda batch, _: pc.is_valid(batch["not_recorded"])),
    (Reason.PII, None),
    (Reason.CONSENT, consent),
    (Reason.REGION, region),
    (Reason.CONFIDENTIAL, confidential),
    (Reason.ERROR, error),
    (Reason.TRUNCATED, truncated),
    (Reason.LATENCY, latency),
    (Reason.TOOL_CALL_ONLY, tool_call_only),
    (Reason.EMPTY_OUTPUT, empty_output),
)
"""In order. None stands for `pii`, which also changes the batch."""


def pii(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Any]:
    """Masks every text that is kept; identities that hold personal data become pseudonyms.

    A row whose reference changes has none: nothing can be verified against it.
    """
    objections = batch["has_payload"]
    masked: dict[str, Any] = {}
    for name, function in MASKS.items():
        masked[name], unmaskable = function(batch[name])
        objections = pc.or_(objections, unmaskable)
    # A placeholder equals another one: against an expected answer that was masked, any address would be right.
    unchanged = pc.equal(masked["reference"], batch["reference"])
    masked["reference"] = pc.if_else(unchanged, masked["reference"], None)
    columns = [masked.get(name, batch[name]) for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema), objections


REPEATED = {"tools": mask_calls, "model": mask_column, "metadata": mask_metadata} | {
    **dict.fromkeys(("user_id", "session_id"), pseudonyms)
}
"""Of columns with few different texts."""
MASKS: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "messages": mask_messages,
    "tool_calls": mask_calls,
    **dict.fromkeys(("completion", "reference", "error"), mask_column),
    **{name: partial(mask_repeated, function=function) for name, function in REPEATED.items()},
}


def check(
    batch: pa.RecordBatch, rules: GateRules, gates: Sequence[tuple[Reason, Gate | None]] = GATES
) -> tuple[pa.RecordBatch, list[Reason | None]]:
    """The batch as the table may hold it, and for each row the first reason against it, or None. Rows with a reason
    may be unmasked: they are only counted."""
    try:
        return _check(batch, rules, gates)
    except Exception:  # the boundary of the gates: a rule that cannot be applied is a no, for the rows that it fails on
        if batch.num_rows <= 1:
            return batch, [Reason.GATE_ERROR] * batch.num_rows
    middle = batch.num_rows // 2
    halves = [check(part, rules, gates) for part in (batch.slice(0, middle), batch.slice(middle))]
    table = pa.Table.from_batches([part for part, _ in halves]).combine_chunks()
    return table.to_batches()[0], halves[0][1] + halves[1][1]


def says_yes(values: Any) -> Any:
    """Booleans, never null: whether a column of texts says yes."""
    return pc.is_in(_word(values), pa.array(YES))


def _check(
    batch: pa.RecordBatch, rules: GateRules, gates: Sequence[tuple[Reason, Gate | None]]
) -> tuple[pa.RecordBatch, list[Reason | None]]:
    batch = read_texts(batch, rules.settings.placeholders)
    verdicts = np.full(batch.num_rows, len(gates))
    for order, (_, gate) in enumerate(gates):
        if gate is None:
            batch, objections = pii(batch)
        else:
            objections = gate(batch, rules)
        objects = pc.fill_null(objections, True).to_numpy(zero_copy_only=False)
        verdicts[objects & (verdicts == len(gates))] = order
    if own := rules.settings.pii.recogniser:
        batch, refused = mask_recognised(batch, verdicts == len(gates), own)
        verdicts[refused] = [reason for reason, _ in gates].index(Reason.PII)
    agreed = says_yes(batch["consent_said"])
    batch = batch.set_column(batch.schema.get_field_index("consent"), batch.schema.field("consent"), agreed)
    reasons: list[Reason | None] = [*(reason for reason, _ in gates), None]
    return batch, [reasons[n] for n in verdicts.tolist()]


def _word(values: Any) -> Any:
    return pc.utf8_lower(pc.utf8_trim_whitespace(values))


def _any(parents: Any, flags: Any, rows: int) -> Any:
    """Per row: whether any of its list's elements is flagged."""
    hits = parents[pc.fill_null(flags, True).to_numpy(zero_copy_only=False)]
    return np.bincount(hits, minlength=rows) > 0


def _nobody(batch: pa.RecordBatch) -> Any:
    return pa.array(np.zeros(batch.num_rows, dtype=bool))
