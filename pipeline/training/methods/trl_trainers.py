"""TRL's KTOTrainer over tokenised rows, and its GRPOTrainer with dynamic sampling (DAPO, arXiv 2503.14476, section 3.2;
replacements come from the plan's prompts, not from a stream), the leave-one-out baseline and the split of a step's
time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.kto_trainer import KTOTrainer

from pipeline.recipe.methods import GRPO
from pipeline.training.rates import Tokens

if TYPE_CHECKING:
    from pipeline.training.methods.builder import MethodTrainer

Row = dict[str, Any]
Drawn = tuple[Any, ...]
"""What GRPOTrainer._generate returns: ids of prompts and completions, tools, completions, log-probabilities, ..."""


class Group(NamedTuple):
    """One prompt's completions, as rows of the plan and as what was drawn for each."""

    rows: list[Row]
    drawn: tuple[list[Any] | None, ...]
    """Ids of prompts and of completions, for each token 1 for the policy's own and 0 for a tool's (None: no tool is
    replayed), completions, and the engine's log-probabilities (None: the model itself generates)."""
    more: dict[str, list[Any]]
    """Further columns for the reward, as a rollout returns them."""
    mixed: bool
    """Not all of its rewards are the same: it has a gradient."""


class GroupTrainer(GRPOTrainer):
    """Overrides five methods that TRL keeps to itself; tests/pipeline/training/methods/test_trl.py holds signatures."""

    def __init__(self, *args: Any, settings: GRPO, builder: MethodTrainer, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._settings, self._clock, self._reward = settings, builder.clock, builder.reward
        self._size = settings.num_generations
        self._ready: Drawn | None = None
        self._counted = {"generated": 0.0, "scored": 0.0}
        self._batch_tokens = self._batch_length = 0.0
        grpo: Any = self.args
        local = grpo.generation_batch_size // self.accelerator.num_processes
        if local % self._size and (settings.dynamic_sampling or settings.baseline == "leave_one_out"):
            raise ValueError(
                f"A process draws {local} completions at once, no multiple of num_generations {self._size}: "
                "dynamic sampling and the leave-one-out baseline need whole groups. Change prompts_per_step."
            )

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        with self._clock.span("generate"):
            output = super()._generate_single_turn(*args, **kwargs)
        self._counted["generated"] += sum(map(len, output[0]))
        return output

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        with self._clock.span("reward"):
            return super()._calculate_rewards(*args, **kwargs)

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():  # the update's own forward pass
            return super()._get_per_token_logps_and_entropies(*args, **kwargs)
        with self._clock.span("logprobs"):
            return super()._get_per_token_logps_and_entropies(*args, **kwargs)

    def _generate(self, prompts: list[Any]) -> Drawn:
        ready, self._ready = self._ready, None
        return super()._generate(prompts) if ready is None else ready

    def _generate_and_score_completions(self, inputs: list[Row]) -> dict[str, Any]:
        policy: Any = self.model
        if self._settings.dynamic_sampling is not None and policy.training:
            inputs = self._mixed(inputs, self._settings.dynamic_sampling)
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        self._count(output)
        if self._settings.baseline == "leave_one_out":
            factors = leave_one_out(self._reward.last, self._size)
            output["advantages"] = output["advantages"] * torch.tensor(factors, device=output["advantages"].device)
        return output

    def take_counted(self) -> Tokens:
        """Tokens of this rank since the last call: generated, scored without a gradient, trained; and their length."""
        counted, self._counted = self._counted, {"generated": 0.0, "scored": 0.0}
        trained = self._batch_tokens / self._settings.num_minibatches
        return Tokens(trained=trained, length=self._batch_length, **counted)

    def _count(self, output: dict[str, Any]) -> None:
        self._batch_tokens = float(output["prompt_mask"].sum() + output["completion_mask"].sum())
        self._batch_length = self._batch_tokens / len(output["prompt_mask"])
        passes = sum(name in output for name in ("old_per_token_logps", "ref_per_token_logps"))
        self._counted["scored"] += passes * self._batch_tokens

    def _mixed(self, inputs: list[Row], rounds: int) -> list[Row]:
        """Rows whose groups have a gradient as far as `rounds` of generation find them; keeps what was drawn for them.
        Every rank draws as often and as much as the one that lacks most, for generation may take all of them."""
        wanted = len(inputs) // self._size
        groups, took = self._draw(inputs), 1
        while took < rounds and (lack := self.most(wanted - sum(group.mixed for group in groups))) > 0:
            groups += self._draw(self._replacements(lack, took))
            took += 1
        kept, flat = [g for g in groups if g.mixed], [g for g in groups if not g.mixed]
        metrics = self._metrics["train"]
        metrics["dynamic/rounds"].append(float(took))
        metrics["dynamic/mixed_share"].append(len(kept) / len(groups))
        chosen = [*kept, *flat][:wanted]
        columns = [
            None if parts[0] is None else [each for part in parts for each in part]
            for parts in zip(*(group.drawn for group in chosen), strict=True)
        ]
        more = {name: [each for group in chosen for each in group.more[name]] for name in chosen[0].more}
        self._ready = (*columns, more, None, [])
        return [dict(row) for group in chosen for row in group.rows]  # TRL writes `more` into each

    def _draw(self, rows: list[Row]) -> list[Group]:
        """Generate for rows that come in groups, and say which groups are mixed."""
        drawn: Any = super()._generate([row["prompt"] for row in rows])
        prompt_ids, completion_ids, masks, completions, logprobs, more, *_ = drawn
        with self._clock.span("reward"):
            texts = [messages[-1]["content"] for messages in completions]
            rewards = self._reward.rewards(texts, rows, completion_ids)
        columns, groups = (prompt_ids, completion_ids, masks, completions, logprobs), list[Group]()
        for at in range(0, len(rows), self._size):
            part = slice(at, at + self._size)
            mixed = len({reward for reward in rewards[part] if reward is not None}) > 1
            parts = tuple(column and column[part] for column in columns)
            groups.append(Group(rows[part], parts, {name: values[part] for name, values in more.items()}, mixed))
        return groups

    def _replacements(self, groups: int, took: int) -> list[Row]:
        dice = random.Random(f"{self.args.seed}/{self.state.global_step}/{took}/{self.accelerator.process_index}")
        dataset: Any = self.train_dataset
        chosen = [dataset[dice.randrange(len(dataset))] for _ in range(groups)]
        return [row for row in chosen for _ in range(self._size)]

    def most(self, count: int) -> int:
        """The largest of these over all ranks."""
        gathered: Any = self.accelerator.gather(torch.tensor([count], device=self.accelerator.device))
        return int(gathered.max())


def leave_one_out(rewards: Sequence[float | None], size: int) -> list[float]:
    """n / (n - 1) for every completion, n being the scorable ones of its group of `size`; 1 where there is no other. A
    reward is so compared with the mean of the other n - 1 (RLOO, arXiv 2402.14740). Departure from NeMo RL: the
    standard deviation stays the whole group's."""
    factors: list[float] = []
    for at in range(0, len(rewards), size):
        scorable = sum(reward is not None for reward in rewards[at : at + size])
        factors += [scorable / (scorable - 1) if scorable > 1 else 1.0] * size
    return factors


REFERENCE_POINT = "reference_point"


class ThumbTrainer(KTOTrainer):
    """Overrides one method that TRL keeps to itself. TRL logs KTO's reference point z0, in nats an answer, as `kl`,
    which other trainers log in nats a token: here it is `reference_point`."""

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, dataset_name: str) -> Any:
        return dataset

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        for metrics in self._metrics.values():
            if "kl" in metrics:
                metrics[REFERENCE_POINT] = metrics.pop("kl")
        super().log(logs, start_time)
