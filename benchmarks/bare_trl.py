"""The yardstick: the same GRPO as a plain TRL script would do it, without any of this project's training code.

`python -m benchmarks.bare_trl PLAN OUT` reads the settings and rows of a plan and trains with stock TRL.
"""

import sys
import warnings
from pathlib import Path

import pyarrow.parquet as pq
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
from transformers.utils import logging
from trl import GRPOConfig, GRPOTrainer

from pipeline.core.locations import Document
from pipeline.training.plan import TrainingPlan


def reward(completions: list[list[dict[str, str]]], reference: list[str], **_: object) -> list[float]:
    """1.0 for the right number after `####`, 0.1 for an answer there, 0.05 for its length, over 1.15: the composite."""
    found: list[float] = []
    for completion, gold in zip(completions, reference, strict=True):
        text = completion[-1]["content"]
        _, _, answer = text.rpartition("####")
        answered = bool(answer.strip()) and "####" in text
        right = answered and answer.strip().isdecimal() and int(answer) == int(gold)
        found.append((1.0 * right + 0.1 * answered + 0.05 * (50 <= len(text.strip()) <= 500)) / (1.0 + 0.1 + 0.05))
    return found


def main(plan_path: str, out: str) -> None:
    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()
    path = Path(plan_path).absolute()
    plan = TrainingPlan.model_validate_json(path.read_bytes(), context=Document(path)).model_dump()
    training = plan["training"]
    torch.set_num_threads(training["threads"])
    grpo = plan["method"]
    set_seed(training["seed"])
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(plan["base"]["uri"], dtype=torch.float32),
        reward_funcs=reward,
        args=GRPOConfig(
            output_dir=out,
            num_train_epochs=1,
            lr_scheduler_type="linear",
            save_steps=training["checkpoints"]["every_steps"],
            logging_steps=1,
            report_to="none",
            seed=training["seed"],
            bf16=False,
            use_cpu=True,
            gradient_checkpointing=False,
            dataloader_pin_memory=False,
            num_generations=grpo["num_generations"],
            max_completion_length=grpo["max_completion_tokens"],
            learning_rate=grpo["learning_rate"],
            temperature=grpo["temperature"],
            beta=grpo["beta"],
            per_device_train_batch_size=grpo["prompts_per_step"] * grpo["num_generations"],
            shuffle_dataset=False,
        ),
        train_dataset=Dataset(pq.read_table(plan["data"]["uri"], columns=["prompt", "reference"])),
        processing_class=AutoTokenizer.from_pretrained(plan["base"]["uri"], padding_side="left"),
        peft_config=LoraConfig(
            r=training["lora"]["r"],
            lora_alpha=training["lora"]["alpha"],
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        ),
    )
    trainer.train()
    trainer.save_model(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
