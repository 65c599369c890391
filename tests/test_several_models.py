"""Two models in one Dagster, launched at the same moment: each ends its iteration, in its own data root alone."""

import json
import shutil
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import dagster as dg
import pytest

from jobs.run_contents import MODEL_TAG
from tests.loop import ROOT, environment
from tests.several_models import environment_of, write_recipe

DAGSTER = str(Path(sys.executable).parent / "dagster")
MODELS = {"alpha": "training.seed=1", "beta": "training.seed=2"}


def files_that_hold(text: str, root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


@pytest.mark.slow
@pytest.mark.variant  # of the literal command, twice at once
@pytest.mark.timeout(1800)
def test_two_models_run_at_once_and_nothing_crosses(tmp_path: Path) -> None:
    home, roots = tmp_path / "home", tmp_path / "roots"
    home.mkdir()
    for name in ("dagster.yaml", ".env"):
        shutil.copy(ROOT / name, home)
    for name, override in MODELS.items():
        write_recipe(tmp_path / "recipes" / f"{name}.yaml", roots / name, override)
    (tmp_path / "recipes" / "broken.yaml").write_text("name: broken\n")
    variables = {**environment(home, roots), **environment_of(tmp_path / "recipes")}
    with chdir(home), dg.DagsterInstance.from_config(str(home)) as instance:
        assert instance.get_runs() == []  # its databases exist: two processes at once may not begin them
        launches = {
            name: subprocess.Popen(
                [DAGSTER, "job", "launch", "-j", f"{name}__preference_tuning", "-m", "jobs.definitions"],
                cwd=home,
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for name in MODELS
        }
        printed = {name: launch.communicate()[0] for name, launch in launches.items()}
        assert {name: launch.returncode for name, launch in launches.items()} == dict.fromkeys(MODELS, 0), printed

        runs = {run.tags[MODEL_TAG]: run for run in instance.get_runs()}
        assert {name: run.job_name for name, run in runs.items()} == {n: f"{n}__preference_tuning" for n in MODELS}
        stats = [instance.get_run_stats(run.run_id) for run in runs.values()]
        assert max(each.start_time for each in stats) < min(each.end_time for each in stats), "side by side"
        for name, other in zip(MODELS, reversed(MODELS), strict=True):
            (folder,) = [path for path in (roots / name / "iterations").iterdir() if path.is_dir()]
            assert runs[name].tags["iteration"] == folder.name
            assert json.loads((folder / "recipe.json").read_text())["training"]["seed"] == int(MODELS[name][-1])
            assert json.loads((folder / "outcome.json").read_text())["ending"] == "rollout"
            assert files_that_hold(str(roots / other), roots / name) == []
            assert files_that_hold(runs[other].tags["iteration"], roots / name) == []
            for key in instance.all_asset_keys():
                if key.path[0] == name:
                    made = instance.fetch_materializations(key, limit=100).records
                    seen = instance.fetch_observations(key, limit=100).records
                    assert {record.run_id for record in (*made, *seen)} == {runs[name].run_id}, key
        assert {key.path[0] for key in instance.all_asset_keys()} - {"audit_log", "forgotten_users"} == set(MODELS)
