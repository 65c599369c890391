"""Both arms on one server: what the second one takes of memory, and whether candidates come and go without a failed
request. A part of `benchmarks.gateway`."""

from __future__ import annotations

import asyncio
import gc
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.core.storage import ModelRef, Store, digest_dir, model_ref
from pipeline.demo import MODEL_DIR
from pipeline.models.export import copied_files
from pipeline.recipe.rollout import GatewayTraffic
from pipeline.rollout.gateway.keeper import SlotKeeper
from pipeline.rollout.gateway.process import GatewaySettings, running_gateway
from pipeline.rollout.gateway.split import write_split
from pipeline.rollout.router import Split
from pipeline.serving.adapters import ServedAdapter

NAME = "arithmetic"
BASE = model_ref(MODEL_DIR)
CALLERS = 4


class Tuned(NamedTuple):
    """An adapter over the demo's model, and the model with it merged in."""

    adapter: ModelRef
    merged: ModelRef


def tuned_model(folder: Path, seed: int = 1, r: int = 8) -> Tuned:
    """A random one of rank `r`, whose answers differ from the base's."""
    import torch
    from transformers import AutoModelForCausalLM

    base: Any = AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.float32)
    adapter, merged = folder / "adapter", folder / "merged"
    _with_adapter(base, adapter, seed, r).merge_and_unload().save_pretrained(merged)
    for name in copied_files(MODEL_DIR):
        shutil.copyfile(MODEL_DIR / name, merged / name)
    return Tuned(ModelRef(uri=str(adapter), digest=digest_dir(adapter)), model_ref(merged))


def _with_adapter(base: Any, folder: Path, seed: int, r: int = 8) -> Any:
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    policy: Any = get_peft_model(base, LoraConfig(r=r, target_modules="all-linear", init_lora_weights=False))
    for name, weight in policy.named_parameters():
        weight.data *= 3.0 if "lora_B" in name else 1.0
    policy.save_pretrained(str(folder))
    return policy


def memory(small: bool) -> dict[str, float]:
    """Of a base of 1 GB (small: 50 MB) of random weights in fp32 with two adapters, against it with one: resident
    memory once both have answered, and bytes of distinct tensors."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from pipeline.serving.adapted import AdaptedModel
    from pipeline.serving.inference import Sampling

    with tempfile.TemporaryDirectory() as root:
        folder, width = Path(root) / "base", 256 if small else 1024
        shutil.copytree(MODEL_DIR, folder)
        layers = 16 if small else 20
        sizes: dict[str, Any] = {"hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": layers}
        sizes |= {"layer_types": ["full_attention"] * layers}
        heads = {"num_attention_heads": width // 64, "num_key_value_heads": width // 64, "head_dim": 64}
        config = AutoConfig.from_pretrained(MODEL_DIR, **sizes, **heads)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        for seed in range(2):
            _with_adapter(AutoModelForCausalLM.from_pretrained(folder), Path(root) / str(seed), seed)
        gc.collect()
        served, resident, tensors = AdaptedModel(str(folder), 4), list[float](), list[float]()
        for seed in range(2):
            served.put(f"{NAME}@{seed}", str(Path(root) / str(seed)))
            names = list(served.adapters.values())
            served.answered([[1, 2, 3]] * len(names), [0] * len(names), Sampling(max_completion_tokens=8), names)
            gc.collect()
            status = Path("/proc/self/status").read_text(encoding="utf-8")
            resident.append(float(status.partition("VmRSS:")[2].split()[0]))
            distinct = {w.data_ptr(): w.nbytes for w in served.model.state_dict().values()}
            tensors.append(float(sum(distinct.values())))
    print(f"base and adapter: {tensors[0] / 1e9:.2f} GB of tensors, {resident[0] / 1e6:.2f} GB resident")
    return {"memory_of_two_arms": resident[1] / resident[0], "tensors_of_two_arms": tensors[1] / tensors[0]}


async def switched(small: bool) -> dict[str, float]:
    """Errors of clients with their default retries while the candidate is another one 50 times (small: 4)."""
    import openai

    errors, answers, done, turns = list[str](), 0, asyncio.Event(), 4 if small else 50

    async def call(url: str) -> None:
        nonlocal answers
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=60) as client:
            while not done.is_set():
                asked: Any = [{"role": "user", "content": f"What is {answers} and 3?"}]
                try:
                    await client.chat.completions.create(model=NAME, messages=asked, max_tokens=4)
                    answers += 1
                except Exception as error:  # each is counted
                    errors.append(f"{type(error).__name__}: {error}")

    with tempfile.TemporaryDirectory() as root, SlotKeeper(store := Store(root), NAME, 32, lambda line: None) as keeper:
        tuned = [tuned_model(Path(root) / str(seed), seed) for seed in range(2)]
        keeper.serve([BASE])
        settings = GatewaySettings(root=root, model_name=NAME, traffic=GatewayTraffic(port=0))
        with running_gateway(settings, lambda line: None) as gateway:
            calls: list[asyncio.Task[None]] = []
            for turn in range(turns):
                each = tuned[turn % 2]
                over = {each.merged.digest: ServedAdapter(base=BASE.digest, adapter=each.adapter)}
                for weight in (0, 50, 0):
                    split = Split(
                        rollout=str(turn), epoch=3 * turn + (weight > 0) + 1, champion=BASE,
                        champion_weight=100 - weight, canary=each.merged, canary_weight=weight,
                    )  # fmt: skip
                    await asyncio.to_thread(keeper.serve, [BASE, each.merged], over)
                    write_split(store, NAME, split)
                    calls = calls or [asyncio.create_task(call(gateway.url)) for _ in range(CALLERS)]
                    await asyncio.sleep(0.3)
            done.set()
            await asyncio.gather(*calls)
    for error in errors[:5]:
        print(error)
    return {"errors_of_switches": float(len(errors)), "answers_of_switches": float(answers), "switches": float(turns)}
