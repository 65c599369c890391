"""The job for Dagster's Launchpad: what it decides, and that it decides nothing about another candidate."""

from pathlib import Path

import dagster as dg
import pytest

from assets.resources import Deployment
from jobs.preference_tuning import rollout_decision
from pipeline.rollout.record import Phase
from tests.jobs.rollout.decided import decided, hold_again, state, weight
from tests.loop import instance

pytestmark = pytest.mark.slow


def run(settings: Deployment, folder: Path, **config: str) -> dg.ExecuteInProcessResult:
    with instance(folder) as home:
        return rollout_decision.execute_in_process(
            run_config={"ops": {"decide_rollout": {"config": config}}},
            resources={"deployment": settings},
            instance=home,
            raise_on_error=False,
        )


def digest(settings: Deployment) -> str:
    proposal = state(settings).proposal
    assert proposal is not None
    return proposal.version.model.digest


def test_the_job_decides_like_the_command(settings: Deployment, held: str, tmp_path: Path) -> None:
    meant = {"rollout": held, "digest": digest(settings), "by": "operator"}
    assert run(settings, tmp_path / "a", action="resume", reason="metrics are back", **meant).success
    hold_again(settings)
    meant["digest"] = meant["digest"][:12]
    assert run(settings, tmp_path / "b", action="abort", reason="enough", **meant).success
    assert decided(settings) == [("resume", "operator", "metrics are back"), ("abort", "operator", "enough")]
    assert (state(settings).phase, weight(settings)) == (Phase.ABORTED, 0)


@pytest.mark.parametrize(
    ("action", "wrong"),
    [("abort", "rollout"), ("rollback", "digest"), ("resume", "short"), ("pause", "none"), ("approve", "digest")],
)
def test_the_job_refuses_another_candidate(
    action: str, wrong: str, settings: Deployment, held: str, tmp_path: Path
) -> None:
    meant = {"rollout": held, "digest": digest(settings)}
    meant |= {
        "rollout": {"rollout": "000000000000"},
        "digest": {"digest": "0" * 64},
        "short": {"digest": digest(settings)[:11]},
        "none": {"rollout": "", "digest": ""},
    }[wrong]
    done = run(settings, tmp_path / "home", action=action, reason="r", by="operator", **meant)
    assert not done.success
    assert (state(settings).phase, weight(settings)) == (Phase.HELD, 5)
    assert decided(settings) == []
