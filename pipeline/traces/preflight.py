"""Faults of a recipe that show before a run, within seconds: model, chat template, data root, disk, source. Each is a
line that begins with the recipe's field and ends in an instruction."""

import shutil
import tempfile
from pathlib import Path

from jinja2 import TemplateError

from pipeline.core.buckets import bucket_fault, is_bucket
from pipeline.core.chat_template import TURNS, support_of
from pipeline.core.model_files import faults, weight_files
from pipeline.core.storage import shown_path
from pipeline.core.template_files import folder_template
from pipeline.recipe import Recipe, Training
from pipeline.traces.sources.open import open_source
from pipeline.traces.sources.protocol import Address, Probed

FOLDERS = {"langfuse_export": ("observations_v2", "observations")}
"""Below the address of a source of that kind, one of them."""
INSTEAD = {
    "langfuse_export": " in it. Point it to the folder above observations_v2/ of a Langfuse blob-storage export."
}
ELSE = " below it. Point it to the folder of the traces."
REST_BYTES = 200 << 20
"""For what is not the model's: tables, labels, logs."""
ADAPTER_SHARE = 0.1
"""Of a model's bytes that a checkpoint of an adapter takes with its optimiser, at the most."""
FULL_SHARE = 6.0
"""The same of all weights: in float32 with two moments, of a model that is kept in 16 bits."""


def preflight(recipe: Recipe, address: Address | None, warehouse: str) -> list[str]:
    """`address`: of the source, where it is known. `warehouse`: of the governed table."""
    uri = recipe.base_model.uri
    relative = f" ({uri} is relative to {Path.cwd()})" if not Path(uri).is_absolute() else ""
    return [
        *(f"base_model.uri{relative}: {fault}" for fault in faults(Path(uri).absolute())),
        *_template_faults(recipe),
        *data_root_faults(recipe.data_root),
        *_disk_faults(recipe),
        *(source_faults(address) if address else []),
        *_place_faults("traces.lake.warehouse", warehouse),
        *_place_faults("training.checkpoints.mirror", recipe.training.checkpoints.mirror or ""),
    ]


def _template_faults(recipe: Recipe) -> list[str]:
    folder = Path(recipe.base_model.uri).absolute()
    if faults(folder):
        return []
    try:
        template = folder_template(folder)
        if template is None:
            raise ValueError("there is none")
        template.apply_chat_template([{"role": "user", "content": "Hello"}], add_generation_prompt=True)
    except (TemplateError, ValueError, TypeError, KeyError) as error:
        why = " ".join(str(error).split())[:200]
        return [f"base_model.uri: the chat template does not render ({why}). Save the tokenizer with one that does."]
    left_out = sorted(support_of(template).left_out - {TURNS})
    if left_out and recipe.training.tools is not None and recipe.selection.tools == "train":
        return [
            f"base_model.uri: the chat template of {folder} leaves out {', '.join(left_out)}, and training.tools "
            "replays them. Save the tokenizer with a template that renders tools, or set training.tools to null."
        ]
    return []


def data_root_faults(root: str, field: str = "data_root") -> list[str]:
    if "://" in root:
        return [f"{field}: {root} is no directory of this machine. Give a local or mounted path."]
    there = _existing(root)
    try:
        with tempfile.NamedTemporaryFile(dir=there, prefix=".writable-") as probe:
            probe.write(b"\0" * 4096)
            probe.flush()
    except OSError as error:
        why = error.strerror or str(error)
        return [f"{field}: {shown_path(root)} cannot be written ({why} in {there}). Point it to a disk that can be."]
    return []


def _existing(root: str) -> Path:
    place = Path(root).absolute()
    return next(folder for folder in (place, *place.parents) if folder.exists())


def _disk_faults(recipe: Recipe) -> list[str]:
    if "://" in recipe.data_root or faults(Path(recipe.base_model.uri)):
        return []
    free, model = shutil.disk_usage(_existing(recipe.data_root)).free, model_bytes(Path(recipe.base_model.uri))
    needed = iteration_bytes(model, recipe.training)
    if free >= needed:
        return []
    return [
        f"data_root: {shown_path(recipe.data_root)} has {gigabytes(free)} free, and an iteration writes about "
        f"{gigabytes(needed)} (a tuned model of {gigabytes(model)}, {_kept(recipe.training)} checkpoints, tables). "
        "Free space, point it to another disk, or lower training.checkpoints.keep_last."
    ]


def model_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in weight_files(folder))


def iteration_bytes(model: int, training: Training) -> int:
    """What one iteration may write for a model of `model` bytes."""
    checkpoint = model * (ADAPTER_SHARE if training.lora else FULL_SHARE)
    return round(model + _kept(training) * checkpoint) + REST_BYTES


def source_faults(address: Address) -> list[str]:
    """Whether the source is there and has what its kind needs. A large bucket is not listed."""
    kind, uri = address.section.kind, address.uri
    if kind == "demo":
        return []
    try:
        source = open_source(address)
        if isinstance(source, Probed):
            source.probe()
        elif not is_bucket(uri):
            source.parts()
        elif fault := bucket_fault(uri, FOLDERS.get(kind, ("",))):
            return [f"traces.source.uri: {fault}{'' if fault.endswith('.') else INSTEAD.get(kind, ELSE)}"]
    except ValueError as error:
        return [f"traces.source: {error}"]
    return []


def _place_faults(field: str, uri: str) -> list[str]:
    if is_bucket(uri):
        fault = bucket_fault(uri, may_be_empty=True)
        return [f"{field}: {fault}"] if fault else []
    path = uri.removeprefix("file://")
    return data_root_faults(path, field) if path and "://" not in path else []


def gigabytes(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"


def _kept(training: Training) -> int:
    return training.checkpoints.keep_last + training.checkpoints.keep_best + 1
