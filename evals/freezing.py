"""Freezing suites from traces: whole clusters of consented rows that have a reference, before training takes them. A
production suite takes no cluster that training has seen; a golden suite may."""

import hashlib
import json
import secrets
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

import pyarrow.parquet as pq

from evals import judgements
from evals.candidates import Drawable, SuiteCandidate, drawable
from evals.suites import Item, Suite, frozen, pin, suites
from evals.suites.frozen import Frozen, FrozenItem, Generation
from pipeline.core import layout
from pipeline.core.conversation import to_prompt
from pipeline.core.removal import make
from pipeline.core.storage import DatasetRef, Store, digest_json
from pipeline.recipe.suites import TracesSuite
from pipeline.selection.clusters import cluster
from pipeline.selection.consent import agreed
from pipeline.selection.trainable import HeldApart
from pipeline.serving import journal
from pipeline.traces.context import IterationContext
from pipeline.traces.erased import shared_lock

LARGEST_SHARE = 0.2
"""Of the window's prompts, at most: training needs the others."""


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
            if newest is None or _is_due(newest, section, store, now):
                _freeze(context, section, drawable(context, section, labels), newest, now)


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
        places = (journal.removals, judgements.removals, frozen.removals)
        return make(removal for removals in places for removal in removals(store, withdrawn))


def held_apart(context: IterationContext, labels: DatasetRef, now: datetime) -> HeldApart:
    """What the recipe's suites ask, pinned for the iteration: training sees none of it. Suites from traces that are due
    are frozen first."""
    freeze(context, labels, now)
    asked = suites(context.store, context.recipe.evaluation)
    pin(context.store, context.path(), asked)
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
) -> None:
    before = newest.items if newest is not None else ()
    golden = section.preset == "golden"
    used = [*map(_prompt, before), *(() if golden else trained(context.store))]
    clusters = cluster([*source.prompts, *(each.prompt for each in source.candidates), *used])
    taken = {clusters[prompt] for prompt in used}
    fresh: defaultdict[str, list[SuiteCandidate]] = defaultdict(list)
    for each in source.candidates:
        if clusters[each.prompt] not in taken:
            fresh[clusters[each.prompt]].append(each)
    number = newest.generation.number + 1 if newest is not None else 1
    kept, replaced = _kept(before, section.refresh_share, number)
    most = section.items if golden else len(kept) + int(LARGEST_SHARE * len(source.prompts))
    drawn = draw(fresh, kept, min(section.items, most), section, number)
    chosen = [*kept, *(item for name in drawn for item in _items(fresh[name]))]
    available = sum(map(len, fresh.values()))
    left_out = {
        **source.left_out,
        "frozen before" if golden else "trained on or frozen before": len(source.candidates) - available,
        "not needed, or over a share": available - (len(chosen) - len(kept)),
    }
    left_out = {reason: count for reason, count in sorted(left_out.items()) if count}
    if not chosen:
        raise ValueError(_nothing(section, left_out))
    generation = Generation(
        number=number,
        frozen=now,
        lines=(),
        clusters=len({each.item.cluster for each in chosen}),
        replaced=replaced,
        left_out=left_out,
    )
    frozen.publish(context.store, section.name, generation, chosen)
    context.log(
        f"evaluation: {section.name}: generation {number} has {len(chosen)} items in {generation.clusters} clusters"
    )


def _nothing(section: TracesSuite, left_out: Mapping[str, int]) -> str:
    reasons = ", ".join(f"{reason}: {count}" for reason, count in left_out.items()) or "there is none"
    if section.preset == "golden":
        cure = "Fill in the column reference of a review sheet (pt reviews write)"
    else:
        cure = "Give traces a reference answer (metadata expected_answer)"
    return (
        f"The suite {section.name} can be frozen from no row ({reasons}). {cure}, or take the suite out of "
        "evaluation.suites."
    )


def trained(store: Store) -> list[str]:
    """Every prompt that an iteration's training could take, as labels write prompts."""
    folders = list(store.path(layout.ITERATIONS).glob(f"*/{layout.PREFERENCE_TABLES}"))
    names = ("pairs", "prompts", "groups", "thumbs", "winners")
    tables = [path for folder in folders for name in names if (path := folder / f"{name}.parquet").exists()]
    columns = (pq.read_table(path, columns=["prompt"])["prompt"].to_pylist() for path in tables)
    return sorted({to_prompt(prompt) for column in columns for prompt in column})


def _kept(before: Sequence[FrozenItem], share: float, number: int) -> tuple[list[FrozenItem], int]:
    """The items of the clusters that stay, and how many clusters do not."""
    names = sorted({each.item.cluster for each in before}, key=lambda name: _turn(name, number))
    replaced = set(names[: round(share * len(names))])
    return [each for each in before if each.item.cluster not in replaced], len(replaced)


def draw(
    clusters: Mapping[str, Sequence[SuiteCandidate]],
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


def _prompt(each: FrozenItem) -> str:
    return json.dumps(each.item.messages, ensure_ascii=False)


def _turn(name: str, number: int) -> str:
    return hashlib.sha256(f"{number}\x1f{name}".encode()).hexdigest()
