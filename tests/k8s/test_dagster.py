"""The asset on a cluster: the same record, the same metadata, and the pod's progress in the run's log."""

from pathlib import Path

import dagster as dg
import pytest
import yaml

from assets.graph import ASSETS
from assets.resources import Deployment, records
from k8s.ledger import Ledger
from pipeline.iteration import Iteration
from pipeline.layout import LATEST
from pipeline.pinning import pin
from pipeline.storage import DatasetRef
from pipeline.traces.records import GovernedTraces
from tests.pipeline.training.plans import make_plan

from .cluster.kubelet import Kubelet
from .conftest import Cluster

EMBEDDED = Path(__file__).parents[2] / "jobs" / "recipes" / "embedded.yaml"


@pytest.mark.slow
@pytest.mark.pods
def test_the_training_asset_runs_on_the_cluster_that_the_recipe_names(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    store, plan = make_plan(tmp_path / "data")
    dataset = DatasetRef(uri="d", rows=1, digest="d")
    iteration = Iteration(
        id=plan.iteration, number=0, model_name="m", champion=plan.base, dataset=dataset, recipe_digest=""
    )
    traces = GovernedTraces(iteration=iteration, source="s", days=(), seen=0, admitted=0, rejected={})
    store.write(iteration.path("traces.json"), traces)
    store.write(LATEST, iteration)
    placed = cluster.settings(tmp_path).model_dump(mode="json", exclude_defaults=True)
    settings = Deployment(
        recipe_path=str(EMBEDDED),
        overrides=[f"data_root={tmp_path / 'data'}", f"compute.kubernetes={yaml.safe_dump(placed)}"],
    )
    pin(store, iteration, settings.recipe())
    resources = {"deployment": settings, "io_manager": records}
    with Kubelet(cluster.api, tmp_path / "logs") as kubelet, dg.instance_for_test() as instance:
        cluster.ours.logs = kubelet.logs
        result = dg.materialize(ASSETS, selection=["policy_checkpoint"], resources=resources, instance=instance)
        logged = [entry.user_message for entry in instance.all_logs(result.run_id)]
    assert result.success
    (event,) = result.get_asset_materialization_events()
    shown = {name: value.value for name, value in event.step_materialization_data.materialization.metadata.items()}
    assert (shown["steps"], shown["launches"], shown["attempts"]) == (6, 1, 1)
    assert sum("step 3/6" in message for message in logged) == 1
    assert any("running: 1 pod" in message for message in logged)
    account = store.read(iteration.path("training", "ledger.json"), Ledger)
    assert account is not None
    assert account.measured
    assert account.requests > 0
