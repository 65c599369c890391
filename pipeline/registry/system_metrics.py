"""How busy this machine is while it trains, under the names that MLflow has for it (`system/...`).

Owns the samples: when one is due, its step, and those that MLflow has not taken yet. What is measured is for MLflow's
own monitors to say: processor, memory, disk, network, and devices where their libraries are installed. Without psutil
there are no samples. A training in pods is not on this machine: nobody should sample it here.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pipeline.training.metrics_log import LoggedRow

EVERY_S = 10.0
KEPT = 1000
"""Samples that wait for a server that is away; the oldest go first."""


class SystemSampler:
    """The samples of one training; its step is the time since the training began, so one that goes on after a kill
    goes on counting."""

    def __init__(self, started: str, every_s: float = EVERY_S) -> None:
        """`started`: when the training began, in ISO 8601."""
        self._began, self._every_s = datetime.fromisoformat(started).timestamp(), every_s
        self._monitors = _monitors()
        self._due = 0.0
        self._waiting: deque[LoggedRow] = deque(maxlen=KEPT)

    def sample(self) -> Sequence[LoggedRow]:
        """What waits to be sent, with a new sample where one is due."""
        now = time.time()
        if now >= self._due and self._monitors:
            self._due = now + self._every_s
            step = int(max(0.0, now - self._began) / self._every_s)
            self._waiting.append(LoggedRow(now, step, self._measured()))
        return tuple(self._waiting)

    def sent(self) -> None:
        """MLflow has taken what waited."""
        self._waiting.clear()

    def _measured(self) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for monitor in self._monitors:
            monitor.collect_metrics()
            metrics |= {f"system/{name}": float(value) for name, value in monitor.aggregate_metrics().items()}
            monitor.clear_metrics()
        return metrics


def _monitors() -> list[Any]:
    """MLflow's own, as far as what they ask is there."""
    try:
        from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
        from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
        from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
        from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor
        from mlflow.system_metrics.metrics.rocm_monitor import ROCMMonitor
    except ImportError:  # psutil is not here
        return []
    monitors: list[Any] = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
    for device in (GPUMonitor, ROCMMonitor):
        try:
            monitors.append(device())
        except (ImportError, RuntimeError):  # no library of the devices, or no device
            continue
    return monitors
