"""The commands as a person types them, and the job of the same, on a real store, router and registry."""

import json
import os
import pwd
import shlex
from pathlib import Path

import dagster as dg
import pytest

from assets.environment import CHOICE_TAG
from assets.resources import Deployment, deployment
from jobs.coordinator import launch_refusal
from jobs.preference_tuning import rollout_decision
from jobs.rollout import main
from pipeline.core import audit
from pipeline.rollout.gateway.split import GatewaySplit
from pipeline.rollout.notices import notices
from pipeline.rollout.record import Phase, read_events
from pipeline.rollout.router import Split
from tests.jobs.rollout.decided import decided, hold_again, look, state, weight
from tests.loop import instance
from tests.opened import open_rollout


def test_status_without_a_rollout_says_who_serves(settings: Deployment, capsys) -> None:
    assert main(["status"]) == 0
    out = capsys.readouterr().out
    assert "the base model" in out
    assert "dagster job launch -j preference_tuning" in out


def test_status_says_what_is_held_why_and_what_to_type(settings: Deployment, held: str, capsys) -> None:
    assert main(["status"]) == 0
    out = capsys.readouterr().out
    for words in (
        f"{held}, of version 7",
        "held since",
        "5% on the canary, of 5% → 25% → 80%; the router reads 5%",
        "no metrics",
    ):
        assert words in out
    assert f"pt rollout resume --rollout {held} --reason 'WHY'" in out
    assert f"pt rollout abort --rollout {held} --reason 'WHY'" in out


@pytest.mark.slow
def test_a_rollback_moves_the_traffic_and_quarantines(
    settings: Deployment, held: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """An MLflow that is away keeps nothing back."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'gone' / 'mlflow.db'}")
    assert main(["rollback", "--reason", "it insults people", "--by", "ada", "--rollout", held]) == 0
    out = capsys.readouterr().out
    assert f"Rollout {held} is rolled_back, with 0% on the canary: it insults people" in out
    now = state(settings)
    assert (now.phase, weight(settings)) == (Phase.ROLLED_BACK, 0)
    assert now.opened.version.model.digest in now.past.quarantined
    assert decided(settings)[0] == ("rollback", "ada", "it insults people")
    told = notices(read_events(settings.store(), "arithmetic"))[-1].text
    assert told.endswith("ROLLED BACK: the router reads 0%. It insults people (by ada).")


@pytest.mark.slow
def test_a_rollback_needs_no_instance_of_dagster(
    settings: Deployment, held: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Typed in a folder without `dagster.yaml`, with an instance that cannot be opened."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "nowhere"))
    assert main(["rollback", "--reason", "r"]) == 0
    assert weight(settings) == 0


@pytest.mark.slow
def test_each_command_that_status_shows_runs(settings: Deployment, held: str, capsys) -> None:
    main(["status"])
    shown = [shlex.split(line) for line in capsys.readouterr().out.splitlines() if "pt rollout" in line]
    for words in shown:
        assert main(words[words.index("rollout") + 1 :]) == (1 if "rollback" in words else 0)  # aborted by then
    assert [action for action, _, _ in decided(settings)] == ["resume", "abort"]


def test_status_as_json_is_one_object(settings: Deployment, held: str, capsys) -> None:
    assert main(["status", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["state"]["proposal"]["rollout"], report["state"]["phase"], report["weight"]) == (held, "held", 5)
    assert report["decisions"] == ["resume", "abort", "rollback"]


def test_an_override_of_a_frozen_policy_is_refused(settings: Deployment, held: str) -> None:
    """By its name, of launches that a person types. What is of a run and not of the rollout may differ."""
    told = ["rollout.max_quality_drop=0.2", "rollout.dwell_s=[2, 2, 2]", "rollout.drive_for_s=9"]
    for job, overrides, said in (
        ("canary_rollout", told, "(rollout.max_quality_drop: 0.05, now 0.2)"),
        ("preference_tuning", told, f"Rollout {held} keeps its policy"),
        ("canary_rollout", told[1:], ""),
        ("label_traces", told, ""),
    ):
        choice = json.dumps([settings.recipe_path, [*settings.overrides, *overrides]])
        refusal = launch_refusal(dg.DagsterRun(job_name=job, run_id="r", tags={CHOICE_TAG: choice}))
        assert said in refusal if said else refusal == ""


@pytest.mark.slow
def test_abort_moves_the_traffic_and_says_so(settings: Deployment, held: str, capsys) -> None:
    assert main(["abort", "--reason", "it cannot be graded"]) == 0
    out = capsys.readouterr().out
    assert "is aborted, with 0% on the canary" in out and out.endswith(" dagster job launch -j preference_tuning\n")
    assert (state(settings).phase, weight(settings)) == (Phase.ABORTED, 0)
    assert not state(settings).past.quarantined
    account = pwd.getpwuid(os.getuid()).pw_name
    assert decided(settings) == [("abort", account, "it cannot be graded")]
    assert main(["abort", "--reason", "once more"]) == 1
    assert f"no rollout is active: the last one, {held}, is aborted" in capsys.readouterr().out


def test_a_decision_needs_a_reason(settings: Deployment, held: str, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["abort"])
    assert ended.value.code == 2
    assert main(["abort", "--reason", ""]) == 2
    assert "no reason" in capsys.readouterr().err
    assert state(settings).phase is Phase.HELD


@pytest.mark.slow
def test_what_could_not_be_done_is_said(settings: Deployment, held: str, capsys, monkeypatch) -> None:
    def broken(self: GatewaySplit, split: Split | None = None) -> Split:
        raise OSError("the gateway hangs")

    monkeypatch.setattr(GatewaySplit, "read", broken)
    assert main(["abort", "--reason", "r"]) == 2
    out = capsys.readouterr().out
    assert "the gateway hangs" in out
    assert "the router does not read that yet" in out
    assert state(settings).phase is Phase.ROLLING_BACK


@pytest.mark.slow
def test_pause_holds_it_and_resume_goes_on(settings: Deployment, held: str, capsys) -> None:
    main(["resume", "--reason", "mended"])
    assert main(["pause", "--reason", "a holiday", "--rollout", held]) == 0
    assert f"Rollout {held} is held, with 5% on the canary" in capsys.readouterr().out
    assert (state(settings).phase, weight(settings)) == (Phase.HELD, 5)
    assert main(["pause", "--reason", "twice"]) == 1
    assert [action for action, _, _ in decided(settings)] == ["resume", "pause"]


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
    meant = {"rollout": held, "by": "operator"}
    assert run(settings, tmp_path / "a", action="resume", reason="metrics are back", **meant).success
    hold_again(settings)
    assert run(settings, tmp_path / "b", action="abort", reason="enough", **meant).success
    assert decided(settings) == [("resume", "operator", "metrics are back"), ("abort", "operator", "enough")]
    assert (state(settings).phase, weight(settings)) == (Phase.ABORTED, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "wrong"),
    [("abort", "000000000000"), ("approve", "")],
)
def test_the_job_refuses_another_candidate(
    action: str, wrong: str, settings: Deployment, held: str, tmp_path: Path
) -> None:
    done = run(settings, tmp_path / "home", action=action, reason="r", by="operator", rollout=wrong)
    assert not done.success
    assert (state(settings).phase, weight(settings)) == (Phase.HELD, 5)
    assert decided(settings) == []


@pytest.mark.slow
def test_an_approver_lets_the_candidate_in_once(
    settings: Deployment, overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    people = "rollout.approvers=[ada@example.org,bob@example.org]"
    monkeypatch.setenv("PREFERENCE_TUNING_OVERRIDES", shlex.join([*overrides, people]))
    waiting = open_rollout(deployment(), tmp_path, 1000.0, "bob")
    for n in range(1, 4):
        look(settings, 1000.0 + n)
    assert main(["status"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "one of ada@example.org, bob@example.org to approve it, who did not propose it (bob did)" in out
    assert f"pt rollout approve --rollout {waiting} --by NAME --reason 'WHY'" in out

    def approve(by: str, rollout: str = waiting) -> tuple[int, str]:
        code = main(["approve", "--rollout", rollout, "--by", by, "--reason", "looked at it"])
        return code, capsys.readouterr().out

    for by, rollout, why in (
        ("bob@example.org", waiting, "bob@example.org proposed this candidate as bob: somebody else"),
        ("eve@example.org", waiting, "eve@example.org is not among rollout.approvers"),
        ("ada@example.org", "", "names no rollout"),
    ):
        code, out = approve(by, rollout)
        assert code == 1 and why in out and state(settings).phase is Phase.GATED and decided(settings) == []
    assert "is approved, with 0% on the canary" in approve("ada@example.org")[1]
    assert decided(settings) == [("approve", "ada@example.org", "looked at it")]
    [entry] = [e for e in audit.entries(settings.store()) if e.kind == "approval"]
    made = state(settings).opened
    assert (entry.detail["digest"], entry.detail["bundle"]) == (made.version.model.digest, made.bundle_digest)
    code, out = approve("ada@example.org")
    assert code == 1 and "is approved, and nothing is there to approve" in out
    look(settings, 1010.0)
    assert (state(settings).phase, state(settings).canary_weight) == (Phase.SHIFTING, 5)
