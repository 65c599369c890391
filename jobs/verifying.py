"""`pt governance verify`: the audit log against itself, its anchors in Dagster, and what stands beside it.

Owns the words for a person and the exit code. Refuses to be content where something disagrees; what could not be asked
is said, and is no failure.
"""

import argparse
import json
from collections.abc import Sequence
from datetime import UTC, datetime

from assets.anchors import Anchor, anchors, forgotten_elsewhere
from assets.resources import Deployment
from jobs.anchoring import command_instance
from pipeline import audit, audit_beside
from pipeline.audit_anchors import log_identity
from pipeline.storage import Store


def run(settings: Deployment, asked: argparse.Namespace) -> int:
    store = settings.store()
    anchored, restored, notes = _anchored(store)
    here = [each for each in anchored if each.root == str(store.root)]
    flaws = list(_of_other_logs(store, here))
    noted = [] if flaws else [audit.NotedHead(each.n, each.digest, _when(each)) for each in here]
    notes += _elsewhere(store, anchored, here)
    result = audit.verify(store, asked.known, noted)
    fields: dict[str, object] = {"intact": False, "entries": result.entries, "head": result.head, "line": result.line}
    if result.flaw:
        where = f"line {result.line}: " if result.line else ""
        flaws.append(f"{where}{result.flaw}")
        lines = [f"{store.path(audit.LOG)}: {flaw}." for flaw in flaws]
        lines.append("Whatever the log says from there on is not to be relied on.")
        fields |= {"flaw": result.flaw, "flaws": flaws, "notes": notes, "forged": [], "lost": []}
    else:
        at = [(each.n, datetime.fromtimestamp(each.at, UTC)) for each in here]
        beside = audit_beside.compare(store, settings.lake(), settings.registry_uri(), at)
        flaws += [*restored, *beside.flaws]
        lines = [*audit_beside.proof_flaws(store, beside), *(f"{flaw}." for flaw in flaws)]
        fields |= {"flaw": "", "flaws": flaws, "notes": [*notes, *beside.notes]}
        fields |= {"forged": beside.forged, "lost": beside.lost, "intact": not lines}
        lines += [*notes, *beside.notes]
        if here:
            lines.append(f"{len(here)} anchors in Dagster agree, up to line {max(each.n for each in here)}.")
        lines.append(f"{result.entries:,} entries, every one as it was written. Note the head elsewhere: {result.head}")
    print(json.dumps(fields, indent=2) if asked.json else "\n".join(lines))
    return 0 if fields["intact"] else 1


def _anchored(store: Store) -> tuple[list[Anchor], list[str], list[str]]:
    """The anchors, the flaw of users whom they know as forgotten and the list does not, and why there are none."""
    try:
        with command_instance() as instance:
            users = len(forgotten_elsewhere(instance, store))
            restored = (
                [f"{users} users were forgotten and are not on the list: run pt governance reapply"] if users else []
            )
            return list(anchors(instance)), restored, []
    except Exception as error:  # boundary: an instance elsewhere, and whatever its database raises
        return [], [], [f"Compared with no anchor: Dagster's instance cannot be read ({error})."]


def _of_other_logs(store: Store, here: Sequence[Anchor]) -> list[str]:
    identity = log_identity(store)
    others = [each for each in here if each.log != identity]
    if not others:
        return []
    newest = max(others, key=lambda each: each.at)
    now = "there is none now" if not identity else "this is another one"
    return [f"a log of {newest.n} lines stood here when it was noted {_when(newest)}, and {now}"]


def _elsewhere(store: Store, anchored: Sequence[Anchor], here: Sequence[Anchor]) -> list[str]:
    """What is said of a log that was anchored under another data root alone, or nowhere."""
    if here or not anchored:
        return [] if here else ["No anchor in Dagster is of this log: nothing but itself says where it ends."]
    identity = log_identity(store)
    same = [each for each in anchored if identity and each.log == identity]
    if not same:
        return ["No anchor in Dagster is of this log: nothing but itself says where it ends."]
    newest = max(same, key=lambda each: each.n)
    return [f"This log was anchored under {newest.root} alone, to line {newest.n}: it was moved, copied or restored."]


def _when(anchor: Anchor) -> str:
    return f"in Dagster on {datetime.fromtimestamp(anchor.at, UTC):%Y-%m-%d %H:%M} UTC"
