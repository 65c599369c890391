import dagster as dg
import pytest

from assets.rollout_observation import markdown, rollout_metadata, rollout_observation
from pipeline.rollout.record import Phase
from tests.pipeline.rollout.reports import NOW, bare, report


def test_an_observation_has_the_figures_that_dagster_draws() -> None:
    shown = rollout_metadata(report(), NOW)
    assert shown["canary weight in percent"] == dg.MetadataValue.float(25.0)
    assert shown["canary right in percent"] == dg.MetadataValue.float(69.0)
    assert "canary right" not in shown, "a share without its unit"
    assert shown["champion users"] == dg.MetadataValue.float(112.5)
    assert shown["why"] == dg.MetadataValue.text("no harm is proven")


def test_an_observation_has_the_picture_of_the_terminal() -> None:
    text = markdown(report(Phase.HELD), NOW)
    assert "✔ 5% (100% of its dwell) → ‖ 25% (67% of its dwell) → · 100% (0% of its dwell)" in text
    assert "| requests | 1,125 | 375 (25.0%) |  |" in text
    assert "- **waits for**: the next look" in text


def test_a_reason_cannot_break_the_markdown() -> None:
    text = markdown(report(reason="<img src=x> | **now** [go](http://x)", last_look=""), NOW)
    assert r"&lt;img src=x&gt; \| \*\*now\*\* \[go\]\(http" in text


def test_what_was_not_measured_is_left_out() -> None:
    shown = rollout_metadata(report(champion=None, canary=None), NOW)
    assert not [name for name in shown if name.startswith("champion")]
    assert "phase" in rollout_metadata(bare(), NOW)


def test_an_observation_is_of_the_canary_and_names_its_rollout() -> None:
    seen = rollout_observation(dg.AssetKey("canary"), report(), NOW)
    assert seen.asset_key == dg.AssetKey("canary")
    assert seen.tags["rollout"] == "3f9c1a2b4d5e"
    assert seen.tags["phase"] == "observing"


@pytest.mark.slow
def test_dagster_keeps_an_observation_of_each_look(tmp_path) -> None:
    """As a run logs it: Dagster takes the metadata and the tags as they are."""

    @dg.asset
    def canary(context: dg.AssetExecutionContext) -> None:
        for weight in (5, 25):
            context.log_event(rollout_observation(context.asset_key, report(weight=weight), NOW))

    with dg.DagsterInstance.local_temp(str(tmp_path)) as home:
        assert dg.materialize([canary], instance=home).success
        kept = home.fetch_observations(dg.AssetKey("canary"), limit=5).records
    weights = [r.asset_observation.metadata["canary weight in percent"].value for r in kept if r.asset_observation]
    assert weights == [25.0, 5.0]
