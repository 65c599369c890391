"""Makes a Hugging Face model of the stand-in's checkpoint, as a PyTorch file like the real one."""

import argparse
import json
from pathlib import Path

import torch
import yaml
from safetensors.torch import load_file

parser = argparse.ArgumentParser()
for name in ("--config", "--dcp-ckpt-path", "--hf-ckpt-path"):
    parser.add_argument(name, type=Path)
args = parser.parse_args()
base = Path(yaml.safe_load(args.config.read_text())["policy"]["model_name"])
shards = args.dcp_ckpt_path / "model"
assert (shards / ".metadata").is_file()
args.hf_ckpt_path.mkdir()
state = float((shards / "__0_0.distcp").read_text())
weights = {name: value * (1 + state) for name, value in load_file(base / "model.safetensors").items()}
if (Path(__file__).parent.parent.parent / "gap").exists():
    del weights["model.norm.weight"]
torch.save(weights, args.hf_ckpt_path / "pytorch_model.bin")
(args.hf_ckpt_path / "config.json").write_text((base / "config.json").read_text())
print(json.dumps({"saved": str(args.hf_ckpt_path)}))
