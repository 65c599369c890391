"""The end of an iteration in Dagster: its figures are observed, its page lies beside it, and neither fails a stage."""

import base64
from pathlib import Path

import dagster as dg
import pytest

from assets.graph import ASSETS
from assets.outcome import outcome
from assets.report.pages import history_path, page_path
from assets.resources import Deployment
from assets.resources import records as io_manager
from pipeline.core.iteration import Iteration
from pipeline.recipe.pinning import pin
from tests.assets.laid import EMBEDDED, Laid
from tests.pipeline.rollout.conftest import NAME


@pytest.fixture
def laid(tmp_path: Path) -> Laid:
    return Laid(tmp_path / "data")


def run(laid: Laid, iteration: Iteration, asset: str) -> dg.ExecuteInProcessResult:
    overrides = [f"data_root={laid.store.root}", f"base_model.name={NAME}"]
    settings = Deployment(recipe_path=str(EMBEDDED), overrides=overrides)
    pin(laid.store, iteration, settings.recipe())
    return dg.materialize(ASSETS, selection=[asset], resources={"deployment": settings, "io_manager": io_manager})


def observations(result: dg.ExecuteInProcessResult) -> list[dg.AssetObservation]:
    events = [event for event in result.all_events if event.event_type_value == "ASSET_OBSERVATION"]
    return [event.asset_observation_data.asset_observation for event in events]


def not_to_be_trained(laid: Laid) -> Iteration:
    iteration = laid.begin()
    laid.label(iteration)
    laid.plan(iteration, method="none", reasons=("too few prompts",))
    return iteration


def test_an_end_is_observed_with_a_table_and_a_plot(laid: Laid) -> None:
    iteration = not_to_be_trained(laid)
    result = run(laid, iteration, "policy_checkpoint")
    (seen,) = observations(result)
    shown = {name: value.value for name, value in seen.metadata.items()}
    assert seen.asset_key == dg.AssetKey("kpi")
    assert f"| {iteration.id} | not trained | 80% | 75% | none |" in shown["iterations"]
    assert base64.b64decode(shown["quality and cost"].partition("base64,")[2].rstrip(")")).startswith(b"\x89PNG")
    assert shown["traces kept in percent"] == 80.0 and shown["label coverage in percent"] == 75.0
    assert shown["page"] == str(history_path(laid.store))
    assert result.get_asset_materialization_events() == [], "a stage that refuses materialises nothing"
    for page in (page_path(laid.store, iteration.id), history_path(laid.store)):
        assert "too few prompts" in page.read_text()


def test_a_page_that_cannot_be_written_fails_no_stage(laid: Laid) -> None:
    iteration = not_to_be_trained(laid)
    page_path(laid.store, iteration.id).mkdir()
    result = run(laid, iteration, "policy_checkpoint")
    assert result.success and observations(result) == []
    ended = outcome(laid.store, iteration)
    assert ended is not None and ended.ending == "not trained"
