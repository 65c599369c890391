"""What of the evidence goes to MLflow: answers side by side, and nothing that is a user's."""

import json
from typing import Any

from evals.bundle import EvalEvidence, SuiteEvidence
from evals.records import EvalArm
from evals.report import SHARES, TEXTS, answer_table
from evals.suites import Suite
from pipeline.recipe import Evaluation

from .conftest import evidence_of

Good = tuple[Evaluation, Suite, EvalArm, EvalArm]


def gathered(section: Evaluation, suite: Suite, *arms: EvalArm) -> EvalEvidence:
    return evidence_of(section, (SuiteEvidence(suite=suite, arms=(arms[0], arms[1])),))


def test_table_has_both_models_side_by_side(good: Good) -> None:
    table = answer_table(gathered(*good), texts=True)
    assert table["columns"] == [*SHARES, *TEXTS]
    rows: list[dict[str, Any]] = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    suite, (champion, candidate) = good[1], good[2:]
    assert {row["item"] for row in rows} == {item.id for item in suite.items}
    first = rows[0]
    item = next(item for item in suite.items if item.id == first["item"])
    assert (first["question"], first["reference"]) == (f"user: {item.messages[0]['content']}", item.reference)
    for arm, name in ((champion, "champion"), (candidate, "candidate")):
        result = next(result for result in arm.results if result.id == item.id)
        assert first[name] == sum(sample.outcome.score or 0 for sample in result.samples) / len(result.samples)
        assert first[f"{name}'s answer"] == result.samples[0].text
    changes = [abs(row["difference"]) for row in rows]
    assert changes == sorted(changes, reverse=True) and changes[0] > 0, "what changed most comes first"


def test_table_leaves_out_what_is_a_users(good: Good) -> None:
    section, suite, *arms = good
    item = suite.items[0].model_copy(update={"user_id": "ann"})
    table = answer_table(gathered(section, suite.model_copy(update={"items": (item, *suite.items[1:])}), *arms), True)
    assert len(table["data"]) == len(suite.items) - 1
    assert item.id not in json.dumps(table["data"])


def test_suite_from_traces_has_no_rows(good: Good) -> None:
    section, suite, *arms = good
    kind = {"kind": "traces", "preset": "production", "name": suite.name, "role": "target"}
    traced = Evaluation.model_validate({**section.model_dump(mode="json"), "suites": [kind]})
    evidence = gathered(section, suite, *arms)
    table = answer_table(evidence.model_copy(update={"section": traced}), True)
    assert table["data"] == []
