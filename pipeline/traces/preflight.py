"""What shows before a run: faults of a recipe, each a line that begins with its field and ends in an instruction.
Nothing is written."""

import shutil
import tempfile
from pathlib import Path

from jinja2 import TemplateError

from pipeline.core.model_files import faults, weight_files
from pipeline.core.objects import bucket_fault, is_bucket
from pipeline.core.storage import shown_path
from pipeline.models.rendering import folder_template
from pipeline.recipe import Recipe
from pipeline.traces.detect import wrong_kind
from pipeline.traces.sources.open import open_source
from pipeline.traces.sources.protocol import Address, Probed

REST_BYTES = 200 << 20
"""For what is not the model's: tables, labels, logs."""
ADAPTER_SHARE, FULL_SHARE = 0.1, 6.0
"""Of a model's bytes that a checkpoint takes with its optimiser: of an adapter, and of all weights in float32 with two
moments, where the model is kept in 16 bits."""


def preflight(recipe: Recipe, address: Address | None, warehouse: str) -> list[str]:
    """`address`: of the source, where it is known. `warehouse`: of the governed table."""
    uri = recipe.base_model.uri
    relative = f" ({uri} is relative to {Path.cwd()})" if not Path(uri).is_absolute() else ""
    of_model = [f"base_model.uri{relative}: {fault}" for fault in faults(Path(uri).absolute())]
    return [
        *(of_model or _template_faults(recipe)),
        *(data_root_faults(recipe.data_root) or ([] if of_model else _disk_faults(recipe))),
        *(source_faults(address) if address else []),
        *_place_faults("traces.lake.warehouse", warehouse),
        *_place_faults("training.checkpoints.mirror", recipe.training.checkpoints.mirror or ""),
    ]


def _template_faults(recipe: Recipe) -> list[str]:
    folder = Path(recipe.base_model.uri).absolute()
    try:
        template = folder_template(folder)
        if template is None:
            raise ValueError("there is none")
        template.apply_chat_template([{"role": "user", "content": "Hello"}], add_generation_prompt=True)
    except (TemplateError, ValueError, TypeError, KeyError) as error:
        why = " ".join(str(error).split())[:200]
        return [f"base_model.uri: the chat template does not render ({why}). Save the tokenizer with one that does."]
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
    needed, free = _disk_bytes(recipe)
    if free >= needed:
        return []
    return [
        f"data_root: {shown_path(recipe.data_root)} has {free / 1e9:,.1f} GB free, and an iteration writes about "
        f"{needed / 1e9:,.1f} GB (a tuned model, its checkpoints, tables). Free space, point it to another disk, or "
        "lower training.checkpoints.keep_last."
    ]


def _disk_bytes(recipe: Recipe) -> tuple[int, int]:
    """What one iteration may write, and what is free below the data root."""
    model = sum(file.stat().st_size for file in weight_files(Path(recipe.base_model.uri)))
    training = recipe.training
    kept = training.checkpoints.keep_last + training.checkpoints.keep_best + 1
    checkpoint = model * (ADAPTER_SHARE if training.lora else FULL_SHARE)
    return round(model + kept * checkpoint) + REST_BYTES, shutil.disk_usage(_existing(recipe.data_root)).free


def source_faults(address: Address) -> list[str]:
    """Whether the source and its imports are there. A bucket is not listed, for it may be large."""
    return [fault for each in address.each() if each.section.kind != "demo" for fault in _source_faults(each)]


def _source_faults(address: Address) -> list[str]:
    field = "traces.imports" if address.imports else "traces.source"
    try:
        source = open_source(address)
        if isinstance(source, Probed):
            source.probe()
        elif not is_bucket(address.uri):
            source.parts()
        elif fault := bucket_fault(address.uri):
            return [f"{field}.uri: {fault}"]
    except ValueError as error:
        return [f"{field}: {error} {wrong_kind(address.section)}".strip()]
    return []


def _place_faults(field: str, uri: str) -> list[str]:
    if is_bucket(uri):
        fault = bucket_fault(uri, may_be_empty=True)
        return [f"{field}: {fault}"] if fault else []
    path = uri.removeprefix("file://")
    return data_root_faults(path, field) if path and "://" not in path else []
