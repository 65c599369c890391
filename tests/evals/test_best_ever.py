"""The best ever: which models count, that nothing is asked for them, and what the gate makes of the third arm."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evals import best_ever, bundle
from evals.evaluate import decide
from evals.gate import Verdict
from evals.report import picture, table
from evals.suites import suites
from pipeline import layout
from pipeline.removal import make
from pipeline.storage import ModelRef, Store

from .conftest import Kit
from .test_evaluate import SECTION, StandIn, context, evaluated, plan_of

pytestmark = pytest.mark.slow


def model(name: str) -> ModelRef:
    return ModelRef(uri=f"models/{name}", digest=name)


class Year:
    """Gates of one model, one after the other, over the same items."""

    def __init__(self, root: Path, margin: float = 0.03, **skills: float) -> None:
        self.store, self.engine = Store(root), StandIn(skills)
        suite = SECTION.suites[0].model_copy(update={"margin": margin})
        self.section = SECTION.model_copy(update={"suites": (suite,)})

    def gate(self, champion: str, candidate: str) -> Any:
        work = context(self.store, f"of-{candidate}-{champion}", model(champion))
        work = replace(work, recipe=work.recipe.model_copy(update={"evaluation": self.section}))
        report = evaluated(work, model(candidate), self.engine)
        return report, decide(work, report)

    def evidence(self, champion: str, candidate: str) -> Path:
        return self.store.path("iterations", f"of-{candidate}-{champion}", "evidence")


@pytest.fixture(scope="module")
def fallen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Year, Any, Any]:
    """`old` is better than what a rollback put in its place, and the candidate lies between the two."""
    year = Year(tmp_path_factory.mktemp("year"), old=0.8, passed=0.9, failed=0.79, low=0.3, new=0.6)
    assert year.gate("old", "failed")[1].verdict is Verdict.FAIL
    return year, *year.gate("low", "new")


@pytest.mark.variant
def test_a_candidate_below_the_best_ever_fails(tmp_path: Path) -> None:
    year = Year(tmp_path, old=0.8, other=0.79, low=0.3, new=0.6)
    year.gate("old", "other")
    asked = dict(year.engine.asked)
    report, verdict = year.gate("low", "new")
    assert verdict.verdict is Verdict.FAIL
    assert [reason for reason in verdict.reasons if "guard failed: best_ever" in reason]
    assert (report.measurements[0].best, year.engine.asked["old"]) == ("old", asked["old"]), "nobody is asked for it"
    assert bundle.verify(year.evidence("low", "new"), verdict.bundle_digest) == verdict
    text = table(report, verdict)
    assert "best ever on these items is old" in text and "wrong answers, best ever as champion" in text
    assert picture(report).startswith(b"\x89PNG")


def test_a_candidate_as_good_as_the_best_ever_passes(tmp_path: Path) -> None:
    year = Year(tmp_path, margin=0.2, old=0.62, other=0.6, low=0.3, new=0.7)
    year.gate("old", "other")
    report, verdict = year.gate("low", "new")
    assert verdict.verdict is Verdict.PASS and report.measurements[0].best == "old"
    assert [reason for reason in verdict.reasons if "guard held: best_ever" in reason]


@pytest.mark.variant
def test_a_champion_that_is_the_best_ever_changes_nothing(tmp_path: Path) -> None:
    year = Year(tmp_path, old=0.5, new=0.7)
    report, verdict = year.gate("old", "new")
    year = Year(tmp_path / "later", low=0.2, old=0.5, new=0.7)
    year.gate("low", "old")
    later, again = year.gate("old", "new")
    assert later.measurements == report.measurements and again.reasons == verdict.reasons
    assert not list(year.evidence("old", "new").glob(f"*/{bundle.BEST}"))


def test_only_champions_and_those_that_passed_count(tmp_path: Path) -> None:
    year = Year(tmp_path, old=0.4, passed=0.7, failed=0.39, low=0.2, new=0.5)
    for candidate in ("passed", "failed"):
        year.gate("old", candidate)
    work = replace(context(year.store, "now", model("low")))
    plan = plan_of(work, model("new")).model_copy(update={"section": year.section})
    (suite,) = suites(year.store, year.section)
    assert best_ever.earlier_models(year.store, plan, suite) == ["old", "passed"]
    other = suite.model_copy(update={"items": suite.items[1:]})
    assert best_ever.earlier_models(year.store, plan, other) == [], "other items are another generation"


def test_a_model_of_which_an_answer_is_gone_does_not_count(tmp_path: Path) -> None:
    year = Year(tmp_path, old=0.8, other=0.79, low=0.3, new=0.6)
    year.gate("old", "other")
    (journal,) = year.store.path(layout.ANSWERS, "old").glob("*.jsonl")
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[1:]))
    report, verdict = year.gate("low", "new")
    assert report.measurements[0].best is None and verdict.verdict is Verdict.PASS


@pytest.mark.parametrize("change", ["remove", "alter"])
def test_the_third_arm_is_bound_by_the_digest(fallen: tuple[Year, Any, Any], tmp_path: Path, change: str) -> None:
    year, report, _ = fallen
    copy = shutil.copytree(year.evidence("low", "new"), tmp_path / "carried")
    path = copy / "arithmetic" / bundle.BEST
    if change == "remove":
        path.unlink()
    else:
        path.write_text(path.read_text().replace('"wrong"', '"correct"', 1))
    with pytest.raises(ValueError, match="Fetch the bundle again"):
        bundle.verify(copy)
    assert report.measurements[0].best == "old"


def test_forgetting_reaches_the_third_arm(kit: Kit, tmp_path: Path) -> None:
    section = kit.section()
    suite = kit.suite(section)
    items = tuple(item.model_copy(update={"salt": f"salt-{item.id}", "user_id": "u"}) for item in suite.items)
    suite = suite.model_copy(update={"items": items})
    old, new, best = (kit.arm(name, section, suite, skill) for name, skill in (("o", 0.4), ("n", 0.6), ("b", 0.5)))
    evidence = bundle.evidence(
        "it", section, bundle.Gathered((bundle.SuiteEvidence(suite=suite, arms=(old, new), best=best),))
    )
    bundle.publish(Store(tmp_path), "b", evidence)
    before = bundle.verify(tmp_path / "b")
    assert any("best_ever" in reason for reason in before.reasons)
    assert f"b/arithmetic/{bundle.BEST}: 1 lines" in make(
        bundle.removals(Store(tmp_path), tmp_path / "b", {items[0].id})
    )
    line = (tmp_path / "b" / "arithmetic" / bundle.BEST).read_text().splitlines()[0]
    assert line.startswith('{"erased":true,') and items[0].id in line
    assert bundle.verify(tmp_path / "b", before.bundle_digest) == before


def test_a_best_ever_that_cannot_be_compared_is_inconclusive(kit: Kit) -> None:
    section = kit.section()
    suite = kit.suite(section)
    old, new, best = (kit.arm(name, section, suite, skill) for name, skill in (("o", 0.4), ("n", 0.6), ("b", 0.5)))
    evidence = bundle.evidence(
        "it", section, bundle.Gathered((bundle.SuiteEvidence(suite=suite, arms=(old, new), best=best),))
    )
    assert bundle.measure(evidence).suites[0].comparison is not None
    short = best.model_copy(update={"results": best.results[1:]})
    evidence = bundle.evidence(
        "it", section, bundle.Gathered((bundle.SuiteEvidence(suite=suite, arms=(old, new), best=short),))
    )
    (measured,) = bundle.measure(evidence).suites
    assert measured.comparison is None and "against the best ever as champion" in measured.problems[0]
