"""The ledger of gates: what is written before a gate, and which settings come too late."""

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from evals import ledger, luck
from evals.records import EvalPlan, Trial
from evals.suites import Item, Suite
from pipeline.core.iteration import Iteration
from pipeline.core.storage import CheckpointRef, DatasetRef, ModelRef, Store
from pipeline.recipe import Evaluation
from pipeline.recipe.rewards import Verifier

NOW = datetime(2026, 6, 1, tzinfo=UTC)
CHAMPION = ModelRef(uri="champion", digest="0" * 64)
SECTION = Evaluation()


def suite(name: str = "one", reference: str = "4") -> Suite:
    item = Item(id="a", cluster="a", messages=[{"role": "user", "content": "2 + 2?"}], reference=reference, slice="")
    return Suite(name=name, items=(item,))


class Gates:
    """Enters gates of one model, by the candidate's name."""

    def __init__(self, root: Path) -> None:
        self.store = Store(root)

    def ask(
        self, candidate: str, *targets: Suite, changes: dict[str, Any] | None = None, now: datetime = NOW
    ) -> list[str]:
        return self.enter(candidate, *targets, changes=changes, now=now)[1]

    def enter(
        self,
        candidate: str,
        *targets: Suite,
        changes: dict[str, Any] | None = None,
        now: datetime = NOW,
        champion: str = CHAMPION.digest,
    ) -> tuple[Trial, list[str]]:
        model, data = ModelRef(uri=candidate, digest=candidate), DatasetRef(uri="", rows=0, digest="d")
        iteration = Iteration(
            id=f"of-{candidate}",
            number=0,
            model_name="m",
            champion=ModelRef(uri="", digest=champion),
            dataset=data,
            recipe_digest="",
        )
        checkpoint = CheckpointRef(adapter=model, model=model, step=1)
        section = SECTION.model_copy(update=changes or {})
        plan = EvalPlan(iteration=iteration, section=section, verifier=Verifier(), candidate=checkpoint)
        return ledger.enter(self.store, plan, targets or (suite(),), now)

    def lines(self) -> tuple[ledger.GateLine, ...]:
        return ledger.lines(self.store, "m")


@pytest.fixture
def gates(tmp_path: Path) -> Gates:
    return Gates(tmp_path)


def test_a_gate_leaves_a_line_for_each_target(gates: Gates) -> None:
    assert gates.ask("a", suite("one"), suite("two")) == []
    one, two = sorted(gates.lines(), key=lambda line: line.suite)
    assert (one.suite, one.generation, one.candidate, one.champion) == ("one", suite("one").digest(), "a", "0" * 64)
    assert (two.suite, two.trial, two.at, two.iteration) == ("two", one.trial, NOW, "of-a")
    assert one.section == ledger.section_digest(SECTION)
    assert ledger.lines(gates.store, "another model") == ()


def test_the_same_gate_again_is_free(gates: Gates) -> None:
    for day in range(5):
        assert gates.ask("a", now=NOW + timedelta(days=day)) == []
    assert [line.at for line in gates.lines()] == [NOW]


def test_a_gate_that_was_killed_between_two_lines_goes_on(gates: Gates) -> None:
    assert gates.ask("a", suite("one")) == gates.ask("b", suite("one")) == []
    assert gates.ask("b", suite("one"), suite("two")) == []
    assert len(gates.lines()) == 3


def test_a_margin_that_changes_after_the_answers_is_refused(gates: Gates) -> None:
    assert gates.ask("a") == []
    reasons = gates.ask("a", changes={"guard_margin": 0.1})
    assert len(reasons) == 1 and "iteration of-a asked about this candidate on 2026-06-01" in reasons[0]
    assert gates.ask("a") == []
    assert gates.ask("b", changes={"guard_margin": 0.1}) == []


def test_gates_spend_of_their_level_and_promotions_earn(gates: Gates) -> None:
    nights = [NOW + timedelta(days=day) for day in range(400)]
    first, second = (gates.enter(name, now=at)[0] for name, at in zip("ab", nights, strict=False))
    assert first.level == pytest.approx(luck.level(0.05, 1, ()))
    assert second.level == luck.level(0.05, 2, ()) < first.level
    assert first.seed != second.seed, "a champion is not compared by the answers that it was promoted for"
    promoted = gates.enter("c", now=nights[2], champion="a")[0]
    assert promoted.level == luck.level(0.05, 3, [1]) > luck.level(0.05, 3, ())
    assert gates.enter("b", now=nights[9])[0] == second, "another try is the same gate"
    assert gates.enter("d", now=nights[366])[0].level == first.level, "a year later all begins anew"


def test_levels_hold_the_rate_of_false_discoveries() -> None:
    """However promotions fall, the levels of a year sum up to at most the rate for each of them, and for the first."""
    rng = random.Random(3)
    for promotions in (0, 1, 2, 12, 200):
        promoted = sorted(rng.sample(range(1, luck.PERIOD + 1), promotions))
        levels = [luck.level(0.05, n, [at for at in promoted if at < n]) for n in range(1, luck.PERIOD + 1)]
        assert min(levels) > 0 and sum(levels) <= 0.05 * max(promotions, 1) + 1e-9
