"""What a run carries: the iteration of its config, of its tag, or the latest, before it exists."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from assets.environment import ITERATION_TAG
from jobs.models import PROJECT_DEFINITIONS
from jobs.run_contents import IMPLICIT, carried, takes_a_recipe
from pipeline.pinning import pin
from pipeline.recipe import load
from pipeline.storage import Store
from tests.labels import label
from tests.loop import EMBEDDED, SHORT

STAGES, LOOP = ["reward_labels", "reward_model"], "preference_tuning"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """With the iterations `one` and, as the latest, `two`."""
    words = [*SHORT, f"data_root={tmp_path}"]
    monkeypatch.setenv("PREFERENCE_TUNING_RECIPE", str(EMBEDDED))
    monkeypatch.setenv("PREFERENCE_TUNING_OVERRIDES", " ".join(words))
    laid = Store(tmp_path)
    for id in ("one", "two"):
        pin(laid, label(laid, id, {"t": 0.5}), load(EMBEDDED, words))
    return laid


def run(job: str = LOOP, iteration: str | None = None, tag: str = "") -> dict[str, Any]:
    config = {} if iteration is None else {"resources": {"io_manager": {"config": {"iteration": iteration}}}}
    return {"job_name": job, "run_config": config, "tags": {ITERATION_TAG: tag} if tag else {}, "asset_selection": None}


@pytest.mark.parametrize(
    ("asked", "config", "tag"),
    [
        (run(), "latest", "two"),
        (run(IMPLICIT), "latest", "two"),
        (run(iteration="one"), "one", "one"),
        (run(tag="one"), "latest", "one"),
        (run(iteration="two", tag="one"), "two", "two"),
    ],
)
def test_a_run_keeps_the_iteration_of_its_launch(asked: dict[str, Any], config: str, tag: str, store: Store) -> None:
    contents = carried(asked, STAGES, True)
    assert contents["run_config"]["resources"]["io_manager"] == {"config": {"iteration": config}}
    assert contents["tags"][ITERATION_TAG] == tag
    assert label(store, "three", {}).id == "three"
    again = carried({**asked, **contents}, STAGES, True)
    assert again["tags"][ITERATION_TAG] == tag, "a re-execution inherits both, whatever is the latest by then"


def test_a_run_that_makes_traces_has_no_iteration_yet(store: Store) -> None:
    contents = carried(run(), ["traces", *STAGES], True)
    assert ITERATION_TAG not in contents["tags"]
    assert contents["run_config"]["resources"]["io_manager"] == {"config": {"iteration": "latest"}}
    with pytest.raises(click.ClickException, match=r"is to make traces, which names its iteration, .* names one"):
        carried(run(iteration="one"), ["traces", *STAGES], True)


def test_an_iteration_that_is_not_there_is_refused(store: Store) -> None:
    with pytest.raises(click.ClickException, match="has no iteration zero"):
        carried(run(iteration="zero"), STAGES, False)


def test_other_jobs_have_no_iteration(store: Store) -> None:
    contents = carried(run("canary_rollout"), ["advance_rollout"], True)
    assert "io_manager" not in contents["run_config"]["resources"] and ITERATION_TAG not in contents["tags"]


@pytest.mark.parametrize("module", ["jobs.definitions", PROJECT_DEFINITIONS, "somebody.definitions"])
def test_only_runs_of_this_project_take_a_recipe(module: str) -> None:
    target = SimpleNamespace(module_name=module)
    location = SimpleNamespace(loadable_target_origin=target)
    remote = SimpleNamespace(repository_origin=SimpleNamespace(code_location_origin=location))
    code = SimpleNamespace(repository_origin=SimpleNamespace(code_pointer=SimpleNamespace(module=module)))
    assert takes_a_recipe(remote) == takes_a_recipe(None, code) == (module != "somebody.definitions")
    assert not takes_a_recipe(None)
