"""Models that are served as adapters over another one, whose server answers for both: which adapters can be, and the
requests by which a server takes one while it runs (vLLM's, which our slot server speaks too)."""

import json
from pathlib import Path

from pipeline.core.storage import ModelRef, Record
from pipeline.recipe.training import Lora

CONFIG = "adapter_config.json"
LOAD_TIMEOUT_S = 300.0
_SERVED = frozenset((
    "auto_mapping", "base_model_name_or_path", "ensure_weight_tying", "exclude_modules", "inference_mode",
    "init_lora_weights", "lora_alpha", "lora_dropout", "megatron_core", "peft_type", "peft_version",
    "qalora_group_size", "r", "revision", "target_modules", "task_type", "use_rslora",
))  # fmt: skip
"""Settings of an adapter that leave it one pair of matrices for each linear layer, beside the weights."""
_PLAIN = {"bias": "none", "peft_type": "LORA"}


class ServedAdapter(Record):
    """A model as the adapter that makes it of another one, whose digest is `base`."""

    base: str
    adapter: ModelRef


def unservable(folder: Path) -> str:
    """Why the adapter in a folder cannot be served beside its base, or "". PEFT's mixed batches and vLLM take LoRA of
    linear layers alone: no DoRA, no modules that are trained whole, no new tokens."""
    try:
        config = json.loads((folder / CONFIG).read_bytes())
    except (OSError, ValueError):
        return "the training left no adapter"
    plain = {**_PLAIN, **dict.fromkeys(_SERVED - _PLAIN.keys())}
    other = [name for name, value in config.items() if value and (name not in plain or value != (plain[name] or value))]
    return f"its adapter has {', '.join(sorted(other))}, which no server takes beside a base" if other else ""


def unservable_recipe(lora: Lora | None) -> str:
    """The same of the adapter that a recipe's training will make."""
    if lora is None:
        return "full fine-tuning makes no adapter"
    set_to = {"dora": lora.dora, "modules_to_save": lora.modules_to_save, "trainable_tokens": lora.trainable_tokens}
    named = [f"training.lora.{name}" for name, value in set_to.items() if value]
    return f"no server takes an adapter with {' and '.join(named)} beside its base" if named else ""


def load_adapter(url: str, name: str, path: str, api_key: str = "") -> None:
    """Have the server at the root `url` answer for `name` by the adapter at `path`, as the server sees it; nothing
    changes where it does so already. Raises ValueError with the server's words where it refuses, OSError where it
    cannot be asked."""
    body = {"lora_name": name, "lora_path": path}
    _post(f"{url.rstrip('/')}/load_lora_adapter", body, api_key, "already been loaded")


def unload_adapter(url: str, name: str, api_key: str = "") -> None:
    """The way back; nothing changes where the server has no such adapter. Raises as `load_adapter`."""
    _post(f"{url.rstrip('/')}/unload_lora_adapter", {"lora_name": name}, api_key, "cannot be found")


def _post(url: str, body: dict[str, str], api_key: str, done: str) -> None:
    """`done`: what a refusal says where there is nothing to do."""
    import httpx2

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        reply = httpx2.post(url, json=body, headers=headers, timeout=LOAD_TIMEOUT_S, trust_env=False)
    except httpx2.HTTPError as error:
        raise ConnectionError(f"{url} does not answer ({error or type(error).__name__})") from error
    if reply.status_code == 200 or done in reply.text:
        return
    if reply.status_code == 404 and '"error"' not in reply.text:
        raise ValueError(
            f"{url} is not there: the server takes no adapters while it runs. Start vLLM with --enable-lora and "
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, or set rollout.traffic.arms to merged."
        )
    refusal = f"{url} answers {reply.status_code} for {body['lora_name']}: {reply.text[:300]}"
    if reply.status_code > 500:
        raise ConnectionError(refusal)
    raise ValueError(refusal)  # vLLM answers 500 for a rank that is too large
