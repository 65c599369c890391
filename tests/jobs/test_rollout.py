"""The commands as a person types them, and the job of the same, on a real store, router and registry."""

import json
import os
import pwd
import shlex
from pathlib import Path

import dagster as dg
import pytest

from assets.resources import Deployment, deployment
from jobs.preference_tuning import rollout_decision
from jobs.rollout import main
from pipeline import audit
from pipeline.rollout.controller import tick
from pipeline.rollout.fold import read_state
from pipeline.rollout.ports import RolloutPorts
from pipeline.rollout.record import Phase, RolloutState, RolloutStep, append, step_event
from pipeline.rollout.router import LocalRouter
from tests.loop import EMBEDDED, instance, open_rollout

NAME = "arithmetic"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One MLflow for all: its schema takes seconds to lay out, and no test here changes what is in it."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: str) -> Deployment:
    """A deployment of the environment, whose base model serves; nothing was ever rolled out."""
    base = EMBEDDED.parents[2] / "pipeline" / "demo" / "model"
    words = shlex.join([f"data_root={tmp_path / 'data'}", f"base_model.uri={base}"])
    monkeypatch.setenv("PREFERENCE_TUNING_RECIPE", str(EMBEDDED))
    monkeypatch.setenv("PREFERENCE_TUNING_OVERRIDES", words)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", registry)
    return deployment()


@pytest.fixture
def held(settings: Deployment, tmp_path: Path) -> str:
    """A rollout at 5% that three looks without metrics hold."""
    rollout = open_rollout(settings, tmp_path, 1000.0)
    for n in range(1, 8):
        look(settings, 1000.0 + n)
    assert state(settings).phase is Phase.HELD
    return rollout


def look(settings: Deployment, now: float) -> None:
    store = settings.store()
    tick(RolloutPorts(store, NAME, LocalRouter(store, NAME), lambda state: None), now)


def state(settings: Deployment) -> RolloutState:
    return read_state(settings.store(), NAME)


def weight(settings: Deployment) -> int:
    split = LocalRouter(settings.store(), NAME).read()
    assert split is not None
    return split.canary_weight


def decided(settings: Deployment) -> list[tuple[str, str, str]]:
    entries = [e.detail for e in audit.entries(settings.store()) if e.kind == "decision"]
    return [(e["action"], e["by"], e["reason"]) for e in entries]


def test_status_without_a_rollout_says_who_serves(settings: Deployment, capsys) -> None:
    assert main(["status"]) == 0
    out = capsys.readouterr().out
    assert "the base model" in out
    assert "dagster job launch -j preference_tuning" in out


def test_status_says_what_is_held_why_and_what_to_type(settings: Deployment, held: str, capsys) -> None:
    assert main(["status"]) == 0
    out = capsys.readouterr().out
    for words in (f"{held}, of version 7", "held since", "5% on the canary; the router reads 5%", "no metrics"):
        assert words in out
    assert f"python -m jobs.rollout resume --rollout {held} --reason 'WHY'" in out
    assert f"python -m jobs.rollout abort --rollout {held} --reason 'WHY'" in out


@pytest.mark.slow
def test_each_command_that_status_shows_runs(settings: Deployment, held: str, capsys) -> None:
    main(["status"])
    shown = [shlex.split(line) for line in capsys.readouterr().out.splitlines() if "python -m jobs.rollout" in line]
    for words in shown:
        assert main(words[words.index("jobs.rollout") + 1 :]) == 0
    assert [action for action, _, _ in decided(settings)] == ["resume", "abort"]


def test_status_as_json_is_one_object(settings: Deployment, held: str, capsys) -> None:
    assert main(["status", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["rollout"], report["phase"], report["weight"]) == (held, "held", 5)
    assert report["decisions"] == ["resume", "abort"]


def test_abort_moves_the_traffic_and_says_so(settings: Deployment, held: str, capsys) -> None:
    assert main(["abort", "--reason", "it cannot be graded"]) == 0
    assert "is aborted: the router reads 0%" in capsys.readouterr().out
    assert (state(settings).phase, weight(settings)) == (Phase.ABORTED, 0)
    account = pwd.getpwuid(os.getuid()).pw_name
    assert decided(settings) == [("abort", account, "it cannot be graded")]
    assert main(["abort", "--reason", "once more"]) == 1
    assert f"no rollout is active: the last one, {held}, is aborted" in capsys.readouterr().out


def test_resume_lets_it_go_on_and_says_what_comes_next(settings: Deployment, held: str, capsys) -> None:
    assert main(["resume", "--reason", "metrics are back", "--by", "operator"]) == 0
    assert "goes on at 5%" in capsys.readouterr().out
    assert (state(settings).phase, weight(settings)) == (Phase.SHIFTING, 5)
    assert decided(settings) == [("resume", "operator", "metrics are back")]
    assert main(["resume", "--reason", "again"]) == 1
    assert "is shifting, and only a held one can be resumed" in capsys.readouterr().out


def test_a_decision_needs_a_reason(settings: Deployment, held: str, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["abort"])
    assert ended.value.code == 2
    assert main(["abort", "--reason", ""]) == 2
    assert "no reason" in capsys.readouterr().err
    assert state(settings).phase is Phase.HELD


def test_another_rollout_is_refused_with_the_active_one(settings: Deployment, held: str, capsys) -> None:
    assert main(["abort", "--reason", "r", "--rollout", "000000000000"]) == 1
    assert f"which is {held}" in capsys.readouterr().out
    assert weight(settings) == 5


def test_what_could_not_be_done_is_said(settings: Deployment, held: str, capsys) -> None:
    settings.store().path("rollout", NAME, "router.json").write_text("{")
    assert main(["abort", "--reason", "r"]) == 2
    assert "router.json is not a readable Split" in capsys.readouterr().err
    assert state(settings).phase is Phase.ROLLING_BACK


def run(settings: Deployment, folder: Path, **config: str) -> dg.ExecuteInProcessResult:
    with instance(folder) as home:
        return rollout_decision.execute_in_process(
            run_config={"ops": {"decide_rollout": {"config": config}}},
            resources={"deployment": settings},
            instance=home,
            raise_on_error=False,
        )


@pytest.mark.slow
def test_the_job_decides_like_the_command(settings: Deployment, held: str, tmp_path: Path) -> None:
    done = run(settings, tmp_path / "a", action="resume", rollout=held, reason="metrics are back", by="operator")
    assert done.success
    digest = append_held(settings)
    done = run(settings, tmp_path / "b", action="abort", rollout=digest, reason="enough", by="operator")
    assert done.success
    assert decided(settings) == [("resume", "operator", "metrics are back"), ("abort", "operator", "enough")]
    assert (state(settings).phase, weight(settings)) == (Phase.ABORTED, 0)


def append_held(settings: Deployment) -> str:
    """The rollout is held again; returns its candidate's digest."""
    now = state(settings)
    assert now.proposal is not None
    append(settings.store(), NAME, now, step_event(now, 2000.0, RolloutStep(Phase.HELD, "again")))
    return now.proposal.version.model.digest


@pytest.mark.parametrize("rollout", ["000000000000", ""])
def test_the_job_refuses_another_rollout_or_none(rollout: str, settings: Deployment, held: str, tmp_path: Path) -> None:
    done = run(settings, tmp_path / "home", action="abort", rollout=rollout, reason="r", by="operator")
    assert not done.success
    assert (state(settings).phase, weight(settings)) == (Phase.HELD, 5)
    assert decided(settings) == []
