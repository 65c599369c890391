"""The command as a person types it, on a deployment with a labelled iteration."""

from pathlib import Path

import pytest

from assets.resources import Deployment, deployment
from jobs.reviews import main
from pipeline.core.layout import LATEST
from pipeline.recipe.pinning import pin
from tests.labels import label
from tests.loop import EMBEDDED

ROWS = 40


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """A deployment of the environment; every fifth label is a good one."""
    root = tmp_path / "data"
    monkeypatch.setenv("PREFERENCE_TUNING_RECIPE", str(EMBEDDED))
    monkeypatch.setenv("PREFERENCE_TUNING_OVERRIDES", f"data_root={root}")
    result = deployment()
    iteration = label(result.store(), "it", {f"t{at}": 1.0 if at % 5 == 0 else 0.05 for at in range(ROWS)})
    pin(result.store(), iteration, result.recipe())
    return result


def sheet_of(settings: Deployment) -> Path:
    (result,) = settings.store().path("rewards", "reviews").glob("*/sheet.csv")
    return result


def test_write_says_where_the_sheet_is_and_how_it_is_filled_in(settings: Deployment, capsys) -> None:
    assert main(["write"]) == 0
    output = capsys.readouterr().out
    assert f"is {sheet_of(settings)}. Fill it in" in output and "5: correct, complete and direct" in output


def test_without_labels_there_is_nothing_to_review(settings: Deployment, capsys) -> None:
    label(settings.store(), "it", {f"t{at}": None for at in range(ROWS)})
    assert main(["write"]) == 0
    assert "has no labels to review" in capsys.readouterr().out


def test_without_an_iteration_it_cannot_be_done(settings: Deployment, capsys) -> None:
    settings.store().path(LATEST).unlink()
    assert main(["write"]) == 2
    assert "Launch the whole job" in capsys.readouterr().err


def test_labels_that_were_erased_are_said_to_be_gone(settings: Deployment, capsys) -> None:
    settings.store().path("iterations", "it", "reward_labels", "part.parquet").unlink()
    settings.store().path("iterations", "it", "reward_labels").rmdir()
    assert main(["write"]) == 2
    assert "iterations/it/reward_labels" in capsys.readouterr().err


def test_a_week_has_one_sheet(settings: Deployment) -> None:
    assert main(["write"]) == 0
    sheet_of(settings).write_text("filled in")
    assert main(["write"]) == 0
    assert sheet_of(settings).read_text() == "filled in"
