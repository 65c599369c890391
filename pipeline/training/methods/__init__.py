"""TRL's config and trainer of a plan's method, and the token ids of prompts and answers as generation has them. Not by
TRL: Arrow merges the structs of different tools' calls, so rows hold calls as JSON in text; and TRL takes a prompt from
the rendering of a prompt with its answer, which many templates render otherwise."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset
from transformers import Trainer

from pipeline.core.conversation import split
from pipeline.core.thoughts import CLOSE, OPEN, without_opening
from pipeline.models.rendering import rendered, rendered_answer
from pipeline.recipe.methods import DPO, GRPO, KTO, SFT
from pipeline.training.methods.builder import MethodTrainer
from pipeline.training.plan import TrainingPlan
from pipeline.training.rates import TokenCounter
from pipeline.training.reward_function import RewardFunction

Ids = list[int]
_opened, _closed = re.compile(rf"({OPEN})\s*\Z"), re.compile(CLOSE)
_QUESTION = {"role": "user", "content": "1"}


class TokenisedAnswers(NamedTuple):
    """Token ids of each row's prompt, and of its answer with its end."""

    prompts: list[Ids]
    answers: list[Ids]

    def refuse_long_prompts(self, limit: int | None) -> None:
        """Raise ValueError where a prompt leaves its answer no token within `limit`."""
        self._refuse([len(ids) + 1 for ids in self.prompts], limit, "prompts fill")

    def refuse_long_rows(self, limit: int | None) -> None:
        """Raise ValueError where a prompt and its whole answer take more than `limit` tokens."""
        sizes = [len(prompt) + len(answer) for prompt, answer in zip(self.prompts, self.answers, strict=True)]
        self._refuse(sizes, limit, "prompts with their answers take more than")

    def _refuse(self, sizes: Sequence[int], limit: int | None, what: str) -> None:
        if limit is not None and (long := sum(size > limit for size in sizes)):
            raise ValueError(
                f"{long} of {len(sizes)} {what} the {limit} tokens of max_tokens, or of the model's context; the "
                f"longest needs {max(sizes)}. Raise the method's max_tokens, or leave long prompts out."
            )

    def labelled(self) -> list[dict[str, Ids]]:
        """Rows of `input_ids` and `labels`, which are -100 where there is no loss: on the whole prompt."""
        return [
            {"input_ids": [*prompt, *answer], "labels": [-100] * len(prompt) + answer}
            for prompt, answer in zip(self.prompts, self.answers, strict=True)
        ]

    def swapped(self, labels: Sequence[bool], at_once: int) -> Dataset:
        """Rows as KTOTrainer's collator takes them. Of `at_once` rows, which a device takes together, each also has the
        answer of the one before it (the first: of the last), by which the paper's reference point is estimated."""
        batches = [self.answers[first : first + at_once] for first in range(0, len(labels), at_once)]
        swapped = [answer for batch in batches for answer in (batch[-1], *batch[:-1])]
        columns = {"prompt_ids": self.prompts, "completion_ids": self.answers, "KL_completion_ids": swapped}
        return Dataset.from_dict({**columns, "label": list(labels)})


def tokenised(tokenizer: Any, stops: Sequence[int], rows: Sequence[Mapping[str, Any]]) -> TokenisedAnswers:
    """Of rows with a `prompt` of messages and a `completion` of text, in their order. `stops`: tokens that generation
    ends at; an answer ends with the one that the chat template ends a turn with. Raises ValueError for an answer
    without text, and where the chat template ends an answer with none of `stops`."""
    end, thought = end_token(tokenizer, stops), closed_thought(tokenizer)
    known: dict[tuple[str, str], tuple[Ids, Ids]] = {}
    keys = [(json.dumps(row["prompt"], ensure_ascii=False), row["completion"]) for row in rows]
    for key, row in zip(keys, rows, strict=True):
        text = row["completion"]
        if not text.strip():
            raise ValueError("A row's answer is empty. Make the preference dataset again: it leaves such rows out.")
        if key not in known:
            if split(text)[1]:  # calls are in the tokens that the template has for them
                text = rendered_answer(tokenizer, row["prompt"], text)
            text = without_opening(text) if thought else text
            ids = _ids(tokenizer, text if _closed.search(text) else thought + text)
            stop = next((place for place, id in enumerate(ids) if id in stops), len(ids))
            known[key] = _ids(tokenizer, rendered(tokenizer, row["prompt"])), [*ids[:stop], end]
    return TokenisedAnswers([known[key][0] for key in keys], [known[key][1] for key in keys])


def end_token(tokenizer: Any, stops: Sequence[int]) -> int:
    """The token of `stops` that the chat template ends an answer with. Raises ValueError where it does with none."""
    before = rendered(tokenizer, [_QUESTION])
    whole = rendered(tokenizer, [_QUESTION, {"role": "assistant", "content": "1"}], add_generation_prompt=False)
    ends = [id for id in _ids(tokenizer, whole.removeprefix(before)) if id in stops]
    if not ends:
        raise ValueError(
            "The chat template ends an answer with no token that generation stops at: a model trained so would not "
            "stop. Save the tokenizer with its chat template's end as eos_token."
        )
    return ends[-1]


def closed_thought(tokenizer: Any) -> str:
    """What closes the thought that the template opens for a model to write, up to its answer; empty where it opens
    none. A template that takes thoughts out of answers does not tell: the tag's own counterpart then."""
    opened = _opened.search(rendered(tokenizer, [_QUESTION]))
    if opened is None:
        return ""
    close = f"{opened[1][0]}/{opened[1][1:]}"
    answer = {"role": "assistant", "content": f"{opened[1]}\nprobe_thought\n{close}\n\nprobe_answer"}
    whole = rendered(tokenizer, [_QUESTION, answer], add_generation_prompt=False)
    said = re.search(rf"probe_thought(\s*{CLOSE}\s*)probe_answer", whole)
    return said[1] if said else f"{close}\n\n"


def _ids(tokenizer: Any, text: str) -> Ids:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


DPO_LOSS = {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.3]}


class GRPOBuilder(MethodTrainer):
    method: GRPO

    def own(self, batch: Mapping[str, int]) -> dict[str, Any]:
        same = ("num_generations", "temperature", "beta", "loss_type")
        engine = self.method.generation
        arguments = {name: getattr(self.method, name) for name in same} | {
            "max_completion_length": self.method.max_completion_tokens,
            "use_vllm": engine != "transformers",
            "shuffle_dataset": False,
            "steps_per_generation": batch["gradient_accumulation_steps"] * self.method.num_minibatches,
        }
        if engine != "transformers":  # vLLM reads config.json for stop ids only if there is no other
            extra = self.method.trainer_args.get("generation_kwargs", {})
            arguments["vllm_mode"] = engine.removeprefix("vllm_")
            arguments["generation_kwargs"] = {"stop_token_ids": self.stop_ids, **extra}
        return arguments

    def build(self, **kwargs: Any) -> Trainer:
        from pipeline.training.methods.trl_trainers import GroupTrainer

        return GroupTrainer(**kwargs, reward_funcs=self.reward, builder=self)

    def token_counter(self, trainer: Any) -> TokenCounter:
        return lambda _: trainer.take_counted()


class DPOBuilder(MethodTrainer):
    """The reference model is the policy with its adapter off."""

    method: DPO

    def own(self, batch: Mapping[str, int]) -> dict[str, Any]:
        return {
            "beta": self.method.beta,
            **{name: value for name, value in DPO_LOSS.items() if name not in self.method.trainer_args},
            "max_length": self.limit(),
            "train_sampling_strategy": "sequential",
        }

    def dataset(self, arguments: Any) -> Dataset:
        rows = self.rows(self.method.columns).to_list()
        chosen, rejected = (
            tokenised(self.tokenizer, self.stop_ids, [{**row, "completion": row[side][0]["content"]} for row in rows])
            for side in ("chosen", "rejected")
        )
        chosen.refuse_long_prompts(arguments.max_length)
        ids = {"prompt_ids": chosen.prompts, "chosen_ids": chosen.answers, "rejected_ids": rejected.answers}
        return Dataset.from_dict(ids)

    def build(self, **kwargs: Any) -> Trainer:
        from pipeline.training.methods.trl_trainers import PairTrainer

        return PairTrainer(**kwargs)


class SFTBuilder(MethodTrainer):
    """The loss falls on the answer and its end token alone, in the very tokens that generation would have drawn."""

    method: SFT

    def own(self, batch: Mapping[str, int]) -> dict[str, Any]:
        # `dataset` refuses what does not fit
        return {"max_length": None, "train_sampling_strategy": "sequential"}

    def dataset(self, arguments: Any) -> Dataset:
        answers = tokenised(self.tokenizer, self.stop_ids, self.rows(self.method.columns).to_list())
        answers.refuse_long_rows(self.limit())
        return Dataset.from_list(answers.labelled())

    def build(self, **kwargs: Any) -> Trainer:
        """TRL asks for a router's logits with each batch, and in the model's configuration as well: there, validation
        would ask for them, whose prompts grow by tokens that their mask does not have, and so would the export."""
        config = kwargs["model"].config.get_text_config()
        before = getattr(config, "output_router_logits", None)
        trainer = super().build(**kwargs)
        if before is not None:
            config.output_router_logits = before
        return trainer


class KTOBuilder(MethodTrainer):
    """The reference model is the policy with its adapter off."""

    method: KTO

    def own(self, batch: Mapping[str, int]) -> dict[str, Any]:
        if batch["per_device_train_batch_size"] < 2:
            raise ValueError(
                "KTO needs two rows and more at once on a device, whose answers are swapped: raise "
                "training.kto.batch_size or per_device_train_batch_size, or use fewer processes."
            )
        up, down = self.method.class_weights(self.rows(("label",))["label"])
        return {
            "beta": self.method.beta,
            "desirable_weight": up,
            "undesirable_weight": down,
            "max_length": self.limit(),
            "train_sampling_strategy": "sequential",
        }

    def dataset(self, arguments: Any) -> Dataset:
        rows = self.rows(self.method.columns).to_list()
        answers = tokenised(self.tokenizer, self.stop_ids, rows)
        answers.refuse_long_prompts(arguments.max_length)
        return answers.swapped([row["label"] for row in rows], arguments.per_device_train_batch_size)

    def build(self, **kwargs: Any) -> Trainer:
        from pipeline.training.methods.trl_trainers import ThumbTrainer

        return ThumbTrainer(**kwargs)


BUILDERS: dict[str, type[MethodTrainer]] = {
    "grpo": GRPOBuilder, "dpo": DPOBuilder, "sft": SFTBuilder, "kto": KTOBuilder,
}  # fmt: skip


def trainer_of(plan: TrainingPlan, folder: Path, reward: RewardFunction) -> MethodTrainer:
    """The builder of the plan's method."""
    return BUILDERS[plan.trained_by().kind](plan, folder, reward)
