"""`pt init`, from the wheel as it is built, in folders that know nothing of this repository."""

import os
import runpy
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from assets.environment import chosen
from assets.graph import ASSETS
from jobs.init import STARTS, main
from pipeline.recipe import load
from tests.loop import ROOT

SOURCES = (
    "pipeline", "evals", "k8s", "assets", "jobs", "pyproject.toml", "README.md", "LICENSE", "dagster.yaml", ".env",
)  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's content, which comes before the repository on the path of Python."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        extra = {"ignore": shutil.ignore_patterns("__pycache__"), "symlinks": True} if copy is shutil.copytree else {}
        copy(ROOT / name, folder / name, **extra)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", "built", "."]
    subprocess.run(command, cwd=folder, check=True)
    (wheel,) = folder.glob("built/*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def typed(site: Path, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    fewer = "traces.source.traces_per_day=100"
    variables = {"PYTHONPATH": str(site), "PREFERENCE_TUNING_OVERRIDES": fewer, "HF_HUB_OFFLINE": "1"}
    kept = {key: value for key, value in os.environ.items() if key != "DAGSTER_HOME"}
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=cwd, env=kept | variables, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_a_project_of_the_wheel_is_whole(site: Path, tmp_path: Path) -> None:
    done = typed(site, tmp_path, "jobs.pt", "init", "my project")
    project = tmp_path / "my project"
    assert done.returncode == 0 and "dagster job launch -j preference_tuning" in done.stdout, done.stderr
    where = subprocess.run(
        [sys.executable, "-c", "import jobs, pipeline; print(jobs.__file__, pipeline.__file__)"],
        cwd=project, env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert where.count(str(site)) == 2
    assert typed(site, project, "jobs.pt", "validate").returncode == 0


@pytest.mark.variant
@pytest.mark.slow
def test_a_project_of_the_wheel_runs(site: Path, tmp_path: Path) -> None:
    typed(site, tmp_path, "jobs.pt", "init", "my project")
    project = tmp_path / "my project"
    assert typed(site, project, "jobs.pt", "validate").returncode == 0
    launched = typed(site, project, "dagster", "job", "launch", "-j", "preference_tuning", "-o", "traces")
    assert launched.returncode == 0, launched.stdout + launched.stderr
    assert list(project.glob("data/iterations/*/traces.json"))
    assert {path.name for path in project.iterdir()} <= {
        *("recipe.yaml", "dagster.yaml", ".env", ".gitignore", "pyproject.toml", "model"),
        *("data", ".dagster", "logs", ".logs_queue"),
    }


def test_a_project_is_made_whole_or_not_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "dagster.yaml").write_text("mine")
    assert main([str(tmp_path)]) == 2
    assert "has dagster.yaml already. Choose an empty folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["dagster.yaml"]
    assert main([str(tmp_path / "dagster.yaml" / "below")]) == 2


@pytest.mark.parametrize("start", STARTS)
def test_every_start_has_a_recipe_that_loads(tmp_path: Path, start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main([str(tmp_path / "Chat Bot!"), "--start", start]) == 0
    monkeypatch.chdir(tmp_path / "Chat Bot!")
    recipe = load("recipe.yaml")
    assert start == "own" or Path(recipe.base_model.uri, "model.safetensors").is_file()
    assert tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]["name"] == "chat-bot"
    assert yaml.safe_load(Path("dagster.yaml").read_text(encoding="utf-8")) == yaml.safe_load(
        (ROOT / "dagster.yaml").read_text()
    )
    assert "DAGSTER_HOME=/proc/self/cwd" in Path(".env").read_text(encoding="utf-8")


def test_a_projects_recipe_is_taken_unless_another_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PREFERENCE_TUNING_RECIPE", raising=False)
    assert chosen().recipe_path == str(ROOT / "jobs" / "recipes" / "embedded.yaml")
    (tmp_path / "recipe.yaml").write_text("")
    assert chosen().recipe_path == str(tmp_path / "recipe.yaml")
    monkeypatch.setenv("PREFERENCE_TUNING_RECIPE", "other.yaml")
    assert chosen().recipe_path == str(tmp_path / "other.yaml")


def test_several_models_share_one_dagster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main([str(tmp_path / "p"), "--models", "hr", "law"]) == 0
    monkeypatch.chdir(tmp_path / "p")
    workspace = yaml.safe_load(Path("workspace.yaml").read_text(encoding="utf-8"))
    locations = [each["python_module"] for each in workspace["load_from"]]
    assert [(each["module_name"], each["location_name"]) for each in locations] == [
        ("tuning.hr", "hr"),
        ("tuning.law", "law"),
    ]
    for name in ("hr", "law"):
        definitions: Any = runpy.run_path(f"tuning/{name}.py")["definitions"]
        keys = {key.path[0] for key in definitions.resolve_asset_graph().get_all_asset_keys()}
        selected = definitions.resolve_job_def("preference_tuning").asset_layer.executable_asset_keys
        assert keys == {name} and len(selected) == len(ASSETS)
        assert load(f"{name}.yaml", []).data_root == f"data/{name}"
