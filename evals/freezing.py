"""Freezing suites from traces: whole clusters of consented rows that have a reference, before training takes them. A
production suite takes no cluster that training has seen; a golden suite, of rows that people have answered, may. Where
there is nothing to freeze, a suite that only reports is not asked, and one that gates is refused."""

import hashlib
import json
import secrets
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, get_args

import pyarrow.parquet as pq

from evals import judged
from evals.suites import Item, Suite, frozen, not_asked, pin, suites
from evals.suites.frozen import Frozen, FrozenItem, Generation
from evals.suites.lines import ROLES
from pipeline.core import layout
from pipeline.core.conversation import FIELDS, TOOLS, UNSHOWABLE, to_prompt
from pipeline.core.iteration import Iteration
from pipeline.core.removal import make
from pipeline.core.storage import DatasetRef, Store, digest_json
from pipeline.recipe.rewards import VerifierKind
from pipeline.recipe.suites import TracesSuite
from pipeline.rewards.reviews import survey
from pipeline.rewards.verifiers import Outcome
from pipeline.selection.clusters import cluster
from pipeline.selection.trainable import HeldApart
from pipeline.serving import inference
from pipeline.traces.context import IterationContext, StageContext
from pipeline.traces.erased import shared_lock
from pipeline.traces.lake import open_lake
from pipeline.traces.materialize import window_of
from pipeline.traces.scope import agreed, where

LARGEST_SHARE = 0.2
"""Of the window's prompts, at most: training needs the others."""
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


def unfreezable(store: Store, section: TracesSuite) -> str:
    """Why the suite has no items and can have none without more answers of people; "" where it may have some."""
    if section.preset != "golden":
        return ""
    newest = frozen.latest(store, section.name)
    return "" if (newest and newest.items) or survey(store).answered else _nothing(section, {})


def refuse_without_references(context: StageContext, iteration: Iteration) -> None:
    """Raise ValueError where a production suite gates that can be frozen from no trace of the iteration: before its
    labels, which may have to be paid for."""
    section, store = context.recipe.evaluation, context.store
    gating = [each for each in section.asked if isinstance(each, TracesSuite) and each.name in section.gating]
    unfrozen = [each for each in gating if each.preset == "production" and frozen.latest(store, each.name) is None]
    if not unfrozen:
        return
    with open_lake(context.lake) as lake:
        window = window_of(store, lake, iteration.dataset)
        batches = lake.batches(window.days, window.snapshot, ["reference"], where(window.scope))
        if not any(any(batch["reference"].to_pylist()) for batch in batches):
            raise ValueError(_nothing(unfrozen[0], {"without a reference": iteration.dataset.rows}))


def freeze(context: IterationContext, labels: DatasetRef, now: datetime) -> dict[str, str]:
    """Freeze what the recipe's suites from traces lack, or have had for long enough. The suites that have no item and
    only report, with the reasons. Raises ValueError for one that gates."""
    store, evaluation = context.store, context.recipe.evaluation
    sections = [each for each in evaluation.suites if isinstance(each, TracesSuite)]
    lacking: dict[str, str] = {}
    withdraw(context)
    with shared_lock(store):
        for section in sections:
            newest = frozen.latest(store, section.name)
            if newest is None or _is_due(newest, section, store, now):
                why = _freeze(context, section, drawable(context, section, labels), newest, now)
                if why and section.name in evaluation.gating:
                    raise ValueError(why)
                if why:
                    lacking[section.name] = why
                    context.log(f"evaluation: {section.name} is not asked. {why}")
    return lacking


def withdraw(context: IterationContext) -> list[str]:
    """Take out the items whose rows do not consent any more, or are gone, and their answers; `name: n lines` of each
    file that is rewritten. Bundles of gates that are over keep them."""
    store = context.store
    sections = [each for each in context.recipe.evaluation.suites if isinstance(each, TracesSuite)]
    if not sections:
        return []
    with shared_lock(store):
        newest = [each for section in sections if (each := frozen.latest(store, section.name)) is not None]
        every = [item for each in newest for item in each.items]
        allowed = agreed(store, context.lake, {each.day for each in every}) if every else frozenset()
        withdrawn = {each.item.id for each in every if (each.trace_id, each.observation_id) not in allowed}
        if not withdrawn:
            return []
        context.log(f"evaluation: {len(withdrawn)} items are taken out of suites: their rows do not consent any more")
        places = (inference.removals, judged.removals, frozen.removals)
        return make(removal for removals in places for removal in removals(store, withdrawn))


def held_apart(context: IterationContext, labels: DatasetRef, now: datetime) -> HeldApart:
    """What the recipe's suites ask, pinned for the iteration: training sees none of it. Suites from traces that are due
    are frozen first; an iteration with pins freezes nothing: earlier stages were cleaned of the suites of then."""
    store, iteration = context.store, context.iteration
    pinned = store.path(iteration.path(layout.SUITE_PINS)).exists()
    left_out = not_asked(store, iteration) if pinned else freeze(context, labels, now)
    asked = suites(store, context.recipe.evaluation, left_out)
    pin(store, iteration.path(), asked, left_out)
    return HeldApart({each.name: each.texts() for each in asked if not each.generation}, prompts(asked))


def prompts(suites: Sequence[Suite]) -> tuple[str, ...]:
    """The frozen prompts among the suites, as labels write them: what selection keeps from training."""
    return tuple(
        json.dumps(item.messages, ensure_ascii=False) for each in suites if each.generation for item in each.items
    )


def _is_due(newest: Frozen, section: TracesSuite, store: Store, now: datetime) -> bool:
    """Whether a new generation is wanted: for its age, or for what was erased of it."""
    if newest.emptied > frozen.MAX_EMPTIED_SHARE or not newest.items:
        return True
    return now - newest.generation.frozen >= timedelta(days=section.refresh_days)


def _freeze(
    context: IterationContext, section: TracesSuite, source: Drawable, newest: Frozen | None, now: datetime
) -> str:
    """Publish a generation; where there is nothing for one, and none before it, why."""
    golden = section.preset == "golden"
    used = () if golden else trained(context.store)
    clusters = cluster([*source.prompts, *(each.prompt for each in source.candidates), *used])
    taken = {clusters[prompt] for prompt in used}
    fresh: defaultdict[str, list[SuiteCandidate]] = defaultdict(list)
    for each in source.candidates:
        if clusters[each.prompt] not in taken:
            fresh[clusters[each.prompt]].append(each)
    number = newest.generation.number + 1 if newest is not None else 1
    most = section.items if golden else min(section.items, int(LARGEST_SHARE * len(source.prompts)))
    chosen = [item for name in draw(fresh, most, section, number) for item in _items(fresh[name])]
    available = sum(map(len, fresh.values()))
    left_out = {
        **source.left_out,
        "trained on": len(source.candidates) - available,
        "not needed, or over a share": available - len(chosen),
    }
    left_out = {reason: count for reason, count in sorted(left_out.items()) if count}
    if not chosen:
        return "" if newest is not None and newest.items else _nothing(section, left_out)
    generation = Generation(
        number=number,
        frozen=now,
        lines=(),
        clusters=len({each.item.cluster for each in chosen}),
        left_out=left_out,
    )
    frozen.publish(context.store, section.name, generation, chosen)
    context.log(
        f"evaluation: {section.name}: generation {number} has {len(chosen)} items in {generation.clusters} clusters"
    )
    return ""


def _nothing(section: TracesSuite, left_out: Mapping[str, int]) -> str:
    reasons = ", ".join(f"{reason}: {count}" for reason, count in left_out.items()) or "there is none"
    if section.preset == "golden":
        cure = "Fill in the column reference of a review sheet (pt reviews write)"
    else:
        cure = "Give traces a reference answer (metadata expected_answer)"
    instead = "" if section.role == "report" else ", or give it the role report"
    return f"The suite {section.name} can be frozen from no row ({reasons}). {cure}{instead}."


def trained(store: Store) -> list[str]:
    """Every prompt that an iteration's training could take, as labels write prompts."""
    folders = list(store.path(layout.ITERATIONS).glob(f"*/{layout.PREFERENCE_TABLES}"))
    names = ("pairs", "prompts", "thumbs", "winners")
    tables = [path for folder in folders for name in names if (path := folder / f"{name}.parquet").exists()]
    columns = (pq.read_table(path, columns=["prompt"])["prompt"].to_pylist() for path in tables)
    return sorted({to_prompt(prompt) for column in columns for prompt in column})


def draw(clusters: Mapping[str, Sequence[SuiteCandidate]], limit: int, section: TracesSuite, number: int) -> list[str]:
    """Names of the clusters of generation `number`: at most `limit` items in all, and no user or tenant over their
    share of them. Where fewer are drawn, shares are of those."""
    tenants = {each.tenant_id for group in clusters.values() for each in group if each.tenant_id}
    tenant_share = max(section.max_tenant_share, 1 / len(tenants)) if tenants else 1.0
    most = max(1, int(section.max_principal_share * limit)), max(1, int(tenant_share * limit))

    def owners(members: Sequence[SuiteCandidate]) -> tuple[Counter[str | None], Counter[str | None]]:
        by_tenant = [each.tenant_id for each in members if each.tenant_id] if len(tenants) > 1 else []
        return Counter(each.user_id for each in members), Counter(by_tenant)

    counts = Counter[str | None](), Counter[str | None]()
    drawn, size = list[str](), 0
    for name in sorted(clusters, key=lambda name: hashlib.sha256(f"{number}\x1f{name}".encode()).hexdigest()):
        new = owners(clusters[name])
        within = all(
            count[who] + new[who] <= top for count, new, top in zip(counts, new, most, strict=True) for who in new
        )
        if within and size + len(clusters[name]) <= limit:
            drawn.append(name)
            size += len(clusters[name])
            for count, more in zip(counts, new, strict=True):
                count.update(more)
    return drawn if size >= limit else draw(clusters, size, section, number)


def _items(members: Sequence[SuiteCandidate]) -> Iterator[FrozenItem]:
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
