"""One training process: all of a training, or one rank of it. Imports torch; `__main__` decides who comes here."""

from __future__ import annotations

import logging as python_logging
import os
import warnings
from contextlib import ExitStack, closing
from pathlib import Path

import torch
from jinja2 import TemplateError
from transformers.utils import logging

from pipeline.core import layout
from pipeline.core.locations import record_of_iteration
from pipeline.core.storage import to_json, write_atomically
from pipeline.rewards.custom import custom_scorer
from pipeline.rewards.verifiers import grader_of
from pipeline.serving.decoding import stop_ids
from pipeline.training import fit
from pipeline.training.checkpoints import only_writer
from pipeline.training.distribution import check_world, environment
from pipeline.training.fresh_scores import open_scores
from pipeline.training.plan import TrainingPlan
from pipeline.training.progress import emit
from pipeline.training.result import InvalidPlan
from pipeline.training.reward_function import RewardFunction
from pipeline.training.schedule import metadata_by_prompt
from pipeline.training.setup import PlanSetup, load_tokenizer


def work(plan: TrainingPlan, folder: Path, started_at: float, attempt: int = 0) -> None:
    """Train in `folder` and write `result.json` there (rank 0).

    Raises InvalidPlan, and Superseded once a later start has claimed the folder; exits with 143 when it is pre-empted.

    `attempt`: of a launcher that numbers them.
    """

    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    python_logging.getLogger("trl").setLevel(python_logging.ERROR)  # its warnings quote prompts and completions
    torch.set_num_threads(plan.training.threads)
    method = plan.trained_by()
    with ExitStack() as scorers:
        writes = os.environ.get("RANK", "0") == "0"
        fence = scorers.enter_context(only_writer(folder, attempt)).check if writes else no_fence
        check = scorers.enter_context(closing(grader_of(plan.rewards.verifier)))
        try:
            check_world(plan, os.environ)
            spread, again = plan.training.distribution, plan.training.lora is None and method.keeps_reference
            os.environ.update(environment(spread, on_gpu=torch.cuda.is_available(), second_model=again))
            tokenizer = load_tokenizer(plan)
            checked = method.group_size is not None and not plan.on_scores
            custom = custom_scorer("verified", plan.rewards) if checked else None
            if custom is not None:
                custom.start()
                scorers.callback(custom.close)
            scores = scorers.enter_context(open_scores(plan, folder)) if plan.scorers is not None else None
            stops = stop_ids(plan.base.uri, tokenizer)
            metadata = metadata_by_prompt(plan.data) if custom is not None else {}
            setup = PlanSetup(plan, folder, RewardFunction(plan.rewards, check, custom, scores, stops, metadata))
            arguments = method.arguments(setup)
            setup.check_prompts()
        except (TypeError, ValueError, OSError, TemplateError) as error:  # settings, tokenizer, template, data
            raise InvalidPlan(f"{type(error).__name__}: {error}") from error
        emit(f"{method.title} of {plan.base.uri}, {method.steps} steps, {plan.world_size} process(es)")
        result = fit.run(setup, arguments, check, scores, started_at, fence)
        if result is not None:
            fence()
            document = record_of_iteration(folder / layout.RESULT_FILE)
            write_atomically(document.path, to_json(result, document))


def no_fence() -> None:
    """Of a rank that writes nothing."""
