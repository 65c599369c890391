"""The loop with a suite from its own traces, and a user of that suite who is forgotten afterwards."""

from pathlib import Path

import pytest

from assets.records import PREFERENCES, REPORT, VERDICT
from evals.bundle import verify
from evals.suites import frozen
from jobs.governance import forget_user
from tests.loop import deployment, instance, run_loop
from tests.pipeline.governance.erasure.looking import holding

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SUITES = (
    "evaluation.suites=[{kind: items, preset: arithmetic, items: 150},"
    " {kind: traces, preset: production, items: 60, max_principal_share: 0.1}]"
)


@pytest.mark.variant
def test_a_suite_from_traces_is_asked_and_forgotten(tmp_path: Path) -> None:
    settings = deployment(tmp_path / "data", (SUITES, "traces.source.traces_per_day=400"))
    with instance(tmp_path / "home") as home:
        run_loop(settings, home)
    store, id = settings.store(), settings.latest().id
    verdict, report = VERDICT.read(store, id), REPORT.read(store, id)
    newest = frozen.latest(store, "production")
    assert newest is not None and len(newest.items) > 30
    compared = report.measurements[1].comparison
    assert compared is not None and compared.items == len(newest.items)
    assert compared.champion.value > 0.1, "the references are those of the questions"
    assert PREFERENCES.read(store, id).frozen >= len(newest.items)
    evidence = store.path(settings.latest().path("evidence"))
    assert verify(evidence, verdict.bundle_digest) == verdict
    first = newest.items[0].item
    assert holding(evidence, first.salt)
    proof = forget_user(settings, str(first.user_id), print)
    assert proof.remains == ()
    assert holding(store.root, first.salt, str(first.user_id)) == set()
    assert not evidence.exists(), "it quoted the user"
    assert VERDICT.read(store, id) == verdict
