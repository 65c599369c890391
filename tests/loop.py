"""The whole loop on a shortened recipe, for the end-to-end tests: in process, or as the literal command."""

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import pytest

from assets.graph import ASSETS
from assets.resources import Deployment, records
from pipeline.core import processes
from pipeline.core.storage import digest_file
from pipeline.views import Plot

from .fork_server import ForkServer, as_subprocess

ROOT = Path(__file__).parent.parent
EMBEDDED = ROOT / "jobs" / "recipes" / "embedded.yaml"

SHORT = (
    f"base_model.uri={ROOT / 'pipeline' / 'demo' / 'model'}",
    "traces.source.days=2",
    "traces.source.traces_per_day=300",
    "traces.window_days=2",
    "selection.min_prompts=20",
    "selection.min_pairs=20",
    "training.grpo.steps=6",
    "training.grpo.prompts_per_step=8",
    "training.grpo.learning_rate=4.0e-3",
    "training.checkpoints.every_steps=2",
    "training.validation.every_steps=3",
    "training.validation.prompts=16",
    "evaluation.suites.0.items=150",
    "evaluation.samples_per_item=2",
    "evaluation.max_standard_error=0.1",
    "evaluation.guard_margin=0.2",
    "rollout.weights=[50,100]",
    "rollout.dwell_s=[0.5,0.5]",
    "rollout.traffic.port=0",
    "rollout.requests_per_look=120",
    "rollout.look_every_s=0.5",
    "rollout.min_canary_requests=40",
    "rollout.max_quality_drop=0.5",
    "rollout.max_p99_latency_ratio=50",
)
"""Overrides of the embedded recipe: every stage for real, in half a minute."""


def deployment(root: Path, overrides: Sequence[str] = ()) -> Deployment:
    return Deployment(recipe_path=str(EMBEDDED), overrides=[*SHORT, f"data_root={root}", *overrides])


@contextmanager
def instance(folder: Path) -> Iterator[dg.DagsterInstance]:
    folder.mkdir(parents=True, exist_ok=True)
    with dg.DagsterInstance.local_temp(str(folder)) as opened:
        yield opened


def run_loop(settings: Deployment, found: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    """One run of every asset, in this process."""
    resources = {"deployment": settings, "io_manager": records}
    return dg.materialize(ASSETS, instance=found, resources=resources, raise_on_error=False)


@contextmanager
def forked(server: ForkServer) -> Iterator[None]:
    """Inside, samplers, trainers and reward models are forked by the server: the same processes, without their
    imports."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "subprocess", as_subprocess(server))
        yield


@contextmanager
def undrawn() -> Iterator[None]:
    """Inside, plots are empty files: to draw them takes most of an iteration whose models are there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Plot, "_file", lambda *_: b"")
        yield


def materialized(result: dg.ExecuteInProcessResult) -> list[str]:
    """The stages, without the days that they told of."""
    created = [event.step_materialization_data.materialization for event in result.get_asset_materialization_events()]
    return [each.asset_key.to_user_string() for each in created if each.partition is None]


def adapter_digest(root: Path, iteration: str) -> str:
    return digest_file(root / "iterations" / iteration / "training" / "adapter" / "adapter_model.safetensors")


def environment(folder: Path, root: Path, overrides: Sequence[str] = ()) -> dict[str, str]:
    """What the literal command sees when it is typed in `folder`."""
    words = shlex.join([*SHORT, f"data_root={root}", *overrides])
    return {
        **os.environ,
        "PWD": str(folder),
        "PREFERENCE_TUNING_RECIPE": str(EMBEDDED),
        "PREFERENCE_TUNING_OVERRIDES": words,
    }
