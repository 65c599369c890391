"""NeMo RL's GRPO example with what this project adds to it, in NeMo RL's own Python: `python -m
pipeline.training.nemo.start --config CONFIG` in its checkout. That Python has none of this project's packages."""

import json
import runpy
import sys
from numbers import Real
from typing import Any

# pyright: reportMissingImports=false

EXAMPLE = "examples/run_grpo.py"
REWARD, ACCURACY = "preference_tuning_reward", "preference_tuning_accuracy"
"""Environments: what a completion is worth, and whether the verifier says that it is right."""
PROCESSOR = "preference_tuning_prompt"
ACTOR = "pipeline.training.nemo.environment.RewardEnvironment"
LOGGED = "preference_tuning logged "
"""Begins a line of output that goes on with the JSON of a logged step."""


def extend() -> None:
    """Register environments and processor by NeMo RL's own registries, and print what its loggers are given. Raises
    ImportError for a release that has no such place."""
    from nemo_rl.data.processors import register_processor
    from nemo_rl.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY
    from nemo_rl.distributed.virtual_cluster import PY_EXECUTABLES
    from nemo_rl.environments.utils import register_env
    from nemo_rl.utils.logger import Logger

    ACTOR_ENVIRONMENT_REGISTRY[ACTOR] = PY_EXECUTABLES.SYSTEM
    for name in (REWARD, ACCURACY):
        register_env(name, ACTOR)
    register_processor(PROCESSOR, as_rendered)
    log_metrics = Logger.log_metrics

    def printed(logger: Any, metrics: dict[str, Any], step: int, prefix: str = "", *rest: Any, **more: Any) -> None:
        values = {f"{prefix}/{name}": float(each) for name, each in metrics.items() if isinstance(each, Real)}
        sys.stdout.write(f"\n{LOGGED}{json.dumps({'step': step, **values})}\n")  # in one piece, off any progress bar
        sys.stdout.flush()
        log_metrics(logger, metrics, step, prefix, *rest, **more)

    Logger.log_metrics = printed


def as_rendered(datum: dict[str, Any], spec: Any, tokenizer: Any, max_length: int, index: int) -> dict[str, Any]:
    """A row of the data files as NeMo RL's DatumSpec: the prompt is rendered already, and short enough."""
    text, check = (message["content"] for message in datum["messages"])
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"][0]
    return {
        "message_log": [{"role": "user", "content": text, "token_ids": ids}],
        "length": len(ids),
        "extra_env_info": json.loads(check),
        "loss_multiplier": 1.0,
        "idx": index,
        "task_name": datum["task_name"],
    }


def main(arguments: list[str]) -> None:
    extend()
    if arguments == ["--check"]:
        from pipeline.training.nemo import environment

        print(f"{environment.__name__} fits this NeMo RL")
        return
    sys.argv = [EXAMPLE, *arguments]
    runpy.run_path(EXAMPLE, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
