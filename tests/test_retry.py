"""Every stage again: alone, with all below it, and anew; each over what was there before it."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import dagster as dg
import pytest

from assets import registry
from assets.graph import ASSETS
from assets.records import RECORDS
from assets.resources import Deployment, records
from jobs import retry
from jobs.rollout import main as rollout_main
from pipeline.core import audit
from pipeline.rollout.record import read_events
from tests.fork_server import ForkServer
from tests.iterations import Iterations
from tests.loop import EMBEDDED, ROOT, deployment, forked, instance, undrawn

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

STAGES = retry.STAGES


class Finished(NamedTuple):
    settings: Deployment
    instance: dg.DagsterInstance
    root: Path


@pytest.fixture(scope="module")
def finished(
    iterations: Iterations, fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Finished]:
    """A data root whose iteration went all the way."""
    folder = iterations.first(tmp_path_factory.mktemp("retry"))
    settings = deployment(folder / "data")
    proposed_at = read_events(settings.store(), settings.recipe().base_model.name)[-1].at
    shutil.copytree(folder / "data", folder / "untouched")
    with forked(fork_server), undrawn(), instance(folder / "home") as home, pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "time", SimpleNamespace(time=lambda: proposed_at))  # the rollout's clock stands
        yield Finished(settings, home, folder / "data")


def job(settings: Deployment) -> dg.JobDefinition:
    """The job as `jobs.definitions` has it, in this process."""
    return dg.Definitions(
        assets=ASSETS,
        jobs=[dg.define_asset_job("preference_tuning", selection=ASSETS, executor_def=dg.in_process_executor)],
        resources={"deployment": settings, "io_manager": records},
    ).resolve_job_def("preference_tuning")


@pytest.mark.parametrize(
    "stage, below",
    [
        *((stage, "") for stage in STAGES),
        *(pytest.param(stage, "*", marks=pytest.mark.variant) for stage in ("reward_labels", "eval_report")),
    ],
)
def test_a_stage_runs_again(finished: Finished, stage: str, below: str) -> None:
    again = job(finished.settings).execute_in_process(
        op_selection=[f"{stage}{below}"], instance=finished.instance, raise_on_error=False
    )
    assert again.success, [str(event) for event in again.all_events if event.is_failure]
    wanted = STAGES[STAGES.index(stage) :] if below else (stage,)
    ran = [event.step_key for event in again.all_events if event.is_step_success]
    skipped = [event.step_key for event in again.all_events if event.is_step_skipped]
    if stage == "traces":  # the iteration has ended: there is nothing new, and nothing below is made
        assert ran == ["traces"]
        assert skipped == list(wanted[1:])
    else:
        assert ran == list(wanted)


@pytest.fixture
def typed(finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to type commands in, with a copy of the data root that the environment names."""
    shutil.copy(ROOT / "dagster.yaml", tmp_path)
    root = shutil.copytree(finished.root.with_name("untouched"), tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFERENCE_TUNING_RECIPE", str(EMBEDDED))
    monkeypatch.setenv("PREFERENCE_TUNING_OVERRIDES", " ".join(deployment(root).overrides))
    return root


def test_records_in_the_traffic_are_not_redone(typed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert retry.main(["gate_verdict", "--yes"]) == 2
    assert "version 1 of arithmetic, made by iteration" in capsys.readouterr().err


@pytest.mark.parametrize(
    "stage, launched",
    [
        *((stage, stage == "gate_verdict") for stage in STAGES),
        pytest.param("reward_labels", True, marks=pytest.mark.variant),  # one that is dear to make again
    ],
)
def test_a_stage_is_redone(typed: Path, stage: str, launched: bool, capsys: pytest.CaptureFixture[str]) -> None:
    settings = deployment(typed)
    store, iteration = settings.store(), settings.latest()
    assert rollout_main(["abort", "--reason", "a test"]) == 0
    capsys.readouterr()
    before = {asset: record.find(store, iteration.id) for asset, record in RECORDS.items()}
    names = list(retry.leavings(store, iteration, stage))
    assert retry.main([stage]) == 1, "nobody was there to ask"
    assert all(store.path(name).exists() for name in names)
    assert all(f"  {name} " in capsys.readouterr().out for name in names[:1])

    assert retry.main([stage, "--yes", "--no-launch"]) == 0
    assert "dagster job launch -j preference_tuning" in capsys.readouterr().out.splitlines()[-1]
    kept = STAGES[: STAGES.index(stage)]
    left = {asset for asset, each in RECORDS.items() if store.path(iteration.path(each.name)).exists()}
    assert left == set(kept)
    assert list(retry.leavings(store, iteration, stage)) == []
    assert not store.path(iteration.path("evidence")).exists() or STAGES.index(stage) > STAGES.index("eval_report")
    (entry,) = [entry for entry in audit.entries(store) if entry.kind == "retry"]
    assert (entry.subject, entry.detail["stage"], entry.detail["removed"]) == (iteration.id, stage, names)
    if launched:  # again, to the same records
        with instance(typed.parent / "home") as each:
            assert job(settings).execute_in_process(op_selection=[f"{stage}*"], instance=each).success
        after = {asset: record.find(store, iteration.id) for asset, record in RECORDS.items()}
        assert after["gate_verdict"].candidate == before["gate_verdict"].candidate
        assert after["gate_verdict"].verdict == before["gate_verdict"].verdict
