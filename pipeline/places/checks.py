"""What shows before a run of the places that it reads and writes: faults, each a line that begins with its field and
ends in an instruction."""

import ssl
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import chain
from typing import NamedTuple

import httpx2

from pipeline.core.redaction import redacted
from pipeline.places import mlflow, stores
from pipeline.places.disk import ADAPTER_SHARE, folder_faults, model_bytes, space_faults
from pipeline.recipe import Recipe
from pipeline.registry.runs import MlflowAddresses
from pipeline.serving.endpoint import Endpoint, check_endpoint
from pipeline.traces.detect import wrong_kind
from pipeline.traces.lake.catalogue import load_catalogue
from pipeline.traces.lake_config import LakeConfig
from pipeline.traces.records import Reason
from pipeline.traces.sources.open import open_source
from pipeline.traces.sources.protocol import Address, Probed

TIMEOUT_S = 5.0
CUT, HALF, MOST = (Reason.TRUNCATED_FILE, Reason.TOO_LARGE), "Input data was truncated", 1 << 30
"""Why a file is not read to its end, what is said of a line that breaks off, and how many bytes are looked through."""


class Places(NamedTuple):
    """What a run goes to besides its data root; None for what it does not go to."""

    source: Address | None = None
    lake: LakeConfig | None = None
    stores: Mapping[str, str] = {}
    """By the recipe's field: addresses and folders below which a run keeps files."""
    mlflow: MlflowAddresses | None = None
    endpoints: Mapping[str, Endpoint] = {}
    """By the beginning of the names of the variables that give them: JUDGE, SERVING."""

    @property
    def names(self) -> list[str]:
        """Of what is tried, for people."""
        rest = {"traces.source": self.source, "traces.lake": self.lake, "MLflow": self.mlflow}
        named = [*(name for name, place in rest.items() if place), *self.stores]
        return ["data_root", *named, *(f"{prefix}_URL" for prefix in self.endpoints)]


def place_faults(recipe: Recipe, places: Places) -> list[str]:
    """All at once: what a server takes seconds to refuse takes them together."""
    tries: list[Callable[[], list[str]]] = [
        lambda: folder_faults(recipe.data_root, "data_root") or space_faults(recipe),
        *(lambda each=each: source_faults(each) for each in (places.source.each() if places.source else ())),
        *(lambda each=each: _endpoint_faults(*each) for each in places.endpoints.items()),
        *(lambda each=each: _written(*each, lambda: stores.write_fault(each[1])) for each in places.stores.items()),
    ]
    if (lake := places.lake) is not None:
        tries.append(lambda: _lake_faults(lake))
    if (addresses := places.mlflow) is not None:
        size = round(ADAPTER_SHARE * model_bytes(recipe))
        tries.append(lambda: mlflow.try_out(addresses, recipe.base_model.name, size))
    with ThreadPoolExecutor(len(tries)) as pool:
        return list(chain.from_iterable(pool.map(lambda each: each(), tries)))


def source_faults(address: Address) -> list[str]:
    """Whether a source or an import is there. A bucket is not listed whole, for it may be large."""
    if address.section.kind == "demo":
        return []
    field = "traces.imports" if address.imports else "traces.source"
    try:
        source = open_source(address)
        if isinstance(source, Probed):
            source.probe()
        elif "://" not in address.uri.removeprefix("file://"):
            source.parts()
        elif fault := stores.read_fault(address.uri):
            return [f"{field}.uri: {fault}"]
    except ValueError as error:
        return [f"{field}: {error} {wrong_kind(address.section)}".strip()]
    return []


def file_lines(address: Address) -> Iterator[str]:
    """Of a local source: each file that is empty or cut, with what is lost, and the rows that a run would see."""
    source, rows, left = open_source(address), 0, MOST
    parts = source.parts()
    for part in parts:
        here, lost, left = 0, "", left - part.size
        for block in source.rows(part, sha256()) if left >= 0 else ():
            here += len(block.traces) + len(block.scores) + len(block.rejected)
            cut = (each for each in block.rejected if each.reason in CUT or HALF in each.detail)
            lost = lost or next((f"{each.detail}, row {each.line:,} and what follows it is lost" for each in cut), "")
        if lost or not here:
            yield f"warning: {part.name}: {lost or ('it is empty' if left >= 0 else f'not read, past {MOST:,} bytes')}"
        rows += here if part.holds == "calls" else 0
    yield f"{rows:,} rows of calls in {len(parts):,} files"


def _lake_faults(lake: LakeConfig) -> list[str]:
    if lake.catalogue != "sqlite":
        try:
            load_catalogue(lake).list_namespaces()
        except Exception as error:  # boundary: a catalogue of somebody else's, with drivers of its own
            why = redacted(" ".join(str(error).split())[:200])
            return [
                f"traces.lake: its catalogue does not answer ({type(error).__name__}: {why}). Check LAKE_CATALOGUE_URI."
            ]
    return _written("traces.lake.warehouse", lake.warehouse, lambda: stores.lake_fault(lake))


def _written(field: str, uri: str, fault: Callable[[], str]) -> list[str]:
    path = uri.removeprefix("file://")
    if "://" not in path:
        return folder_faults(path, field)
    return [f"{field}: {why}"] if (why := fault()) else []


def _endpoint_faults(prefix: str, endpoint: Endpoint) -> list[str]:
    """Whether a server answers, and takes the key. Not each lists its models: any other answer is one."""
    try:
        check_endpoint(endpoint, f"{prefix}'s", prefix)
        headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
        url, verify = f"{endpoint.url}/models", ssl.create_default_context()
        status = httpx2.get(url, headers=headers, timeout=TIMEOUT_S, verify=verify).status_code
    except ValueError as error:
        return [str(error)]
    except httpx2.HTTPError as error:
        return [f"{prefix}_URL: no answer ({type(error).__name__}). Start the server, or correct the address."]
    key = f"it refuses the key ({status}). Set {prefix}_API_KEY to one that is valid."
    return [f"{prefix}_URL: {key}"] if status in (401, 403) else []
