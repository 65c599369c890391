"""`pt governance verify`: the audit log against itself and a head that was noted elsewhere, and the proofs against it.

It looks, and writes nothing: a read-only copy is verified like any other.
"""

import argparse
import json

from assets.resources import Deployment
from pipeline.core import audit, layout
from pipeline.core.storage import digest_json
from pipeline.governance.erasure.proof import proofs


def run(settings: Deployment, asked: argparse.Namespace) -> int:
    store = settings.store()
    result = audit.verify(store, asked.against)
    fields = {"entries": result.entries, "head": result.head, "line": result.line, "flaw": result.flaw}
    forged: list[str] = []
    lost: list[str] = []
    if result.flaw:
        where = f"line {result.line}: " if result.line else ""
        lines = [f"{store.path(audit.LOG)}: {where}{result.flaw}."]
        lines.append("Whatever the log says from there on is not to be relied on.")
    else:
        logged = {e.subject: str(e.detail.get("proof")) for e in audit.entries(store) if e.kind == "erasure"}
        held = {proof.id: digest_json(proof) for proof in proofs(store)}
        forged = sorted(id for id, digest in held.items() if logged.get(id) != digest)
        lost = sorted(logged.keys() - held.keys())
        lines = [f"{store.path(layout.proof(id))} is not the proof that the log speaks of." for id in forged]
        lines += [f"{store.path(layout.proof(id))} is gone. Restore it from a backup." for id in lost]
        lines.append(f"{result.entries:,} entries, every one as it was written. Note the head elsewhere: {result.head}")
    intact = not (result.flaw or forged or lost)
    fields |= {"intact": intact, "forged": forged, "lost": lost}
    print(json.dumps(fields, indent=2) if asked.json else "\n".join(lines))
    return 0 if intact else 1
