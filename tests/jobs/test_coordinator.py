"""Which daemon a launch leaves its run to, whatever the clock says."""

import time
from pathlib import Path

import dagster as dg
import pytest
from dagster._daemon.types import DaemonHeartbeat

from jobs.coordinator import HEARTBEAT_S, daemon_is_alive
from jobs.dagster_internals import queue_daemon_type

DAY_S = 86_400.0


@pytest.mark.parametrize(("age_s", "is_alive"), [(1.0, True), (HEARTBEAT_S + 5.0, False), (-DAY_S, False)])
def test_a_daemon_of_before_a_clock_was_set_back_is_gone(age_s: float, is_alive: bool, tmp_path: Path) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        assert not daemon_is_alive(instance)
        instance.add_daemon_heartbeat(DaemonHeartbeat(time.time() - age_s, queue_daemon_type(), "a daemon", None))
        assert daemon_is_alive(instance) is is_alive
