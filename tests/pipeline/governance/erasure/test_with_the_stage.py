"""An erasure between two runs of the traces stage: what the stage makes of it, and of rows that come back."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.core.storage import Store
from pipeline.governance.erasure import forget
from pipeline.governance.erasure.records import Person
from pipeline.traces.lake import local_lake
from pipeline.traces.materialize import read
from pipeline.traces.pii import pseudonym
from pipeline.traces.records import Reason
from tests.contexts import stage_context
from tests.pipeline.governance.erasure.looking import holding
from tests.pipeline.traces.conftest import NOW, Run, export, observation, run, score, store, write

pytestmark = pytest.mark.slow

__all__ = ["export", "run", "store"]  # the stage's own fixtures
FIRST, SECOND = "observations_v2/2026-01-05.jsonl.gz", "observations_v2/2026-01-06.jsonl.gz"
MAIL = "ann@example.com"


def erase(store: Store, user: str, tmp_path: Path) -> Any:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    return forget(stage_context(store), Person.named(user), registry_uri=uri, now=NOW)


def rows(export: Path, *more: dict[str, Any]) -> None:
    """Two of Ann's on the first day, one of Bob's on each."""
    write(export, FIRST, [*(observation(n, user_id=u) for n, u in enumerate((MAIL, "bob", MAIL), start=1)), *more])
    write(export, SECOND, [observation(4, user_id="bob", start_time="2026-01-06 10:00:00.000000")])
    write(export, "scores/2026-01-05.jsonl", [score(1, 1, 1.0)])


def test_stage_accounts_for_what_was_erased(run: Run, store: Store, export: Path, tmp_path: Path) -> None:
    rows(export)
    before = run()
    proof = erase(store, MAIL, tmp_path)
    assert proof.rows == {"2026-01-05": 2}
    after = run()
    assert (after.seen, after.admitted) == (before.seen, before.admitted - 2)
    assert after.rejected == {Reason.ERASED: 2}
    assert after.iteration.id != before.iteration.id
    assert read(store, local_lake(store), after.iteration.dataset, ["user_id"])["user_id"].to_pylist() == ["bob", "bob"]
    with pytest.raises(ValueError, match="Materialise"):
        read(store, local_lake(store), before.iteration.dataset)


def test_erased_rows_that_come_back_are_rejected(run: Run, store: Store, export: Path, tmp_path: Path) -> None:
    rows(export)
    run()
    erase(store, MAIL, tmp_path)
    rows(export, observation(5, user_id=MAIL), observation(6, user_id="bob"))
    again = run()
    assert again.rejected == {Reason.ERASED: 3}
    assert again.admitted == 3
    assert holding(store.root, MAIL, str(pseudonym(MAIL))) == set()
