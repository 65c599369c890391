"""A deployment before its launch: what the environment has to say, and no heavy library."""

import subprocess
import sys
from pathlib import Path

import pytest

from assets.preflight import check
from assets.resources import Deployment
from pipeline.demo import MODEL_DIR
from pipeline.demo.desk import MODEL_DIR as DESK_DIR

ROOT = Path(__file__).parents[2]
EMBEDDED = ROOT / "jobs" / "recipes" / "embedded.yaml"
QUERY = "{kind: rows, query: SELECT * FROM calls, since: 2026-01-05, fields: {prompt: q, completion: a, time: at}}"
VARIABLES = ("TRACES_DATABASE_URL", "LAKE_CATALOGUE_URI", "JUDGE_URL")


def wrong(deployment: Deployment) -> list[str]:
    return [line.text for line in check(deployment) if not line.fine]


def faults(root: Path, *overrides: str) -> list[str]:
    settings = [f"data_root='{root}'", f"base_model.uri='{MODEL_DIR}'", *overrides]
    return wrong(Deployment(recipe_path=str(EMBEDDED), overrides=settings))


def test_the_embedded_deployment_can_be_launched(tmp_path: Path) -> None:
    assert faults(tmp_path) == []


def test_a_recipe_that_does_not_resolve_is_the_only_fault(tmp_path: Path) -> None:
    head, line = faults(tmp_path, "training.sed=3")
    assert str(EMBEDDED) in head
    assert line == "  training.sed: there is no such field"


@pytest.mark.parametrize(
    ("override", "variable"),
    [
        (f"traces.source={QUERY}", "TRACES_DATABASE_URL"),
        ("traces.lake.catalogue=rest", "LAKE_CATALOGUE_URI"),
        ("rewards.judge={model: a-judge, digest: d}", "JUDGE_URL"),
    ],
)
def test_what_the_environment_lacks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, override: str, variable: str
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    (fault,) = faults(tmp_path, override)
    assert f"set {variable}" in fault


@pytest.mark.slow
def test_a_look_before_a_launch_imports_nothing_heavy(tmp_path: Path) -> None:
    heavy = ["torch", "mlflow", "trl", "pandas", "matplotlib", "s3fs"]  # transformers without torch takes half a second
    code = (
        "import sys; from assets.preflight import check; from assets.resources import Deployment;"
        f"one = Deployment(recipe_path={str(EMBEDDED)!r}, overrides=['data_root={tmp_path}']);"
        "print([line for line in check(one) if not line.fine]);"
        f"print([m for m in {heavy} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "[]"]


def test_the_desk_needs_no_address_of_a_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    settings = [f"data_root='{tmp_path}'", f"base_model.uri='{DESK_DIR}'"]
    desk = str(EMBEDDED.with_name("desk.yaml"))
    assert wrong(Deployment(recipe_path=desk, overrides=settings)) == []
    named = Deployment(recipe_path=desk, overrides=[*settings, "rewards.judge={model: a-judge, digest: d}"])
    assert any("JUDGE_URL" in line for line in wrong(named))
