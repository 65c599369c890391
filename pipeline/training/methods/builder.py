"""What every method's trainer is built from: base model, tokenizer, rows, arguments, and the checks of them."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
import trl  # which imports each trainer where it is used
from datasets import Dataset
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

from pipeline.core.storage import DatasetRef
from pipeline.models.adapters import adapter_config, keep_adapter_precision
from pipeline.models.rendering import chat_tokenizer, rendered
from pipeline.models.tokenizer import context_length, stop_ids
from pipeline.serving.loaded import use_stop_ids_only
from pipeline.training.plan import TrainingPlan
from pipeline.training.rates import Clock, TokenCounter, Tokens
from pipeline.training.reward_function import RewardFunction


class MethodTrainer:
    """Builds the trainer of a plan that trains in `folder`. A method is one subclass of it."""

    def __init__(self, plan: TrainingPlan, folder: Path, reward: RewardFunction) -> None:
        assert plan.data is not None, "only a plan that trains comes here"
        self.plan, self.folder, self.reward, self._data = plan, folder, reward, plan.data
        self.method: Any = plan.trained_by()
        self.clock = Clock(torch.cuda.synchronize if torch.cuda.is_available() else lambda: None)

    def own(self, batch: Mapping[str, int]) -> dict[str, Any]:
        """The arguments that the method's settings decide; the plan's rows are in the order of the steps already."""
        raise NotImplementedError

    @cached_property
    def tokenizer(self) -> Any:
        return chat_tokenizer(self.plan.base.uri)

    @cached_property
    def stop_ids(self) -> list[int]:
        """Tokens that end an answer of the base model."""
        return list(stop_ids(self.plan.base.uri, self.tokenizer))

    def dataset(self, arguments: Any) -> Dataset:
        """The plan's rows as the trainer takes them."""
        return self.rows(self.method.columns)

    def build(self, **kwargs: Any) -> Trainer:
        return getattr(trl, f"{self.method.title}Trainer")(**kwargs)

    def token_counter(self, trainer: Any) -> TokenCounter:
        """Counts the tokens of each step by TRL's `num_tokens`, its sum over the training and all devices."""
        before: float | None = None
        sequences, passes = self.method.sides * self.method.batch_size, self.method.passes

        def count(metrics: Mapping[str, float]) -> Tokens | None:
            nonlocal before
            total, last = metrics.get("num_tokens", 0.0), before
            before = total
            if last is None and metrics.get("step") != 1.0:
                return None  # resumed: what this step went through is not known
            new = total - (last or 0.0)
            return Tokens(generated=0.0, trained=new, scored=passes * new, length=new / sequences)

        return count

    def arguments(self) -> TrainingArguments:
        """TRL's own config; raises ValueError or TypeError for what it doesn't take, before any weight is loaded."""
        extra = self.method.trainer_args
        batch = self._batch_arguments(extra, self.method.examples_per_update)
        given = {**self._shared_arguments(), "learning_rate": self.method.learning_rate, **extra, **batch}
        return getattr(trl, f"{self.method.title}Config")(**{**given, **self.own(batch)})

    def trainer(self, arguments: TrainingArguments, callbacks: Sequence[TrainerCallback]) -> Trainer:
        """The trainer over the base model's weights, which are loaded here. Raises ValueError for rows too long."""
        lora = self.plan.training.lora
        rows, model = self.dataset(arguments), self._model()
        trainer = self.build(
            model=model,
            args=arguments,
            train_dataset=rows,
            processing_class=self.tokenizer,
            peft_config=None if lora is None else adapter_config(lora, model, self.tokenizer),
            callbacks=list(callbacks),
        )
        for each in filter(None, (model, getattr(trainer, "ref_model", None))):
            count_positions_from_first_token(each)
        if lora is not None:
            keep_adapter_precision(trainer.model)
        return trainer

    def _shared_arguments(self) -> dict[str, Any]:
        """Of every TRL config: one epoch over the plan's rows in their order, exact under resume."""
        on_gpu, several = torch.cuda.is_available(), self.plan.world_size > 1
        return {
            "output_dir": str(self.folder / "trl"),
            "num_train_epochs": 1,
            "lr_scheduler_type": "linear",
            "save_strategy": "no",  # ProgressCallback decides
            "logging_steps": 1,
            "logging_nan_inf_filter": False,  # it would show the sentinel the last good loss instead
            "report_to": "none",
            "disable_tqdm": True,
            "seed": self.plan.training.seed,
            "bf16": on_gpu,
            "use_cpu": not on_gpu,
            "gradient_checkpointing": on_gpu,
            "dataloader_pin_memory": on_gpu,
            **({"ddp_find_unused_parameters": False, "ddp_backend": None if on_gpu else "gloo"} if several else {}),
        }

    def _batch_arguments(self, trainer_args: Mapping[str, Any], examples: int) -> dict[str, int]:
        """A step's examples over processes and micro-batches. Raises ValueError when they do not divide."""
        world_size = self.plan.world_size
        if examples % world_size:
            raise ValueError(
                f"A step's {examples} examples do not divide among {world_size} processes: change the recipe's "
                "prompts_per_step, num_generations or batch_size, or its compute section."
            )
        local = examples // world_size
        size = int(trainer_args.get("per_device_train_batch_size", local))
        if size < 1 or local % size:
            raise ValueError(
                f"per_device_train_batch_size {size} does not divide the {local} examples of a process: use a divisor."
            )
        return {"per_device_train_batch_size": size, "gradient_accumulation_steps": local // size}

    def _model(self) -> Any:
        """Frozen bf16 under an adapter on a GPU, in 4 bits for QLoRA, else fp32."""
        lora, base = self.plan.training.lora, self.plan.base.uri
        half = torch.cuda.is_available() and lora is not None  # an update of 1e-6 is lost in a bf16 weight
        arguments: dict[str, Any] = {"dtype": torch.bfloat16 if half else torch.float32}
        if self.plan.training.attention is not None:
            arguments["attn_implementation"] = self.plan.training.attention
        if lora is not None and lora.quantise == "nf4":
            if not torch.cuda.is_available():
                raise ValueError("training.lora.quantise nf4 needs a GPU. Set it to none, or run where there is one.")
            from transformers import BitsAndBytesConfig

            arguments["quantization_config"] = BitsAndBytesConfig(
                load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
            )
        model: Any = AutoModelForCausalLM.from_pretrained(base, **arguments)
        use_stop_ids_only(model, tuple(self.stop_ids), self.tokenizer)
        return model

    def rows(self, columns: Sequence[str]) -> Dataset:
        """Of the plan, in the order of the steps; in memory, for a cache would lie outside the data root."""
        return Dataset(pq.read_table(self._data.uri, columns=list(columns)))

    def limit(self) -> int | None:
        """Tokens of a prompt and its answer: the method's `max_tokens`, within the model's context."""
        limits = [each for each in (self.method.max_tokens, context_length(self.plan.base.uri)) if each is not None]
        return min(limits, default=None)

    def check_prompts(self) -> None:
        """Raise ValueError when the chat template leaves out a part of a prompt, or when a prompt and its completion
        may be longer than the model's context."""
        if (tokens := self.plan.trained_by().completion_tokens) is not None:
            self._check_context(self._data, tokens)
        if self.plan.held_out is not None:
            self._check_context(self.plan.held_out, self.plan.training.validation.max_completion_tokens)

    def _check_context(self, data: DatasetRef, completion_tokens: int) -> None:
        context = context_length(self.plan.base.uri)
        prompts = {str(p): p for p in pq.read_table(data.uri, columns=["prompt"])["prompt"].to_pylist()}.values()
        texts = [rendered(self.tokenizer, prompt) for prompt in prompts]
        longest = max(len(ids) for ids in self.tokenizer(texts, add_special_tokens=False)["input_ids"])
        if context is not None and longest + completion_tokens > context:
            raise ValueError(
                f"The longest prompt has {longest} tokens and max_completion_tokens is {completion_tokens}: together "
                f"more than the model's context of {context}. Lower it or leave long prompts out."
            )


def count_positions_from_first_token(model: Any) -> None:
    """For models with learned positions (`wpe`: GPT-2 and its kin). Without this a forward pass counts from the first
    column, padding or not: 7 nats of difference between an answer alone and the same answer in a GRPO batch."""
    if not any(name.endswith("wpe") for name, _ in model.named_modules()):
        return

    def before(_: Any, args: Any, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        mask = given.get("attention_mask")
        if given.get("position_ids") is None and mask is not None and mask.shape == given["input_ids"].shape:
            given["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
        return args, given

    model.register_forward_pre_hook(before, with_kwargs=True)
