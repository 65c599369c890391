"""MLflow's database under a data root that was moved or copied, with a real MLflow."""

import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.core.iteration import identify
from pipeline.core.storage import DatasetRef, ModelRef, Store, digest_dir, sweep_unfinished
from pipeline.registry.runs import MlflowAddresses, mlflow_client
from pipeline.registry.tracking import local_tracking

from .conftest import put_on_record

ROOT = Path(__file__).parents[3]
NAME = "sums & more"


def keep(store):
    adapter = store.path("adapter")
    adapter.mkdir(parents=True, exist_ok=True)
    (adapter / "adapter_config.json").write_text("{}")
    dataset = DatasetRef(uri=f"file://{store.root}/lake/governed/traces", rows=1, digest="data")
    ref = ModelRef(uri=str(adapter), digest=digest_dir(adapter))
    iteration = identify(0, NAME, ModelRef(uri="base", digest="base"), dataset, "recipe")
    params = {"data_root": str(store.root), "training": {"steps": 2}}
    put_on_record(MlflowAddresses(local_tracking(store)), store, iteration, ref, ref, params=params)


def text_of(database):
    with closing(sqlite3.connect(database)) as connection:
        return "\n".join(connection.iterdump())


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("tracking") / "old root")
    keep(store)
    return store


@pytest.mark.slow
def test_tracking_names_the_data_root_for_artifacts_alone(made):
    lines = [line for line in text_of(made.path("mlflow", "mlflow.db")).splitlines() if made.root.name in line]
    assert not [line for line in lines if "/mlflow/" not in line and "%20" not in line]
    run = mlflow_client(local_tracking(made)).search_runs(["1"])[0]
    assert run.data.params["data_root"] == "relative:."
    assert run.data.tags["dataset.uri"] == "relative:file://lake/governed/traces"


@pytest.mark.slow
def test_a_copy_finds_its_own_artifacts_and_no_others(made, tmp_path):
    copy = Store(tmp_path / "copy")
    shutil.copytree(made.root, copy.root)
    before = text_of(made.path("mlflow", "mlflow.db"))
    client = mlflow_client(local_tracking(copy))
    version = client.get_model_version(NAME, "1")
    place = copy.path("mlflow", NAME).as_uri()
    assert version.source.startswith(f"{place}/")
    assert client.get_model_version_download_uri(NAME, "1").startswith(f"{place}/")
    assert client.get_run(version.run_id).info.artifact_uri.startswith(f"{place}/")
    copy.path("mlflow", NAME, version.run_id, "artifacts", "adapter", "adapter_config.json").write_text("the copy's")
    folder = Path(client.download_artifacts(version.run_id, "adapter"))
    assert (folder / "adapter_config.json").read_text() == "the copy's"
    assert made.root.as_uri() not in text_of(copy.path("mlflow", "mlflow.db"))
    assert text_of(made.path("mlflow", "mlflow.db")) == before


DIES_AMONG_THE_TABLES = """
import os, signal, sys
import alembic.op
from pipeline.registry.runs import mlflow_client
create_table = alembic.op.create_table
def made(name, *columns, **options):
    table = create_table(name, *columns, **options)
    if name == "spans":
        os.kill(os.getpid(), signal.SIGKILL)
    return table
alembic.op.create_table = made
mlflow_client(sys.argv[1])
"""


@pytest.mark.slow
def test_a_kill_while_the_tables_are_made_leaves_no_database(tmp_path):
    store = Store(tmp_path / "a%2Fb ?#ü [1]")
    store.path("mlflow").mkdir(parents=True)
    uri = local_tracking(store)
    assert subprocess.run([sys.executable, "-c", DIES_AMONG_THE_TABLES, uri], cwd=ROOT).returncode == -signal.SIGKILL
    assert not store.path("mlflow", "mlflow.db").exists()
    assert [experiment.name for experiment in mlflow_client(uri).search_experiments()] == ["Default"]
    sweep_unfinished(store.root)
    assert [path.name for path in store.path("mlflow").iterdir()] == ["mlflow.db"]
