"""What shows before a run of the places that it reads and writes: faults, each a line that begins with its field and
ends in an instruction."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import httpx2
from jinja2 import TemplateError

from pipeline.core.model_files import faults, weight_files
from pipeline.core.objects import is_bucket
from pipeline.core.redaction import redacted
from pipeline.models.rendering import folder_template
from pipeline.places import mlflow, stores
from pipeline.places.disk import folder_faults, socket_faults, space_faults
from pipeline.recipe import Recipe
from pipeline.registry.runs import MlflowAddresses
from pipeline.serving.endpoint import Endpoint, check_endpoint
from pipeline.traces.detect import wrong_kind
from pipeline.traces.lake.catalogue import load_catalogue
from pipeline.traces.lake_config import LakeConfig
from pipeline.traces.sources.open import open_source
from pipeline.traces.sources.protocol import Address, Probed

TIMEOUT_S = 5.0
Try = Callable[[], list[str]]


class Places(NamedTuple):
    """What a run goes to besides its data root and base model; None for what it does not go to."""

    source: Address | None = None
    lake: LakeConfig | None = None
    mirror: str | None = None
    mlflow: MlflowAddresses | None = None
    endpoints: Mapping[str, Endpoint] = {}
    """By the beginning of the names of the variables that give them: JUDGE, SERVING."""


def place_faults(recipe: Recipe, places: Places) -> list[str]:
    """All at once: what a server takes seconds to refuse takes them together."""
    of_model = list(_model_faults(recipe))
    tries: list[Try] = [
        lambda: folder_faults(recipe.data_root, "data_root") or ([] if of_model else space_faults(recipe)),
        socket_faults,
        *(lambda each=each: source_faults(each) for each in (places.source.each() if places.source else ())),
        *(lambda each=each: _endpoint_faults(*each) for each in places.endpoints.items()),
    ]
    if (lake := places.lake) is not None:
        tries.append(lambda: _lake_faults(lake))
    if mirror := places.mirror:
        tries.append(lambda: _mirror_faults(mirror))
    if (addresses := places.mlflow) is not None:
        tries.append(lambda: mlflow.try_out(addresses, recipe.base_model.name, _adapter_bytes(recipe)))
    with ThreadPoolExecutor(len(tries)) as pool:
        return [*of_model, *chain.from_iterable(pool.map(lambda each: each(), tries))]


def _model_faults(recipe: Recipe) -> Iterator[str]:
    uri = recipe.base_model.uri
    relative = f" ({uri} is relative to {Path.cwd()})" if not Path(uri).is_absolute() else ""
    folder = Path(uri).absolute()
    if of_files := faults(folder):
        yield from (f"base_model.uri{relative}: {fault}" for fault in of_files)
        return
    try:
        template = folder_template(folder)
        if template is None:
            raise ValueError("there is none")
        template.apply_chat_template([{"role": "user", "content": "Hello"}], add_generation_prompt=True)
    except (TemplateError, ValueError, TypeError, KeyError) as error:
        why = " ".join(str(error).split())[:200]
        yield f"base_model.uri: the chat template does not render ({why}). Save the tokenizer with one that does."


def source_faults(address: Address) -> list[str]:
    """Whether a source or an import is there. A bucket is not listed whole, for it may be large."""
    if address.section.kind == "demo":
        return []
    field = "traces.imports" if address.imports else "traces.source"
    try:
        source = open_source(address)
        if isinstance(source, Probed):
            source.probe()
        elif not is_bucket(address.uri):
            source.parts()
        elif fault := stores.read_fault(address.uri):
            return [f"{field}.uri: {fault}"]
    except ValueError as error:
        return [f"{field}: {error} {wrong_kind(address.section)}".strip()]
    return []


def _lake_faults(lake: LakeConfig) -> list[str]:
    if lake.catalogue != "sqlite":
        try:
            load_catalogue(lake).list_namespaces()
        except Exception as error:  # boundary: a catalogue of somebody else's, with drivers of its own
            why = redacted(" ".join(str(error).split())[:200])
            return [
                f"traces.lake: its catalogue does not answer ({type(error).__name__}: {why}). Check LAKE_CATALOGUE_URI."
            ]
    if is_bucket(lake.warehouse):
        return [f"traces.lake.warehouse: {fault}"] if (fault := stores.lake_fault(lake)) else []
    return folder_faults(lake.warehouse.removeprefix("file://"), "traces.lake.warehouse")


def _mirror_faults(uri: str) -> list[str]:
    path, field = uri.removeprefix("file://"), "training.checkpoints.mirror"
    if "://" not in path:
        return folder_faults(path, field)
    return [f"{field}: {fault}"] if (fault := stores.write_fault(uri)) else []


def _adapter_bytes(recipe: Recipe) -> int:
    return sum(file.stat().st_size for file in weight_files(Path(recipe.base_model.uri))) // 10


def _endpoint_faults(prefix: str, endpoint: Endpoint) -> list[str]:
    """Whether a server answers, and takes the key. Not each lists its models: any other answer is one."""
    try:
        check_endpoint(endpoint, f"{prefix}'s", prefix)
        headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
        status = httpx2.get(f"{endpoint.url}/models", headers=headers, timeout=TIMEOUT_S).status_code
    except ValueError as error:
        return [str(error)]
    except httpx2.HTTPError as error:
        return [f"{prefix}_URL: no answer ({type(error).__name__}). Start the server, or correct the address."]
    key = f"it refuses the key ({status}). Set {prefix}_API_KEY to one that is valid."
    return [f"{prefix}_URL: {key}"] if status in (401, 403) else []
