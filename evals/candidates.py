"""Prompts that can be drawn for a suite from traces: of labelled rows, or of rows that people have answered. Rows that
cannot be asked are counted by reason."""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import pyarrow.parquet as pq

from evals.suites.lines import ROLES
from pipeline.core.conversation import FIELDS, TOOLS, UNSHOWABLE
from pipeline.core.storage import DatasetRef
from pipeline.recipe.rewards import VerifierKind
from pipeline.recipe.suites import TracesSuite
from pipeline.rewards.reviews import survey
from pipeline.rewards.verifiers import Outcome
from pipeline.selection.consent import agreed
from pipeline.traces.context import IterationContext

COLUMNS = (
    *("trace_id", "observation_id", "day", "user_id", "tenant_id", "consent"),
    *("prompt", "reference", "verifier", "outcome", "reason"),
)
Row = Mapping[str, Any]


class SuiteCandidate(NamedTuple):
    """A prompt that can be asked, and the row that it is from."""

    prompt: str
    reference: str
    check: VerifierKind
    user_id: str
    tenant_id: str | None
    day: str
    trace_id: str
    observation_id: str


class Drawable(NamedTuple):
    """The candidates, what was left out by reason."""

    candidates: list[SuiteCandidate]
    left_out: Counter[str]
    prompts: frozenset[str]
    """Of the window: the clusters are made of all of them."""


def drawable(context: IterationContext, section: TracesSuite, labels: DatasetRef) -> Drawable:
    """What a generation of the suite can be drawn from, as of now; inside `shared_lock`."""
    labelled: list[Row] = pq.read_table(labels.uri, columns=list(COLUMNS)).to_pylist()
    prompts = frozenset(row["prompt"] for row in labelled)
    if section.preset != "golden":
        return Drawable(*_candidates(context, labelled), prompts)
    written = [{**row, "verifier": section.check, "outcome": ""} for row in survey(context.store).answered]
    return Drawable(*_candidates(context, written), prompts)


def _candidates(context: IterationContext, rows: Sequence[Row]) -> tuple[list[SuiteCandidate], Counter[str]]:
    """One for each prompt, of the first row that can be asked; what cannot is counted by reason."""
    allowed = agreed(context.store, context.lake, {row["day"] for row in rows})
    left_out: Counter[str] = Counter()
    by_prompt: defaultdict[str, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["trace_id"], row["observation_id"])):
        if reason := _unfit(row, allowed):
            left_out[reason] += 1
        else:
            by_prompt[row["prompt"]].append(row)
    candidates: list[SuiteCandidate] = []
    for prompt, group in by_prompt.items():
        if len({(row["reference"], row["verifier"]) for row in group}) > 1:
            left_out["several references"] += 1
        else:
            names = ("reference", "verifier", "user_id", "tenant_id", "day", "trace_id", "observation_id")
            candidates.append(SuiteCandidate(prompt, *(group[0][name] for name in names)))
    return candidates, left_out


def _is_asked_as_is(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a model can be asked what was asked: with tools too, which its chat template has to render."""
    roles = {*ROLES, TOOLS}
    return all(set(message) <= set(FIELDS) and message["role"] in roles for message in messages)


def _unfit(row: Row, allowed: Collection[tuple[str, str]]) -> str:
    """Why the row's prompt cannot be asked; "" where it can."""
    if row["consent"] is not True or (row["trace_id"], row["observation_id"]) not in allowed:
        return "without consent"
    messages = json.loads(row["prompt"])
    if row["reason"] == UNSHOWABLE or not _is_asked_as_is(messages):
        return "calls tools"
    if not messages or messages[-1]["role"] not in ("user", "tool") or not messages[-1]["content"].strip():
        return "no question at its end"
    if not row["reference"] or row["verifier"] not in get_args(VerifierKind):
        return "without a reference"
    return "unreadable reference" if row["outcome"] == Outcome.unparsable_gold else ""
