"""What `benchmarks.gpu` trains: a model of a real one's shape with random weights, whose embedding and logits keep all
rows of the real vocabulary, and plans over long word problems."""

from pathlib import Path
from typing import Any

from benchmarks.training import label, planned
from pipeline.core.storage import Store, model_ref
from pipeline.demo import MODEL_DIR
from pipeline.demo.task import mistaken_solution, problems
from pipeline.recipe import Accelerator, Checkpoints, Compute, Rewards, Selection, Sentinel, Training
from pipeline.recipe.methods import DPO, GRPO

QWEN2_1_5B = {
    "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
    "num_key_value_heads": 2, "vocab_size": 151_936, "max_position_embeddings": 32_768, "tie_word_embeddings": True,
}  # fmt: skip
"""The shape of Qwen2.5-1.5B: 1,543,714,304 weights."""
QWEN2_7B = {
    **QWEN2_1_5B, "hidden_size": 3584, "intermediate_size": 18_944, "num_attention_heads": 28,
    "num_key_value_heads": 4, "vocab_size": 152_064, "tie_word_embeddings": False,
}  # fmt: skip
"""The shape of Qwen2.5-7B: 7,615,616,512 weights."""

COMMON, OWN = 0.5, 0.03
"""Rows of known ids are a constant and a little noise of their own, the rest 0. So only known ids are drawn, and nearly
evenly: the draws of a group differ, and with them their rewards. Without that there would be no gradient."""


def write_base(folder: Path, shape: dict[str, Any], device: str) -> Path:
    """A model with random weights in bf16 and the embedded tokenizer."""
    import torch
    from transformers import AutoTokenizer, GenerationConfig, Qwen2Config, Qwen2ForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    special = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(0)
    with torch.device(device):
        model: Any = Qwen2ForCausalLM(Qwen2Config(**shape, **special))
        rows = model.get_input_embeddings().weight.data
        rows[: len(tokenizer)].normal_(COMMON, OWN)
        rows[len(tokenizer) :].zero_()
        model.get_output_embeddings().weight.data.copy_(rows)
    model.generation_config = GenerationConfig(**special)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_plan(
    root: Path,
    base: Path,
    settings: GRPO | DPO,
    accelerator: Accelerator,
    rewards: Rewards,
    problems_per_row: int,
    checkpoints: Checkpoints,
    **training: Any,
) -> Path:
    """A plan over fresh problems, as the selection stage would leave it; returns the path of `plan.json`.

    `training`: further sections of the recipe's `training`.
    """
    drawn = problems(5, "train", 48 * problems_per_row)
    rows: list[dict[str, Any]] = []
    for start in range(0, len(drawn), problems_per_row):
        group = drawn[start : start + problems_per_row]
        prompt = " ".join(each.prompt for each in group)
        sides = {1.0: [each.solution for each in group], 0.0: [mistaken_solution(each) for each in group]}
        rows += [
            label(f"{prompt}-{right}", prompt, "\n".join(side), group[-1].answer, right)
            for right, side in sides.items()
        ]
    sections: dict[str, Any] = {
        settings.kind: settings,
        "sentinel": Sentinel(warm_up=settings.steps),  # it would stop what learns nothing
        "checkpoints": checkpoints,
        **training,
    }
    selection = Selection(method=settings.kind, held_out_share=0.0, max_principal_share=1.0)
    given = {"training": Training(**sections), "rewards": rewards, "compute": Compute(accelerator=accelerator)}
    return planned(Store(root), model_ref(base), rows, selection=selection, **given)
