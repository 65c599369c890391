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
from pipeline.core.storage import DatasetRef, ModelRef, Store, digest_dir
from pipeline.demo import MODEL_DIR
from pipeline.registry.runs import MlflowAddresses
from tests.fork_server import ForkServer

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


def register(server: ForkServer, root: str, url: str, name: str, base: str = str(MODEL_DIR), number: str = "0"):
    """The version of the next iteration over `base`, whose training is under the data root."""
    champion = ModelRef(uri=base, digest=digest_dir(Path(base)))
    dataset = DatasetRef(uri="d", rows=7, digest=f"{number:0>64}", snapshot="s")
    iteration = identify(int(number), name, champion, dataset, "recipe")
    store = Store(root)
    folder = store.path(iteration.path("training"))
    tuned = server.popen([sys.executable, "-m", "tests.pipeline.registry.tuned", base, str(folder), number])
    assert tuned.wait() == 0, tuned.stdout.read()
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


def test_version_loads_and_is_rebuilt_from_the_server_alone(
    server: str, fork_server: ForkServer, tmp_path: Path
) -> None:
    root, other = tmp_path / "data", tmp_path / "other"
    other.mkdir()
    one = register(fork_server, str(root), server, "served").version
    assert one is not None
    two = register(fork_server, str(root), server, "served", one.model.uri, "1").version
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
