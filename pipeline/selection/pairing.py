"""Pairs of one prompt's completions on one reward scale, best against worst, and the cap on each user's share.
A few per cent of poisoned preferences plant a behaviour (arXiv 2404.05530), so users and tenants are capped."""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Generic, NamedTuple, TypeVar

import pyarrow.parquet as pq

from pipeline.core.conversation import UNSHOWABLE, holds_tools, split
from pipeline.core.storage import DatasetRef
from pipeline.recipe import Selection
from pipeline.rewards.records import LABELS
from pipeline.traces.arrow import pc
from pipeline.traces.pii import is_masked
from pipeline.traces.rows import UNANSWERED


class LabelledRow(NamedTuple):
    """One labelled completion, with columns of `pipeline.rewards.records.LABELS`. A fresh one has the ids, the user and
    the consent of the trace whose prompt it answers."""

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
    """False: cut at its limit. Not known of a logged one."""
    unanswered: bool = False
    """A prompt of a prompt set, without an answer."""
    origin: str | None = None
    """Of an imported row, its import and licence."""

    @property
    def rows(self) -> "tuple[LabelledRow, ...]":
        return (self,)


_COLUMNS = tuple(name for name in LabelledRow._fields if name in LABELS.names)


class Pair(NamedTuple):
    """A preferred and a rejected completion of one prompt. `margin` is the difference of their rewards."""

    prompt: str
    chosen: LabelledRow
    rejected: LabelledRow
    margin: float

    @property
    def rows(self) -> tuple[LabelledRow, ...]:
        return (self.chosen, self.rejected)


C = TypeVar("C", Pair, LabelledRow)


def read_labels(labels: DatasetRef) -> list[LabelledRow]:
    """The labelled traces that have an answer; rows with a call that cannot be shown to a model are left out."""
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
    rows = pq.read_table(samples.uri, columns=[*_COLUMNS, "reward_model", "finished"]).to_pylist()
    return [LabelledRow(**row, fresh=True) for row in rows]


def by_prompt(rows: Sequence[LabelledRow]) -> dict[str, list[LabelledRow]]:
    """Groups in the order of their first trace's id, so that the order of files does not decide a pair."""
    groups: dict[str, list[LabelledRow]] = {}
    for row in sorted(rows, key=lambda row: (row.trace_id, row.observation_id)):
        groups.setdefault(row.prompt, []).append(row)
    return groups


Scored = tuple[float, LabelledRow]


def comparable(group: Sequence[LabelledRow]) -> list[list[Scored]]:
    """A prompt's labelled completions, best first, by profile and reference; masked ones left out. Of an import, the
    answers of one row, or of all its rows with one answer: nothing else was compared."""
    scales: defaultdict[tuple[str, str, str], list[Scored]] = defaultdict(list)
    for row in group:
        if row.final_reward is not None and not is_masked(row.completion):
            compared = f"{row.origin} {row.trace_id.rpartition('#')[0]}" if row.origin else ""
            scales[row.profile, row.reference or "", compared].append((row.final_reward, row))
    return [sorted(scales[key], key=_rank) for key in sorted(scales)]


def pairs(groups: Mapping[str, Sequence[LabelledRow]], settings: Selection) -> list[Pair]:
    """The pairs of all prompts, at most `max_pairs_per_prompt` of each, the largest margins first."""
    selected: list[Pair] = []
    for prompt, group in groups.items():
        candidates = _agreed([pair for scored in comparable(group) for pair in _pairs(prompt, scored, settings)])
        selected += sorted(candidates, key=lambda pair: (-pair.margin, *_ids(pair)))[: settings.max_pairs_per_prompt]
    return selected


def _agreed(candidates: Sequence[Pair]) -> list[Pair]:
    """Without the imported pairs that as many others contradict."""
    votes = Counter((pair.chosen.completion, pair.rejected.completion) for pair in candidates if pair.chosen.origin)

    def wins(pair: Pair) -> bool:
        chosen, rejected = pair.chosen.completion, pair.rejected.completion
        return pair.chosen.origin is None or votes[chosen, rejected] > votes[rejected, chosen]

    return list(filter(wins, candidates))


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
    """The candidates (pairs, thumbs) that put no user and no tenant over their share of those kept (one is always
    allowed). `max_tenant_share`: None for the users' share; an equal part where tenants are too few for it. The limits
    fall until they hold for what they let through. A hash decides which candidates go."""
    tenants = {tenant for each in candidates for tenant in _tenants(each)}
    tenant_share = max_share if max_tenant_share is None else max_tenant_share
    shares = [max_share, max(tenant_share, 1 / len(tenants)) if tenants else tenant_share]
    behind = [
        (frozenset(row.user_id for row in each.rows), _tenants(each) if len(tenants) > 1 else frozenset[str]())
        for each in candidates
    ]
    load = [Counter(name for names in kind for name in names) for kind in zip(*behind, strict=True)]

    def turn(place: int) -> tuple[int, str]:
        busiest = max(count[name] for count, names in zip(load, behind[place], strict=True) for name in names)
        return busiest, _lot(candidates[place])

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


def _tenants(candidate: Pair | LabelledRow) -> frozenset[str]:
    return frozenset(row.tenant_id for row in candidate.rows if row.tenant_id)


def _ids(candidate: Pair | LabelledRow) -> tuple[str, ...]:
    return tuple(id for row in candidate.rows for id in row[:2])


def _lot(candidate: Pair | LabelledRow) -> str:
    return hashlib.sha256("\x1f".join(_ids(candidate)).encode()).hexdigest()


class Mixture(NamedTuple, Generic[C]):
    kept: list[C]
    left_out: dict[str, int]
    """By reason: `cap`, `share`, `unproven`."""


def mix(candidates: Sequence[C], settings: Selection, own: int = 0, proven: bool = True) -> Mixture[C]:
    """What of the candidates for a table is taken: users and tenants within their caps, and imports within their share.
    `own`: rows of the table that are not among the candidates and no import's; `proven`: traces' candidates are worth
    as much as is known of imports', or else stay out where there are imports'. A hash decides who is over the share."""
    caps, share = (settings.max_principal_share, settings.max_tenant_share), settings.imported_share
    imported = [each for each in candidates if each.rows[0].origin]
    traces = [each for each in candidates if not each.rows[0].origin] if proven or not imported else []
    kept = cap_principals(traces, *caps)
    own += len(kept)
    within = imported
    if own and share < 1:
        within = sorted(imported, key=_lot)[: int(own * share / (1 - share) + 1e-9)]
    kept += cap_principals(within, *caps)
    unproven, beyond = len(candidates) - len(imported) - len(traces), len(imported) - len(within)
    left_out = {"cap": len(traces) + len(within) - len(kept), "share": beyond, "unproven": unproven}
    return Mixture(kept, {reason: count for reason, count in left_out.items() if count})
