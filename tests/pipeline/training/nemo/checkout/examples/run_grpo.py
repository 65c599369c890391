"""A stand-in for NeMo RL: it reads the rendered configuration and writes the real directory layout, step by step.

Its weights are numbers that each step changes, so a resume that loses or repeats a step ends with others. What goes
wrong is in `behaviour.json` beside `examples`: `pause_at` (a step after which it waits to be killed), `pause_in` (a
save in which it waits for the file `finish`), `torn` (a save that leaves a step without its training_info.json),
`no_last` (exit 0 without the last checkpoint), `loss` (of a step), `accuracy` (by step), `logged` (more of a step),
`answers` (completions, scored by the environments on Ray; their rewards are left in `rewards.json`).
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
from nemo_rl.data.processors import PROCESSOR_REGISTRY
from nemo_rl.environments.utils import create_env
from nemo_rl.utils.logger import Logger
from safetensors.numpy import load_file, save_file

CHECKOUT = Path(__file__).parent.parent
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def merge(base, over):
    return base | {
        k: merge(base[k], v) if isinstance(v, dict) and isinstance(base.get(k), dict) else v for k, v in over.items()
    }


def load(path):
    config = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    parent = config.pop("defaults", None)
    return merge(load(parent), config) if parent else config


def rows(source, keys):
    found = [json.loads(line) for line in Path(source["data_path"]).read_text(encoding="utf-8").splitlines()]
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
    if "answers" in behaviour:
        score(config, train[0], behaviour["answers"])
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
        found = {
            "loss": loss,
            "reward": 0.5,
            "kl_penalty": 0,
            "histogram": [1, 2],
            **behaviour.get("logged", {}).get(str(step), {}),
        }
        Logger().log_metrics(found, step, prefix="train")
        Logger().log_metrics({"tokens_per_sec": 100.0}, step, prefix="performance")
        spent = {"total_step_time": 0.5, "generation": 0.2, "checkpointing": 0.1}
        Logger().log_metrics(spent, step, prefix="timing/train")
        if behaviour.get("pause_at") == step:
            print(f"{'=' * 25} Step {step + 1}/{steps} {'=' * 25}", flush=True)
            signal.pause()
    print("Max number of steps has been reached, stopping training early", flush=True)


def score(config, row, answers):
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    messages = [{"role": "user", "content": row["input"]}, {"role": "assistant", "content": row["output"]}]
    datum = {"messages": messages, "task_name": "train"}
    process = PROCESSOR_REGISTRY[config["data"]["default"]["processor"]]
    found = process(datum, None, lambda *_, **__: {"input_ids": [[1, 2]]}, 100, 0)
    asked = [[*found["message_log"], {"role": "assistant", "content": answer}] for answer in answers]
    names = {part: config["data"][part]["env_name"] for part in ("train", "validation")}
    environments = {part: create_env(env_name=name, env_config=config["env"][name]) for part, name in names.items()}
    infos = [found["extra_env_info"]] * len(answers)
    steps = {part: ray.get(each.step.remote(asked, infos)) for part, each in environments.items()}
    assert all(len(step.observations) == len(answers) and step.terminateds.all() for step in steps.values())
    rewards = {part: step.rewards.tolist() for part, step in steps.items()}
    ray.get([each.shutdown.remote() for each in environments.values()])
    (CHECKOUT / "rewards.json").write_text(json.dumps(rewards))
    ray.shutdown()


def look(behaviour, step, config):
    rows(config["data"]["validation"], ("input", "output"))
    accuracy = behaviour.get("accuracy", {}).get(str(step), 0.5)
    print(f"▶ Starting validation at step {step}...", flush=True)
    Logger().log_metrics({"accuracy": accuracy, "avg_length": 12.0}, step, prefix="validation")
    Logger().log_metrics({"total_validation_time": 0.05}, step, prefix="timing/validation")
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
