"""Iterations of the shortened recipe that run once, for all tests and all workers of a run of pytest to copy.

A copy is as good as the original: no file of a data root says where it lies.
"""

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

from jobs.retry import leavings, remove
from pipeline.core import layout

from .fork_server import ForkServer
from .loop import deployment, forked, instance, run_loop, undrawn

FEW = (
    "training.grpo.steps=2", "training.grpo.prompts_per_step=4", "training.validation.every_steps=2",
    "evaluation.suites.0.items=60", "evaluation.max_standard_error=0.2",
)  # fmt: skip
"""A second training need not be long: that it begins from the promoted model is what its tests are about."""


class Iterations:
    """Snapshots below `folder`, which several workers may share: whoever needs one first makes it."""

    def __init__(self, folder: Path, server: ForkServer) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._server = folder, server

    def first(self, target: Path) -> Path:
        """`target`/data after a launch that ended in a rollout at its first weight, `target`/home with Dagster's record
        of it; and `target`/production: the traffic of the first model, which a root before its first launch may have.
        """
        return self._copy("first", self._make_first, target)

    def second(self, target: Path) -> Path:
        """The same after another launch, which took the rollout to the promotion and made the next iteration."""
        return self._copy("second", self._make_second, target)

    def planned(self, target: Path) -> Path:
        """The first as a launch leaves it that ends before its training begins: no model, no rollout."""
        store = deployment(self.first(target) / "data").store()
        latest = deployment(target / "data").latest()
        remove(store, latest, "policy_checkpoint", list(leavings(store, latest, "policy_checkpoint")))
        for name in (layout.ROLLOUT, layout.MLFLOW):
            shutil.rmtree(store.path(name))
        return target

    def _copy(self, name: str, make: Callable[[Path], None], target: Path) -> Path:
        path = self.folder / name
        with (self.folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.is_dir():
                staged = self.folder / f"{name}.staged"
                shutil.rmtree(staged, ignore_errors=True)
                with forked(self._server), undrawn():
                    make(staged)
                staged.rename(path)
        return shutil.copytree(path, target, dirs_exist_ok=True)

    def _make_first(self, folder: Path) -> None:
        with instance(folder / "home") as home:
            launched = run_loop(deployment(folder / "data"), home)
        assert launched.success
        shutil.copytree(folder / "data" / "production", folder / "production")

    def _make_second(self, folder: Path) -> None:
        settings = deployment(self.first(folder) / "data", FEW)
        with instance(folder / "home") as home:
            launched = run_loop(settings, home)
        assert launched.success and settings.latest().number == 1
