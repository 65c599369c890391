"""Two real ranks as two pods: evicted, killed, brought back, and the same weights to the bit in the end."""

from pathlib import Path

import pytest

from k8s.attempts import GangAttempts
from pipeline.training.journal import read_journal
from tests.fork_server import adapter_of, result_of
from tests.pipeline.training.plans import adapter, folder, two_ranks

from .conftest import Cluster, Launch

STEPS_S = 900
"""For each part: only a hang should fail."""


@pytest.mark.variant
@pytest.mark.slow
@pytest.mark.pods
@pytest.mark.timeout(2 * STEPS_S)
def test_evicted_and_killed_gang_ends_with_the_same_weights(
    cluster: Cluster, tmp_path: Path, undisturbed_ranks: Path
) -> None:
    """A machine for each of two ranks, against both ranks on one machine."""
    store, plan = two_ranks(tmp_path / "gang")
    plan = plan.model_copy(update={"nodes": 2, "processes": 1})
    assert plan.digest() == result_of(undisturbed_ranks).plan_digest
    store.write(f"iterations/{plan.iteration}/training/plan.json", plan)
    journal, checkpoints = folder(store, plan) / "journal.jsonl", folder(store, plan) / "checkpoints"

    with cluster.kubelet(tmp_path / "logs", environment={"GLOO_SOCKET_IFNAME": "lo"}) as kubelet:
        cluster.driver.patience_s = STEPS_S
        launched = Launch(cluster, (store, plan), cluster.settings(tmp_path))
        cluster.driver.wait_until(lambda: any(checkpoints.glob("step-*")) or not launched.is_alive(), "a checkpoint")
        victim = cluster.pods()[1]
        assert cluster.api.evict(cluster.namespace, victim["metadata"]["name"]) == 201

        def resumed(times: int) -> bool:
            attempts = 0
            for event in read_journal(journal):
                attempts += event.kind == "started"
                if attempts > times and event.kind == "step":
                    return True
            return not launched.is_alive()

        cluster.driver.wait_until(lambda: resumed(1), "the first step after the eviction")
        kubelet.kill(cluster.namespace, cluster.pods()[0]["metadata"]["name"])
        assert launched.ended(STEPS_S) is None, "\n".join(launched.lines)

    assert adapter(store, plan) == adapter_of(undisturbed_ranks)
    assert launched.result is not None
    assert [each.cause for each in launched.result.preemptions] == ["SIGTERM", "killed"]
    assert launched.result.preemptions[0].lost_steps == 0
    (attempt,) = GangAttempts(store, plan.iteration).all()
    assert (attempt.outcome, attempt.restarts) == ("succeeded", 2)
    assert any("resum" in line for line in launched.lines)
    (jobset,) = cluster.jobsets()
    assert jobset["status"]["restartsCountTowardsMax"] == 1, "the crash, not the eviction"
    print("from the eviction to the next step:", f"{_back_after_s(journal):.1f} s")


def _back_after_s(journal: Path) -> float:
    events = read_journal(journal)
    stopped = next(n for n, event in enumerate(events) if event.kind == "stopping")
    step = next(event for event in events[stopped:] if event.kind == "step" and event.at > events[stopped].at)
    return step.at - events[stopped].at
