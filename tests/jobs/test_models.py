"""Several models in one Dagster: what each is called, what it is given, and what is refused before anything runs."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import click
import dagster as dg
import pytest

from assets.environment import UnnamedRecipe, chosen
from assets.resources import Deployment
from jobs import pt
from jobs.definitions import LEFT_OUT, definitions_for, left_out
from jobs.instance import RecipeInstance
from jobs.models import models
from jobs.run_contents import IMPLICIT, MODEL_TAG
from jobs.workers import DATA_ROOT_TAG
from tests.loop import EMBEDDED
from tests.several_models import environment_of, write_recipe

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a recipe into the folder that the environment names."""
    (tmp_path / "recipes").mkdir()
    for name, value in environment_of(tmp_path / "recipes").items():
        monkeypatch.setenv(name, value)
    return lambda name, *overrides: write_recipe(tmp_path / "recipes" / f"{name}.yaml", tmp_path / name, *overrides)


def both() -> dg.Definitions:
    return dg.Definitions.merge(*map(definitions_for, models().operated))


def test_all_that_a_model_has_begins_with_its_name(write: Write) -> None:
    write("support-desk")
    write("b", "key_prefix=figures")
    definitions = both()
    repository = definitions.get_repository_def()
    prefixes = {"support_desk", "figures"}
    named = [*repository.sensor_defs, *repository.schedule_defs, *repository.get_all_jobs()]
    assert {each.name.partition("__")[0] for each in named if each.name != IMPLICIT} == prefixes
    graph = definitions.resolve_asset_graph()
    assert {key.path[0] for key in graph.get_all_asset_keys()} == prefixes
    for node in graph.asset_nodes:
        assert {parent.path[0] for parent in node.parent_keys} <= {node.key.path[0]}
        assert node.group_name is not None
        assert node.group_name.partition("__")[0] == node.key.path[0]
    pools = {pool for node in graph.asset_nodes for pool in node.pools or ()}
    assert pools == {"support_desk__training", "figures__training"}


def test_an_asset_is_given_the_deployment_of_its_model(write: Write, tmp_path: Path) -> None:
    write("one")
    write("other")
    for model in models().operated:
        definitions, prefix = definitions_for(model), model.names.prefix
        for key in definitions.resolve_asset_graph().materializable_asset_keys:
            asset = definitions.resolve_assets_def(key)
            given = {resource for resource in asset.required_resource_keys if "deployment" in resource}
            assert given == {f"{prefix}__deployment"}
        settings = definitions.resources[f"{prefix}__deployment"]
        assert isinstance(settings, Deployment)
        assert settings.store().root == tmp_path / prefix
        job = definitions.resolve_job_def(f"{prefix}__forget")
        assert job.resource_defs["deployment"].configurable_resource_cls is Deployment  # a resource of the job's own


def test_models_of_one_gpu_share_a_pool_on_purpose(write: Write) -> None:
    write("one", "compute.pool=gpu")
    write("other", "compute.pool=gpu")
    pools = {node.key.to_user_string(): node.pools for node in both().resolve_asset_graph().asset_nodes if node.pools}
    stages = ("reward_model", "samples", "policy_checkpoint", "eval_report")
    assert pools == {f"{model}/{stage}": {"gpu"} for model in ("one", "other") for stage in stages}


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("name=one",), "both are called one"),
        (("key_prefix=one",), "both are called one"),
        (("data_root={root}/one",), "both have the data_root {root}/one"),
        (("data_root={root}/one/inside",), "one data_root is in the other"),
        (("traces.lake.catalogue=rest",), "both keep the governed table in the rest catalogue"),
    ],
)
def test_models_that_would_cross_are_left_out(
    overrides: tuple[str, ...], reason: str, write: Write, tmp_path: Path
) -> None:
    write("one", *[each for each in overrides if "catalogue" in each])
    write("other", *[each.format(root=tmp_path) for each in overrides])
    write("third")
    of_dagster = models()
    assert [each.names.prefix for each in of_dagster.operated] == ["third"]
    assert [each.file.name for each in of_dagster.broken] == ["one.yaml", "other.yaml"]
    for each in of_dagster.broken:
        assert reason.format(root=tmp_path) in each.reason


def test_a_registered_name_is_one_models_on_a_shared_server(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("one")
    write("other")
    assert len(models().operated) == 2, "each has a registry of its own"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5001")
    with pytest.raises(ValueError, match="both register their versions as arithmetic at MLFLOW_TRACKING_URI"):
        models()
    write("other", "base_model.name=figures")
    assert len(models().operated) == 2


def test_a_broken_recipe_stops_no_other_and_is_shown(write: Write) -> None:
    write("good")
    file = write("broken")
    file.write_text(file.read_text().replace("learning_rate:", "learning_rat:"))
    of_dagster = models()
    assert [each.names.prefix for each in of_dagster.operated] == ["good"]
    (broken,) = of_dagster.broken
    shown = left_out(broken)
    assert shown.key == dg.AssetKey([LEFT_OUT, "broken"])
    assert shown.description is not None
    assert "learning_rat: there is no such field. Did you mean learning_rate?" in shown.description


def test_a_folder_without_a_recipe_is_an_error(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"recipes: no recipe in it .* one YAML file for each model"):
        models()
    (tmp_path / "recipes" / "broken.yaml").write_text("name: [")
    with pytest.raises(ValueError, match=r"No recipe of .* can be used:\n.*broken.yaml is not YAML"):
        models()
    monkeypatch.setenv("PREFERENCE_TUNING_RECIPES", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="nowhere: it is no folder"):
        models()
    write("good")
    monkeypatch.setenv("PREFERENCE_TUNING_RECIPES", str(tmp_path / "recipes"))
    monkeypatch.setenv("PREFERENCE_TUNING_OVERRIDES", "training.seed=3")
    with pytest.raises(ValueError, match="PREFERENCE_TUNING_OVERRIDES is for one recipe"):
        models()


def test_a_command_about_one_model_wants_its_name(
    write: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write("one")
    with pytest.raises(UnnamedRecipe):
        chosen()
    assert pt.main(["rollout", "status"]) == 2
    assert "set PREFERENCE_TUNING_RECIPE to its file" in capsys.readouterr().err
    monkeypatch.setenv("PREFERENCE_TUNING_RECIPE", str(file))
    assert Deployment(recipe_path=chosen().recipe_path).launch() == "dagster job launch -j one__preference_tuning"


def test_a_prefix_of_one_recipe_is_in_its_commands(tmp_path: Path) -> None:
    settings = Deployment(recipe_path=str(EMBEDDED), overrides=["key_prefix=sums", f"data_root={tmp_path}"])
    with pytest.raises(ValueError, match="dagster job launch -j sums__preference_tuning"):
        settings.latest()
    with pytest.raises(ValueError, match="key_prefix"):
        Deployment(recipe_path=str(EMBEDDED), overrides=["key_prefix=two__words"]).recipe()


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecipeInstance:
    """Creates runs as the project's own does, and keeps what they would have been."""
    made = object.__new__(RecipeInstance)
    monkeypatch.setattr(dg.DagsterInstance, "create_run", lambda _, **run: SimpleNamespace(**run))
    return made


def create(instance: RecipeInstance, job: str, *assets: dg.AssetKey, config: dict[str, object] | None = None):
    target = SimpleNamespace(module_name="jobs.definitions")
    location = SimpleNamespace(loadable_target_origin=target)
    origin = SimpleNamespace(repository_origin=SimpleNamespace(code_location_origin=location))
    return instance.create_run(
        job_name=job,
        run_config=config,
        tags={},
        asset_selection=frozenset(assets) or None,
        step_keys_to_execute=None,
        remote_job_origin=origin,
    )


def test_a_run_carries_the_recipe_of_its_model(write: Write, instance: RecipeInstance, tmp_path: Path) -> None:
    write("one")
    write("other")
    for job, resource, assets in (
        ("other__preference_tuning", "other__deployment", ()),
        ("other__forget", "deployment", ()),
        (IMPLICIT, "other__deployment", (dg.AssetKey(["other", "traces"]),)),
    ):
        run = create(instance, job, *assets)
        given = run.run_config["resources"]
        chosen_here = {"recipe_path": str(tmp_path / "recipes/other.yaml"), "overrides": []}
        assert given.pop(resource) == {"config": chosen_here}
        assert given == ({} if job == "other__forget" else {"other__io_manager": {"config": {"iteration": "latest"}}})
        assert run.tags[MODEL_TAG] == "other"
        assert run.tags[DATA_ROOT_TAG] == str(tmp_path / "other")


def test_a_run_for_two_models_is_refused(write: Write, instance: RecipeInstance, tmp_path: Path) -> None:
    write("one")
    write("other")
    with pytest.raises(click.ClickException, match="A run works for one model, and this one is about one, other"):
        create(instance, IMPLICIT, dg.AssetKey(["one", "traces"]), dg.AssetKey(["other", "traces"]))
    given = {"recipe_path": str(tmp_path / "recipes/one.yaml"), "overrides": []}
    config: dict[str, object] = {"resources": {"other__deployment": {"config": given}}}
    with pytest.raises(click.ClickException, match=r"one\.yaml is the recipe of one, and the job .* belongs to other"):
        create(instance, "other__preference_tuning", config=config)


@pytest.mark.slow
def test_the_location_loads_what_is_whole(write: Write, tmp_path: Path) -> None:
    write("one")
    write("other")
    (tmp_path / "recipes" / "broken.yaml").write_text("name: [")
    script = (
        "from jobs.definitions import definitions as d; print(sorted({k.path[0] for k in d.resolve_asset_graph()"
        ".get_all_asset_keys()}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"['one', 'other', '{LEFT_OUT}']"
    assert "broken.yaml is left out" in done.stderr + done.stdout
