"""Two steps: what shows an improvement is confirmed on items that no gate has asked, and nothing is asked in vain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evals import bundle, futility
from evals.evaluate import decide
from evals.gate import Verdict, judge
from evals.report import picture, table
from evals.suites import pin, suites
from pipeline.demo.suite import ensure_suite
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import ArithmeticSuite
from pipeline.storage import ModelRef, Store

from .test_asking import Killed
from .test_evaluate import StandIn, context, evaluated

pytestmark = pytest.mark.slow

FIRST = ArithmeticSuite(items=240, margin=0.2)
AGAIN = ArithmeticSuite(name="again", items=240, seed=77, role="confirm", confirms="arithmetic")
SECTION = Evaluation(suites=(FIRST, AGAIN), max_standard_error=0.05, guard_margin=0.08, futility=False)
ONE_STEP = SECTION.model_copy(update={"suites": (FIRST,)})
SMALL_GAIN = {"old": 0.4, "new": 0.48}


class Gates:
    """Gates of candidates over a target and the suite that confirms it. `luckless`: wrong at the second step."""

    def __init__(self, root: Path, luckless: str = "") -> None:
        self.store, self.luckless = Store(root), luckless
        for suite in (FIRST, AGAIN):
            ensure_suite(self.store, suite, SECTION.seed)
        self.asked = suites(self.store, SECTION)
        self.log: list[str] = []

    def engine(self, skills: dict[str, float], engine: StandIn | None = None) -> StandIn:
        engine = engine or StandIn(skills)
        engine.skills, engine.asked = skills, engine.asked | dict.fromkeys(skills, 0)
        first, second = self.asked
        engine.answers = {item.messages[0]["content"]: item.reference for item in (*first.items, *second.items)}
        if self.luckless:
            engine.answers |= {item.messages[0]["content"]: "0" for item in second.items}
        return engine

    def gate(
        self, skills: dict[str, float], section: Evaluation = SECTION, engine: StandIn | None = None, new: str = "new"
    ) -> Any:
        engine = self.engine(skills, engine)
        work = context(self.store, f"of-{new}")
        work = replace(work, recipe=work.recipe.model_copy(update={"evaluation": section}), log=self.log.append)
        report = evaluated(work, ModelRef(uri=new, digest=new), engine)
        return engine, report, decide(work, report)


def test_two_steps_show_what_one_step_of_their_level_does_not(tmp_path: Path) -> None:
    gates = Gates(tmp_path / "two")
    engine, report, verdict = gates.gate(SMALL_GAIN)
    assert Gates(tmp_path / "one").gate(SMALL_GAIN, ONE_STEP)[2].verdict is Verdict.FAIL
    assert verdict.verdict is Verdict.PASS, verdict.reasons
    assert any(reason.startswith("again: improvement shown") for reason in verdict.reasons)
    samples = 4 * sum(len(each.items) for each in gates.asked)
    assert engine.asked == {"old": samples, "new": samples}
    assert [each.alpha for each in report.measurements] == [pytest.approx(0.05)] * 2
    evidence = gates.store.path("iterations", "of-new", "evidence")
    assert bundle.verify(evidence, verdict.bundle_digest) == verdict
    text = table(report, verdict)
    assert "at level 0.05 each: this one is confirmed on items that no gate has asked" in text
    target, again = text.split("### again")
    assert "upper bound" in target and "upper bound" not in again, "its guards decide nothing"
    assert "this one confirms arithmetic" in text and picture(report).startswith(b"\x89PNG")


def test_the_second_step_is_asked_after_a_pass_alone(tmp_path: Path) -> None:
    engine, report, verdict = Gates(tmp_path).gate({"old": 0.4, "new": 0.4})
    assert verdict.verdict is Verdict.FAIL
    assert engine.asked == {"old": 960, "new": 960}
    assert [each.suite for each in report.measurements] == ["arithmetic"]


def test_what_is_not_confirmed_fails(tmp_path: Path) -> None:
    _, _, verdict = Gates(tmp_path, luckless="new").gate({"old": 0.4, "new": 0.7})
    assert verdict.verdict is not Verdict.PASS
    assert any("again" in reason for reason in verdict.reasons)


@pytest.mark.variant
def test_items_that_a_gate_has_asked_confirm_nothing(tmp_path: Path) -> None:
    gates = Gates(tmp_path)
    assert gates.gate({"old": 0.4, "new": 0.7})[2].verdict is Verdict.PASS
    engine, report, verdict = gates.gate({"old": 0.4, "next": 0.7}, new="next")
    assert verdict.verdict is Verdict.PASS and report.confirming == ()
    assert engine.asked["next"] == 960, "the second suite is not asked"
    assert any("again confirms nothing: a gate has asked its items before" in line for line in gates.log)
    lower = report.measurements[0].comparison.difference.lower
    one_step = Gates(tmp_path / "one").gate({"old": 0.4, "next": 0.7}, ONE_STEP, new="next")[1]
    assert one_step.measurements[0].comparison.difference.lower == lower, "the level is the gate's own"


def test_evidence_without_its_second_step_passes_nobody(tmp_path: Path) -> None:
    gates = Gates(tmp_path)
    gates.gate({"old": 0.4, "new": 0.7})
    whole = bundle.read(gates.store.path("iterations", "of-new", "evidence"))
    cut = whole.model_copy(update={"suites": whole.suites[:1]})
    verdict = judge(bundle.supported(cut), SECTION)
    assert verdict.verdict is Verdict.INCONCLUSIVE
    assert verdict.reasons[0] == "again: the first step was passed, and this one was not asked"
    report = bundle.supported(whole)
    for problems, reason in ((("20 items are too few",), "20 items are too few"), ((), "nothing was measured")):
        again = report.measurements[1].model_copy(update={"comparison": None, "problems": problems})
        verdict = judge(report.model_copy(update={"measurements": (report.measurements[0], again)}), SECTION)
        assert (verdict.verdict, verdict.reasons[0]) == (Verdict.INCONCLUSIVE, f"again: {reason}")


def test_a_kill_in_the_second_step_asks_nothing_twice(tmp_path: Path) -> None:
    skills = {"old": 0.4, "new": 0.7}
    whole = Gates(tmp_path / "whole")
    engine, report, _ = whole.gate(skills)
    gates = Gates(tmp_path / "killed")
    killed: list[StandIn] = []
    for after in (2000, 500, 30):
        killed.append(Killed(after))
        with pytest.raises(RuntimeError, match="killed"):
            gates.gate(skills, engine=killed[-1])
    last, again, _ = gates.gate(skills)
    assert again.bundle.digest == report.bundle.digest
    assert {name: sum(each.asked[name] for each in (*killed, last)) for name in skills} == engine.asked


def test_training_is_cleaned_of_what_confirms(tmp_path: Path) -> None:
    gates = Gates(tmp_path)
    first, second = gates.asked
    assert set(pin(gates.store, "it", gates.asked).digests) == {"arithmetic", "again"}
    prompts = {item.messages[0]["content"] for item in first.items}
    assert not any(item.messages[0]["content"] in prompts for item in second.items), "no item is asked in both steps"
    assert len(second.items) > 200


def test_a_suite_cannot_confirm_itself(tmp_path: Path) -> None:
    same = AGAIN.model_copy(update={"seed": None, "name": "again"})
    ensure_suite(Store(tmp_path), FIRST, SECTION.seed)
    ensure_suite(Store(tmp_path), same, SECTION.seed)
    with pytest.raises(ValueError, match="asks what arithmetic asks, and cannot confirm it"):
        suites(Store(tmp_path), SECTION.model_copy(update={"suites": (FIRST, same)}))


def test_a_hopeless_target_is_judged_by_its_own_level(tmp_path: Path) -> None:
    """At 0.05 there is hope where at 0.0025 there is none."""
    section = SECTION.model_copy(update={"futility": True})
    gates = Gates(tmp_path)
    gates.gate({"old": 0.4, "new": 0.4}, section.model_copy(update={"futility": False}))
    whole = bundle.read(gates.store.path("iterations", "of-new", "evidence")).suites[0]
    items = {item.id for item in futility.part(whole.suite, 5, section.seed)}
    arms = tuple(
        arm.model_copy(update={"results": tuple(each for each in arm.results if each.id in items)})
        for arm in whole.arms
    )
    pair = whole.suite, (arms[0], arms[1])
    powers = [
        stop.targets[0].power if (stop := futility.stopped([pair], section, names)) else 1.0
        for names in ((), ("again",))
    ]
    assert powers[0] < powers[1]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"confirms": None}, "names its target in confirms"),
        ({"role": "guard"}, "names its target in confirms"),
        ({"confirms": "nothing"}, "is no target with items. Set confirms to one of arithmetic"),
        ({"confirms": "again"}, "is no target with items"),
    ],
)
def test_a_wrong_confirmation_is_refused(changes: dict[str, object], reason: str) -> None:
    again = {"kind": "arithmetic", "name": "again", "seed": 7, "role": "confirm", "confirms": "arithmetic", **changes}
    with pytest.raises(ValueError, match=reason):
        Evaluation.model_validate({"suites": [{"kind": "arithmetic"}, again]})


@pytest.mark.parametrize("improve", ["any", "cost"])
def test_only_improve_all_is_confirmed(improve: str) -> None:
    again = {"kind": "arithmetic", "name": "again", "seed": 7, "role": "confirm", "confirms": "arithmetic"}
    with pytest.raises(ValueError, match="tested in one step"):
        Evaluation.model_validate({"suites": [{"kind": "arithmetic"}, again], "improve": improve})
    third = {**again, "name": "third"}
    with pytest.raises(ValueError, match="two suites confirm arithmetic"):
        Evaluation.model_validate({"suites": [{"kind": "arithmetic"}, again, third]})
