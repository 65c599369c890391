"""A candidate of a deployment without a router: its iteration ends as registered, and everything that is shown of it
says so."""

from pathlib import Path

import dagster as dg

from assets.graph import ASSETS
from assets.kpi.fold import read_kpi
from assets.outcome import conclude, outcome
from assets.report.pages import page_path
from assets.resources import Deployment
from assets.resources import records as io_manager
from jobs.ending import ending
from pipeline.core import layout
from pipeline.recipe.pinning import pin
from pipeline.rollout.record import Phase
from tests.assets.laid import EMBEDDED, Laid
from tests.pipeline.rollout.conftest import NAME, version_of


def test_without_a_router_a_candidate_is_registered_alone(tmp_path: Path) -> None:
    laid = Laid(tmp_path / "data")
    iteration = laid.until_verdict()
    laid.store.write(iteration.path(layout.MODEL_VERSION), version_of("a", 1, iteration))
    overrides = [f"data_root={laid.store.root}", f"base_model.name={NAME}", "rollout.traffic={kind: none}"]
    settings = Deployment(recipe_path=str(EMBEDDED), overrides=overrides)
    pin(laid.store, iteration, settings.recipe())
    resources = {"deployment": settings, "io_manager": io_manager}
    result = dg.materialize(ASSETS, selection=["canary"], resources=resources)
    assert result.success and not result.get_asset_materialization_events(), "there is no canary"
    ended = outcome(laid.store, iteration)
    assert ended is not None and ended.ending == "registered" and "nothing is routed here" in ended.detail
    assert laid.world.state.phase is Phase.IDLE
    (figures,) = read_kpi(laid.store, settings.recipe()).iterations
    assert (figures.state, figures.version) == ("registered", 1)
    assert all(line.name != "serving of the canary" for line in figures.costs)
    assert "routes nothing to it" in page_path(laid.store, iteration.id).read_text()
    assert ending(settings, iteration).text.startswith("registered, 69.2% -> 89.8%: version 1 of")
    conclude(laid.store, iteration, "rollout", "a router came")
    ended = outcome(laid.store, iteration)
    assert ended is not None and ended.ending == "rollout", "named later, the router gets it"
