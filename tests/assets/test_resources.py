from pathlib import Path

import dagster as dg
import pytest
import yaml

from assets.environment import environment
from assets.records import RECORDS, REPORT, IterationOutcome
from assets.resources import Deployment, deployment, records
from pipeline.core.layout import OUTCOME
from pipeline.core.storage import Store
from pipeline.recipe import load
from pipeline.recipe.pinning import pin
from pipeline.rewards.records import RewardLabels
from pipeline.traces.lake import local_lake
from tests.labels import label

EMBEDDED = Path(__file__).parents[2] / "jobs" / "recipes" / "embedded.yaml"
QUERY = "{kind: rows, query: SELECT * FROM calls, since: 2026-01-05, fields: {prompt: q, completion: a, time: at}}"


def test_the_environment_names_the_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFERENCE_TUNING_RECIPE", raising=False)
    monkeypatch.setenv("PREFERENCE_TUNING_OVERRIDES", "name='a b' training.seed=3")
    found = deployment()
    assert Path(found.recipe_path) == EMBEDDED
    assert (found.recipe().training.seed, found.recipe().name) == (3, "a b")


def test_mlflow_is_embedded_unless_the_environment_names_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Deployment(recipe_path=str(EMBEDDED), overrides=[f"data_root={tmp_path}"])
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert settings.tracking_uri() == f"sqlite:///{tmp_path}/mlflow/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5001")
    assert settings.tracking_uri() == settings.registry_uri() == "http://127.0.0.1:5001"
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", "http://127.0.0.1:5002")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "support")
    assert settings.registry_uri() == "http://127.0.0.1:5002"
    assert settings.mlflow() == ("http://127.0.0.1:5001", "http://127.0.0.1:5002", "support")


def test_a_record_that_is_not_there_says_how_to_make_it(tmp_path: Path) -> None:
    store, launch = Store(tmp_path), "dagster job launch -j preference_tuning"
    with pytest.raises(ValueError, match=f"the first stage that is missing: {launch}$"):
        REPORT.read(store, "abc")
    ended = IterationOutcome(ending="not trained", detail="too few prompts", at=0.0)
    for record in list(RECORDS.values())[: list(RECORDS).index("policy_checkpoint")]:
        store.write(f"iterations/abc/{record.name}", ended)
    with pytest.raises(ValueError, match=rf"{launch} -o 'policy_checkpoint\*' --tags '{{\"iteration\": \"abc\"}}'$"):
        REPORT.read(store, "abc")
    store.write(f"iterations/abc/{OUTCOME}", ended)
    with pytest.raises(ValueError, match=r"it ended before it .not trained: too few prompts.* pt retry"):
        REPORT.read(store, "abc")
    with pytest.raises(ValueError, match="no iteration yet"):
        Deployment(recipe_path=str(EMBEDDED), overrides=[f"data_root={tmp_path}"]).latest()


def test_a_run_keeps_to_one_iteration(tmp_path: Path) -> None:
    """By its tag; without one the newest is its tag from the first look on."""
    settings, seen = Deployment(recipe_path=str(EMBEDDED), overrides=[f"data_root={tmp_path}"]), list[str]()
    for id in ("one", "two"):
        pin(settings.store(), label(settings.store(), id, {"t": 0.5}), settings.recipe())

    @dg.asset(io_manager_key="io_manager")
    def reward_model(reward_labels: RewardLabels):
        label(settings.store(), "three", {})  # another run begins the next one
        seen.append(reward_labels.iteration)

    @dg.asset(deps=[reward_model], io_manager_key="io_manager")
    def samples(reward_labels: RewardLabels):
        seen.append(reward_labels.iteration)

    resources = {"deployment": settings, "io_manager": records}
    above = dg.SourceAsset("reward_labels", io_manager_key="io_manager")
    for tags, wanted in (({}, "two"), ({"iteration": "one"}, "one")):
        done = dg.materialize(
            [above, reward_model, samples], selection=[reward_model, samples], resources=resources, tags=tags
        )
        assert done.success
        assert seen[-2:] == [wanted, wanted]


@pytest.mark.slow
def test_a_run_reads_the_recipe_that_its_first_step_pinned(tmp_path: Path) -> None:
    """Not the file, whose next edit counts for the next launch: there the operational fields alone."""
    file = tmp_path / "recipe.yaml"

    def written(seed: int, workers: int, root: str = "data") -> Deployment:
        words = [f"training.seed={seed}", f"compute.workers={workers}", f"data_root={tmp_path / root}"]
        file.write_text(yaml.safe_dump(load(EMBEDDED, words).model_dump(mode="json")))
        return Deployment(recipe_path=str(file))

    first, warned = written(1, 1), list[str]()
    pin(first.store(), label(first.store(), "one", {"t": 0.5}), first.recipe())
    with dg.DagsterInstance.ephemeral() as instance:
        launch, again = (instance.add_run(dg.DagsterRun(job_name="loop")) for _ in range(2))
        for run, edited, seen in ((launch, (1, 2), 2), (launch, (9, 3, "elsewhere"), 2), (again, (9, 4), 4)):
            id, given = written(*edited).of_run(run.run_id, instance, warned.append)
            recipe = given.recipe()
            assert (id, recipe.training.seed, recipe.compute.workers) == ("one", 1, seen)
            assert given.store().root == first.store().root
        file.write_text("name: [half a line")
        assert Deployment(recipe_path=str(file)).of_run(again.run_id, instance, warned.append)[1].recipe() == recipe
    assert len(warned) == 1 and "training.seed: 1, now 9" in warned[0]


def test_the_lake_is_embedded_unless_the_recipe_names_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = f"data_root={tmp_path / 'a b'}"
    assert Deployment(recipe_path=str(EMBEDDED), overrides=[root]).lake() == local_lake(Store(tmp_path / "a b"))
    overrides = [root, "traces.lake={catalogue: postgres, warehouse: 's3://bucket/lake'}"]
    settings = Deployment(recipe_path=str(EMBEDDED), overrides=overrides)
    monkeypatch.delenv("LAKE_CATALOGUE_URI", raising=False)
    with pytest.raises(ValueError, match="set LAKE_CATALOGUE_URI"):
        settings.lake().check_address()
    monkeypatch.setenv("LAKE_CATALOGUE_URI", "postgresql://me@host/catalogue")
    lake = settings.lake()
    assert (lake.catalogue, lake.warehouse) == ("postgres", "s3://bucket/lake")


def test_a_rest_catalogue_gets_its_token_from_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = [f"data_root={tmp_path}", "traces.lake={catalogue: rest, warehouse: 's3://bucket/lake'}"]
    monkeypatch.setenv("LAKE_CATALOGUE_URI", "https://catalogue/v1")
    monkeypatch.setenv("LAKE_CATALOGUE_TOKEN", "s3cr3t-t0ken")
    lake = Deployment(recipe_path=str(EMBEDDED), overrides=overrides).lake()
    assert lake.options["token"] == "s3cr3t-t0ken"
    assert "s3cr3t" not in repr(lake)


@pytest.mark.parametrize(
    ("source", "variables"),
    [
        (QUERY, {"TRACES_DATABASE_URL": "postgresql://host/traces"}),
        (
            "{kind: mlflow, experiments: [desk], since: 2026-01-05}",
            {"MLFLOW_TRACKING_URI": "http://registry:5000", "MLFLOW_TRACES_URI": "http://traces:5000"},
        ),
    ],
    ids=["database", "mlflow"],
)
def test_a_source_is_named_by_the_environment(
    source: str, variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later variable goes before the earlier one."""
    settings = Deployment(recipe_path=str(EMBEDDED), overrides=[f"data_root={tmp_path}", f"traces.source={source}"])
    for name in variables:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match=f"set {[*variables][-1]} to"):
        settings.source_uri()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
        assert settings.source_uri() == value


def test_langfuse_is_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "traces.source={kind: langfuse_api, since: 2026-01-05}"
    settings = Deployment(recipe_path=str(EMBEDDED), overrides=[f"data_root={tmp_path}", source])
    for name in ("LANGFUSE_BASE_URL", "LANGFUSE_HOST", "LANGFUSE_SECRET_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", "pk")
    with pytest.raises(ValueError, match="set LANGFUSE_BASE_URL, LANGFUSE_SECRET_KEY"):
        settings.source_uri()
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", "a/secret@")
    monkeypatch.setenv("LANGFUSE_HOST", "https://old/")
    assert settings.source_uri() == "https://pk:a%2Fsecret%40@old"
    monkeypatch.setenv("LANGFUSE_BASE_URL", "https://eu.example:3000/langfuse")
    assert settings.source_uri() == "https://pk:a%2Fsecret%40@eu.example:3000/langfuse"
    assert "secret" not in repr(environment())
    for wrong in ("eu.example", "ftp://eu.example", "https://u:p@eu.example"):
        monkeypatch.setenv("LANGFUSE_BASE_URL", wrong)
        with pytest.raises(ValueError, match=r"LANGFUSE_BASE_URL is no address of a server\. Write https://cloud"):
            settings.source_uri()
