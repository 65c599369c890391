"""Pairs of one prompt's completions, and the cap on what anybody can place in them.

Rule. Only rewards on one scale are compared: same prompt, same reward profile, same reference. Of completions that
differ in white space alone one stands for all, with their mean reward. Then best against worst, second best
against second worst, and so on while the thresholds hold. After that no user and no tenant is behind more than their
share of the pairs: a few per cent of poisoned preferences plant a behaviour (arXiv 2404.05530). A lone tenant is not
capped. Which pairs go is drawn by a hash, so neither the order of files nor a user decides it.

The rows of selection: labelled traces as they are read, and the pairs made of them.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import NamedTuple, Protocol, TypeVar

import pyarrow.parquet as pq

from pipeline.core.conversation import UNSHOWABLE, holds_tools, split
from pipeline.core.storage import DatasetRef
from pipeline.recipe import Selection
from pipeline.rewards.records import LABELS
from pipeline.traces.arrow import pc
from pipeline.traces.pii import is_masked
from pipeline.traces.prompt_sets import UNANSWERED


class LabelledRow(NamedTuple):
    """One labelled completion; the fields are columns of `pipeline.rewards.records.LABELS`, but for the last ones.

    A fresh one has the ids, the user and the consent of the trace whose prompt it answers.
    """

    trace_id: str
    observation_id: str
    user_id: str
    tenant_id: str | None
    consent: bool
    prompt: str
    """The chat messages as canonical JSON: equal prompts are equal strings."""
    completion: str
    reference: str | None
    verifier: str | None
    final_reward: float | None
    profile: str
    correct: float | None
    feedback: float | None
    judge: float | None
    custom: float | None = None
    reward_model: float | None = None
    """Of fresh completions alone."""
    fresh: bool = False
    """Drawn for a logged prompt by the stage `samples`."""
    finished: bool = True
    """It ended by itself, and not at its limit; of a logged one that is not known."""
    unanswered: bool = False
    """It is a prompt alone, of a prompt set: nobody has answered it."""


_COLUMNS = tuple(name for name in LabelledRow._fields if name in LABELS.names)


class Pair(NamedTuple):
    """A preferred and a rejected completion of one prompt. `margin` is the difference of their rewards."""

    prompt: str
    chosen: LabelledRow
    rejected: LabelledRow
    margin: float

    @property
    def rows(self) -> tuple[LabelledRow, ...]:
        """The labelled traces behind it."""
        return (self.chosen, self.rejected)


class Attributed(Protocol):
    """A row that may be trained on, with the labelled traces behind it."""

    @property
    def rows(self) -> tuple[LabelledRow, ...]: ...


C = TypeVar("C", bound=Attributed)


def read_labels(labels: DatasetRef) -> list[LabelledRow]:
    """The labelled traces without those that hold a call which no model can be shown, which the label stage counts; and
    without those that are `unanswered`: there is nothing in them that could have a label."""
    return [row for row in read_askable(labels) if not row.unanswered]


def read_askable(labels: DatasetRef) -> list[LabelledRow]:
    """The labelled traces, and the prompts of a prompt set, which only fresh samples answer."""
    table = pq.read_table(labels.uri, columns=[*_COLUMNS, "reason"])
    rows = table.filter(pc.not_equal(pc.fill_null(table["reason"], ""), UNSHOWABLE))
    unanswered = [reason == UNANSWERED for reason in rows["reason"].to_pylist()]
    given = rows.drop_columns(["reason"]).to_pylist()
    return [LabelledRow(**row, unanswered=alone) for row, alone in zip(given, unanswered, strict=True)]


def calls_tools(row: LabelledRow) -> bool:
    """Whether tools were offered, called or answered in the prompt, or called in the answer."""
    return holds_tools(json.loads(row.prompt)) or bool(split(row.completion)[1])


def read_samples(samples: DatasetRef) -> list[LabelledRow]:
    """The fresh completions of a table of the stage `samples`."""
    rows = pq.read_table(samples.uri, columns=[*_COLUMNS, "reward_model", "finished"]).to_pylist()
    return [LabelledRow(**row, fresh=True) for row in rows]


def by_prompt(rows: Sequence[LabelledRow]) -> dict[str, list[LabelledRow]]:
    """Groups in the order of their first trace's id; the order of files must not decide a pair."""
    groups: dict[str, list[LabelledRow]] = {}
    for row in sorted(rows, key=lambda row: (row.trace_id, row.observation_id)):
        groups.setdefault(row.prompt, []).append(row)
    return groups


Scored = tuple[float, LabelledRow]


def comparable(group: Sequence[LabelledRow]) -> list[list[Scored]]:
    """A prompt's labelled completions, best first; apart by profile and reference, where rewards mean other things.

    One that holds a placeholder for personal data teaches nothing.
    """
    scales: defaultdict[tuple[str, str], list[Scored]] = defaultdict(list)
    for row in group:
        if row.final_reward is not None and not is_masked(row.completion):
            scales[row.profile, row.reference or ""].append((row.final_reward, row))
    return [sorted(scales[key], key=_rank) for key in sorted(scales)]


def pairs(groups: Mapping[str, Sequence[LabelledRow]], settings: Selection) -> list[Pair]:
    """The pairs of all prompts, at most `max_pairs_per_prompt` of each. Clearest first where a prompt has several."""
    selected: list[Pair] = []
    for prompt, group in groups.items():
        candidates = [pair for scored in comparable(group) for pair in _pairs(prompt, scored, settings)]
        selected += sorted(candidates, key=lambda pair: (-pair.margin, *_ids(pair)))[: settings.max_pairs_per_prompt]
    return selected


def _pairs(prompt: str, scored: Sequence[Scored], settings: Selection) -> Iterable[Pair]:
    ranked = _distinct(scored)
    for (high, best), (low, worst) in list(zip(ranked, reversed(ranked), strict=True))[: len(ranked) // 2]:
        clear = high >= settings.chosen_min and low < settings.rejected_max
        if clear and high - low >= settings.margin_min:
            yield Pair(prompt=prompt, chosen=best, rejected=worst, margin=high - low)


def _distinct(scored: Sequence[Scored]) -> list[Scored]:
    """One completion of each wording, with the mean of its rewards: where votes differ, it is on no side."""
    same: defaultdict[str, list[Scored]] = defaultdict(list)
    for each in scored:  # best first
        same[" ".join(each[1].completion.split())].append(each)
    return sorted((labels[0] if len(labels) == 1 else _mean(labels) for labels in same.values()), key=_rank)


def _mean(labels: Sequence[Scored]) -> Scored:
    """The completion whose reward is the nearest to the mean, with the mean as its reward."""
    reward = mean(reward for reward, _ in labels)
    _, row = min(labels, key=lambda each: (abs(each[0] - reward), _rank(each)))
    return reward, row._replace(final_reward=reward)


def _rank(scored: Scored) -> tuple[float, str, str]:
    reward, row = scored
    return -reward, row.trace_id, row.observation_id


def cap_principals(candidates: Sequence[C], max_share: float, max_tenant_share: float | None = None) -> list[C]:
    """Those (pairs, thumbs) that put no user and no tenant over their share of the rest (one is always allowed).

    `max_tenant_share`: None for the users' share; an equal part where tenants are too few for it. Levels fall until
    what they let through is so much that they hold: where one tenant has nearly all pairs, few are left.
    """
    tenants = {tenant for each in candidates for tenant in _tenants(each)}
    tenant_share = max_share if max_tenant_share is None else max_tenant_share
    shares = [max_share, max(tenant_share, 1 / len(tenants)) if tenants else tenant_share]
    behind = [(_users(each), _tenants(each) if len(tenants) > 1 else frozenset[str]()) for each in candidates]
    load = [Counter(name for names in kind for name in names) for kind in zip(*behind, strict=True)]

    def turn(place: int) -> tuple[int, str]:
        """Those go first who stand in few others' way."""
        busiest = max(count[name] for count, names in zip(load, behind[place], strict=True) for name in names)
        return busiest, hashlib.sha256("\x1f".join(_ids(candidates[place])).encode()).hexdigest()

    order = sorted(range(len(candidates)), key=turn)
    levels = [len(candidates), len(candidates)]
    while True:
        counts: tuple[Counter[str], Counter[str]] = Counter(), Counter()
        kept: list[int] = []
        for place in order:
            kinds = list(zip(counts, behind[place], levels, strict=True))
            if all(count[name] < level for count, names, level in kinds for name in names):
                kept.append(place)
                for count, names, _ in kinds:
                    count.update(names)
        allowed = [max(1, int(share * len(kept))) for share in shares]
        if all(most >= level for most, level in zip(allowed, levels, strict=True)):
            return [candidates[place] for place in sorted(kept)]
        levels = [min(each) for each in zip(levels, allowed, strict=True)]


def _users(candidate: Attributed) -> frozenset[str]:
    return frozenset(row.user_id for row in candidate.rows)


def _tenants(candidate: Attributed) -> frozenset[str]:
    return frozenset(row.tenant_id for row in candidate.rows if row.tenant_id)


def _ids(candidate: Attributed) -> tuple[str, ...]:
    return tuple(id for row in candidate.rows for id in row[:2])
