"""The loop closes: promoted and then iterated, refused, too little signal. Every stage is the real one."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import dagster as dg
import pytest
from mlflow import pyfunc

from assets.days import GOVERNED, LABELLED
from assets.graph import ASSETS
from assets.metadata import VERSION_TAG
from assets.on_record import on_record
from assets.records import CHECKPOINT, LABELS, PLAN, REPORT, TRACES, VERDICT, outcome
from assets.resources import Deployment, records
from assets.rollout import follow_rollout
from evals import __main__ as verify
from jobs import status
from pipeline.registry.runs import metrics_file, mlflow_client
from pipeline.rollout.fold import read_state
from pipeline.rollout.record import Phase
from pipeline.training.journal import read_rows
from tests.fork_server import ForkServer
from tests.iterations import Iterations
from tests.loop import deployment, forked, instance, materialized, run_loop, undrawn
from tests.ports import held_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

STAGES = [
    "traces", "reward_labels", "reward_model", "samples", "preference_dataset", "training_plan", "policy_checkpoint",
    "eval_report", "gate_verdict", "model_version", "canary",
]  # fmt: skip


class Loop(NamedTuple):
    settings: Deployment
    instance: dg.DagsterInstance
    root: Path
    first: dg.DagsterRun
    """The launch that ended in a rollout."""
    production: Path
    """What the base model served, as that launch left it."""


@pytest.fixture(scope="module")
def loop(iterations: Iterations, fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    """A data root after one launch of the loop that ended in a rollout."""
    folder = iterations.first(tmp_path_factory.mktemp("loop"))
    with forked(fork_server), instance(folder / "home") as home:
        [first] = home.get_runs()
        yield Loop(deployment(folder / "data"), home, folder / "data", first, folder / "production")


@pytest.fixture
def root(loop: Loop, tmp_path: Path) -> Path:
    """A data root before its first launch, whose base model has served its days: as it would again."""
    shutil.copytree(loop.production, tmp_path / "data" / "production")
    return tmp_path / "data"


def materializations(home: dg.DagsterInstance, run: dg.DagsterRun) -> dict[str, dg.AssetMaterialization]:
    """By stage, in the order of the run."""
    events = [entry.dagster_event for entry in home.all_logs(run.run_id) if entry.dagster_event]
    created = [e.step_materialization_data.materialization for e in events if e.is_step_materialization]
    return {each.asset_key.to_user_string(): each for each in created if each.partition is None}


def test_the_first_run_goes_from_traces_to_a_canary(loop: Loop) -> None:
    assert loop.first.is_success
    assert list(materializations(loop.instance, loop.first)) == STAGES
    store, iteration = loop.settings.store(), loop.settings.latest()
    traces = TRACES.read(store, iteration.id)
    assert traces.seen == traces.admitted + sum(traces.rejected.values())
    assert {"consent", "error", "duplicate", "malformed"} <= {str(reason) for reason in traces.rejected}
    compared = REPORT.read(store, iteration.id).target().comparison
    assert compared.candidate.value > compared.champion.value + 0.05
    assert loop.first.tags["iteration"] == iteration.id


def test_dagster_knows_the_versions_of_code_and_data(loop: Loop) -> None:
    newest = materializations(loop.instance, loop.first)
    tags = {asset: each.tags or {} for asset, each in newest.items()}
    code = {each.key.to_user_string(): each.code_versions_by_key[each.key] for each in ASSETS}
    assert {asset: each["dagster/code_version"] for asset, each in tags.items()} == code
    versions = {asset: each[VERSION_TAG] for asset, each in tags.items()}
    store, iteration = loop.settings.store(), loop.settings.latest()
    assert versions["traces"] == iteration.dataset.digest
    assert versions["reward_labels"] == LABELS.read(store, iteration.id).dataset.digest
    assert versions["policy_checkpoint"] == CHECKPOINT.read(store, iteration.id).checkpoint.model.digest
    assert all(each == "none" or len(each) == 64 for each in versions.values()), versions
    below = tags["reward_labels"]
    assert below["dagster/input_data_version/traces"] == versions["traces"], "what stale marks compare"


def test_tables_have_their_size_columns_and_place(loop: Loop) -> None:
    newest = materializations(loop.instance, loop.first)
    for asset, place in (("traces", "/lake/governed/traces"), ("reward_labels", "/reward_labels")):
        shown = newest[asset].metadata
        rows = shown["dagster/row_count"].value
        assert rows == loop.settings.latest().dataset.rows
        assert "trace_id" in {column.name for column in shown["dagster/column_schema"].value.columns}
        assert str(shown["dagster/uri"].value).startswith("file:///")
        assert str(shown["dagster/uri"].value).endswith(place)
    assert newest["traces"].metadata["dagster/table_name"].value == "governed.traces"


def test_each_day_is_on_dagsters_pages_once(loop: Loop) -> None:
    governed = TRACES.read(loop.settings.store(), loop.settings.latest().id)
    admitted = {day.day: day.admitted for day in governed.days if day.day != "unknown"}
    assert len(admitted) == 2
    assert set(loop.instance.get_dynamic_partitions("days")) == set(admitted)
    for key in (GOVERNED, LABELLED):
        records = loop.instance.fetch_materializations(dg.AssetKey(key), limit=10).records
        rows = {
            each.asset_materialization.partition: each.asset_materialization.metadata[
                "dagster/partition_row_count"
            ].value
            for each in records
        }
        assert rows == admitted
        assert len(records) == len(admitted)


def told(
    settings: Deployment, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """The screen of `pt status`, its folded sentences in one line."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PREFERENCE_TUNING_RECIPE", settings.recipe_path)
    monkeypatch.setenv("PREFERENCE_TUNING_OVERRIDES", " ".join(f'"{each}"' for each in settings.overrides))
    assert status.main([]) == status.DONE
    return " ".join(capsys.readouterr().out.split())


def test_the_status_tells_a_person_what_came_out(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    value, latest = told(loop.settings, tmp_path, monkeypatch, capsys), loop.settings.latest().id
    traces = TRACES.read(loop.settings.store(), latest)
    assert f"iteration 1 ({latest}), begun " in value and "dagster job launch -j canary_rollout takes the" in value
    assert f"{traces.admitted:,} of {traces.seen:,} rows admitted" in value
    for words in ("ago, in rollout", " consent", "coverage", "GRPO", "suite arithmetic", " → ", "PASS", "version 1"):
        assert words in value


def test_the_evidence_supports_the_verdict_offline(loop: Loop, capsys: pytest.CaptureFixture[str]) -> None:
    iteration = loop.settings.latest().id
    verdict = VERDICT.read(loop.settings.store(), iteration)
    bundle = loop.root / "iterations" / iteration / "evidence"
    assert verify.main(["verify", str(bundle), verdict.bundle_digest]) == 0
    assert "PASS" in capsys.readouterr().out


def test_with_nothing_new_it_says_so_and_changes_nothing(loop: Loop) -> None:
    def files() -> dict[str, int]:
        ours = [p for p in loop.root.rglob("*") if p.is_file() and not p.name.startswith(("mlflow.db", "catalog.db"))]
        return {str(p): p.stat().st_mtime_ns for p in ours}

    before = files()  # without a router no rollout comes first
    again = run_loop(deployment(loop.root, ["rollout.traffic={kind: none}"]), loop.instance)
    assert again.success
    assert again.get_asset_materialization_events() == []
    assert files() == before
    messages = [e.user_message for e in loop.instance.all_logs(again.run_id)]
    assert any("Nothing new since iteration" in message for message in messages)


def test_mlflow_has_points_in_time_and_a_whole_model(loop: Loop) -> None:
    settings, store = loop.settings, loop.settings.store()
    client = mlflow_client(settings.tracking_uri())
    version = client.get_model_version(settings.recipe().base_model.name, "1")
    run = client.get_run(version.run_id)
    iteration = settings.iteration(run.data.tags["iteration"])
    logged = {row.step: int(row.at * 1000) for row in read_rows(metrics_file(store, iteration))[0] if row.step}
    history = client.get_metric_history(version.run_id, "seconds/step")
    assert {point.step: point.timestamp for point in history} == logged
    assert len({point.timestamp for point in history}) == len(history) == len(logged) > 1
    launched = loop.instance.get_run_by_id(loop.first.run_id)
    assert launched is not None
    assert (run.data.tags["dagster.run_id"], run.info.status) == (launched.run_id, "FINISHED")
    assert launched.tags["mlflow_run"] == version.run_id
    [given] = run.inputs.dataset_inputs
    assert json.loads(given.dataset.source)["snapshot"] == iteration.dataset.snapshot
    folder = Path(client.download_artifacts(version.run_id, "model"))
    answer = pyfunc.load_model(str(folder)).predict({"messages": [{"role": "user", "content": "What is 2 + 3?"}]})
    assert answer[0]["choices"][0]["message"]["content"]
    table = json.loads(Path(client.download_artifacts(version.run_id, "answers.json")).read_text(encoding="utf-8"))
    assert "candidate's answer" in table["columns"] and table["data"]


@pytest.mark.variant
def test_mlflow_that_is_away_fails_no_training(
    iterations: Iterations, fork_server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = deployment(iterations.planned(tmp_path) / "data")
    resources = {"deployment": settings, "io_manager": records}
    with held_port() as nobody, forked(fork_server), instance(tmp_path / "home") as home:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        monkeypatch.setattr("assets.loop_asset.refuse_faults", lambda *_: None)  # it went away after the first step
        result = dg.materialize(ASSETS, instance=home, resources=resources, selection=["policy_checkpoint"])
        lines = [entry.user_message for entry in home.all_logs(result.run_id)]
    assert result.success
    assert sum("MLflow does not take the metrics" in line for line in lines) == 1
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    run = on_record(settings, settings.latest()).run
    history = mlflow_client(settings.tracking_uri()).get_metric_history(run.run_id, "seconds/step")
    logged = read_rows(metrics_file(settings.store(), settings.latest()))[0]
    assert {(each.step, each.timestamp) for each in history} == {(row.step, int(row.at * 1000)) for row in logged[1:]}
    assert len(history) == len(logged) - 1 > 1, "the first is of the base model, before any step"


def test_the_promoted_model_is_the_next_iterations_base(iterations: Iterations, tmp_path: Path) -> None:
    settings = deployment(iterations.second(tmp_path) / "data")
    store, second = settings.store(), settings.latest()
    champion = read_state(store, second.model_name).past.champion
    assert champion is not None
    first = settings.iteration(champion.iteration)
    assert second.id != first.id
    assert second.number == 1
    assert second.champion.digest == champion.model.digest
    plan = PLAN.read(store, second.id)
    assert plan.base == second.champion
    days = {d.day for d in TRACES.read(store, second.id).days}
    assert days.isdisjoint(d.day for d in TRACES.read(store, first.id).days)
    with instance(tmp_path / "home") as home:
        newest, *_ = home.get_runs()
        assert newest.is_success and newest.tags["iteration"] == second.id
        assert {"policy_checkpoint", "eval_report", "gate_verdict"} <= materializations(home, newest).keys()


@pytest.mark.variant
def test_a_candidate_that_is_no_better_is_refused_by_a_green_run(root: Path, tmp_path: Path) -> None:
    settings = deployment(root, ["training.grpo.learning_rate=1e-9", "training.grpo.steps=2"])
    with instance(tmp_path / "home") as home:
        result = run_loop(settings, home)
    assert result.success
    assert materialized(result) == STAGES[: STAGES.index("model_version")]
    ended = outcome(settings.store(), settings.latest())
    assert ended is not None
    assert ended.ending == "refused"
    checks = {check.check_name: check for check in result.get_asset_check_evaluations()}
    assert not checks["candidate_is_better"].passed
    assert settings.champion().promotions == 0


def test_too_little_signal_is_not_trained_on(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = deployment(root, ["selection.min_prompts=100000", "selection.min_pairs=100000"])
    with undrawn(), dg.DagsterInstance.ephemeral() as home:
        result = run_loop(settings, home)
        assert result.success
        assert materialized(result) == STAGES[: STAGES.index("policy_checkpoint")]
        ended = outcome(settings.store(), settings.latest())
        assert ended is not None
        assert ended.ending == "not trained"
        assert "needs >= 100,000" in ended.detail
        assert materialized(run_loop(settings, home)) == []
    assert follow_rollout(settings, print, 0.0).phase is Phase.IDLE, "nobody was proposed, and that is no error"
    text = told(settings, tmp_path, monkeypatch, capsys)
    assert f"iteration 1 ({settings.latest().id}), begun " in text and "ago, not trained: " in text
    assert "selection.method=grpo' dagster job launch -j preference_tuning" in text
