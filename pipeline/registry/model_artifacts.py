"""The artifacts of a candidate in MLflow: the merged weights as an `MLmodel` for chat (flavours `transformers` and
`python_function`), the adapter with its base, and the model card. No code."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath
from platform import python_version

import yaml

from pipeline.core.markdown import literal
from pipeline.core.model_files import ADAPTER as ADAPTER_CONFIG
from pipeline.core.model_files import INDEX
from pipeline.core.storage import CheckpointRef
from pipeline.registry.base_findings import BaseFinding
from pipeline.training.weights import BASE

MODEL, ADAPTER = "model", "adapter"
"""Folders among a run's artifacts."""
MLMODEL = "MLmodel"
"""The file by which a folder is a model."""
BASE_FILE = "base.json"
"""Next to an adapter: its base model and that one's digest."""
REQUIREMENTS, PYTHON_ENV = "requirements.txt", "python_env.yaml"
PACKAGES = ("mlflow", "transformers", "torch", "accelerate")
CHAT = "llm/v1/chat"
MAX_NEW_TOKENS = 1024
"""For requests without `max_tokens`."""
SECTIONS = ("Data", "Evaluation", "Intended use", "Limits")
_HUB = "models--"


def stage_model(checkpoint: CheckpointRef, run_id: str, about: Mapping[str, str], to: Path) -> None:
    """Lay out the version's artifacts in the new folder `to`: links to the weights, and what MLflow reads of them.
    `about`: metadata of the version."""
    folder = Path(checkpoint.model.uri)
    shutil.copytree(folder, to / "model", ignore=shutil.ignore_patterns(".*"), copy_function=os.symlink)
    weights = shutil.ignore_patterns(".*", "*.safetensors", INDEX)
    shutil.copytree(folder, to / "components" / "tokenizer", ignore=weights, copy_function=os.symlink)
    required = [f"{name}=={found}" if (found := _installed(name)) else name for name in PACKAGES]
    (to / REQUIREMENTS).write_text("\n".join(required) + "\n", encoding="utf-8")
    environment = {
        "python": python_version(),
        "build_dependencies": ["pip", "setuptools", "wheel"],
        "dependencies": [f"-r {REQUIREMENTS}"],
    }
    (to / PYTHON_ENV).write_text(yaml.safe_dump(environment, sort_keys=False), encoding="utf-8")
    _write_mlmodel(folder, run_id, {**about, "digest": checkpoint.model.digest}, to / MLMODEL)


def stage_adapter(checkpoint: CheckpointRef, base: str, base_digest: str, to: Path) -> None:
    """The same of the adapter, whose base is `base`; nothing where the training made none."""
    folder = Path(checkpoint.adapter.uri)
    if not (folder / ADAPTER_CONFIG).is_file():
        return
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns(".*", ADAPTER_CONFIG), copy_function=os.symlink)
    config = json.loads((folder / ADAPTER_CONFIG).read_bytes())
    (to / ADAPTER_CONFIG).write_text(json.dumps({**config, BASE: base}, indent=2, sort_keys=True), encoding="utf-8")
    (to / BASE_FILE).write_text(json.dumps({"model": base, "digest": base_digest}, indent=2) + "\n", encoding="utf-8")


def base_id(uri: str) -> str:
    """The name of a base model outside a registry: its id on the Hub if it lies in the Hub's cache, else its
    folder's name."""
    cached = next((part for part in PurePath(uri).parts if part.startswith(_HUB)), None)
    return cached.removeprefix(_HUB).replace("--", "/") if cached else PurePath(uri).name


def _write_mlmodel(folder: Path, run_id: str, about: Mapping[str, str], file: Path) -> None:
    from mlflow import pyfunc
    from mlflow.models import Model, ModelSignature
    from mlflow.types.llm import CHAT_MODEL_INPUT_SCHEMA, CHAT_MODEL_OUTPUT_SCHEMA

    model = Model(
        artifact_path=MODEL,
        run_id=run_id,
        signature=ModelSignature(inputs=CHAT_MODEL_INPUT_SCHEMA, outputs=CHAT_MODEL_OUTPUT_SCHEMA),
        metadata={"task": CHAT, **about},
        model_size_bytes=sum(each.stat().st_size for each in folder.rglob("*") if each.is_file()),
    )
    config = json.loads(path.read_bytes()) if (path := folder / "config.json").is_file() else {}
    dtype = config.get("dtype") or config.get("torch_dtype")
    model.add_flavor(
        "transformers",
        transformers_version=config.get("transformers_version") or _installed("transformers"),
        code=None,
        task="text-generation",
        instance_type="TextGenerationPipeline",
        pipeline_model_type="AutoModelForCausalLM",
        tokenizer_type="AutoTokenizer",
        components=["tokenizer"],
        model_binary="model",
        source_model_name=about.get("name", ""),
        torch_dtype=f"torch.{dtype}" if dtype else None,
        inference_task=CHAT,
    )
    pyfunc.add_to_model(
        model,
        loader_module="mlflow.transformers",
        python_env=PYTHON_ENV,
        model_config={"max_new_tokens": MAX_NEW_TOKENS},
    )
    model.save(str(file))


def _installed(name: str) -> str:
    """The installed version without its build, or ""."""
    try:
        return version(name).partition("+")[0]
    except PackageNotFoundError:
        return ""


def model_card(
    name: str, lineage: Mapping[str, str], sections: Mapping[str, str], findings: Sequence[BaseFinding]
) -> str:
    body = [part for title in SECTIONS for part in (f"## {title}", sections[title].strip())]
    rows = [f"| {key} | `{value}` |" for key, value in lineage.items() if value]
    lines = [f"| {finding.question} | {finding.level} | {literal(finding.text)} |" for finding in findings]
    table, checked = "| what | value |\n| --- | --- |", "| question | | answer |\n| --- | --- | --- |"
    parts = ["## Base model", "\n".join([checked, *lines])] if lines else []
    parts += ["## Lineage", "\n".join([table, *rows])]
    return "\n\n".join([f"# {name}", *body, *parts]) + "\n"
