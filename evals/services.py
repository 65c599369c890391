"""What answers, grades and judges while an evaluation runs. Who opened it closes it."""

from __future__ import annotations

from typing import NamedTuple

from evals.lm_eval import LmEvalEnvironment
from evals.runner import Grader
from pipeline.serving.endpoint import Endpoint
from pipeline.serving.inference import InferenceEngine


class EvalServices(NamedTuple):
    """`lm_eval`: where the suites of lm-evaluation-harness run, `judge`: where the judge listens; without them where
    the recipe has none."""

    engine: InferenceEngine
    grader: Grader
    lm_eval: LmEvalEnvironment = LmEvalEnvironment()
    judge: Endpoint | None = None
