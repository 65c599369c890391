"""The data root moves: the whole loop goes on from a copy whose original is gone."""

import shutil
from pathlib import Path

import pytest

from assets.records import CHECKPOINT, RECORDS, VERDICT
from assets.resources import Deployment
from assets.rollout import follow_rollout
from evals.bundle import verify
from jobs.governance import forget_user, keep_up
from pipeline.core import audit
from pipeline.core.storage import digest_dir
from pipeline.registry import versions
from pipeline.traces.lake import open_lake
from pipeline.traces.materialize import read
from tests.fork_server import ForkServer
from tests.iterations import Iterations
from tests.loop import deployment, forked, instance, materialized, run_loop

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def root(iterations: Iterations, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root after a promotion and a second iteration, whose base model lies under the root; copied to here."""
    root = iterations.second(tmp_path_factory.mktemp("moved")) / "data"
    deployment(root).tracking_uri()
    return root


@pytest.mark.variant
def test_the_loop_goes_on_in_a_copy_without_its_original(root: Path, tmp_path: Path, fork_server: ForkServer) -> None:
    shutil.copytree(root, tmp_path / "data")
    away = root.with_name("away")
    root.rename(away)  # whoever still reads the original fails
    before = {path: path.stat().st_mtime_ns for path in away.rglob("*")}
    try:
        with forked(fork_server):
            go_on(deployment(tmp_path / "data"), tmp_path)
        assert not root.exists(), "something wrote where the original was"
        assert {path: path.stat().st_mtime_ns for path in away.rglob("*")} == before
    finally:
        shutil.rmtree(root, ignore_errors=True)
        away.rename(root)


def go_on(settings: Deployment, folder: Path) -> None:
    store, latest = settings.store(), settings.latest()
    for path in sorted(store.path("iterations").glob("*/traces.json")):
        for record in RECORDS.values():
            if (path.parent / record.name).is_file():
                record.read(store, path.parent.name)
    trained = CHECKPOINT.read(store, latest.id).checkpoint
    assert Path(trained.model.uri).is_relative_to(store.root)
    assert digest_dir(Path(trained.model.uri)) == trained.model.digest
    assert read(store, settings.lake(), latest.dataset).num_rows == latest.dataset.rows
    verdict = VERDICT.read(store, latest.id)
    bundle = store.path(latest.path("evidence"))
    assert verify(bundle, verdict.bundle_digest) == verdict
    champion = settings.champion()
    assert Path(champion.model.uri).is_relative_to(store.root)
    assert champion.promotions == 1
    served(settings)
    follow_rollout(settings, print, 120.0)
    with instance(folder / "home") as dagster_instance:
        again = run_loop(settings, dagster_instance)
    assert again.success
    assert "traces" in materialized(again) or settings.latest() == latest
    keep_up(settings, print)
    with open_lake(settings.lake()) as lake:
        files = lake.files(lake.digests(), lake.snapshot)
        assert all(uri.startswith(f"file://{store.root}/") for uri in files)
        users = lake.read(lake.digests(), lake.snapshot, ["user_id"])["user_id"].drop_null().to_pylist()
    proof = forget_user(settings, users[0], print)
    assert proof.rows
    assert proof.remains == ()
    assert audit.verify(store).flaw == ""


def served(settings: Deployment) -> None:
    """MLflow has the artifacts of the first version in this root."""
    client = versions.mlflow_client(settings.tracking_uri())
    version = client.get_model_version(settings.recipe().base_model.name, "1")
    place = settings.store().path("mlflow").as_uri()
    assert version.source.startswith(f"{place}/")
    assert version.run_id is not None
    assert "adapter" in [file.path for file in client.list_artifacts(version.run_id)]
