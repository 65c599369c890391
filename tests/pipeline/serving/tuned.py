"""An adapter over the demo's model, whose answers differ, and the process of a server."""

from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psutil

from pipeline.core.storage import ModelRef, digest_dir, model_ref
from pipeline.demo import MODEL_DIR
from pipeline.models.export import copied_files


class Tuned(NamedTuple):
    adapter: ModelRef
    merged: ModelRef


def tuned_model(folder: Path, r: int = 8) -> Tuned:
    """An adapter of rank `r`, and the model with it merged in."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    adapter, merged = folder / "adapter", folder / "merged"
    base: Any = AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.float32)
    policy: Any = get_peft_model(base, LoraConfig(r=r, target_modules="all-linear", init_lora_weights=False))
    for name, weight in policy.named_parameters():
        weight.data *= 3.0 if "lora_B" in name else 1.0
    policy.save_pretrained(str(adapter))
    policy.merge_and_unload().save_pretrained(merged)
    for name in copied_files(MODEL_DIR):
        (merged / name).write_bytes((MODEL_DIR / name).read_bytes())
    return Tuned(ModelRef(uri=str(adapter), digest=digest_dir(adapter)), model_ref(merged))


def listening(url: str) -> int:
    """The process that listens there."""
    listeners: list[Any] = [each for each in psutil.net_connections("tcp4") if each.status == "LISTEN"]
    (pid,) = {each.pid for each in listeners if each.laddr.port == urlsplit(url).port}
    assert pid is not None
    return pid
