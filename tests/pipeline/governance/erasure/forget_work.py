"""The erasure of one user, and what it leaves: for kills at each of its writes."""

from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from sqlalchemy.engine.default import DefaultDialect

from pipeline.core import audit
from pipeline.governance.erasure.records import proofs
from pipeline.rollout.record import blocks
from pipeline.traces.erased import erased_users
from pipeline.traces.lake import open_lake
from tests.pipeline.governance.erasure.conftest import ANN, DAYS, NAME, Place
from tests.pipeline.governance.erasure.looking import erase, holding, words_of
from tests.pipeline.traces.lake import upkeep_work

WRITES = (*upkeep_work.WRITES, (MlflowClient, "set_model_version_tag"), (DefaultDialect, "do_commit"))
OF_AN_ATTEMPT = {"id", "nonce", "mark", "requested", "finished"}
"""Of a proof; the rest is the same after every kill."""


def work(root: Path) -> None:
    erase(Place(root))


def state(root: Path) -> dict[str, Any]:
    place, names = Place(root), [path for path in root.rglob("*") if path.is_file()]
    with open_lake(place.lake) as lake:
        rows = sorted(lake.read(DAYS, lake.snapshot, ["observation_id"])["observation_id"].to_pylist())
    client = MlflowClient(place.tracking_uri, place.tracking_uri)
    versions = [client.get_model_version(NAME, number) for number in ("1", "2", "3")]
    return {
        "proofs": [each.model_dump(mode="json", exclude=OF_AN_ATTEMPT) for each in proofs(place.store)],
        "left": sorted(holding(root, *words_of(ANN))),
        "rows": rows,
        "days": {day: (report.seen, report.admitted, report.rejected) for day, report in place.reports().items()},
        "blocks": [(each.digests, each.iterations) for each in blocks(place.store)],
        "blocked versions": [bool(each.tags.get("blocked")) for each in versions],
        "listed": len(erased_users(place.store).users),
        "log": ([entry.kind for entry in audit.entries(place.store)], audit.verify(place.store).flaw),
        "under way": [path.name for path in names if "pending" in path.parts],
        "mirrors": sorted(str(path.relative_to(root)) for path in names if "mirror" in path.parts),
    }
