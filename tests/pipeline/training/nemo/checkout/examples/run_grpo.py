"""A stand-in for NeMo RL: it reads the rendered configuration and writes the real directory layout, step by step.

Its weights are numbers that each step changes, so a resume that loses or repeats a step ends with others. What goes
wrong is in `behaviour.json` beside `examples`: `pause_at` (a step after which it waits to be killed), `pause_in` (a
save in which it waits for the file `finish`), `torn` (a save that leaves a step without its training_info.json),
`no_last` (exit 0 without the last checkpoint), `loss` (from a step on), `accuracy` (by step).
"""

import argparse
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import yaml
from safetensors.numpy import load_file, save_file

CHECKOUT = Path(__file__).parent.parent
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def merge(base, over):
    return base | {
        k: merge(base[k], v) if isinstance(v, dict) and isinstance(base.get(k), dict) else v for k, v in over.items()
    }


def load(path):
    config = yaml.safe_load(Path(path).read_text())
    parent = config.pop("defaults", None)
    return merge(load(parent), config) if parent else config


def rows(source, keys):
    found = [json.loads(line) for line in Path(source["data_path"]).read_text().splitlines()]
    assert source["split"] == "train", "a JSONL file has no other"
    assert all(set(row) == set(keys) for row in found)
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    config = load(parser.parse_args().config)
    (CHECKOUT / "pid").write_text(str(os.getpid()))
    behaviour = json.loads((CHECKOUT / "behaviour.json").read_text())
    settings, saving = config["grpo"], config["checkpointing"]
    train = rows(config["data"]["train"], ("input", "output"))
    per_step = settings["num_prompts_per_step"]
    steps = min(settings["max_num_steps"], settings["max_num_epochs"] * (len(train) // per_step))
    root = Path(saving["checkpoint_dir"])
    found = sorted(root.glob("step_*"), key=lambda path: int(path.name[5:]))
    state, done, looks = 0.0, 0, settings["val_period"]
    if found:
        info = json.loads((found[-1] / "training_info.json").read_text())
        done, state = info["total_steps"], float((found[-1] / "policy/optimizer/optim/state").read_text())
    if settings["val_at_start"] and not done:
        look(behaviour, 0, config)
    for step in range(done + 1, steps + 1):
        print(f"\n{'=' * 25} Step {step}/{steps} {'=' * 25}", flush=True)
        state = 0.9 * state + step * config["policy"]["optimizer"]["kwargs"]["lr"] * 100
        accuracy = look(behaviour, step, config) if looks and step % looks == 0 else None
        loss = behaviour.get("loss", {}).get(str(step), 1 / step)
        if step % saving["save_period"] == 0 or (step == steps and not behaviour.get("no_last")):
            save(config, root, step, state, accuracy, behaviour)
        print(f"\n📊 Training Results:\n  • Loss: {loss:.4f}")
        print("  • Avg Reward: 0.5000")
        print("\n⏱️  Timing:\n  • Total step time: 0.50s\n  • generation: 0.20s (40.0%)")
        print("  • checkpointing: 0.10s (20.0%)\n\n🔍 Performance Metrics:", flush=True)
        if behaviour.get("pause_at") == step:
            print(f"{'=' * 25} Step {step + 1}/{steps} {'=' * 25}", flush=True)
            signal.pause()
    print("Max number of steps has been reached, stopping training early", flush=True)


def look(behaviour, step, config):
    rows(config["data"]["validation"], ("input", "output"))
    accuracy = behaviour.get("accuracy", {}).get(str(step), 0.5)
    print(f"▶ Starting validation at step {step}...\n\n📊 Validation Results:\n    • Accuracy: {accuracy:.4f}")
    print("    • Average response length: 12.0 tokens\n\n  ⏱️  Validation Timing:\n    • Total validation time: 0.05s")
    return accuracy


def save(config, root, step, state, accuracy, behaviour):
    print(f"Saving checkpoint for step {step}...", flush=True)
    folder = root / f"tmp_step_{step}"
    for part in ("weights/model", "optimizer/optim", "tokenizer"):
        (folder / "policy" / part).mkdir(parents=True)
    info = {"total_steps": step, "consumed_samples": step}
    if accuracy is not None:
        info |= {"val_reward": accuracy, "val:accuracy": accuracy}
    (folder / "training_info.json").write_text(json.dumps(info))
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    if behaviour.get("pause_in") == step:
        while not (CHECKOUT / "finish").exists():
            time.sleep(0.01)
    weights(config, folder / "policy" / "weights" / "model", state)
    (folder / "policy/optimizer/optim/state").write_text(repr(state))
    (folder / "policy/tokenizer/tokenizer.json").write_text("{}")
    (folder / "train_dataloader.pt").write_bytes(b"state")
    if behaviour.get("torn") == step:
        (folder / "training_info.json").unlink()
    folder.rename(root / f"step_{step}")
    if behaviour.get("torn") == step:
        sys.exit("the machine died")
    retain(root, config["checkpointing"], step)


def retain(root, saving, newest):
    def rank(path):
        info = json.loads((path / "training_info.json").read_text())
        return (info.get(saving["metric_name"], -1.0), info["total_steps"])

    ranked = sorted((path for path in root.glob("step_*")), key=rank, reverse=True)
    for path in ranked[saving["keep_top_k"] :]:
        if path.name != f"step_{newest}":
            shutil.rmtree(path)


def weights(config, folder, state):
    lora, base = config["policy"]["dtensor_cfg"]["lora_cfg"], Path(config["policy"]["model_name"])
    if not lora["enabled"]:
        assert config["checkpointing"]["model_save_format"] == "torch_save", "the converter reads nothing else"
        (folder / ".metadata").write_bytes(b"dcp")
        (folder / "__0_0.distcp").write_text(repr(state))
        return
    assert config["checkpointing"]["model_save_format"] == "safetensors" and config["policy"]["dtensor_cfg"]["_v2"]
    r, found = lora["dim"], {}
    for name, value in load_file(base / "model.safetensors").items():
        if name.split(".")[-2] in LINEAR:
            prefix = "base_model.model." + name.removesuffix(".weight")
            found[f"{prefix}.lora_A.weight"] = np.full((r, value.shape[1]), 0.01, np.float32)
            found[f"{prefix}.lora_B.weight"] = np.full((value.shape[0], r), state, np.float32)
    save_file(found, folder / "adapter_model.safetensors")
    adapter = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": r,
        "lora_alpha": lora["alpha"],
        "target_modules": list(LINEAR),
        "base_model_name_or_path": str(base),
    }
    (folder / "adapter_config.json").write_text(json.dumps(adapter))


main()
