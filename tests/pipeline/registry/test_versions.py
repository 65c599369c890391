"""Against a real MLflow on SQLite: one database for the file, one model name a test."""

import json
import shutil

import pytest

from pipeline.core.iteration import identify
from pipeline.core.storage import DatasetRef, ModelRef, Store, digest_dir
from pipeline.registry import versions
from pipeline.registry.runs import MlflowAddresses
from pipeline.registry.versions import project
from pipeline.rollout.fold import read_state
from pipeline.rollout.propose import RolloutCandidate, propose
from pipeline.rollout.record import JudgedCandidate, Phase
from pipeline.views import text_plot
from tests.pipeline.rollout.conftest import BASE, POLICY, World

from .conftest import put_on_record


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("registry")
    adapter, model = root / "adapter", root / "merged"
    for folder, files in (
        (adapter, {"adapter_config.json": '{"base_model_name_or_path": "/here/base"}', "adapter.safetensors": "a"}),
        (model, {"config.json": '{"dtype": "bfloat16"}', "tokenizer.json": "{}", "model.safetensors": "weights"}),
    ):
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
    return Store(root), f"sqlite:///{root}/mlflow.db", ModelRef(uri=str(adapter), digest=digest_dir(adapter))


def keep(
    place, name, *, data="data", verdict="PASS", digest="merged", champion=BASE, number=0, registry="", experiment=""
):
    store, uri, adapter = place
    iteration = identify(number, name, champion, DatasetRef(uri="d", rows=1, digest=data, snapshot="s1"), "recipe")
    recorded = put_on_record(
        MlflowAddresses(uri, registry, experiment),
        store,
        iteration,
        adapter,
        ModelRef(uri=str(store.path("merged")), digest=digest),
        JudgedCandidate(verdict, "", "bundle"),
        params={"training": {"grpo": {"steps": 3, "trainer_args": {}}}, "name": "x" * 50},
        metrics=[{"step": 1, "loss": 0.5, "kl": float("nan")}, {"step": 2, "loss": 0.25}],
        plots={"reward": text_plot("rises").png()},
    )
    return iteration, recorded


def weights(store, name):
    """Where weights lie among the artifacts of the runs of a model."""
    files = store.path("mlflow", name).rglob("*.safetensors")
    return sorted(file.as_posix().split("/artifacts/")[1] for file in files)


def artifacts(store, name):
    """The folder of the artifacts of a model's one run."""
    [folder] = store.path("mlflow", name).glob("*/artifacts")
    return folder


class Crash(BaseException):
    pass


class Frail:
    """A client that dies after its n-th call."""

    def __init__(self, client, at):
        self.client, self.left = client, at

    def __getattr__(self, name):
        def call(*args, **kwargs):
            self.left -= 1
            result = getattr(self.client, name)(*args, **kwargs)
            if self.left == 0:
                raise Crash
            return result

        return call


class Insistent:
    """A client whose creating requests lose their answer, so that each is made twice."""

    def __init__(self, client):
        self.client = client

    def __getattr__(self, name):
        call = getattr(self.client, name)
        if name not in ("create_run", "create_model_version"):
            return call
        return lambda *args, **kwargs: [call(*args, **kwargs) for _ in range(2)][1]


@pytest.mark.slow
def test_request_whose_answer_is_lost_makes_one_thing(place, monkeypatch):
    real = versions.mlflow_client
    with monkeypatch.context() as patch:
        patch.setattr(versions, "mlflow_client", lambda *addresses: Insistent(real(*addresses)))
        _, recorded = keep(place, "lost")
    client = real(place[1])
    experiment = client.get_experiment_by_name("lost")
    assert [run.info.run_id for run in client.search_runs([experiment.experiment_id])] == [recorded.run.run_id]
    assert [int(v.version) for v in client.search_model_versions("name='lost'")] == [recorded.version.version] == [1]


@pytest.mark.slow
def test_crash_and_retry_leave_one_run_and_one_version(place, monkeypatch):
    name, real = "crashing", versions.mlflow_client
    crashes = 0

    def frail(*addresses):
        return Frail(real(*addresses), crashes + 1)

    with monkeypatch.context() as patch:
        patch.setattr(versions, "mlflow_client", frail)
        while True:
            try:
                iteration, recorded = keep(place, name)
                break
            except Crash:
                crashes += 1
    assert crashes > 10
    client = real(place[1])
    experiment = client.get_experiment_by_name(name)
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    (run,) = client.search_runs([experiment.experiment_id])
    (version,) = client.search_model_versions(f"name='{name}'")
    assert run.info.status == "FINISHED"
    assert run.data.params["training.grpo.steps"] == "3"
    assert [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "loss")] == [(1, 0.5), (2, 0.25)]
    assert client.get_metric_history(run.info.run_id, "kl") == [], "NaN is no number"
    tags = {"iteration": iteration.id, "dataset.snapshot": "s1", "recipe.digest": "recipe", "code.version": "abc"}
    assert tags.items() <= run.data.tags.items()
    shown = {"verdict": "PASS", "bundle": "bundle", "base": "base"}
    assert version.tags == {"digest": "merged", "iteration": iteration.id, **shown}
    assert (version.run_id, version.source) == (run.info.run_id, f"{run.info.artifact_uri}/model")
    assert (recorded.run.run_id, recorded.version.version) == (run.info.run_id, 1)
    assert [f.path for f in client.list_artifacts(run.info.run_id, "plots")] == ["plots/reward.png"]
    assert weights(place[0], name) == ["adapter/adapter.safetensors", "model/model/model.safetensors"]
    base = json.loads((artifacts(place[0], name) / "adapter" / "base.json").read_text())
    assert base == {"model": "base", "digest": BASE.digest}
    assert len(run.inputs.dataset_inputs) == 1
    assert "## Limits\n\nsmall" in version.description
    assert run.data.tags["mlflow.note.content"] == version.description
    assert place[0].path("mlflow", name).is_dir()


@pytest.mark.slow
def test_versions_and_runs_lie_where_their_addresses_say(place, tmp_path):
    store, uri, _ = place
    registry, named = f"sqlite:///{tmp_path}/registry.db", f"{store.root.name} beside"
    _, recorded = keep(place, "apart", registry=registry, experiment=named)
    assert recorded.version is not None
    client = versions.mlflow_client(uri, registry)
    assert client.get_experiment_by_name("apart") is None
    run = client.get_run(recorded.run.run_id)
    assert run.info.experiment_id == client.get_experiment_by_name(named).experiment_id
    assert client.get_model_version("apart", "1").source == f"{run.info.artifact_uri}/model"
    assert [v.version for v in versions.registered(registry, "apart", [recorded.version.iteration])] == [1]
    assert versions.registered(uri, "apart", [recorded.version.iteration]) == []


@pytest.mark.slow
def test_aliases_follow_the_record_and_heal(place, tmp_path):
    store, uri, name = Store(tmp_path), place[1], "demo"
    world = World(store)
    client = versions.mlflow_client(uri)

    def roll(number, data, digest, champion, quality, until):
        iteration, recorded = keep(place, name, data=data, digest=digest, champion=champion, number=number)
        policy = POLICY.model_copy(update={"dwell_s": (0.0, 0.0, 0.0)})
        propose(
            store,
            iteration,
            RolloutCandidate(recorded.version, JudgedCandidate("PASS", digest, "bundle")),
            policy,
            world.now,
        )
        project(MlflowAddresses(uri), read_state(store, name))
        assert client.get_registered_model(name).aliases["challenger"] == recorded.version.version
        world.metrics.canary = {"quality": quality}
        world.tick_until(until)
        project(MlflowAddresses(uri), read_state(store, name))
        return recorded.version

    project(MlflowAddresses(uri), read_state(store, name))  # nothing was ever proposed
    one = roll(0, "d1", "one", BASE, 0.7, "promoted")
    two = roll(1, "d2", "two", one.model, 0.7, "promoted")
    bad = roll(2, "d3", "bad", two.model, 0.2, "rolled_back")
    wanted = {"champion": two.version, "previous": one.version}
    assert client.get_registered_model(name).aliases == wanted
    assert client.get_model_version(name, str(bad.version)).tags["quarantined"] == "true"
    assert client.get_model_version(name, str(two.version)).tags["rollout"] == "promoted"
    shares = [client.get_model_version(name, str(n.version)).tags["traffic_percent"] for n in (one, two, bad)]
    assert shares == ["0", "100", "0"], "of now, whoever was promoted before"

    client.set_registered_model_alias(name, "champion", str(bad.version))
    client.set_registered_model_alias(name, "challenger", str(one.version))
    client.set_registered_model_alias(name, "mine", str(one.version))
    client.delete_registered_model_alias(name, "previous")
    state = read_state(store, name)
    assert state.phase is Phase.ROLLED_BACK
    shutil.rmtree(client.get_model_version(name, str(two.version)).source.removeprefix("file://"))
    with pytest.raises(
        ValueError, match=r"champion stays as it is\. demo version 2 has lost its files.* -o model_version"
    ):
        project(MlflowAddresses(uri), state)
    assert client.get_registered_model(name).aliases["champion"] == bad.version
    assert keep(place, name, data="d2", digest="two", champion=one.model, number=1)[1].version == two
    project(MlflowAddresses(uri), state)
    project(MlflowAddresses(uri), state)
    assert client.get_registered_model(name).aliases == {**wanted, "mine": one.version}

    client.delete_model_version(name, str(one.version))
    client.delete_registered_model_alias(name, "champion")
    with pytest.raises(ValueError, match=r"lost previous 1\. Restore"):
        project(MlflowAddresses(uri), state)
    assert client.get_registered_model(name).aliases == {"champion": two.version}


def test_weights_go_unless_a_version_has_an_alias(place):
    store, uri, _ = place
    (iteration, recorded), (refused, _) = keep(place, "swept"), keep(place, "swept", data="other", verdict="FAIL")
    client, there = versions.mlflow_client(uri), weights(store, "swept")
    client.set_registered_model_alias("swept", "mine", str(recorded.version.version))
    assert not versions.drop_weights(MlflowAddresses(uri), iteration) and weights(store, "swept") == there
    assert versions.drop_weights(MlflowAddresses(uri), refused) and len(weights(store, "swept")) == len(there) - 1
    client.delete_registered_model_alias("swept", "mine")
    assert versions.drop_weights(MlflowAddresses(uri), iteration) and weights(store, "swept") == []
    assert list(store.path("mlflow", "swept").rglob("model_card.md")), "what is not weights stays"
    assert client.get_model_version("swept", str(recorded.version.version)).tags["weights"] == "deleted by retention"
