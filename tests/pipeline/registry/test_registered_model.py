"""A registered version on a machine that has a tracking server and nothing else, with a real server and real models."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient

from pipeline.core.iteration import identify
from pipeline.core.storage import CheckpointRef, DatasetRef, ModelRef, Store, digest_dir
from pipeline.demo import MODEL_DIR
from pipeline.registry.runs import MlflowAddresses

from .conftest import put_on_record

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]

ELSEWHERE = """
import json, sys
import mlflow, torch
from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts
from peft import PeftModel
from transformers import AutoModelForCausalLM

name = sys.argv[1]
question = [{"role": "user", "content": "What is 2 + 3?"}]
(answer,) = mlflow.pyfunc.load_model(f"models:/{name}@champion").predict({"messages": question})
pipeline = mlflow.transformers.load_model(f"models:/{name}@champion")
run = MlflowClient().get_model_version_by_alias(name, "champion").run_id
adapter = download_artifacts(run_id=run, artifact_path="adapter")
base = json.load(open(f"{adapter}/base.json"))["model"]
whole = AutoModelForCausalLM.from_pretrained(download_artifacts(base) + "/model")
rebuilt = PeftModel.from_pretrained(whole, adapter).merge_and_unload().state_dict()
merged = pipeline.model.state_dict()
print(json.dumps({
    "chat": answer["choices"][0]["message"],
    "pipeline": pipeline(question, max_new_tokens=8)[0]["generated_text"][-1]["role"],
    "base": base,
    "equal": rebuilt.keys() == merged.keys() and all(torch.equal(rebuilt[key], merged[key]) for key in merged),
    "project": "pipeline" in sys.modules,
}))
"""


def tune(base: str, folder: Path, seed: int) -> CheckpointRef:
    """An adapter drawn at random over a base, and the model with it merged in, as a training leaves them."""
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    adapter, model = folder / "adapter", folder / "model"
    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).save_pretrained(adapter)
    merged = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter).merge_and_unload()
    merged.save_pretrained(model)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(MODEL_DIR / name, model)
    refs = [ModelRef(uri=str(each), digest=digest_dir(each)) for each in (adapter, model)]
    return CheckpointRef(adapter=refs[0], model=refs[1], step=1)


def register(root: str, url: str, name: str, base: str = str(MODEL_DIR), number: str = "0"):
    """The version of the next iteration over `base`, whose training is under the data root."""
    champion = ModelRef(uri=base, digest=digest_dir(Path(base)))
    dataset = DatasetRef(uri="d", rows=7, digest=f"{number:0>64}", snapshot="s")
    iteration = identify(int(number), name, champion, dataset, "recipe")
    store = Store(root)
    folder = store.path(iteration.path("training"))
    if not folder.exists():
        tune(base, folder, seed=int(number))
    refs = [ModelRef(uri=str(folder / each), digest=digest_dir(folder / each)) for each in ("adapter", "model")]
    return put_on_record(MlflowAddresses(url), store, iteration, *refs)


def on_another_machine(url: str, folder: Path, script: str, *arguments: str) -> dict[str, object]:
    """What a script prints that knows a tracking server and MLflow, and nothing of the project or its data."""
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "HF_HOME")}
    environment |= {"MLFLOW_TRACKING_URI": url, "HOME": str(folder), "TMPDIR": str(folder), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_version_loads_and_is_rebuilt_from_the_server_alone(server: str, tmp_path: Path) -> None:
    root, other = tmp_path / "data", tmp_path / "other"
    other.mkdir()
    one = register(str(root), server, "served").version
    assert one is not None
    two = register(str(root), server, "served", one.model.uri, "1").version
    assert two is not None and two.version == 2
    client = MlflowClient(server, server)
    client.set_registered_model_alias("served", "champion", "2")
    bases = [client.get_model_version("served", number).tags["base"] for number in ("1", "2")]
    assert bases == ["model", "models:/served/1"]
    shutil.rmtree(root)
    answered = on_another_machine(server, other, ELSEWHERE, "served")
    assert answered["chat"]["role"] == "assistant" and answered["chat"]["content"]
    assert answered["pipeline"] == "assistant"
    assert (answered["base"], answered["equal"], answered["project"]) == ("models:/served/1", True, False)
    texts = [path for path in (other / "..").rglob("files/**/*") if path.suffix in (".json", ".yaml", "")]
    assert not [path for path in texts if path.is_file() and str(tmp_path) in path.read_text()]
