"""Planted contamination is found, and what only looks like it is not."""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.selection.contamination import MAX_SHARED, Index, numbers, words
from pipeline.selection.pairing import LabelledRow

from .labelled import row as labelled_row

LONG = (
    "A farmer sells 1,200 eggs on Monday and keeps 0.5 of the rest for a neighbour who pays 3.50 a dozen; "
    "how much money does the farmer get from the neighbour by the end of that week?"
)
SHORT = "Who wrote the oldest surviving novel?"


def row(prompt: str, completion: str = "It is so.", reference: str | None = None, trace: str = "t") -> LabelledRow:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": prompt}]
    fields = {"completion": completion, "reference": reference, "profile": "judged", "verifier": None}
    return labelled_row(trace, 1.0, **fields)._replace(prompt=json.dumps(messages))


def rule(texts: Sequence[str], *rows: LabelledRow) -> str | None:
    """The rule by which the only row was found."""
    clean, report, hits = Index({"suite": texts}).check(rows)
    assert len(clean) + report.hits == report.rows == len(rows) == 1
    return next((hit.rule for hit in hits), None)


def verbatim(text: str) -> str:
    return text


def embedded(text: str) -> str:
    return f"I have 2 questions for you, from page 31 of my book. {text} Then, in 3 steps, tell me why that is."


def inserted(text: str) -> str:
    """A word more after every eleven."""
    said = text.split()
    return " ".join(word for i in range(0, len(said), 11) for word in (*said[i : i + 11], "indeed"))


def shouted(text: str) -> str:
    return text.upper().replace(", ", " ;  ").replace("?", " !!\u200b")


KINDS = (verbatim, embedded, inserted, shouted)


@pytest.mark.parametrize(
    ("plant", "expected"),
    [(verbatim, "exact"), (embedded, "13-gram"), (inserted, "8-gram"), (shouted, "exact")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_each_kind_is_found_by_its_rule(plant: Callable[[str], str], expected: str) -> None:
    assert rule([LONG], row(plant(LONG))) == expected


@pytest.mark.parametrize(
    "variant",
    [
        SHORT.lower(),
        "who   wrote\nthe oldest\u00a0surviving novel",
        "Who wrote the \uff4f\uff4cdest surviv\u00ading novel\uff1f",
        "**Who wrote the oldest surviving novel?!**",
        f"Here is a riddle:\n{SHORT}\nThink before you answer.",
    ],
    ids=["case", "space", "unicode", "punctuation", "a line of its own"],
)
def test_a_short_item_is_found_up_to_writing(variant: str) -> None:
    assert len(words(SHORT)) < 8
    assert rule([SHORT], row(variant)) == "exact"


def test_a_short_item_needs_to_stand_alone() -> None:
    assert rule([SHORT], row("Who wrote the oldest surviving novel of Iceland?")) is None


@pytest.mark.parametrize("number", ["1200", "1,200.00", "\uff11\uff12\uff10\uff10", "01200"])
def test_a_number_is_the_same_however_it_is_written(number: str) -> None:
    assert words(f"costs {number}.") == ["costs", "1200"]
    assert rule([LONG], row(embedded(LONG.replace("1,200", number)))) == "13-gram"


def test_other_numbers_make_another_question() -> None:
    assert rule([LONG], row(LONG.replace("3.50", "4.25"))) is None
    swapped = LONG.replace("1,200", "x").replace("3.50", "1,200").replace("x", "3.50")
    assert rule([LONG], row(swapped)) is None
    shots = [LONG.replace(number, "7") for number in ("3.50", "0.5", "1,200")]  # all its numbers, in three questions
    assert rule([LONG], row("\n".join(shots))) is None


@pytest.mark.parametrize("place", ["completion", "reference"])
def test_completion_and_reference_are_looked_through_too(place: str) -> None:
    planted = {"completion": row("Tell me.", embedded(LONG)), "reference": row("Tell me.", reference=LONG)}
    assert rule([LONG], planted[place]) in ("13-gram", "exact")


def test_numbers_of_the_answer_do_not_complete_a_question() -> None:
    """12 + 5 = 17 does not make the question about 12 and 5 the one about 12 and 17."""
    template = "Ada has {} apples and buys {} more. How many apples does Ada have now, after all that?"
    assert rule([template.format(12, 17)], row(template.format(12, 5), "12+5=17")) is None


def test_contamination_counts_items_not_boilerplate() -> None:
    frame = "Answer the following question and put nothing but the letter of your choice into a box at the end. "
    topics = ("rivers", "moons", "queens", "metals", "songs", "gods", "trees", "ports", "laws", "plays", "cells")
    items = [f"{frame}Which of these {t} was the first that anybody ever wrote a whole book about?" for t in topics]
    assert len(items) > MAX_SHARED
    assert rule(items, row(f"{frame}Which bird cannot fly?")) is None
    assert rule(items, row(items[3])) == "exact"
    assert rule(items, row(f"Hello! {items[3]}")) is not None


def test_languages_without_spaces() -> None:
    text = "\u6751\u91cc\u6709\u4e00\u4f4d\u8001\u4eba\u6bcf\u5929\u65e9\u4e0a\u5356\u9e21\u86cb\u7ed9\u90bb\u5c45"
    assert rule([text], row(f"\u8bf7\u95ee\uff1a{text}\u5417\uff1f")) == "13-gram"


def test_contamination_report_counts_and_shows_no_users_text() -> None:
    asked = (LONG, f"My name is Ann. {LONG}", SHORT, "Hi")
    rows = [row(text, trace=trace) for trace, text in zip("abcd", asked, strict=True)]
    clean, report, hits = Index({"one": ["Nothing of it here.", LONG], "two": [LONG, SHORT]}).check(rows)
    assert [each.trace_id for each in clean] == ["d"]
    assert (report.rows, report.hits, report.share) == (4, 3, 0.75)
    assert [hit.rule for hit in hits] == ["exact", "13-gram", "exact"]
    assert report.by_suite == {"one": 2, "two": 3}
    assert [(hit.trace_id, hit.suite, hit.item) for hit in hits] == [("a", "one", 1), ("b", "one", 1), ("c", "two", 1)]
    assert not any("Ann" in hit.text for hit in hits)


VOCABULARY = ["alpha", "beta", "gamma", "delta", "3", "47", "epsilon", "zeta", "eta", "theta"]


@given(st.lists(st.sampled_from(VOCABULARY), min_size=3, max_size=60), st.text(max_size=80), st.text(max_size=80))
def test_an_item_is_found_wherever_it_stands(item: list[str], before: str, after: str) -> None:
    """From 13 words on inside any text; below, on a line of its own."""
    text = " ".join(item)
    identifies = len(numbers(item)) < len(item)
    apart = "\n" if len(item) < 13 else " | "
    found = rule([text], row(f"{before}{apart}{text}{apart}{after}"))
    assert (found is not None) == identifies


@pytest.mark.slow
@pytest.mark.shared
def test_precision_and_recall_on_gsm8k(shared_data: Path) -> None:
    """Half of the test set is the suite, questions and solutions; the other half is traffic that nobody leaked."""
    lines = [json.loads(line) for line in (shared_data / "gsm8k" / "test.jsonl").read_text().splitlines()]
    random.Random(0).shuffle(lines)
    suite, traffic = lines[::2], lines[1::2]
    questions, solutions = [line["question"] for line in suite], [line["answer"] for line in suite]
    index = Index({"questions": questions, "solutions": solutions})
    clean = index.check([row(line["question"], line["answer"], line["answer"].split()[-1]) for line in traffic])[1]
    assert clean.hits <= 0.002 * len(traffic)
    for plant in KINDS:
        asked = index.check([row(plant(text)) for text in questions])[1]
        told = index.check([row("Go on.", plant(text)) for text in solutions])[1]
        assert asked.hits >= 0.995 * len(questions), plant.__name__
        assert told.hits >= 0.995 * len(solutions), plant.__name__
