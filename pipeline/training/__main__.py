"""The one entry point of training: `python -m pipeline.training PLAN`.

Exit codes: 0 `result.json` is written and verified; 143 pre-empted, run me again; 64 never retry, the plan or what it
names is wrong; anything else is a crash.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

from pipeline.processes import die_with_parent
from pipeline.recipe import GRPO
from pipeline.rewards.verifiers import grader_of
from pipeline.storage import digest_dir, digest_file, write_atomically
from pipeline.training.checkpoints import only_writer
from pipeline.training.plan import TrainingPlan, TrainingResult

NEVER_RETRY = 64


def main(plan_path: str) -> int:
    path = Path(plan_path)
    try:
        plan = TrainingPlan.model_validate_json(path.read_bytes())
        verify_inputs(plan)
    except (OSError, ValueError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return NEVER_RETRY
    with only_writer(path.parent):
        result = train(plan, path.parent)
        write_atomically(path.with_name("result.json"), result.model_dump_json(indent=2))
    return 0


def verify_inputs(plan: TrainingPlan) -> None:
    """Raise ValueError unless data and base are, to the bit, those that the plan was made for."""
    if plan.algorithm is None or plan.data is None:
        raise ValueError(f"The plan's decision is {plan.decision.method!r}: there is nothing to train.")
    if digest_file(Path(plan.data.uri)) != plan.data.digest:
        raise ValueError(f"{plan.data.uri} changed since the plan was made. Remove the plan and plan again.")
    if digest_dir(Path(plan.base.uri)) != plan.base.digest:
        raise ValueError(f"{plan.base.uri} changed since the plan was made. Restore it, or start a new iteration.")


def train(plan: TrainingPlan, folder: Path) -> TrainingResult:
    """Train as planned in `folder`. torch and TRL are imported here, in the process that needs them."""
    os.environ.update(TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", OMP_NUM_THREADS=str(plan.threads))
    warnings.filterwarnings("ignore")
    import torch
    from transformers.utils import logging

    from pipeline.training import dpo, fit, grpo

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(plan.threads)
    check = grader_of(plan.rewards.verifier)
    assert plan.algorithm is not None, "verify_inputs refuses such a plan"
    try:
        fit.load_tokenizer(plan)
        if isinstance(plan.algorithm, GRPO):
            build = grpo.builder(plan, plan.algorithm, folder, check)
        else:
            build = dpo.builder(plan, plan.algorithm, folder)
    except (TypeError, ValueError) as error:  # settings or tokenizer, before any weight is loaded
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(NEVER_RETRY)
    fit.say(f"{plan.algorithm.kind.upper()} of {plan.base.uri}, {plan.algorithm.steps} steps")
    try:
        return fit.run(plan, folder, build)
    finally:
        check.close()


if __name__ == "__main__":
    die_with_parent()
    sys.exit(main(*sys.argv[1:]))
