"""Runs whose metadata show rows leave Dagster's history with the rows."""

from pathlib import Path

import dagster as dg
import pytest

from assets.resources import ITERATION_TAG
from jobs.history import drop_runs, instance_here
from tests.loop import instance


@dg.asset
def labels() -> dg.MaterializeResult:
    return dg.MaterializeResult(metadata={"for example": "what a user said"})


def test_the_runs_of_an_iteration_go_and_others_stay(tmp_path: Path) -> None:
    with instance(tmp_path / "home") as found:
        runs = [dg.materialize([labels], instance=found, tags={ITERATION_TAG: id}) for id in ("one", "two", "one")]
        definitions = dg.Definitions(assets=[labels], jobs=[dg.define_asset_job("one_more")])
        running = found.create_run_for_job(definitions.resolve_job_def("one_more"), tags={ITERATION_TAG: "one"})
        said: list[str] = []
        assert drop_runs(found, {"one"}, said.append) == 2
        assert {run.run_id for run in found.get_runs()} == {runs[1].run_id, running.run_id}
        assert [running.run_id in line for line in said] == [True]
        kept = found.fetch_materializations(dg.AssetKey("labels"), limit=9).records
        assert [record.run_id for record in kept] == [runs[1].run_id]


def test_without_a_dagster_yaml_there_is_no_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with instance_here() as found:
        assert found is None
