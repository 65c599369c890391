"""What goes on record of an iteration beside its own records."""

from assets.card import limits, scorer_tags
from pipeline.core.storage import DatasetRef
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import JudgedSuite, preset_suite
from pipeline.selection.samples.records import FreshSamples

DRAWN = FreshSamples(
    iteration="i", dataset=DatasetRef(uri="samples", rows=8, digest="d"), judge_id="j", reward_model="r"
)


def test_who_scored_the_samples_is_on_record() -> None:
    assert scorer_tags(None) == scorer_tags(FreshSamples(iteration="i")) == {}
    assert scorer_tags(DRAWN) == {"samples": "d", "samples.judge": "j", "reward_model": "r"}
    assert scorer_tags(DRAWN.model_copy(update={"reward_model": ""})) == {"samples": "d", "samples.judge": "j"}


def test_the_card_says_what_the_verdict_cannot_see() -> None:
    judged = JudgedSuite(name="preference", over="desk", role="target")
    assert "share the verifier" in limits(Evaluation())
    text = limits(Evaluation(suites=(preset_suite("desk", role="guard"), judged)))
    assert "Asked: desk, preference." in text and "A judge compares the answers of preference" in text
