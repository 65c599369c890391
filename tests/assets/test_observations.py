"""What Dagster shows of an iteration's end and of a look at the rollout, and that it fails no stage."""

import base64
from pathlib import Path

import dagster as dg
import pytest

from assets.graph import ASSETS
from assets.kpi import read_kpi
from assets.observations import rollout_metadata
from assets.records import conclude, outcome
from assets.report import page_path
from assets.resources import Deployment
from assets.resources import records as io_manager
from pipeline.core import layout
from pipeline.core.iteration import Iteration
from pipeline.recipe.pinning import pin
from pipeline.rollout.record import Phase
from tests.assets.laid import EMBEDDED, Laid
from tests.pipeline.rollout.conftest import NAME, version_of
from tests.pipeline.rollout.reports import bare, report


@pytest.fixture
def laid(tmp_path: Path) -> Laid:
    return Laid(tmp_path / "data")


def run(laid: Laid, iteration: Iteration, asset: str, *overrides: str) -> dg.ExecuteInProcessResult:
    overrides = (f"data_root={laid.store.root}", f"base_model.name={NAME}", *overrides)
    settings = Deployment(recipe_path=str(EMBEDDED), overrides=list(overrides))
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


@pytest.mark.slow
def test_an_end_is_observed_with_a_table_and_a_plot(laid: Laid) -> None:
    iteration = not_to_be_trained(laid)
    result = run(laid, iteration, "policy_checkpoint")
    (seen,) = observations(result)
    shown = {name: value.value for name, value in seen.metadata.items()}
    assert seen.asset_key == dg.AssetKey("kpi")
    assert rf"| 1 \({iteration.id}\) | not trained |  |  |" in shown["iterations"]
    assert base64.b64decode(shown["quality and cost"].partition("base64,")[2].rstrip(")")).startswith(b"\x89PNG")
    assert shown["traces kept in percent"] == 80.0 and shown["label coverage in percent"] == 75.0
    assert shown["page"] == str(page_path(laid.store, iteration.id))
    assert result.get_asset_materialization_events() == [], "a stage that refuses materialises nothing"
    assert "too few prompts" in page_path(laid.store, iteration.id).read_text()


def test_a_page_that_cannot_be_written_fails_no_stage(laid: Laid) -> None:
    iteration = not_to_be_trained(laid)
    page_path(laid.store, iteration.id).mkdir()
    result = run(laid, iteration, "policy_checkpoint")
    assert result.success and observations(result) == []
    ended = outcome(laid.store, iteration)
    assert ended is not None and ended.ending == "not trained"


@pytest.mark.slow
def test_without_a_router_a_candidate_is_registered_alone(laid: Laid) -> None:
    iteration = laid.until_verdict()
    laid.store.write(iteration.path(layout.MODEL_VERSION), version_of("a", 1, iteration))
    result = run(laid, iteration, "canary", "rollout.traffic={kind: none}")
    assert result.success and not result.get_asset_materialization_events(), "there is no canary"
    ended = outcome(laid.store, iteration)
    assert ended is not None and ended.ending == "registered" and "nothing is routed here" in ended.detail
    assert laid.world.state.phase is Phase.IDLE
    recipe = Deployment(recipe_path=str(EMBEDDED), overrides=[f"base_model.name={NAME}"]).recipe()
    (figures,) = read_kpi(laid.store, recipe).iterations
    assert (figures.state, figures.version) == ("registered", 1)
    assert all(line.name != "serving of the canary" for line in figures.costs)
    assert "registered" in page_path(laid.store, iteration.id).read_text()
    conclude(laid.store, iteration, "rollout", "a router came")
    ended = outcome(laid.store, iteration)
    assert ended is not None and ended.ending == "rollout", "named later, the router gets it"


def test_a_look_at_a_rollout_is_shown_with_its_figures() -> None:
    seen = rollout_metadata(report(Phase.HELD))
    figures = {"canary weight in percent": 25.0, "canary right in percent": 69.0, "champion requests": 1125.0}
    assert {name: seen[name].value for name in figures} == figures
    assert (seen["phase"], seen["why"]) == ("held", "no harm is proven")
    assert not [name for name in rollout_metadata(bare()) if "right" in name]
