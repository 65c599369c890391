"""The artifacts of a candidate in MLflow: the merged weights as an `MLmodel` for chat (flavours `transformers` and
`python_function`), the adapter with its base, and the model card. No code."""

import json
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath
from platform import python_version
from typing import Any

import yaml

from pipeline.core.model_files import ADAPTER as ADAPTER_CONFIG
from pipeline.core.model_files import INDEX
from pipeline.core.storage import CheckpointRef
from pipeline.training.weights import BASE

MODEL, ADAPTER = "model", "adapter"
"""Folders among a run's artifacts."""
BASE_FILE = "base.json"
"""Next to an adapter: its base model and that one's digest."""
MLMODEL, REQUIREMENTS, CONDA, PYTHON_ENV = "MLmodel", "requirements.txt", "conda.yaml", "python_env.yaml"
PACKAGES = ("mlflow", "transformers", "torch", "accelerate")
CHAT = "llm/v1/chat"
MAX_NEW_TOKENS = 1024
"""For requests without `max_tokens`."""
_HUB = "models--"


def model_files(checkpoint: CheckpointRef, run_id: str, about: Mapping[str, str], scratch: Path) -> dict[str, Path]:
    """Path among the run's artifacts to file, `MLmodel` last, as it marks a complete upload. `about`: metadata of the
    version. New files are written to `scratch`."""
    folder = Path(checkpoint.model.uri)
    whole = dict(_below(folder))
    size = sum(file.stat().st_size for file in whole.values())
    files = {f"{MODEL}/model/{name}": file for name, file in whole.items()}
    rest = {name: file for name, file in whole.items() if not name.endswith(".safetensors") and name != INDEX}
    files |= {f"{MODEL}/components/tokenizer/{name}": file for name, file in rest.items()}
    _write_environment(scratch)
    described = _mlmodel(folder, run_id, {**about, "digest": checkpoint.model.digest}, size)
    (scratch / MLMODEL).write_text(yaml.safe_dump(described, sort_keys=False))
    return files | {f"{MODEL}/{name}": scratch / name for name in (REQUIREMENTS, CONDA, PYTHON_ENV, MLMODEL)}


def adapter_files(checkpoint: CheckpointRef, base: str, base_digest: str, scratch: Path) -> dict[str, Path]:
    """The same of the adapter, whose base is `base`; empty where the training made none."""
    folder = Path(checkpoint.adapter.uri)
    if not (folder / ADAPTER_CONFIG).is_file():
        return {}
    config = json.loads((folder / ADAPTER_CONFIG).read_text())
    (scratch / ADAPTER_CONFIG).write_text(json.dumps({**config, BASE: base}, indent=2, sort_keys=True))
    (scratch / BASE_FILE).write_text(json.dumps({"model": base, "digest": base_digest}, indent=2) + "\n")
    written = {name: scratch / name for name in (ADAPTER_CONFIG, BASE_FILE)}
    return {f"{ADAPTER}/{name}": file for name, file in {**dict(_below(folder)), **written}.items()}


def base_id(uri: str) -> str:
    """The name of a base model outside a registry: its id on the Hub if it lies in the Hub's cache, else its
    folder's name."""
    parts = PurePath(uri).parts
    cached = next((part for part in parts if part.startswith(_HUB)), None)
    return cached.removeprefix(_HUB).replace("--", "/") if cached else PurePath(uri).name


def _below(folder: Path) -> Iterator[tuple[str, Path]]:
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            yield file.relative_to(folder).as_posix(), file


def _mlmodel(folder: Path, run_id: str, about: Mapping[str, str], size: int) -> dict[str, Any]:
    from mlflow import pyfunc
    from mlflow.models import Model, ModelSignature
    from mlflow.types.llm import CHAT_MODEL_INPUT_SCHEMA, CHAT_MODEL_OUTPUT_SCHEMA

    model = Model(
        artifact_path=MODEL,
        run_id=run_id,
        signature=ModelSignature(inputs=CHAT_MODEL_INPUT_SCHEMA, outputs=CHAT_MODEL_OUTPUT_SCHEMA),
        metadata={"task": CHAT, **about},
        model_size_bytes=size,
    )
    config = json.loads(file.read_text()) if (file := folder / "config.json").is_file() else {}
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
        conda_env=CONDA,
        python_env=PYTHON_ENV,
        code=None,
        model_config={"max_new_tokens": MAX_NEW_TOKENS},
    )
    return yaml.safe_load(model.to_yaml())


def _write_environment(scratch: Path) -> None:
    required = [f"{name}=={found}" if (found := _installed(name)) else name for name in PACKAGES]
    pip: list[Any] = ["pip", {"pip": required}]
    conda = {"name": "mlflow-env", "channels": ["conda-forge"], "dependencies": [f"python={python_version()}", *pip]}
    python = {
        "python": python_version(),
        "build_dependencies": ["pip", "setuptools", "wheel"],
        "dependencies": [f"-r {REQUIREMENTS}"],
    }
    (scratch / REQUIREMENTS).write_text("\n".join(required) + "\n")
    (scratch / CONDA).write_text(yaml.safe_dump(conda, sort_keys=False))
    (scratch / PYTHON_ENV).write_text(yaml.safe_dump(python, sort_keys=False))


def _installed(name: str) -> str:
    """The installed version without its build, or ""."""
    try:
        return version(name).partition("+")[0]
    except PackageNotFoundError:
        return ""


SECTIONS = ("Data", "Evaluation", "Intended use", "Limits")


def model_card(name: str, lineage: Mapping[str, str], sections: Mapping[str, str]) -> str:
    body = [part for title in SECTIONS for part in (f"## {title}", sections[title].strip())]
    rows = [f"| {key} | `{value}` |" for key, value in lineage.items() if value]
    table = "\n".join(["| what | value |", "| --- | --- |", *rows])
    return "\n\n".join([f"# {name}", *body, "## Lineage", table]) + "\n"


def front_matter(lineage: Mapping[str, str]) -> str:
    """The card's metadata for the Hub, without a base that is a version of a registry."""
    base = lineage["base"]
    fields = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        **({} if base.startswith("models:/") else {"base_model": base}),
        "tags": ["preference-tuning", f"verdict:{lineage['verdict']}"],
    }
    return f"---\n{yaml.safe_dump(fields, sort_keys=False)}---\n\n"
