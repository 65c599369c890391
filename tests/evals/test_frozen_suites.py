"""Suites from traces: what is frozen, what stays frozen, and that training sees none of it."""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assets.records import LABELS, REPORT
from evals.freezing import SuiteCandidate, draw, held_apart, refuse_without_references, unfreezable, withdraw
from evals.gate import Verdict
from evals.report import limits, table
from evals.suites import frozen, suites
from pipeline.core.iteration import Iteration
from pipeline.core.storage import Store
from pipeline.recipe.suites import JudgedSuite, TracesSuite
from pipeline.rewards import reviews
from tests.evals.people import DAYS, SUITE, THINGS, USERS, People, asked, later, prompts_in, question, section_of

pytestmark = pytest.mark.slow

SECTION = section_of()
GOLDEN = TracesSuite(name="golden", preset="golden", role="target", max_principal_share=1.0)


@pytest.fixture
def people(tmp_path: Path) -> People:
    return People(tmp_path)


def rows_of(day: str, more: str = "") -> list[dict[str, Any]]:
    return [each for user in USERS for each in asked(user, day, more)]


def test_a_suite_is_drawn_before_training_takes_its_rows(people: People) -> None:
    work = people.window(DAYS[0], rows_of(DAYS[0]), SECTION)
    dataset, (suite,) = people.select(work)
    assert len(suite.items) == 36, "a fifth of 180 prompts"
    assert set(Counter(item.user_id for item in suite.items).values()) == {1}, "2% of 36 is one item each"
    assert dataset.frozen == 36
    assert dataset.contamination.hits == 0, "no sign of a broken split"
    trained = prompts_in(work.store, work)
    assert not [item.id for item in suite.items if item.messages[0]["content"] in trained]
    assert question(next(iter({*USERS} - {item.user_id for item in suite.items})), THINGS[0]) in trained
    assert len({item.salt for item in suite.items}) == len({item.cluster for item in suite.items}) == 36
    verdict = people.gate(work)
    assert verdict.verdict is Verdict.PASS, verdict.reasons


def test_a_frozen_suite_holds_over_later_windows(people: People) -> None:
    _, (before,) = people.select(people.window(DAYS[0], rows_of(DAYS[0]), SECTION))
    work = people.window(DAYS[1], rows_of(DAYS[1], "now "), SECTION)
    dataset, (after,) = people.select(work, later(29))
    assert after == before
    assert dataset.frozen == 36, "their near-identical prompts are kept from training too"
    assert dataset.contamination.hits == 0
    trained = prompts_in(work.store, work)
    for item in before.items:
        user, thing = item.user_id, item.messages[0]["content"].split(" how many ")[1].split()[0]
        assert question(str(user), thing, "now ") not in trained
    assert question(USERS[0], THINGS[0], "now ") in trained or question(USERS[0], THINGS[1], "now ") in trained


def test_a_month_later_another_generation_is_drawn(people: People) -> None:
    _, (before,) = people.select(people.window(DAYS[0], rows_of(DAYS[0]), SECTION))
    others = [f"user-{chr(97 + n // 26)}{chr(97 + n % 26)}z-{n:04d}" for n in range(60)]
    rows = [each for user in others for each in asked(user, DAYS[1])]
    work = people.window(DAYS[1], rows, section_of(SUITE.model_copy(update={"items": 30})))
    _, (after,) = people.select(work, later(30))
    assert len(after.items) == 30 and {item.user_id for item in after.items} <= {*others}
    assert after.identity() != before.identity()
    newest = frozen.latest(people.store, "production")
    assert newest is not None and newest.generation.number == 2
    people.select(work, later(90))
    assert frozen.latest(people.store, "production") == newest, "an iteration that has its data freezes nothing"


def test_a_window_without_an_item_leaves_the_suite_as_it_is(people: People) -> None:
    _, before = people.select(people.window(DAYS[0], rows_of(DAYS[0]), SECTION))
    rows = [{**each, "reference": None} for each in rows_of(DAYS[1], "now ")]
    _, after = people.select(people.window(DAYS[1], rows, SECTION), later(30))
    assert after == before


def test_what_training_has_seen_is_not_drawn(people: People) -> None:
    plain = section_of(TracesSuite(name="other", preset="production", role="target", items=6))
    _, (first,) = people.select(people.window(DAYS[0], rows_of(DAYS[0]), plain))
    _, (suite,) = people.select(people.window(DAYS[1], rows_of(DAYS[1], "now "), SECTION))
    apart = {item.messages[0]["content"].replace(" has ", " has now ") for item in first.items}
    assert {item.messages[0]["content"] for item in suite.items} <= apart, "all others have been trained on"
    newest = frozen.latest(people.store, "production")
    assert newest is not None
    assert newest.generation.left_out["trained on"] == 174


def test_withdrawn_consent_takes_an_item_out(people: People) -> None:
    work = people.window(DAYS[0], rows_of(DAYS[0]), SECTION)
    _, (before,) = people.select(work)
    people.gate(work)
    gone = before.items[0]
    rows = [each for each in rows_of(DAYS[0]) if each["user_id"] != gone.user_id]
    people.govern(DAYS[0], rows)
    changes = withdraw(work)
    assert len([name for name in changes if "answers/" in name]) == 2, "of champion and candidate"
    (after,) = suites(people.store, SECTION)
    assert [item.id for item in after.items] == [item.id for item in before.items[1:]]
    assert after.digest() != before.digest()
    assert after.identity() == before.identity(), "training was cleaned of more than is asked: that does no harm"
    journals = b"".join(path.read_bytes() for path in people.root.glob("evaluation/answers/*/*.jsonl"))
    assert gone.id.encode() not in journals
    assert withdraw(work) == []


def test_rows_that_cannot_be_asked_are_counted(people: People) -> None:
    rows = rows_of(DAYS[0])
    call = {"role": "assistant", "content": "", "tool_calls": '[{"id": "c"}]'}
    rows[0] = {**rows[0], "messages": [rows[0]["messages"][0], call, rows[0]["messages"][0]]}
    rows[2] = {**rows[2], "reference": None}
    rows[3] = {**rows[3], "messages": [*rows[3]["messages"], {**call, "content": "Yes.", "tool_calls": None}]}
    rows.append({**rows[4], "trace_id": "t", "observation_id": "o", "reference": "77"})
    rows[5] = {**rows[5], "metadata": '{"verifier": "no such check"}'}
    people.select(people.window(DAYS[0], rows, SECTION))
    newest = frozen.latest(people.store, "production")
    assert newest is not None
    left_out = {k: v for k, v in newest.generation.left_out.items() if "share" not in k}
    assert left_out.pop("several references") == 1
    assert left_out.pop("calls tools") == 1
    assert left_out.pop("no question at its end") == 1
    assert left_out.pop("without a reference") >= 1
    assert left_out == {}


def candidate(number: int, user: str, tenant: str | None = None) -> SuiteCandidate:
    prompt = json.dumps([{"role": "user", "content": f"{number}"}])
    return SuiteCandidate(prompt, "1", "math", user, tenant, DAYS[0], f"t{number}", "o")


def test_nobody_has_more_than_their_share() -> None:
    loud = {f"c{n:03d}": [candidate(n, "loud")] for n in range(300)}
    others = {f"d{n:03d}": [candidate(n, f"u{n}")] for n in range(150)}
    drawn = draw({**loud, **others}, 200, SUITE, 1)
    of_loud = sum(name in loud for name in drawn)
    assert len(drawn) == 153
    assert of_loud <= 0.02 * len(drawn)
    tenants = {f"e{n:03d}": [candidate(n, f"u{n}", "big" if n < 150 else f"t{n % 15}")] for n in range(300)}
    drawn = draw(tenants, 100, SUITE, 1)
    count = sum(tenants[name][0].tenant_id == "big" for name in drawn)
    assert len(drawn) == 100
    assert count <= 10
    lone = {name: [each._replace(tenant_id="only") for each in group] for name, group in others.items()}
    assert len(draw(lone, 100, SUITE, 1)) == 100


def test_an_unfrozen_suite_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"production has not been frozen yet: materialise preference_dataset"):
        suites(Store(tmp_path), SECTION)


def test_a_window_without_references_is_refused(people: People) -> None:
    rows = [{**each, "reference": None} for each in rows_of(DAYS[0])]
    work = people.window(DAYS[0], rows, SECTION)
    for refused in (lambda: refuse_without_references(work, work.iteration), lambda: people.select(work)):
        with pytest.raises(ValueError, match=r"without a reference: 180\).*Give traces a reference answer"):
            refused()
    people.window(DAYS[0], rows_of(DAYS[0]), SECTION)
    work = people.window(DAYS[0], rows_of(DAYS[0]), SECTION)
    refuse_without_references(work, work.iteration)


def test_a_report_without_an_item_is_not_asked(people: People) -> None:
    golden = GOLDEN.model_copy(update={"role": "report"})
    section = section_of(SUITE, golden, JudgedSuite(name="preference", over="golden"))
    work = people.window(DAYS[0], rows_of(DAYS[0]), section)
    _, asked_suites = people.select(work)
    assert [each.name for each in asked_suites] == ["production"]
    reviewed(people)
    held_apart(work, LABELS.read(people.store, work.iteration.id).dataset, later(1))
    assert frozen.latest(people.store, "golden") is None, "the samples were cleaned of the suites of then"
    assert people.gate(work).verdict is Verdict.PASS
    report = REPORT.read(people.store, work.iteration.id)
    assert (list(report.not_asked), report.judged) == (["golden"], ())
    assert "not asked: The suite golden can be frozen from no row" in table(report)
    assert limits(section, report.not_asked).startswith("Asked: production. ")


def test_a_changed_generation_is_refused(people: People) -> None:
    people.select(people.window(DAYS[0], rows_of(DAYS[0]), SECTION))
    folder = people.store.path("evaluation/suites/production/0001")
    path = folder / "items.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    spoilt: list[tuple[str, Callable[[], object]]] = [
        ("Line 3 of", lambda: path.write_text("".join([*lines[:2], lines[2].replace("how", "HOW"), *lines[3:]]))),
        ("Line 37 of", lambda: path.write_text("".join([*lines, lines[0]]))),
        ("no item left", lambda: path.write_text("")),
        ("lacks manifest.json or items.jsonl", lambda: path.unlink()),
    ]
    for words, spoil in spoilt:
        spoil()
        with pytest.raises(ValueError, match=words):
            suites(people.store, SECTION)
    path.write_text("".join(lines))
    (folder / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match="is not a readable Generation"):
        suites(people.store, SECTION)


def reviewed(people: People) -> None:
    """A week's sheet of 180 rows, half of them answered."""
    labels = LABELS.read(people.store, people.store.read("iterations/latest.json", Iteration).id)
    sheet = reviews.write(people.store, labels, "2026-W02", 200)
    assert sheet is not None
    rows = list(csv.DictReader(io.StringIO(sheet.read_text("utf-8-sig"), newline="")))
    for row in rows[:90]:
        row["reference"] = row["expected"]
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, reviews.COLUMNS)
    writer.writeheader()
    writer.writerows(rows)
    sheet.write_text(out.getvalue())


def test_a_golden_suite_asks_what_people_have_answered(people: People) -> None:
    people.select(people.window(DAYS[0], rows_of(DAYS[0]), section_of(SUITE.model_copy(update={"items": 1}))))
    reviewed(people)
    work = people.window(DAYS[1], rows_of(DAYS[1], "now "), section_of(GOLDEN))
    dataset, (suite,) = people.select(work)
    assert 30 <= len(suite.items) <= 90
    assert {item.messages[0]["content"].split()[-3] for item in suite.items} == {"has"}
    assert dataset.frozen == len(suite.items)
    verdict = people.gate(work)
    assert verdict.verdict is Verdict.PASS, verdict.reasons


def test_without_answers_a_golden_suite_is_refused(people: People) -> None:
    with pytest.raises(ValueError, match=r"golden can be frozen from no row .*Fill in the column reference"):
        people.select(people.window(DAYS[0], rows_of(DAYS[0]), section_of(GOLDEN)))
    report = GOLDEN.model_copy(update={"role": "report"})
    judged = JudgedSuite(name="preference", over="golden", role="guard")
    assert "golden" in section_of(SUITE, report, judged).gating
    assert "golden" not in section_of(SUITE, report).gating
    assert "golden can be frozen from no row" in unfreezable(people.store, GOLDEN)
    reviewed(people)
    assert unfreezable(people.store, GOLDEN) == ""
