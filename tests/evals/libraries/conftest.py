"""The environments of the libraries, where there are some."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evals.libraries.environment import LibraryEnvironments, library_environments

ROOT = Path(__file__).parent.parent.parent.parent


def python_of(variable: str, folder: str) -> str:
    """The Python that the variable names, or that of `folder` in the checkout; skips the test where neither is."""
    python = Path(os.environ.get(variable, ROOT / folder / "bin" / "python"))
    if not python.exists():
        pytest.skip(f"no environment at {python} (docs/evaluation.md says how to make one, {variable} names another)")
    return str(python)


@pytest.fixture(scope="session")
def with_inspect() -> LibraryEnvironments:
    return library_environments(inspect_python=python_of("INSPECT_PYTHON", ".venv-inspect"))


@pytest.fixture(scope="session")
def with_lm_eval() -> LibraryEnvironments:
    return library_environments(lm_eval_python=python_of("LM_EVAL_PYTHON", ".venv-lm-eval"))
