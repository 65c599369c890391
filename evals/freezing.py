"""Freezing suites from traces: whole clusters of consented rows that have a reference, before training takes them.

Rule. A prompt can be drawn when its rows consent now, call no tool, end with the user's message and agree on one
reference that the checker reads. Clusters are those of selection, over all prompts that were labelled or ever trained
on; one that training has seen is not drawn. The order is a hash of the cluster, and a cluster is taken whole where no
user and no tenant gets more than their share. At most a fifth of the window's prompts is taken. After `refresh_days`
the next iteration freezes a new generation, in which `refresh_share` of the clusters are replaced by new ones.

Owns the draw and the withdrawal of items whose rows no longer consent, or are gone. Refuses to keep rows from training:
selection does, by the frozen prompts.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, get_args

import pyarrow.parquet as pq

from evals import journal
from evals.suites import Item, Suite, frozen
from evals.suites.frozen import Frozen, FrozenItem, Generation
from evals.suites.lines import ROLES
from pipeline import layout
from pipeline.recipe.rewards import VerifierKind
from pipeline.recipe.suites import TracesSuite
from pipeline.rewards.verifiers import Outcome
from pipeline.selection.clusters import cluster
from pipeline.selection.consent import agreed
from pipeline.storage import DatasetRef, Store, digest_json
from pipeline.traces.context import IterationContext
from pipeline.traces.erased import shared_lock
from pipeline.traces.tools import TOOL_CALLS

LARGEST_SHARE = 0.2
"""Of the window's prompts, at most: training needs the others."""
COLUMNS = (
    *("trace_id", "observation_id", "day", "user_id", "tenant_id", "consent"),
    *("prompt", "reference", "verifier", "outcome", "reason"),
)


class Candidate(NamedTuple):
    """A prompt that can be asked, and the row that it is from."""

    prompt: str
    reference: str
    check: VerifierKind
    user_id: str
    tenant_id: str | None
    day: str
    trace_id: str
    observation_id: str


def freeze(context: IterationContext, labels: DatasetRef, now: datetime) -> None:
    """Freeze what the recipe's suites from traces lack, or have had for long enough; else nothing.

    An iteration that has its preference data freezes nothing: these were cleaned of the suites of then.
    """
    store = context.store
    sections = [each for each in context.recipe.evaluation.suites if isinstance(each, TracesSuite)]
    if not sections or store.path(context.path(layout.PREFERENCES)).exists():
        return
    withdraw(context)
    with shared_lock(store):
        for section in sections:
            newest = frozen.latest(store, section.name)
            if newest is None or not newest.items or now - newest.generation.frozen >= _age(section):
                _freeze(context, section, labels, newest, now)


def withdraw(context: IterationContext) -> list[str]:
    """Take out the items whose rows do not consent any more, or are gone, and their answers; `name: n lines` of each
    file that is written anew. Bundles of gates that are over keep them."""
    store = context.store
    sections = [each for each in context.recipe.evaluation.suites if isinstance(each, TracesSuite)]
    if not sections:
        return []
    with shared_lock(store):
        newest = [each for section in sections if (each := frozen.latest(store, section.name)) is not None]
        every = [item for each in newest for item in each.items]
        allowed = agreed(store, context.lake, {each.day for each in every}) if every else frozenset()
        gone = {each.item.id for each in every if (each.trace_id, each.observation_id) not in allowed}
        if not gone:
            return []
        context.log(f"evaluation: {len(gone)} items are taken out of suites: their rows do not consent any more")
        return [*journal.erase(store, gone), *frozen.remove(store, gone)]


def prompts(suites: Sequence[Suite]) -> tuple[str, ...]:
    """The frozen prompts among the suites, as labels write them: what selection keeps from training."""
    return tuple(
        json.dumps(item.messages, ensure_ascii=False) for each in suites if each.generation for item in each.items
    )


def _age(section: TracesSuite) -> timedelta:
    return timedelta(days=section.refresh_days)


def _freeze(
    context: IterationContext, section: TracesSuite, labels: DatasetRef, newest: Frozen | None, now: datetime
) -> None:
    store, log = context.store, context.log
    left_out: Counter[str] = Counter()
    rows = _rows(labels)
    allowed = agreed(store, context.lake, {row["day"] for row in rows})
    candidates = _candidates(rows, allowed, left_out)
    before = newest.items if newest is not None else ()
    clusters = cluster(
        [
            *(row["prompt"] for row in rows),
            *(each.prompt for each in candidates),
            *trained(store),
            *map(_prompt, before),
        ]
    )
    taken = {clusters[prompt] for prompt in (*trained(store), *map(_prompt, before))}
    fresh: defaultdict[str, list[Candidate]] = defaultdict(list)
    for each in candidates:
        if clusters[each.prompt] in taken:
            left_out["trained on or frozen before"] += 1
        else:
            fresh[clusters[each.prompt]].append(each)
    number = newest.generation.number + 1 if newest is not None else 1
    kept, replaced = _kept(before, section.refresh_share, number)
    limit = min(section.items, len(kept) + int(LARGEST_SHARE * len({row["prompt"] for row in rows})))
    drawn = draw(fresh, kept, limit, section, number)
    left_out["not needed, or over a share"] = sum(map(len, fresh.values())) - sum(len(fresh[name]) for name in drawn)
    made = [*kept, *(item for name in drawn for item in _items(fresh[name]))]
    if not made:
        reasons = ", ".join(f"{name}: {count}" for name, count in sorted(left_out.items()) if count)
        raise ValueError(
            f"The suite {section.name} can be frozen from no row of this window ({reasons or 'there is none'}). Give "
            "traces a reference answer (metadata expected_answer), or take the suite out of evaluation.suites."
        )
    generation = Generation(
        number=number,
        frozen=now,
        lines=(),
        clusters=len({each.item.cluster for each in made}),
        replaced=replaced,
        left_out={name: count for name, count in sorted(left_out.items()) if count},
    )
    frozen.publish(store, section.name, generation, made)
    log(f"evaluation: {section.name}: generation {number} has {len(made)} items in {generation.clusters} clusters")


def _rows(labels: DatasetRef) -> list[dict[str, Any]]:
    return pq.read_table(labels.uri, columns=list(COLUMNS)).to_pylist()


def _candidates(
    rows: Sequence[Mapping[str, Any]], allowed: Collection[tuple[str, str]], left_out: Counter[str]
) -> list[Candidate]:
    """One for each prompt, of the first row that can be asked; what cannot is counted by reason."""
    by_prompt: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["trace_id"], row["observation_id"])):
        if reason := _unfit(row, allowed):
            left_out[reason] += 1
        else:
            by_prompt[row["prompt"]].append(row)
    candidates: list[Candidate] = []
    for prompt, group in by_prompt.items():
        if len({(row["reference"], row["verifier"]) for row in group}) > 1:
            left_out["several references"] += 1
            continue
        first = group[0]
        candidates.append(
            Candidate(
                prompt, first["reference"], first["verifier"], first["user_id"], first["tenant_id"], first["day"],
                first["trace_id"], first["observation_id"],
            )
        )  # fmt: skip
    return candidates


def _unfit(row: Mapping[str, Any], allowed: Collection[tuple[str, str]]) -> str:
    """Why the row's prompt cannot be asked; "" where it can."""
    if row["consent"] is not True or (row["trace_id"], row["observation_id"]) not in allowed:
        return "without consent"
    messages = json.loads(row["prompt"])
    if row["reason"] == TOOL_CALLS or any(m.keys() != {"role", "content"} or m["role"] not in ROLES for m in messages):
        return "calls tools"
    if not messages or messages[-1]["role"] != "user" or not messages[-1]["content"].strip():
        return "no question at its end"
    if not row["reference"] or row["verifier"] not in get_args(VerifierKind):
        return "without a reference"
    return "unreadable reference" if row["outcome"] == Outcome.unparsable_gold else ""


def trained(store: Store) -> list[str]:
    """Every prompt that an iteration's preference data has, as labels write prompts."""
    tables = store.path(layout.ITERATIONS).glob(f"*/{layout.PREFERENCE_TABLES}/*.parquet")
    columns = (pq.read_table(path, columns=["prompt"])["prompt"].to_pylist() for path in tables)
    return sorted({json.dumps(prompt, ensure_ascii=False) for column in columns for prompt in column})


def _kept(before: Sequence[FrozenItem], share: float, number: int) -> tuple[list[FrozenItem], int]:
    """The items of the clusters that stay, and how many clusters do not."""
    names = sorted({each.item.cluster for each in before}, key=lambda name: _turn(name, number))
    leaving = set(names[: round(share * len(names))])
    return [each for each in before if each.item.cluster not in leaving], len(leaving)


def draw(
    clusters: Mapping[str, Sequence[Candidate]],
    kept: Sequence[FrozenItem],
    limit: int,
    section: TracesSuite,
    number: int,
) -> list[str]:
    """Names of the clusters that come to the items that are kept: `limit` items in all, and nobody over their share.

    Levels fall until what they let through is so much that they hold, as for pairs (selection.pairing)."""
    tenants = {each.tenant_id for group in (kept, *clusters.values()) for each in group if each.tenant_id}
    shares = section.max_principal_share, max(section.max_tenant_share, 1 / len(tenants)) if tenants else 1.0
    order = sorted(clusters, key=lambda name: _turn(name, number))
    levels = [max(1, int(share * limit)) for share in shares]
    while True:
        counts = [Counter(each.item.user_id for each in kept), Counter(each.tenant_id for each in kept)]
        drawn, size = list[str](), len(kept)
        for name in order:
            members = clusters[name]
            more = [Counter(each.user_id for each in members), Counter(each.tenant_id for each in members)]
            if len(tenants) < 2:
                more[1] = Counter()
            over = any(
                count[who] + times > level
                for count, new, level in zip(counts, more, levels, strict=True)
                for who, times in new.items()
                if who
            )
            if size + len(members) > limit or over:
                continue
            drawn.append(name)
            size += len(members)
            for count, new in zip(counts, more, strict=True):
                count.update(new)
        allowed = [max(1, int(share * size)) for share in shares]
        if all(most >= level for most, level in zip(allowed, levels, strict=True)):
            return drawn
        levels = [min(each) for each in zip(levels, allowed, strict=True)]


def _items(members: Sequence[Candidate]) -> Iterator[FrozenItem]:
    """The cluster's items. Ids and the cluster's name hold something random, so that neither confirms a guess."""
    name = secrets.token_hex(8)
    for each in members:
        salt, messages = secrets.token_hex(16), json.loads(each.prompt)
        item = Item(
            id=digest_json([salt, messages])[:16],
            cluster=name,
            messages=messages,
            reference=each.reference,
            slice=each.check,
            check=each.check,
            user_id=each.user_id,
            salt=salt,
        )
        yield FrozenItem(
            item=item,
            day=each.day,
            trace_id=each.trace_id,
            observation_id=each.observation_id,
            tenant_id=each.tenant_id,
        )


def _prompt(each: FrozenItem) -> str:
    return json.dumps(each.item.messages, ensure_ascii=False)


def _turn(name: str, number: int) -> str:
    return hashlib.sha256(f"{number}\x1f{name}".encode()).hexdigest()
