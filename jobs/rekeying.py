"""`pt governance rekey`: marks of users taken to the newest key, and what is to be done about a key that is lost.

Refuses to draw a key where the environment holds them, and to let rows in past a lost key before a person said so.
"""

import argparse
import json
import sys
from datetime import UTC, datetime

from assets.resources import Deployment
from pipeline import audit, layout
from pipeline.erasure.rekey import pending, rekey
from pipeline.mark_keys import key_of
from pipeline.storage import Store
from pipeline.traces.erased import MarkBinding, bind, erased_users, exclusive_lock


def arguments(options: argparse.ArgumentParser) -> None:
    choice = options.add_mutually_exclusive_group()
    choice.add_argument("--new", action="store_true", help="draw a key first; the older ones stay in the file")
    choice.add_argument(
        "--lost", metavar="KEY", default="", help="say that a key is lost: users can be forgotten again"
    )
    choice.add_argument(
        "--accept", metavar="KEY", default="", help="say that whom it stood for was forgotten again: rows may be read"
    )


def run(settings: Deployment, asked: argparse.Namespace) -> int:
    store = settings.store()
    with exclusive_lock(store):
        if asked.lost or asked.accept:
            line, fields = _without(store, asked.lost, asked.accept)
        else:
            line, fields = _rekeyed(settings, store, asked.new)
    print(json.dumps(fields, indent=2) if asked.json else line)
    return 0


def _rekeyed(settings: Deployment, store: Store, new: bool) -> tuple[str, dict[str, object]]:
    if pending(store):
        raise ValueError("An erasure was interrupted and is not done: forget that user once more, then rekey.")
    bind(store)  # before a key is added: what is here has to be of keys that are here
    if new:
        store.keys.add()
    users = rekey(store, settings.registry_uri(), datetime.now(UTC), lambda line: print(line, file=sys.stderr))
    key = bind(store).newest
    return f"{users} forgotten users have marks of the key {key}.", {"key": key, "users": users}


def _without(store: Store, lost: str, accepted: str) -> tuple[str, dict[str, object]]:
    """Say that a key is lost, or that nothing waits for it any more."""
    binding, id = store.read(layout.MARKS, MarkBinding), lost or accepted
    marks = [user.mark for user in erased_users(store).users if key_of(user.mark) == id]
    if binding is None or (not marks and binding.key != id and id not in binding.lost):
        raise ValueError(f"No mark of {store.root} is of the key {id}. Its keys stand in {store.path(layout.MARKS)}.")
    if lost:
        update = {"lost": tuple(sorted({*binding.lost, id}))}
        line = (
            f"{len(marks)} forgotten users cannot be recognised without the key {id}. Forget each of them again whom "
            f"you know of (pt governance forget -); then: pt governance rekey --accept {id}. Until then no row is read."
        )
    elif id not in binding.lost:
        raise ValueError(f"The key {id} was not said to be lost: pt governance rekey --lost {id}")
    else:
        update = {"accepted": tuple(sorted({*binding.accepted, id}))}
        line = f"Rows are read again. Whoever of the {len(marks)} users was not forgotten again is not recognised."
    action = "lost" if lost else "accepted"
    audit.record(store, "keys", id, {"action": action, "users": len(marks)}, datetime.now(UTC))
    store.write(layout.MARKS, binding.model_copy(update=update))
    return line, {"key": id, "action": action, "users": len(marks)}
