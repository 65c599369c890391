"""What several files here need: a published plan, and the platform's Python."""

from pathlib import Path

import pytest

from tests.pipeline.training.plans import make_plan

from .run_job import platform_python
from .world import Planned


@pytest.fixture
def platform() -> str:
    """The Python that has what the platform's pods run."""
    if python := platform_python():
        return python
    pytest.skip("dagster-k8s and dagster-aws are not installed (extra platform), and DAGSTER_K8S_PYTHON is not set")


@pytest.fixture
def planned(tmp_path: Path) -> Planned:
    """Of two nodes with a process each."""
    store, plan = make_plan(tmp_path / "data", processes=2)
    plan = plan.model_copy(update={"nodes": 2, "processes": 1})
    store.write(f"iterations/{plan.iteration}/training/plan.json", plan)
    return Planned(store, plan)
