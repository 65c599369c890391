"""A deployment before its launch: what the environment has to say, and no heavy library."""

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


def test_a_pool_is_for_adapters_that_a_server_takes(tmp_path: Path) -> None:
    pool = ["rollout.traffic={kind: inference_pool}", "rollout.metrics={url: 'http://127.0.0.1:9'}"]
    pool += [f"rollout.export_to={tmp_path / 'models'}"]
    assert not [fault for fault in faults(tmp_path, *pool) if "inference_pool" in fault]
    (found,) = [fault for fault in faults(tmp_path, *pool, "training.lora.dora=true") if "inference_pool" in fault]
    assert "training.lora.dora beside its base. Set rollout.traffic: {kind: http_route}" in found


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


def test_the_desk_needs_no_address_of_a_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    settings = [f"data_root='{tmp_path}'", f"base_model.uri='{DESK_DIR}'"]
    desk = str(EMBEDDED.with_name("desk.yaml"))
    assert wrong(Deployment(recipe_path=desk, overrides=settings)) == []
    named = Deployment(recipe_path=desk, overrides=[*settings, "rewards.judge={model: a-judge, digest: d}"])
    assert any("JUDGE_URL" in line for line in wrong(named))
