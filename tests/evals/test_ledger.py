"""The year's luck: what is written before a gate, what a further chance costs, and which answers come too late."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from evals import ledger
from evals.suites import Item, Suite
from pipeline.recipe import Evaluation
from pipeline.storage import ModelRef, Store

NOW = datetime(2026, 6, 1, tzinfo=UTC)
CHAMPION = ModelRef(uri="champion", digest="0" * 64)
SECTION = Evaluation(luck_per_year=0.05, gates_per_year=2)


def suite(name: str = "one", reference: str = "4") -> Suite:
    item = Item(id="a", cluster="a", messages=[{"role": "user", "content": "2 + 2?"}], reference=reference, slice="")
    return Suite(name=name, items=(item,))


class Gates:
    """Enters gates of one model, by the candidate's name."""

    def __init__(self, root: Path) -> None:
        self.store = Store(root)

    def ask(
        self, candidate: str, *targets: Suite, changes: dict[str, Any] | None = None, now: datetime = NOW,
        confirms: bool = False,
    ) -> list[str]:  # fmt: skip
        section = SECTION.model_copy(update=changes or {})
        asked = ModelRef(uri=candidate, digest=candidate)
        entry = ledger.GateEntry(f"of-{candidate}", CHAMPION, asked, section, targets or (suite(),), confirms)
        return ledger.enter(self.store, "m", entry, now)

    def lines(self) -> tuple[ledger.GateLine, ...]:
        return ledger.lines(self.store, "m")


@pytest.fixture
def gates(tmp_path: Path) -> Gates:
    return Gates(tmp_path)


def test_a_gate_leaves_a_line_for_each_target(gates: Gates) -> None:
    assert gates.ask("a", suite("one"), suite("two")) == []
    one, two = sorted(gates.lines(), key=lambda line: line.suite)
    assert (one.suite, one.generation, one.candidate, one.champion) == ("one", suite("one").digest(), "a", "0" * 64)
    assert (two.suite, two.alpha, two.at, two.iteration) == ("two", 0.025, NOW, "of-a")
    assert one.section == ledger.section_digest(SECTION)
    assert ledger.lines(gates.store, "another model") == ()


def test_the_same_gate_again_is_free(gates: Gates) -> None:
    for day in range(5):
        assert gates.ask("a", now=NOW + timedelta(days=day)) == []
    assert [line.at for line in gates.lines()] == [NOW]


def test_another_training_is_another_chance(gates: Gates) -> None:
    assert gates.ask("a") == gates.ask("b") == []
    reasons = gates.ask("c")
    assert len(reasons) == 1 and "have spent 0.05 of evaluation.luck_per_year 0.05" in reasons[0]
    assert "2027-06-01" in reasons[0]
    assert {line.candidate for line in gates.lines()} == {"a", "b"}
    assert gates.ask("a") == gates.ask("b") == []


def test_other_items_are_another_chance_too(gates: Gates) -> None:
    assert gates.ask("a") == gates.ask("a", suite(reference="5")) == []
    assert gates.ask("a", suite(reference="6"))
    assert gates.ask("b", suite("renamed"))


def test_several_targets_are_one_chance(gates: Gates) -> None:
    assert gates.ask("a", suite("one"), suite("two"), suite("three")) == []
    assert ledger.spent(gates.lines(), NOW) == pytest.approx(0.025)
    assert gates.ask("b", suite("one"), suite("two"), suite("three")) == []
    assert gates.ask("c", suite("one"))


def test_a_gate_that_was_killed_between_two_lines_goes_on(gates: Gates) -> None:
    assert gates.ask("a", suite("one")) == gates.ask("b", suite("one")) == []
    assert gates.ask("b", suite("one"), suite("two")) == []
    assert len(gates.lines()) == 3


def test_a_chance_is_back_after_a_year(gates: Gates) -> None:
    assert gates.ask("a") == gates.ask("b", now=NOW + timedelta(days=30)) == []
    assert gates.ask("c", now=NOW + timedelta(days=364))
    assert gates.ask("c", now=NOW + timedelta(days=366)) == []
    assert gates.ask("d", now=NOW + timedelta(days=367))


def test_a_clock_that_was_set_back_gives_no_new_year(gates: Gates) -> None:
    assert gates.ask("a") == gates.ask("b") == []
    for years in (1, 10):
        assert gates.ask("c", now=NOW - timedelta(days=365 * years))


def test_a_refused_gate_spends_nothing(gates: Gates) -> None:
    for candidate in "abcdef":
        gates.ask(candidate)
    assert len(gates.lines()) == 2
    assert gates.ask("f", now=NOW + timedelta(days=366)) == []


def test_a_margin_that_changes_after_the_answers_is_refused(gates: Gates) -> None:
    assert gates.ask("a") == []
    reasons = gates.ask("a", changes={"guard_margin": 0.1})
    assert len(reasons) == 1 and "iteration of-a asked about this candidate on 2026-06-01" in reasons[0]
    assert gates.ask("a") == []
    assert gates.ask("b", changes={"guard_margin": 0.1}) == []


def test_a_larger_plan_in_midyear_gives_no_more_luck(gates: Gates) -> None:
    assert gates.ask("a") == gates.ask("b") == []
    assert gates.ask("c", changes={"gates_per_year": 100})
    fresh = {"luck_per_year": 0.1, "gates_per_year": 4}
    assert gates.ask("c", changes=fresh) == gates.ask("d", changes=fresh) == []
    assert gates.ask("e", changes=fresh)


def test_who_plans_no_luck_is_never_refused(gates: Gates) -> None:
    for candidate in "abcdefghij":
        assert gates.ask(candidate, changes={"luck_per_year": None}) == []
    assert ledger.spent(gates.lines(), NOW) == pytest.approx(0.5)


def test_a_training_is_refused_before_it_is_paid_for(gates: Gates) -> None:
    assert ledger.exhausted(gates.lines(), SECTION, NOW) == []
    gates.ask("a")
    assert ledger.exhausted(gates.lines(), SECTION, NOW) == []
    gates.ask("b")
    assert "needs 0.025 more" in ledger.exhausted(gates.lines(), SECTION, NOW)[0]
    assert ledger.exhausted(gates.lines(), SECTION.model_copy(update={"luck_per_year": None}), NOW) == []


def test_a_file_that_is_no_line_is_named(gates: Gates) -> None:
    gates.ask("a")
    (path,) = gates.store.path("evaluation/ledger/m").glob("*/*.json")
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"a\.json is not a readable GateLine"):
        gates.ask("b")


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({}, 0.0025),
        ({"luck_per_year": None}, 0.05),
        ({"luck_per_year": 0.5, "gates_per_year": 1}, 0.05),
        ({"luck_per_year": 0.1, "gates_per_year": 10, "alpha": 0.005}, 0.005),
    ],
)
def test_a_gate_has_its_part_of_the_luck(changes: dict[str, Any], level: float) -> None:
    section = Evaluation(**changes)
    assert section.gate_alpha() == section.improvement_alpha() == pytest.approx(level)
    two = [{"kind": "arithmetic"}, {"kind": "arithmetic", "name": "other"}]
    either = Evaluation.model_validate({**changes, "improve": "any", "suites": two})
    assert either.improvement_alpha() == pytest.approx(level / 2)
    pair = Evaluation.model_validate(
        {**changes, "suites": [two[0], {**two[1], "role": "confirm", "confirms": "arithmetic"}]}
    )
    for each in pair.asked:
        assert pair.target_alpha(each, ["other"]) ** 2 == pytest.approx(level)
        assert pair.target_alpha(each, []) == pytest.approx(level)


def test_only_unseen_items_confirm(gates: Gates) -> None:
    fresh = suite(reference="5")
    gates.ask("a")
    assert ledger.unseen(gates.lines(), fresh.digest(), "a")
    assert not ledger.unseen(gates.lines(), suite().digest(), "a"), "the first step asked them"
    assert gates.ask("a", fresh, confirms=True) == []
    assert ledger.unseen(gates.lines(), fresh.digest(), "a"), "it goes on after a kill"
    assert not ledger.unseen(gates.lines(), fresh.digest(), "b")
    assert "another gate has asked its items meanwhile" in gates.ask("b", fresh, confirms=True)[0]
    assert ledger.spent(gates.lines(), NOW) == pytest.approx(0.025)  # the first step has spent the gate's level
