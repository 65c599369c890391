"""Thumbs: which ratings make one, and that every gate of the preference dataset holds for them too."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core.estimate import UNKNOWN, Estimate
from pipeline.core.storage import DatasetRef
from pipeline.recipe import Selection
from pipeline.rewards.records import LABELS
from pipeline.selection.choose import choose
from pipeline.selection.evidence import Evidence, measure
from pipeline.selection.pairing import LabelledRow, by_prompt
from pipeline.selection.preferences import PreferenceDataset
from pipeline.selection.trainable import HeldApart, rated_rows
from pipeline.selection.unpaired import ScorerEvidence, is_liked, thumbs

from .labelled import row
from .test_preferences import FROZEN, SETTINGS, WORDS, Place, read

OPEN = {"reference": None, "verifier": None, "profile": "rated", "correct": None}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def rated(name: str, value: float | None, prompt: str | None = None, **fields: object) -> LabelledRow:
    return row(name, value, prompt=prompt or name, feedback=value, **{**OPEN, **fields})


def table(dataset: PreferenceDataset) -> list[dict[str, object]]:
    assert dataset.thumbs is not None
    return [dict(each) for each in read(dataset.thumbs)]


def evidence(rows: list[LabelledRow]) -> Evidence:
    return measure(rows, [], UNKNOWN, SETTINGS, thumbs(by_prompt(rows), SETTINGS))


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (0.75, True),  # one thumb up
        (0.25, False),
        (0.7, True),
        (0.3, False),
        (1.0, True),
        (0.5, None),  # up and down on one row
        (0.6, None),  # up, and asked again
        (1 / 3, None),  # asked again, and no word
        (None, None),
    ],
)
def test_a_rating_makes_a_thumb_where_it_is_clear(value: float | None, label: bool | None) -> None:
    clear = thumbs(by_prompt([rated("a", value)]), SETTINGS)
    assert [is_liked(thumb) for thumb in clear] == ([] if label is None else [label])
    assert thumbs(by_prompt([rated("a", value, completion="Call [PHONE]")]), SETTINGS) == []


@pytest.mark.parametrize(("reward", "label"), [(0.7, True), (0.49, False), (0.5, None), (0.69, None), (None, None)])
def test_an_imports_reward_makes_a_thumb_on_a_pairs_sides(reward: float | None, label: bool | None) -> None:
    given = row("a", reward, **{**OPEN, "profile": "imported"})
    clear = thumbs(by_prompt([given]), SETTINGS)
    assert [is_liked(thumb) for thumb in clear] == ([] if label is None else [label])


@pytest.mark.parametrize("completion", ["", " \n "])
def test_a_thumb_on_an_empty_answer_is_left_out(completion: str, place: Place) -> None:
    rows = [rated("a", 0.75, completion=completion), rated("b", 0.25, completion=completion), rated("c", 0.5)]
    dataset = place.build([*rows, rated("d", 0.75)])
    assert [each["trace_id"] for each in table(dataset)] == ["d"]


def test_a_row_says_who_liked_what(place: Place) -> None:
    (found,) = table(place.build([rated("a", 0.75, prompt="why", user_id="ann", completion="so")]))
    assert (found["prompt"], found["completion"]) == ([{"role": "user", "content": "why", "tool_calls": None}], "so")
    assert (found["label"], found["principal"]) == (True, "ann")


def test_gates_hold_for_thumbs(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Selection, "max_contamination", 0.5)
    item = "what is the old lighthouse keeper of the northern island called"
    rows = [rated(name, 0.75) for name in WORDS]
    rows[0] = rows[0]._replace(consent=False)
    rows[1] = rows[1]._replace(completion=item)
    near = json.dumps([{"role": "user", "content": FROZEN}])
    dataset = place.build([*rows, rated("asked", 0.25, prompt=FROZEN)], {"suite": [item]}, ("rain",), (near,))
    assert {each["trace_id"] for each in table(dataset)} == set(WORDS[3:])
    assert (dataset.without_consent, dataset.frozen, dataset.contamination.hits) == (2, 1, 1)


def test_one_user_does_not_fill_the_thumbs(place: Place) -> None:
    rows = [rated(f"r{n}", 0.75, prompt=f"what is {n}") for n in range(100)]
    flood = [rated(f"f{n}", 0.25, prompt=f"who is {n}", user_id="one") for n in range(100)]
    dataset = place.build([*rows, *flood], max_principal_share=0.05)
    assert (dataset.evidence.thumbs, len({each["principal"] for each in table(dataset)})) == (105, 101)
    assert dataset.left_out["thumbs"] == {"cap": 95}


@pytest.mark.parametrize("value", [0.25, 0.75])
def test_thumbs_of_one_kind_are_no_material(value: float) -> None:
    found = evidence([rated(f"r{n}", value) for n in range(300)])
    assert (found.thumbs, found.contrasted_thumbs, found.rarer_thumb.value) == (300, 0, 0.0)
    decision = choose(found, SETTINGS.model_copy(update={"method": "kto"}), 0.5)
    assert decision.method == "none"
    assert decision.reasons == ("the recipe forces KTO, but there are no thumbs of both kinds at all",)


def test_five_thumbs_are_trained_on_only_if_forced() -> None:
    found = evidence([rated(f"r{n}", 0.25 + 0.5 * (n % 2)) for n in range(5)])
    forced = choose(found, SETTINGS.model_copy(update={"method": "kto"}), 0.5)
    assert forced.method == "kto" and forced.forced
    unknown = "AUC on the thumbs of unseen users unknown: n=0, needs rewards.reward_model (>= 0.52)"
    assert forced.lacks["kto"] == ("thumbs: 5, needs >= 200", unknown)
    assert choose(found, SETTINGS, 0.5).method == "none"


@pytest.mark.parametrize(("low", "method"), [(None, "none"), (0.44, "none"), (0.54, "kto")])
def test_thumbs_are_trained_on_where_a_model_finds_signal(low: float | None, method: str) -> None:
    """Random thumbs cost the policy as much as real ones give it: a count does not part them."""
    auc = UNKNOWN if low is None else Estimate(value=low + 0.05, low=low, high=low + 0.1, n=300)
    rows = [rated(f"r{n}", 0.25 + 0.5 * (n % 2)) for n in range(400)]
    known = evidence(rows).model_copy(update={"scorers": ScorerEvidence(feedback_auc=auc)})
    decision = choose(known, SETTINGS, 0.5)
    assert decision.method == method
    if method == "none":
        assert "AUC on the thumbs of unseen users" in "; ".join(decision.lacks["kto"])


ITEM = "How many of the seven green bottles that hang on the old garden wall fall down today?"


def labelled(name: str, text: str, feedback: float | None = 0.75, **changes: Any) -> dict[str, Any]:
    prompt = json.dumps([{"role": "user", "content": text}], ensure_ascii=False)
    given = {"trace_id": name, "observation_id": "o", "user_id": name, "prompt": prompt, "completion": "Some."}
    return {**given, "consent": True, "feedback": feedback, "reason": "", **changes}


def test_rows_that_may_not_be_learned_from_are_counted(tmp_path: Path) -> None:
    frozen = labelled("frozen", "Where does the parcel of the second order from Tuesday stand?")
    rows = [
        labelled("kept", "When does my order come?"),
        labelled("silent", "What is it?", feedback=None),
        labelled("calls", "Look it up.", reason="unshowable_call"),
        labelled("refused", "Is that so?", consent=False),
        labelled("withdrawn", "Is it?"),
        labelled("masked", "Who is it?", completion="Ask [EMAIL]."),
        frozen,
        labelled("asked", f"Tell me. {ITEM}"),
        labelled("told", "Tell me.", completion=ITEM),
    ]
    path = tmp_path / "labels.parquet"
    pq.write_table(pa.Table.from_pylist(rows, LABELS), path)
    labels = DatasetRef(uri=str(path), rows=len(rows), digest="d")
    agreed = {(each["trace_id"], "o") for each in rows} - {("withdrawn", "o")}
    kept, left_out = rated_rows(labels, HeldApart({"suite": [ITEM]}, [frozen["prompt"]]), lambda: agreed)
    assert [each.trace_id for each in kept] == ["kept"]
    assert left_out == {
        "unshowable call": 1,
        "without consent": 2,
        "masked answer": 1,
        "kept for suites": 1,
        "holds an evaluation's item": 2,
    }


def test_kto_needs_no_label_on_most_traces() -> None:
    """Few people leave a thumb: what is not rated says nothing against what is."""
    rows = [rated(f"r{n}", None if n % 3 else 0.25 + 0.5 * (n % 2)) for n in range(900)]
    decision = choose(evidence(rows), SETTINGS.model_copy(update={"method": "kto"}), 0.5)
    assert decision.method == "kto" and decision.evidence.coverage < 0.5
