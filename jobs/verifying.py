"""`pt governance verify`: the audit log against itself, its anchors elsewhere, and what stands beside it.

Owns the words for a person and the exit code. Refuses to be content where something disagrees; what could not be asked
is said, and is no failure.
"""

import argparse
import json
from collections.abc import Sequence
from datetime import UTC, datetime

from assets.anchors import forgotten_elsewhere
from assets.resources import Deployment
from jobs.accepting import signers_file
from jobs.anchoring import anchors_everywhere, command_instance
from pipeline import audit, audit_beside
from pipeline.audit_anchors import Anchor, log_identity
from pipeline.audit_restored import Accepted, accepted, excused
from pipeline.storage import Store


def run(settings: Deployment, asked: argparse.Namespace) -> int:
    store = settings.store()
    everywhere, notes = anchors_everywhere(settings)
    anchored = [each for each in everywhere if each.root == str(store.root)]
    restores = _restores(store)
    here = excused(anchored, restores.lost())
    others = _of_other_logs(store, here)
    flaws = [*restores.flaws, *others]
    noted = [] if others else [audit.NotedHead(each.n, each.digest, each.noted()) for each in here]
    notes += _elsewhere(store, everywhere, anchored)
    result = audit.verify(store, asked.known, noted)
    fields: dict[str, object] = {"intact": False, "entries": result.entries, "head": result.head, "line": result.line}
    fields["restored"] = list(restores.lines())
    if result.flaw:
        where = f"line {result.line}: " if result.line else ""
        flaws.append(f"{where}{result.flaw}")
        lines = [f"{store.path(audit.LOG)}: {flaw}." for flaw in flaws]
        lines.append("Whatever the log says from there on is not to be relied on.")
        if not asked.known and not audit.verify(store).flaw:
            lines.append("If the data root was restored from a backup, accept that once: pt governance accept --help")
        fields |= {"flaw": result.flaw, "flaws": flaws, "notes": notes, "forged": [], "lost": []}
    else:
        at = [(each.n, datetime.fromtimestamp(each.at, UTC)) for each in here]
        beside = audit_beside.compare(store, settings.lake(), settings.registry_uri(), at)
        unforgotten, uncompared = _unforgotten(store)
        flaws += [*unforgotten, *beside.flaws]
        notes += uncompared
        lines = [*audit_beside.proof_flaws(store, beside), *(f"{flaw}." for flaw in flaws)]
        fields |= {"flaw": "", "flaws": flaws, "notes": [*notes, *beside.notes]}
        fields |= {"forged": beside.forged, "lost": beside.lost, "intact": not lines}
        lines += [*notes, *beside.notes, *restores.lines()]
        for place in sorted({each.place for each in here}):
            of_place = [each.n for each in here if each.place == place]
            lines.append(f"{len(of_place)} anchors in {place} agree, up to line {max(of_place)}.")
        lines.append(f"{result.entries:,} entries, every one as it was written. Note the head elsewhere: {result.head}")
    print(json.dumps(fields, indent=2) if asked.json else "\n".join(lines))
    return 0 if fields["intact"] else 1


def _restores(store: Store) -> Accepted:
    """What the log accepts; nothing where its lines cannot be read, which `audit.verify` says."""
    try:
        return accepted(store, log_identity(store), signers_file())
    except ValueError:
        return Accepted([], [])


def _unforgotten(store: Store) -> tuple[list[str], list[str]]:
    """The flaw of users whom the anchors know as forgotten and the list does not; the note where nobody can tell."""
    try:
        with command_instance() as instance:
            users = len(forgotten_elsewhere(instance, store))
    except FileNotFoundError:
        return [], []  # the notes on the anchors say so
    except Exception as error:  # boundary: an instance elsewhere and its database; keys of marks that are lost
        return [], [f"Not compared with who was forgotten elsewhere: {error}"]
    return [f"{users} users were forgotten and are not on the list: run pt governance reapply"] if users else [], []


def _of_other_logs(store: Store, here: Sequence[Anchor]) -> list[str]:
    identity = log_identity(store)
    others = [each for each in here if each.log != identity]
    if not others:
        return []
    newest = max(others, key=lambda each: each.at)
    now = "there is none now" if not identity else "this is another one"
    return [f"a log of {newest.n} lines stood here when it was noted {newest.noted()}, and {now}"]


def _elsewhere(store: Store, anchored: Sequence[Anchor], here: Sequence[Anchor]) -> list[str]:
    """What is said of a log that was anchored under another data root alone, or nowhere."""
    if here or not anchored:
        return [] if here else ["No anchor is of this log: nothing but itself says where it ends."]
    identity = log_identity(store)
    same = [each for each in anchored if identity and each.log == identity]
    if not same:
        return ["No anchor is of this log: nothing but itself says where it ends."]
    newest = max(same, key=lambda each: each.n)
    return [f"This log was anchored under {newest.root} alone, to line {newest.n}: it was moved, copied or restored."]
