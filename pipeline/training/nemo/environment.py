"""NeMo RL's environment that asks this project what a completion is worth: an actor of Ray in NeMo RL's own Python,
with a scorer in this project's Python as its child."""

# pyright: reportMissingImports=false, reportUntypedBaseClass=false
import json
from contextlib import ExitStack
from typing import Any

import ray
import torch
from nemo_rl.environments.interfaces import EnvironmentInterface, EnvironmentReturn

from pipeline.core.processes import piped

OBSERVATION = {"role": "environment", "content": "."}
"""NeMo RL appends one after the last turn too, without a loss; an empty one would have token ids of no integer type."""


@ray.remote(max_restarts=-1, max_task_retries=-1)
class RewardEnvironment(EnvironmentInterface):
    """One turn. `settings["command"]` starts its scorer (`pipeline.training.nemo.scorer`)."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._stack = ExitStack()
        self._scorer = self._stack.enter_context(piped("The scorer", settings["command"]))

    def step(self, message_log_batch: list[list[dict[str, Any]]], metadata: list[dict[str, Any]]) -> Any:
        """`metadata`: of each completion, what its row says of prompt, reference and verifier. Raises RuntimeError
        where the scorer has ended."""
        texts = ["".join(str(m["content"]) for m in log if m["role"] == "assistant") for log in message_log_batch]
        asked = [{**row, "completion": text} for row, text in zip(metadata, texts, strict=True)]
        rewards = torch.tensor(json.loads(self._scorer.ask(json.dumps(asked))), dtype=torch.float32)
        return EnvironmentReturn(
            observations=[OBSERVATION] * len(asked),
            metadata=metadata,
            next_stop_strings=[None] * len(asked),
            rewards=rewards,
            terminateds=torch.ones_like(rewards),
            answers=[None] * len(asked),
        )

    def global_post_process_and_metrics(self, batch: Any) -> tuple[Any, dict[str, float]]:
        return batch, {}

    def shutdown(self) -> None:
        self._stack.close()
