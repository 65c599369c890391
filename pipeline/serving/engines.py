"""Which engine answers: what the recipe's section `evaluation.serving` names, at the addresses of this deployment."""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from pipeline.core.storage import ModelRef
from pipeline.recipe.serving import AnyServing, EndpointServing, VllmServing
from pipeline.serving.endpoint import Endpoint, ServingAddresses, check_endpoint
from pipeline.serving.inference import InferenceEngine, InferenceSession
from pipeline.serving.node_cache import NodeCache, node_cache
from pipeline.serving.transformers_engine import TransformersEngine


@contextmanager
def open_engine(
    section: AnyServing,
    addresses: ServingAddresses,
    log: Callable[[str], None],
    folder: Path,
    where: str = "evaluation.serving",
) -> Generator[InferenceEngine]:
    """The engine that a recipe names; what it started ends with the block. `folder`: for logs. `where`:
    the section, for messages. Raises ValueError naming the variable to set."""
    check_addresses(section, addresses, where)
    match section:
        case EndpointServing():
            from pipeline.serving.endpoint_engine import EndpointEngine

            yield EndpointEngine(section, Endpoint(addresses.url, addresses.api_key), log)
        case VllmServing():
            from pipeline.serving.vllm_engine import VllmEngine

            yield _local(VllmEngine(section, Path(addresses.vllm_python), folder, log), log)
        case _:
            yield _local(TransformersEngine(section, log), log)


def _local(engine: InferenceEngine, log: Callable[[str], None]) -> InferenceEngine:
    cache = node_cache(os.environ)
    return LocalWeights(engine, cache, log) if cache else engine


class LocalWeights:
    """An engine of this machine that loads what its node's cache has."""

    def __init__(self, engine: InferenceEngine, cache: NodeCache, log: Callable[[str], None]) -> None:
        self._engine, self._cache, self._log = engine, cache, log

    @contextmanager
    def open(self, arm: str, model: ModelRef) -> Generator[InferenceSession]:
        with self._cache.hold(model, self._log) as local, self._engine.open(arm, local) as session:
            yield session


def check_addresses(section: AnyServing, addresses: ServingAddresses, where: str = "evaluation.serving") -> None:
    """Raise ValueError naming the variable to set where this deployment has no address for the recipe's engine. Asks
    and starts nothing: it is called before a training is paid for."""
    match section:
        case EndpointServing():
            if not addresses.url:
                raise ValueError(
                    f"{where}.kind is endpoint, and SERVING_URL is empty. Set it to the root of an API like "
                    "http://127.0.0.1:8000/v1, and SERVING_API_KEY to a key where it wants one."
                )
            check_endpoint(Endpoint(addresses.url, addresses.api_key), "The evaluation's", "SERVING")
        case VllmServing():
            if not addresses.vllm_python:
                raise ValueError(
                    f"{where}.kind is vllm, and VLLM_PYTHON is empty. Set it to the Python of an environment that has "
                    "vLLM."
                )
            if not Path(addresses.vllm_python).is_file():
                raise ValueError(
                    f"No Python at {addresses.vllm_python}. Set VLLM_PYTHON to the Python of an environment that has "
                    "vLLM."
                )
        case _:
            pass
