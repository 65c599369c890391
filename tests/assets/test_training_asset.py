"""What Dagster and MLflow show of a training that went well, of one on HOLD and of one that stopped itself."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from assets import registry
from assets.graph import ASSETS
from assets.on_record import on_record
from assets.records import outcome
from assets.resources import Deployment
from assets.resources import records as io_manager
from evals import report
from evals.gate import GateVerdict, Verdict
from pipeline.core import layout
from pipeline.core.storage import CheckpointRef, ModelRef, digest_dir, digest_json
from pipeline.recipe import Evaluation
from pipeline.recipe.pinning import pin
from pipeline.recipe.suites import JudgedSuite, preset_suite
from pipeline.registry import versions
from pipeline.rollout.fold import read_state
from pipeline.rollout.record import ErasureBlock, Fingerprints, ModelVersion, block
from pipeline.selection.draw import FreshSamples
from pipeline.training.result import CAUSES, Goodput, Health, HealthFinding
from tests.assets.laid import EMBEDDED, NOWHERE, Laid
from tests.loop import undrawn
from tests.pipeline.rollout.conftest import NAME

pytestmark = pytest.mark.slow

KL = HealthFinding(verdict="HOLD", rule="kl", step=7, reason="KL of 0.13 per token to the base is above 0.1")
DEAD = HealthFinding(verdict="STOP", rule="dead", step=9, reason="loss and gradient are exactly 0")
PASS, HOLD = Health(), Health(verdict="HOLD", findings=(KL,))
STOP = Health(verdict="STOP", findings=(KL, DEAD))
METRICS = tuple(
    {"step": float(step), "accuracy": step / 20, "reward": step / 25, "grad_norm": 0.5, "seconds/step": 2.0 + step,
     "tokens_per_s": 100.0, "memory_mb": 900.0 + step, "held_out/accuracy": 0.4 + step / 50}
    for step in range(1, 11)
)  # fmt: skip
Lay = Callable[..., Deployment]


@pytest.fixture(scope="module")
def tracking_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One database for the file: making it takes MLflow longer than all else here."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture
def lay(tmp_path: Path, tracking_uri: str, monkeypatch: pytest.MonkeyPatch) -> Lay:
    """Everything that the stages around a training of this health would have left."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri)
    root = tmp_path / "data"

    def lay(health: Health = PASS, *overrides: str, method: str = "grpo") -> Deployment:
        words = (f"data_root={root}", f"base_model.name={NAME}", "compute.accelerator.usd_per_hour=3", *overrides)
        settings = Deployment(recipe_path=str(EMBEDDED), overrides=list(words))
        if root.exists():
            return settings
        laid = Laid(root)
        iteration = laid.begin()
        laid.label(iteration)
        laid.plan(iteration, method, reasons=("because",))
        if method != "none":
            adapter, model = (left(laid.store.path(iteration.path("training", name))) for name in ("adapter", "model"))
            goodput = Goodput(
                total_s=100.0, productive_s=60.0, badput_s={**dict.fromkeys(CAUSES, 5.0), "waiting": 15.0}
            )
            laid.train(
                iteration, metrics=METRICS, health=health, goodput=goodput,
                checkpoint=CheckpointRef(adapter=adapter, model=model, step=10),
            )  # fmt: skip
            version = ModelVersion(
                name=NAME, version=1, run_id="r", model=model, adapter=adapter, iteration=iteration.id
            )
            verdict = GateVerdict(
                iteration=iteration.id, verdict=Verdict.PASS, reasons=(), champion=iteration.champion, candidate=model,
                protocol="p", report_digest="r", bundle_digest="b",
            )  # fmt: skip
            laid.store.write(iteration.path(layout.MODEL_VERSION), version)
            laid.store.write(iteration.path(layout.GATE_VERDICT), verdict)
        pin(laid.store, iteration, settings.recipe())
        return settings

    return lay


def left(folder: Path) -> ModelRef:
    folder.mkdir(parents=True)
    (folder / "weights.safetensors").write_text(folder.name)
    return ModelRef(uri=str(folder), digest=digest_dir(folder))


def run(settings: Deployment, *assets: str) -> dg.ExecuteInProcessResult:
    resources = {"deployment": settings, "io_manager": io_manager}
    return dg.materialize(ASSETS, selection=list(assets), resources=resources)


def metadata(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (event,) = result.get_asset_materialization_events()
    return {name: value.value for name, value in event.step_materialization_data.materialization.metadata.items()}


def test_training_is_shown_with_health_time_and_cost(lay: Lay) -> None:
    result = run(lay(), "policy_checkpoint")
    (check,) = result.get_asset_check_evaluations()
    assert (check.check_name, check.passed) == ("healthy", True)
    shown = metadata(result)
    assert shown["metrics by step"].startswith("![") and "data:image/png;base64," in shown["metrics by step"]
    assert "| productive |" in shown["seconds by cause"]
    assert shown["health"] == "PASS"
    assert shown["goodput"] == pytest.approx(0.6)
    assert shown["device hours"] == pytest.approx(4 * 85 / 3600, rel=1e-3)
    assert shown["cost in USD"] == pytest.approx(3 * 4 * 85 / 3600, rel=1e-3)
    assert "| SIGTERM | 5 | 1 |" in shown["interruptions"]


@pytest.mark.variant
def test_a_stopped_training_is_a_refusal_that_people_can_see(lay: Lay) -> None:
    settings = lay(STOP)
    for _ in range(2):  # the second time changes nothing
        result = run(settings, "policy_checkpoint", "eval_report")
        assert result.success
        assert result.get_asset_materialization_events() == []
        (check,) = result.get_asset_check_evaluations()
        assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.ERROR)
        assert DEAD.reason in (check.description or "")
        seen = result.get_asset_observation_events()
        (event,) = [each for each in seen if each.asset_key == dg.AssetKey("policy_checkpoint")]
        seen = event.asset_observation_data.asset_observation.metadata
        assert {"metrics by step", "seconds by cause", "steps"} <= set(seen)
        assert f"| STOP | dead | 9 | {DEAD.reason} |" in str(check.metadata["findings"].value)
        ended = outcome(settings.store(), settings.latest())
        assert ended is not None
        assert ended.ending == "stopped"
        assert DEAD.reason in ended.detail
    client = versions.mlflow_client(settings.tracking_uri())
    (found,) = client.search_runs([client.get_experiment_by_name(NAME).experiment_id])
    tags = {"health": "STOP", "verdict": "STOP", "health.dead": f"STOP at step 9: {DEAD.reason}"}
    assert tags.items() <= found.data.tags.items()
    assert found.data.metrics["goodput/share"] == pytest.approx(0.6)
    assert found.data.metrics["goodput/badput_waiting_s"] == 15.0
    assert len(client.get_metric_history(found.info.run_id, "held_out/accuracy")) == 10
    plots = {Path(each.path).stem for each in client.list_artifacts(found.info.run_id, "plots")}
    assert plots == {"gates", "rewards", "training"}
    assert client.search_model_versions(f"name='{NAME}'") == []


def test_an_edited_recipe_is_neither_mixed_in_nor_logged(lay: Lay) -> None:
    settings, edited = lay(STOP), lay(STOP, "training.seed=9")
    with undrawn():
        assert run(edited, "policy_checkpoint").success, "it goes on with the pinned recipe"
        iteration = settings.latest()
        logged = on_record(edited, iteration)
    client = versions.mlflow_client(settings.tracking_uri())
    assert client.get_run(logged.run.run_id).data.params["training.seed"] == "1"


@pytest.mark.variant
def test_candidate_on_hold_waits_for_who_names_its_iteration(lay: Lay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "fingerprints", lambda *asked: Fingerprints())  # its files are no model's
    settings = lay(HOLD)
    id = settings.latest().id
    shown = run(settings, "policy_checkpoint")
    (check,) = shown.get_asset_check_evaluations()
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert metadata(shown)["health"] == "HOLD"
    for overrides in ([], ["rollout.accept_hold=another"]):
        waiting = run(lay(HOLD, *overrides), "canary")
        assert waiting.success
        assert waiting.get_asset_materialization_events() == []
        ended = outcome(settings.store(), settings.latest())
        assert ended is not None
        assert ended.ending == "held"
        assert KL.reason in ended.detail
        assert f"set rollout.accept_hold to '{id}' in the recipe" in ended.detail
        assert not read_state(settings.store(), NAME).active
    accepted = lay(HOLD, f"rollout.accept_hold='{id}'")
    assert accepted.recipe().digest() == settings.recipe().digest()
    assert len(run(accepted, "canary").get_asset_materialization_events()) == 1
    state = read_state(settings.store(), NAME)
    assert state.active
    assert state.rollout == digest_json([NAME, id, state.proposal.version.model.digest])[:12]
    ended = outcome(settings.store(), settings.latest())
    assert ended is not None
    assert ended.ending == "rollout"


@pytest.mark.parametrize("asset", ["policy_checkpoint", "eval_report", "model_version"])
def test_every_stage_after_the_plan_asks_for_blocks(lay: Lay, asset: str) -> None:
    settings = lay()
    store = settings.store()
    block(store, ErasureBlock(proof="p1", digests=(), iterations=(settings.latest().id,)))
    with pytest.raises(dg.Failure, match="learned from data that erasure p1 removed"):
        run(settings, asset)
    ended = outcome(store, settings.latest())
    assert ended is not None and ended.ending == "refused"


def test_who_scored_the_samples_is_on_record() -> None:
    drawn = FreshSamples(iteration="i", dataset=NOWHERE, judge_id="j", reward_model="r")
    assert FreshSamples(iteration="i").provenance == {}
    assert drawn.provenance == {"samples": NOWHERE.digest, "samples.judge": "j", "reward_model": "r"}
    assert drawn.model_copy(update={"reward_model": ""}).provenance == {"samples": NOWHERE.digest, "samples.judge": "j"}


def test_the_card_says_what_the_verdict_cannot_see() -> None:
    judged = JudgedSuite(name="preference", over="desk", role="target")
    assert "share the verifier" in report.limits(Evaluation())
    text = report.limits(Evaluation(suites=(preset_suite("desk", role="guard"), judged)))
    assert "Asked: desk, preference." in text and "A judge compares the answers of preference" in text
