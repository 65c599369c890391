"""What answers, grades and judges while an evaluation runs. Who opened it closes it."""

from __future__ import annotations

from typing import NamedTuple

from evals.libraries.environment import LibraryEnvironments, library_environments
from evals.runner import Grader
from pipeline.serving.endpoint import Endpoint
from pipeline.serving.inference import InferenceEngine


class EvalServices(NamedTuple):
    """`libraries`: where the suites of evaluation libraries run, `judge`: where the judge listens; without them where
    the recipe has none."""

    engine: InferenceEngine
    grader: Grader
    libraries: LibraryEnvironments = library_environments()
    judge: Endpoint | None = None
