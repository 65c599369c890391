"""The commands as a person types them, and the same as a job, on a deployment with a labelled iteration."""

import csv
import io
from pathlib import Path

import pytest

from assets.resources import Deployment, deployment
from jobs.reviews import main, review_sample
from pipeline.core.layout import LATEST
from pipeline.recipe.pinning import pin
from tests.labels import label
from tests.loop import EMBEDDED, instance

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


def fill(sheet: Path, good: str, bad: str) -> None:
    """A person who says of every fifth completion that it is good, and of the others that they are bad."""
    rows = list(csv.DictReader(io.StringIO(sheet.read_text("utf-8-sig"), newline="")))
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, list(rows[0]))
    writer.writeheader()
    writer.writerows({**row, "score": bad if int(row["completion"]) % 5 else good} for row in rows)
    sheet.write_text(out.getvalue(), "utf-8-sig", newline="")


def test_write_says_where_the_sheet_is_and_status_what_is_in_it(settings: Deployment, capsys) -> None:
    assert main(["status"]) == 0
    assert "No sample has been drawn" in capsys.readouterr().out
    assert main(["write"]) == 0
    sheet = sheet_of(settings)
    assert f"is {sheet}. How to fill it in: {sheet.with_name('rubric.txt')}" in capsys.readouterr().out
    assert "5: correct, complete and direct" in sheet.with_name("rubric.txt").read_text()
    assert main(["status"]) == 0
    output = capsys.readouterr().out
    assert "0 of 40 rows scored" in output
    assert "rho unknown (n=0)" in output
    fill(sheet, "5", "1")
    assert main(["status"]) == 0
    output = capsys.readouterr().out
    assert "40 of 40 rows scored" in output
    assert "against 40 reviews" in output
    assert "rho 1.00 (0.77 to 1.00, n=40); its lower bound has to reach 0.70" in output
    assert "other side of 0.5 0.00 (0.00 to 0.09, n=40)" in output


def test_status_tells_of_a_typo_and_exits_with_1(settings: Deployment, capsys) -> None:
    main(["write"])
    fill(sheet_of(settings), "5", "bad")
    assert main(["status"]) == 1
    output = capsys.readouterr().out
    assert output.count("score is 'bad'. Write a number from 1 to 5") == 32
    assert "8 of 40 rows scored" in output


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


@pytest.mark.slow
def test_the_job_writes_the_sheet_once(settings: Deployment, tmp_path: Path) -> None:
    with instance(tmp_path / "dagster") as home:
        assert review_sample.execute_in_process(instance=home, resources={"deployment": settings}).success
        fill(sheet_of(settings), "5", "1")
        content = sheet_of(settings).read_bytes()
        assert review_sample.execute_in_process(instance=home, resources={"deployment": settings}).success
    assert sheet_of(settings).read_bytes() == content
