"""What stands beside the audit log and has to agree with it: erasures, rollouts, the table, the registry, and time.

Owns the comparison, in both directions where both are complete. A log that was forged whole, an older one that was put
back and a proof, an event or an entry of the list that was taken out disagree with the rest. Refuses to repair.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from pipeline import audit, layout
from pipeline.erasure.proof import ErasureProof, proof_name, proofs
from pipeline.registry import versions
from pipeline.rollout.blocks import blocks
from pipeline.rollout.reconcile import named_entries
from pipeline.rollout.record import read_events
from pipeline.storage import Store, digest_json
from pipeline.traces.erased import ErasedUser, erased_users, reach
from pipeline.traces.lake import LakeConfig, open_lake
from pipeline.traces.records import DayReport

AHEAD = timedelta(days=2)
"""An entry bears the time at which its work began; one further back than this was written by a clock set back."""


_OF_A_DEPLOYMENT = (layout.ITERATIONS, layout.LAKE, layout.ROLLOUT, layout.PRODUCTION)
"""None of these is beside a log that `pt clean` kept."""


class Beside(NamedTuple):
    """`flaws` are disagreements, `notes` what could not be compared. Ids of proofs that are not as logged, or gone."""

    forged: list[str]
    lost: list[str]
    flaws: list[str]
    notes: list[str]


def compare(
    store: Store, config: LakeConfig, registry_uri: str, anchored_at: Sequence[tuple[int, datetime]] = ()
) -> Beside:
    """Everything beside the log. `anchored_at`: lines that stood there at a time, by an anchor's clock."""
    entries = list(audit.entries(store))
    logged = {e.subject: str(e.detail.get("proof")) for e in entries if e.kind == "erasure"}
    held = {proof.id: proof for proof in proofs(store)}
    erasure_ids = logged.keys() | {p.stem for p in store.path(layout.ERASURES, "pending").glob("*.json")}
    flaws = [*_list(store, held, erasure_ids), *_times(entries, anchored_at)]
    notes: list[str] = []
    is_bare = not any(store.path(name).exists() for name in _OF_A_DEPLOYMENT)
    if is_bare and entries:
        notes.append(f"{store.root} has no deployment: the log was compared with proofs and the list alone.")
    flaws += [] if is_bare else [*_named(store, held, erasure_ids), *_rollouts(store, entries)]
    for what, check in (
        ()
        if is_bare
        else (
            ("the governed table", lambda: _table(store, config, entries)),
            ("the registry", lambda: _registry(store, registry_uri, entries, held, erasure_ids)),
        )
    ):
        disagreements, note = _asked(what, check)
        flaws += disagreements
        notes += note
    return Beside(
        forged=sorted(id for id, proof in held.items() if logged.get(id) != digest_json(proof)),
        lost=sorted(logged.keys() - held.keys()),
        flaws=flaws,
        notes=notes,
    )


def _asked(what: str, check: Callable[[], Iterator[str]]) -> tuple[list[str], list[str]]:
    try:
        return list(check()), []
    except Exception as error:  # boundary: catalogues and registries are other people's servers
        return [], [f"Not compared with {what}, which cannot be reached: {error} ({type(error).__name__})."]


def _list(store: Store, held: Mapping[str, ErasureProof], erasure_ids: Collection[str]) -> Iterator[str]:
    """The list of the forgotten and the proofs, by marks."""
    by_mark = {user.mark: user for user in erased_users(store).users}
    for proof in held.values():
        entry = by_mark.get(proof.mark)
        if entry is None or reach(entry) < reach(ErasedUser(mark=proof.mark, since=proof.since, proof=proof.id)):
            yield (
                f"{store.path(layout.ERASED)} lacks the user of erasure {proof.id}, whose rows would be let in. Run: "
                "pt governance reapply, or forget the user again"
            )
    for user in by_mark.values():
        if user.proof not in erasure_ids:
            yield f"{store.path(layout.ERASED)} has a user of erasure {user.proof}, which the log does not have"


def _named(store: Store, held: Mapping[str, ErasureProof], erasure_ids: Collection[str]) -> Iterator[str]:
    """Blocks and days that name an erasure, and erasures without their block."""
    blocked = {block.proof for block in blocks(store)}
    for id in sorted(blocked - set(erasure_ids)):
        yield f"{store.path(layout.block(id))} blocks models for an erasure that the log does not have"
    for proof in held.values():
        if proof.affected.iterations and proof.id not in blocked:
            yield f"{store.path(layout.block(proof.id))} is gone: models of erasure {proof.id} may be promoted"
    for path in sorted(store.path(layout.DAYS).rglob("*.json")):
        report = store.read(str(path.relative_to(store.root)), DayReport)
        for id in report.erased if report is not None else ():
            if id not in erasure_ids:
                yield f"{path} lost rows to erasure {id}, which the log does not have"


def _rollouts(store: Store, entries: Sequence[audit.Entry]) -> Iterator[str]:
    """Events and entries of each model's rollouts."""
    written = {(e.kind, e.subject) for e in entries}
    about = [e for e in entries if "epoch" in e.detail and "model" in e.detail]
    folders = {path.parent.name for path in store.path(layout.ROLLOUT).glob("*/events")}
    for name in sorted(folders | {str(e.detail["model"]) for e in about}):
        try:
            events = read_events(store, name)
        except ValueError as error:
            yield str(error)
            continue
        for event, kind, subject, _ in named_entries(events):
            if (kind, subject) not in written:
                yield (
                    f"event {event.epoch} of the rollouts of {name} ({kind}) has no entry. If its process died right "
                    "after it, the next look writes one"
                )
        rollouts = {event.epoch: event.rollout for event in events}
        for e in about:
            if e.detail["model"] == name and rollouts.get(int(e.detail["epoch"])) != e.subject.partition("/")[0]:
                yield f"line {e.n} speaks of event {e.detail['epoch']} of the rollouts of {name}, which is not there"


def _table(store: Store, config: LakeConfig, entries: Sequence[audit.Entry]) -> Iterator[str]:
    """Days of the table and their admissions. An erasure changes a day's digest and says so in the day's report."""
    if config.catalogue == "sqlite" and not store.path(layout.LAKE).exists():
        return
    admitted = {e.subject: str(e.detail.get("digest")) for e in entries if e.kind == "admission"}
    with open_lake(config) as lake:
        digests = lake.digests()
    for day, digest in sorted(digests.items()):
        report = store.read(layout.day_report(day), DayReport)
        if day not in admitted:
            yield f"{day} is in the table, and the log has no admission of it"
        elif admitted[day] != digest and not digest.startswith("erased-") and not (report and report.erased):
            yield f"{day} is in the table as {digest[:12]}, and was admitted last as {admitted[day][:12]}"


def _registry(
    store: Store,
    registry_uri: str,
    entries: Sequence[audit.Entry],
    held: Mapping[str, ErasureProof],
    erasure_ids: Collection[str],
) -> Iterator[str]:
    """Versions that MLflow shows as blocked, and versions that were promoted."""
    if registry_uri.startswith("sqlite:///") and not Path(registry_uri.removeprefix("sqlite:///")).exists():
        return  # nobody made one, and a look is not to
    promoted = {(str(e.detail["model"]), int(e.detail["version"])) for e in entries if e.kind == "promotion"}
    saw = {(name, int(number)) for each in held.values() for name, _, number in map(_parted, each.affected.versions)}
    names = {path.parent.name for path in store.path(layout.ROLLOUT).glob("*/events")}
    for name in sorted(names | {name for name, _ in promoted | saw}):
        tagged = versions.blocked_tags(registry_uri, name)
        for version, tag in sorted(tagged.items()):
            if tag and tag.removeprefix("erasure ") not in erasure_ids:
                yield f"MLflow shows {name} version {version} as blocked by {tag}, which the log does not have"
        for version in sorted(number for model, number in saw if model == name and not tagged.get(number)):
            yield f"MLflow does not show {name} version {version} as blocked, which learned from erased data"
        for version in sorted(number for model, number in promoted if model == name and number not in tagged):
            yield f"the log promoted {name} version {version}, which MLflow does not have"


def _parted(version: str) -> tuple[str, str, str]:
    return version.rpartition(" version ")


def _times(entries: Sequence[audit.Entry], anchored_at: Sequence[tuple[int, datetime]]) -> Iterator[str]:
    """Each entry is no older than those before it, and than the anchors that were there before it."""
    newest: datetime | None = None
    anchors = sorted(anchored_at, reverse=True)
    for entry in entries:
        at = datetime.fromisoformat(entry.at)
        while anchors and anchors[-1][0] < entry.n:
            _, seen = anchors.pop()
            newest = seen if newest is None else max(newest, seen)
        if newest is not None and at < newest - AHEAD:
            before = newest.isoformat()
            yield f"line {entry.n} is of {entry.at}, and what stands before it of {before}: a clock was set back"
        newest = at if newest is None else max(newest, at)


def proof_flaws(store: Store, beside: Beside) -> Iterator[str]:
    """For a person: the proofs that are not as logged."""
    yield from (
        f"{store.path(proof_name(id))} is not the proof that the log speaks of. Run the erasure again."
        for id in beside.forged
    )
    yield from (f"{store.path(proof_name(id))} is gone. Restore it from a backup." for id in beside.lost)
