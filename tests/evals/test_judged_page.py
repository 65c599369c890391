"""What a person sees of a judged suite: the table, the picture, the page and the plan."""

from pathlib import Path

import pytest

from evals import bundle, gate
from evals.page import page
from evals.report import picture, table
from evals.suites import Item
from pipeline.core.storage import Store
from tests.evals.judging import MARK, evidence, judge, judged, section

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with a judged suite, whose items are people's."""
    root = tmp_path_factory.mktemp("judged")
    settings, gathered = section(role="target"), evidence(section(role="target"), longer=1.1)
    salted = tuple(item.model_copy(update={"salt": f"{n:032x}"}) for n, item in enumerate(gathered.suite.items))
    gathered = rebuilt(gathered, salted)
    (got,), _ = judged(root / "journal", judge(0.75, habit=0.5), settings, gathered)
    bundle.publish(Store(root), "evidence", bundle.evidence("it", settings, bundle.Gathered((gathered,), (got,))))
    return root / "evidence"


def rebuilt(gathered: bundle.SuiteEvidence, items: tuple[Item, ...]) -> bundle.SuiteEvidence:
    suite = gathered.suite.model_copy(update={"items": items})
    arms = [
        arm.model_copy(update={"protocol": arm.protocol.model_copy(update={"suite_digest": suite.digest()})})
        for arm in gathered.arms
    ]
    return bundle.SuiteEvidence(suite=suite, arms=(arms[0], arms[1]))


def test_the_page_shows_the_pairs_of_a_judged_suite(published: Path) -> None:
    read, report = bundle.read(published), bundle.recompute(published)
    shown = page(read, report, gate.judge(report, report.section))
    pairs = read.judged[0].pairs
    won = sum(each.outcome == 1.0 for each in pairs)
    lost = sum(each.outcome == 0.0 for each in pairs)
    assert f"judged-0: the candidate&#x27;s answer is preferred ({won} of 120" in shown
    assert f"judged-0: the champion&#x27;s answer is preferred ({lost} of 120" in shown
    assert "at equal lengths" in shown and "as judged" in shown and MARK in shown


def test_the_picture_has_rows_for_judged_suites(published: Path) -> None:
    report = bundle.recompute(published)
    alone = report.model_copy(update={"judged": ()})
    assert picture(report).height > picture(alone).height
    only = report.model_copy(update={"measurements": ()})
    assert picture(only).png().startswith(b"\x89PNG") and "pairs in 120 clusters" in table(only)
