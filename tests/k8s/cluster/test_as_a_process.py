"""The suite against a cluster that KUBECONFIG names, which here is the tests' own as a process of its own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOME = ("tests/k8s/test_launch.py::test_a_gang_comes_trains_and_ends",
        "tests/k8s/test_follow.py::test_no_node_for_too_long_is_a_failure_that_a_retry_may_mend",
        "tests/k8s/cluster/test_queues.py::test_second_gang_waits_for_the_quota_of_the_first",
        "tests/k8s/cluster/test_controllers.py::test_a_claim_is_bound_to_the_volume_of_its_uid")  # fmt: skip


@pytest.mark.variant
@pytest.mark.slow
def test_tests_run_on_a_cluster_that_is_not_theirs(tmp_path: Path) -> None:
    """It has free machines of the type that a test takes to be missing."""
    kubeconfig = tmp_path / "kubeconfig"
    with subprocess.Popen([sys.executable, "-m", "tests.k8s.cluster", str(kubeconfig)], cwd=ROOT) as served:
        try:
            while not kubeconfig.exists():
                assert served.poll() is None
                time.sleep(0.05)
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *SOME]
            environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0 and "skipped" not in done.stdout, done.stdout + done.stderr
        finally:
            served.send_signal(signal.SIGTERM)
    assert served.returncode == 0, "its controllers raised nothing"
