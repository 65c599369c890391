"""The ways back that a person has: through the record, without Dagster and MLflow, and without the store."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from assets.resources import Deployment
from jobs.rollout.__main__ import main
from jobs.rollout.rollback import router_to_zero
from pipeline.core.storage import ModelRef, Store
from pipeline.rollout.gateway.split import GatewaySplit
from pipeline.rollout.record import Phase, read_events
from pipeline.rollout.router import Readiness, Split, Unsettled
from tests.jobs.rollout.decided import NAME, decided, look, state, weight
from tests.pipeline.rollout.conftest import split_at
from tests.pipeline.rollout.local_router import LocalRouter
from tests.pipeline.rollout.webhook import webhook


def quarantined(settings: Deployment) -> bool:
    now = state(settings)
    return now.proposal is not None and now.proposal.version.model.digest in now.past.quarantined


@pytest.mark.parametrize("how", [[], ["--now"]])
def test_a_rollback_moves_the_traffic_and_quarantines(how: list[str], settings: Deployment, held: str, capsys) -> None:
    assert main(["rollback", *how, "--reason", "it insults people", "--by", "ada", "--rollout", held]) == 0
    out = capsys.readouterr().out
    assert f"Rollout {held} is rolled_back: the router reads 0% on the canary (it insults people)" in out
    assert (state(settings).phase, weight(settings)) == (Phase.ROLLED_BACK, 0)
    assert quarantined(settings)
    assert decided(settings)[0] == ("rollback", "ada", "it insults people")


def test_now_needs_no_registry(
    settings: Deployment, held: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'gone' / 'mlflow.db'}")
    assert main(["rollback", "--now", "--reason", "r"]) == 0
    assert "Not everything follows yet" not in capsys.readouterr().out
    assert weight(settings) == 0


@pytest.mark.slow
def test_now_needs_no_instance_of_dagster(settings: Deployment, held: str, tmp_path: Path) -> None:
    """Typed in a folder without `dagster.yaml`, with an instance that cannot be opened."""
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root), "DAGSTER_HOME": str(tmp_path / "nowhere")}
    command = [sys.executable, "-m", "jobs.rollout", "rollback", "--now", "--reason", "r"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert weight(settings) == 0


def test_a_router_that_does_not_obey_is_said(settings: Deployment, held: str, capsys, monkeypatch) -> None:
    monkeypatch.setattr(GatewaySplit, "apply", lambda self, split: None)
    assert main(["rollback", "--now", "--reason", "r"]) == 2
    assert "the router does not read that yet" in capsys.readouterr().out
    assert state(settings).phase is Phase.ROLLING_BACK


def test_router_only_writes_no_event_and_the_next_look_holds(settings: Deployment, held: str, capsys) -> None:
    main(["resume", "--reason", "mended"])
    look(settings, 3000.0)
    assert state(settings).phase is Phase.OBSERVING
    events = len(read_events(settings.store(), NAME))
    assert main(["rollback", "--router-only"]) == 0
    assert f"Rollout {held}: the router reads 0% on the canary, 5% before" in capsys.readouterr().out
    assert (len(read_events(settings.store(), NAME)), weight(settings)) == (events, 0)
    look(settings, 3010.0)
    assert (state(settings).phase, weight(settings)) == (Phase.HELD, 0)


def test_router_only_reads_nothing_of_the_record(settings: Deployment, held: str) -> None:
    """A store whose record is gone, or cannot be read."""
    shutil.rmtree(settings.store().path("rollout", NAME, "events"))
    assert main(["rollback", "--router-only"]) == 0
    assert weight(settings) == 0


def test_router_only_of_another_rollout_is_refused(settings: Deployment, held: str, capsys) -> None:
    assert main(["rollback", "--router-only", "--rollout", "000000000000"]) == 1
    assert f"the router serves rollout {held}, not 000000000000" in capsys.readouterr().out
    assert weight(settings) == 5


class _Router:
    """A router that obeys some time after it is asked, or never."""

    unit = "request"

    def __init__(self, reads: list[Split | Unsettled | None]) -> None:
        self.reads, self.applied = reads, list[Split]()

    def read(self) -> Split | Unsettled | None:
        return self.reads.pop(0) if len(self.reads) > 1 else self.reads[0]

    def apply(self, split: Split) -> None:
        self.applied.append(split)

    def ready(self, model: ModelRef) -> Readiness:
        return Readiness(served_digest=model.digest, replicas=1)

    def servers(self, model: ModelRef) -> tuple[str, ...]:
        return ()


def test_a_router_that_lags_is_waited_for() -> None:
    router = _Router([split_at(25), split_at(25), Unsettled(reason="one generation behind"), split_at(0)])
    assert "reads 0% on the canary, 25% before" in router_to_zero(router, sleep_s=0.0)
    assert [(each.rollout, each.canary_weight) for each in router.applied] == [("r", 0)]


def test_a_router_that_never_obeys_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.rollout.rollback.READ_BACK_WITHIN_S", 0.05)
    with pytest.raises(ValueError, match=r"still reads.*by hand"):
        router_to_zero(_Router([split_at(25)]), sleep_s=0.01)


def test_a_router_at_zero_is_left_alone() -> None:
    router = _Router([split_at(0)])
    assert "already" in router_to_zero(router)
    assert router.applied == []


def test_a_router_without_a_split_says_to_set_it_by_hand(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none was ever applied.*by hand"):
        router_to_zero(LocalRouter(Store(tmp_path), NAME))


def test_a_decision_at_the_terminal_is_told(settings: Deployment, held: str, monkeypatch) -> None:
    with webhook() as hook:
        monkeypatch.setenv("NOTIFY_URL", hook.url)
        main(["rollback", "--now", "--reason", "it insults people", "--by", "ada"])
    assert "ROLLED BACK: the router reads 0%. It insults people (by ada)." in "\n".join(hook.messages)
