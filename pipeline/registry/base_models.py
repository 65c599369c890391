"""Base models below the data root, pinned: fetched from a registry (`models:/NAME@alias`, `models:/NAME/3`) or from the
Hub (`hf://ORG/NAME@revision`), and copies with the recipe's chat settings. Safetensors only, and no code."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from pipeline.core import layout
from pipeline.core.locations import Uri
from pipeline.core.mlflow_server import mlflow_answers, reach
from pipeline.core.model_files import faults
from pipeline.core.storage import Record, Store, digest_json, model_ref
from pipeline.models.templates import chat_digest, copy_with
from pipeline.recipe import BaseModelSection, ChatSettings, Recipe
from pipeline.registry.model_artifacts import MODEL
from pipeline.registry.runs import MlflowAddresses, mlflow_client

REGISTRY, HUB = "models:/", "hf://"
FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "LICENSE*")
ANSWERS_WITHIN_S = 10.0
_VERSION = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[\w.-]+)|/(?P<version>\d+))")
_REPOSITORY = re.compile(r"hf://(?P<id>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")


class PinnedBase(Record):
    uri: str
    exact: str
    """The version of the registry, or the repository with its commit."""
    folder: Uri
    digest: str


Exact = tuple[str, Callable[[Path], None]]
"""A model's name with its version or commit, and what fetches it into a folder."""


def lies_elsewhere(uri: str) -> bool:
    return uri.startswith((REGISTRY, HUB))


def is_pinned(base: BaseModelSection) -> bool:
    """Whether what is trained is a folder below the data root, not the one that the recipe names."""
    return lies_elsewhere(base.uri) or base.chat != ChatSettings()


def pinned_base(store: Store, base: BaseModelSection) -> PinnedBase | None:
    return store.read(_pin(base), PinnedBase)


def with_base(recipe: Recipe) -> Recipe:
    """The recipe with the folder of its base model, where that is pinned."""
    if not is_pinned(recipe.base_model):
        return recipe
    pin = pinned_base(Store(recipe.data_root), recipe.base_model)
    if pin is None:
        return recipe
    return recipe.model_copy(
        update={"base_model": recipe.base_model.model_copy(update={"uri": pin.folder, "chat": ChatSettings()})}
    )


def pin_base(
    store: Store, base: BaseModelSection, addresses: MlflowAddresses, log: Callable[[str], None]
) -> PinnedBase:
    """The base with its chat settings, below the data root. Raises ValueError for an invalid URI or template file, and
    for a model that is missing or incomplete."""
    if lies_elsewhere(base.uri):
        source = fetch_base(store, base.model_copy(update={"chat": ChatSettings()}), addresses, log)
    else:
        ref = model_ref(Path(base.uri).absolute())
        source = PinnedBase(uri=base.uri, exact=ref.digest, folder=ref.uri, digest=ref.digest)
    if base.chat == ChatSettings():
        return source
    exact = f"{source.exact} with chat {chat_digest(base.chat)[:12]}"
    return _publish(store, base, exact, lambda folder: copy_with(base.chat, Path(source.folder), folder), log)


def fetch_base(
    store: Store, base: BaseModelSection, addresses: MlflowAddresses, log: Callable[[str], None]
) -> PinnedBase:
    """Fetch the model that a URI names now, if it is not there already, and pin it. If the server does not answer, the
    earlier pin stands. Raises ValueError for an invalid URI, and for a model that is missing or incomplete."""
    from httpx import HTTPError  # of the Hub's library

    uri, before = base.uri, pinned_base(store, base)
    try:
        exact, fetch = _version(uri, addresses) if uri.startswith(REGISTRY) else _repository(uri)
        return _publish(store, base, exact, fetch, log)
    except (OSError, HTTPError) as error:
        if before is None:
            raise ValueError(f"base_model.uri: {uri} cannot be fetched ({type(error).__name__}: {error}).") from error
        log(f"base model: {uri} is not answered for, and {before.exact} stands. {error}")
        return before


def _publish(
    store: Store, base: BaseModelSection, exact: str, write: Callable[[Path], None], log: Callable[[str], None]
) -> PinnedBase:
    before = pinned_base(store, base)
    if before is not None and before.exact == exact and not faults(Path(before.folder)):
        return before
    folder = f"{layout.BASE_MODELS}/{digest_json(exact)[:12]}"
    if not store.path(folder).is_dir():
        log(f"base model: copying {exact} below the data root")
        with store.staged(folder) as staging:
            write(staging)
            if lacks := faults(staging):
                raise ValueError(f"{base.uri} is no model that can be trained: {' '.join(lacks)}")
    ref = model_ref(store.path(folder))
    pin = PinnedBase(uri=base.uri, exact=exact, folder=ref.uri, digest=ref.digest)
    store.write(_pin(base), pin)
    log(f"base model: {base.uri} is {exact}, digest {ref.digest[:12]}")
    return pin


def _version(uri: str, addresses: MlflowAddresses) -> Exact:
    if (named := _VERSION.fullmatch(uri)) is None:
        raise ValueError(f"base_model.uri is {uri!r}. Write models:/NAME@alias or models:/NAME/3.")
    client, name = mlflow_client(addresses.tracking, addresses.registry), named["name"]
    reach(addresses.versions)
    with mlflow_answers(addresses.versions):
        version = (
            client.get_model_version_by_alias(name, named["alias"])
            if named["alias"]
            else client.get_model_version(name, named["version"])
        )
        source = client.get_model_version_download_uri(name, str(version.version))

    def fetch(folder: Path) -> None:
        from mlflow.artifacts import download_artifacts

        download = folder / "download"
        there = Path(download_artifacts(source, dst_path=str(download), tracking_uri=addresses.tracking))
        parts = [part for part in (there / MODEL, there / "components" / "tokenizer") if part.is_dir()]
        for part in parts or [there]:  # transformers' flavour; else the files themselves
            shutil.copytree(part, folder, dirs_exist_ok=True)
        shutil.rmtree(download)

    return f"models:/{name}/{version.version}", fetch


def _repository(uri: str) -> Exact:
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    if (named := _REPOSITORY.fullmatch(uri)) is None:
        raise ValueError(f"base_model.uri is {uri!r}. Write hf://ORG/NAME@revision.")
    if constants.HF_HUB_OFFLINE:
        raise ConnectionError("HF_HUB_OFFLINE is set")
    id = named["id"]
    try:
        commit = HfApi().model_info(id, revision=named["revision"], timeout=ANSWERS_WITHIN_S).sha
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise ValueError(f"base_model.uri: the Hub has no {uri}, or does not show it. Set HF_TOKEN.") from error

    def fetch(folder: Path) -> None:
        snapshot_download(id, revision=commit, local_dir=folder, allow_patterns=list(FILES))
        shutil.rmtree(folder / ".cache", ignore_errors=True)

    return f"{HUB}{id}@{commit}", fetch


def _pin(base: BaseModelSection) -> str:
    return f"{layout.BASE_MODELS}/{digest_json([base.uri, chat_digest(base.chat)])[:12]}.json"
