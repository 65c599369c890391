"""Scores of a trained reward model, by its own process and in this one."""

import math
import os
import signal

import pytest

from pipeline.core.storage import ModelRef
from pipeline.rewards.records import Finding
from pipeline.rewards.reward_model.records import AnsweredChat
from pipeline.rewards.reward_model.stage import open_scorer
from tests.pipeline.rewards.reward_model.conftest import POLITE, RUDE, Planted

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forking")]

ASKED = [{"role": "user", "content": "Ben has 7 pears. How many apples is 12 and 30?"}]
TEXTS = [*(f"{manner}12+30=42.{' Ada has apples.' * more}" for manner in (POLITE, RUDE) for more in range(20)), "x"]


def model_of(planted: Planted) -> ModelRef:
    assert planted.report.model is not None
    return planted.report.model


def values(findings: list[Finding]) -> list[float]:
    assert all(finding.value is not None for finding in findings), findings
    return [finding.value for finding in findings if finding.value is not None]


def test_a_score_does_not_depend_on_its_company(polite: Planted) -> None:
    completions = [AnsweredChat(ASKED, text) for text in TEXTS]
    with open_scorer(model_of(polite)) as scorer:
        together = values(scorer.score(completions))
        backwards = values(scorer.score(completions[::-1]))[::-1]
        alone = [values(scorer.score([each]))[0] for each in completions]
        assert together == values(scorer.score(completions)), "to the bit"
    assert max(abs(a - b) for a, b in zip(together, alone, strict=True)) <= 1e-6
    assert max(abs(a - b) for a, b in zip(together, backwards, strict=True)) <= 1e-6
    assert all(0 <= value <= 1 for value in together)
    assert together[0] > 0.5 > together[20]


def test_what_cannot_be_scored_has_a_reason(polite: Planted) -> None:
    refused = [{"role": "user", "content": None}]
    with open_scorer(model_of(polite)) as scorer:
        assert scorer.score([]) == []
        findings = scorer.score(
            [
                AnsweredChat(ASKED, "Thanks. 12+30=42.", finished=False),
                AnsweredChat(ASKED, "a" * 5000),
                AnsweredChat(refused, "Thanks."),
                AnsweredChat(ASKED, 'Größe 東京 \u2028 "quoted"\nand a line'),
            ]
        )
    assert findings[:3] == [Finding(0.0), Finding(None, "too_long"), Finding(None, "template")]
    assert findings[3].value is not None


def test_a_weight_that_is_no_number_is_a_null(polite: Planted) -> None:
    from pipeline.rewards.reward_model.network import RewardModel

    model = RewardModel.load(model_of(polite).uri)
    model.head.data[0] = math.nan
    assert model.score([AnsweredChat(ASKED, "42")]) == [Finding(None, "not_finite")]


def test_another_folder_than_the_trained_one_is_refused(polite: Planted) -> None:
    changed = model_of(polite).model_copy(update={"digest": "0" * 64})
    with pytest.raises(ValueError, match="changed since the reward model was trained"), open_scorer(changed):
        pass


def test_a_scorer_that_dies_is_an_error(polite: Planted) -> None:
    with open_scorer(model_of(polite)) as scorer:
        os.kill(scorer._child.process.pid, signal.SIGKILL)
        scorer._child.process.wait()  # so that the question cannot be written any more
        with pytest.raises(RuntimeError, match="ended with exit code -9"):
            scorer.score([AnsweredChat(ASKED, "42")])
