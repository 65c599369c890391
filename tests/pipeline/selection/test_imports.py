"""Imports in selection: what of them was compared, their share beside traces, and the methods that they suffice for."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.core.estimate import Estimate
from pipeline.recipe import Selection
from pipeline.rewards.reward_model.records import RewardModelReport
from pipeline.selection.choose import MethodDecision, choose
from pipeline.selection.evidence import ASSUMED_RIGHT
from pipeline.selection.pairing import LabelledRow, by_prompt, pairs
from pipeline.selection.preferences import PreferenceDataset

from .labelled import row
from .test_preferences import SETTINGS, Place, read
from .test_winners import sample

OPEN = {"reference": None, "verifier": None, "correct": None}
MIT, CC = "imports/uf (MIT)", "imports/hs (CC-BY-4.0)"
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def other(tmp_path: Path) -> Place:
    """For the same rows again: a place keeps what it made of them."""
    (tmp_path / "other").mkdir()
    return Place(tmp_path / "other")


def word(number: int) -> str:
    """Prompts of one word each: no two of them are near-identical."""
    return "".join(LETTERS[number // 26**place % 26] for place in range(4))


def answer(name: str, text: str, reward: float, prompt: str = "p", origin: str = MIT, **more: Any) -> LabelledRow:
    at = {"completion": text, "origin": origin, "profile": "imported", "user_id": f"trace:{name}", **OPEN}
    return row(name, reward, prompt=prompt, **{**at, **more})


def vote(line: int, chosen: str, rejected: str, **more: Any) -> list[LabelledRow]:
    return [answer(f"f:{line}#{n}", text, 1.0 - n, **more) for n, text in enumerate((chosen, rejected))]


def compared(*rows: LabelledRow) -> set[tuple[str, str]]:
    every = SETTINGS.model_copy()
    return {(pair.chosen.completion, pair.rejected.completion) for pair in pairs(by_prompt(rows), every)}


def test_only_what_a_row_compared_is_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Selection, "max_pairs_per_prompt", 9)
    assert compared(*vote(1, "A", "B"), *vote(2, "C", "D")) == {("A", "B"), ("C", "D")}
    logged = [row("t1", 1.0, completion="T", **OPEN), row("t2", 0.0, completion="U", **OPEN)]
    assert compared(*vote(1, "A", "B"), *logged) == {("A", "B"), ("T", "U")}
    rated = [answer(f"f:{line}", text, reward) for line, (text, reward) in enumerate((("A", 0.9), ("B", 0.1)))]
    assert compared(*rated) == {("A", "B")}, "ratings of single answers are on one scale"
    assert compared(rated[0], rated[1]._replace(origin=CC)) == set(), "those of two imports are not"
    shown = answer("d:1", "S", 1.0, profile="demonstrated")
    assert compared(shown, *vote(1, "A", "B")) == {("A", "B")}


def test_votes_that_contradict_each_other_cancel_out() -> None:
    assert compared(*vote(1, "A", "B"), *vote(2, "B", "A")) == set()
    assert compared(*vote(1, "A", "B"), *vote(2, "B", "A"), *vote(3, "A", "B")) == {("A", "B")}


def imported_pairs(count: int, **more: Any) -> list[LabelledRow]:
    return [each for n in range(count) for each in vote(n, f"good {n}", f"bad {n}", prompt=word(n), **more)]


def traced_pairs(count: int, first: int = 5000) -> list[LabelledRow]:
    return [
        row(f"t{n}{side}", reward, prompt=word(n), correct=reward)
        for n in range(first, first + count)
        for side, reward in (("a", 1.0), ("b", 0.0))
    ]


@pytest.mark.parametrize(("share", "kept"), [(1.0, 40), (0.5, 10), (0.2, 2), (0.0, 0)])
def test_imports_make_up_their_share_beside_traces(place: Place, share: float, kept: int) -> None:
    dataset = place.build([*imported_pairs(40), *traced_pairs(10)], imported_share=share)
    origins = [each["origin"] for each in read(dataset.pairs)]
    assert (origins.count("traces"), origins.count(MIT)) == (10, kept)
    assert dataset.left_out["pairs"].get("share", 0) == 40 - kept
    assert dataset.evidence.pairs == 10 + kept


def test_imports_alone_have_no_limit(place: Place) -> None:
    dataset = place.build(imported_pairs(40), imported_share=0.1)
    assert (dataset.pairs.rows, dataset.left_out["pairs"]) == (40, {})


def test_a_user_of_an_import_is_capped_too(place: Place) -> None:
    rows = [*imported_pairs(50), *(r._replace(user_id="ann") for r in imported_pairs(80)[100:])]
    dataset = place.build(rows, max_principal_share=0.1)
    assert (dataset.pairs.rows, dataset.left_out["pairs"]) == (55, {"cap": 25})


def decided(dataset: PreferenceDataset, settings: Selection = SETTINGS) -> MethodDecision:
    return choose(dataset.evidence, settings, 0.5)


def test_pairs_alone_are_dpo_and_their_noise_is_declared(place: Place) -> None:
    decision = decided(place.build(imported_pairs(250)))
    assert decision.method == "dpo"
    assert decision.reasons == (
        "label coverage: 100.0%, >= 50.0%",
        "preference pairs: 250, >= 200",
        "label noise of the pairs, of imports as declared: 0.0% (assumed, n=0), upper bound <= 25.0%",
    )
    assert decision.evidence.noise_sources["imports"].noise == ASSUMED_RIGHT


def test_a_verifier_audits_imports_with_references(place: Place) -> None:
    wrong = [
        each._replace(reference="1", verifier="number", correct=1.0 - (each.final_reward or 0.0))
        for each in imported_pairs(250)
    ]
    dataset = place.build(wrong)
    assert (decided(dataset).method, dataset.evidence.label_noise.value) == ("grpo", 1.0)
    assert "label noise of the pairs: 100.0%" in decided(dataset).lacks["dpo"][0]


def rated(count: int) -> list[LabelledRow]:
    return [answer(f"k:{n}", f"text {n}", float(n % 2), prompt=word(n)) for n in range(count)]


def test_rated_answers_alone_are_kto(place: Place) -> None:
    dataset = place.build(rated(300))
    decision = decided(dataset)
    assert (decision.method, dataset.pairs.rows) == ("kto", 0)
    assert "thumbs, all of imports, as declared: 100.0% (assumed, n=0), lower bound >= 1.00" in decision.reasons
    assert dataset.thumbs is not None and {each["origin"] for each in read(dataset.thumbs)} == {MIT}


THUMBS = [
    row(f"t{n}", None, prompt=word(n + 900), feedback=n % 2 * 0.5 + 0.25, profile="rated", **OPEN) for n in range(300)
]


def test_thumbs_of_traces_still_need_a_signal(place: Place) -> None:
    assert decided(place.build(THUMBS)).method == "none"
    dataset = place.build([*THUMBS, *rated(300)], imported_share=0.5)
    assert (decided(dataset).method, dataset.left_out["thumbs"]) == ("kto", {"unproven": 300})
    assert dataset.evidence.imported_thumbs == dataset.evidence.thumbs == 300


def test_thumbs_with_a_signal_are_mixed_with_imports(place: Place) -> None:
    auc = Estimate(value=0.7, low=0.65, high=0.75, n=300)
    report = RewardModelReport.model_construct(auc=auc, failed_probes=(), model=None)
    dataset = place.build([*THUMBS, *rated(600)], reward_model=report, imported_share=0.5)
    assert (dataset.evidence.imported_thumbs, dataset.evidence.thumbs) == (300, 600)
    assert dataset.left_out["thumbs"] == {"share": 300}
    assert "AUC on the thumbs of unseen users: 0.70" in "".join(decided(dataset).reasons)


def demonstrated(count: int) -> list[LabelledRow]:
    return [
        answer(f"d:{n}", f"shown {n}", 1.0, prompt=word(n), origin=CC, profile="demonstrated") for n in range(count)
    ]


def shown(dataset: PreferenceDataset) -> list[tuple[str, str]]:
    assert dataset.winners is not None
    return [(each["completion"], each["origin"]) for each in read(dataset.winners)]


def test_demonstrations_alone_are_sft(place: Place) -> None:
    rows = demonstrated(120)
    dataset = place.build([*rows, rows[0]._replace(trace_id="again"), rows[1]._replace(completion="to [EMAIL]")])
    decision = decided(dataset)
    assert (decision.method, dataset.evidence.demonstrations, dataset.evidence.thumbs) == ("sft", 120, 0)
    assert decision.reasons[0] == "best of k, and demonstrations: 120, >= 100"
    assert set(shown(dataset)) == {(f"shown {n}", CC) for n in range(120)}
    assert dataset.winners is not None
    assert {tuple(each["trace_ids"]) for each in read(dataset.winners)} == {(f"d:{n}",) for n in range(120)}


def test_a_best_of_k_that_no_scorer_confirms_stays_out(place: Place, other: Place) -> None:
    logged = [row(f"t{n}", None, prompt=word(n + 900), profile="judged", **OPEN) for n in range(20)]
    drawn = [sample(word(n + 900), f"s{k}", k / 2, trace=f"t{n}") for n in range(20) for k in range(2)]
    rows = [*demonstrated(120), *logged]
    assert {origin for _, origin in shown(place.build(rows, fresh=tuple(drawn)))} == {CC}
    forced = other.build(rows, fresh=tuple(drawn), method="sft", imported_share=0.5)
    assert sorted(origin for _, origin in shown(forced)) == [CC] * 20 + ["samples"] * 20


def test_where_sft_is_forced_good_answers_are_demonstrations(place: Place, other: Place) -> None:
    rows = imported_pairs(40)
    assert place.build(rows).evidence.winners == 0
    dataset = other.build(rows, method="sft")
    assert set(shown(dataset)) == {(f"good {n}", MIT) for n in range(40)}
    assert decided(dataset, SETTINGS.model_copy(update={"method": "sft"})).method == "sft"


def test_imports_say_nothing_of_the_traffic(place: Place) -> None:
    unlabelled = [row(f"n{n}", None, prompt=word(n + 800), **OPEN) for n in range(30)]
    rows = [*traced_pairs(10), *unlabelled, *imported_pairs(40)]
    evidence = place.build(rows).evidence
    assert (evidence.traces, evidence.coverage, evidence.prompts) == (50, 0.4, 40)
    alone = place.build([*unlabelled, *imported_pairs(40)]).evidence
    assert (alone.traces, alone.coverage) == (80, 1.0), "where no trace has a label"
