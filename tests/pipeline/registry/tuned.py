"""An adapter drawn at random over a base, and the model with it merged in, as a training leaves them:
`python -m tests.pipeline.registry.tuned BASE FOLDER SEED`."""

import shutil
import sys
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from pipeline.demo import MODEL_DIR


def main(base: str, folder: Path, seed: int) -> None:
    torch.manual_seed(seed)
    adapter, model = folder / "adapter", folder / "model"
    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).save_pretrained(adapter)
    merged = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter).merge_and_unload()
    merged.save_pretrained(model)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(MODEL_DIR / name, model)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
