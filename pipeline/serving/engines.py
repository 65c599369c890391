"""Which engine answers: what the recipe's section `evaluation.serving` names, at the addresses of this
deployment."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pipeline.recipe.serving import AnyServing, EndpointServing, VllmServing
from pipeline.serving.endpoint import ServingAddresses, check_endpoint
from pipeline.serving.inference import InferenceEngine
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
            from pipeline.serving.chat import EndpointEngine

            yield EndpointEngine(section, addresses.endpoint, log)
        case VllmServing():
            from pipeline.serving.vllm_engine import VllmEngine

            yield VllmEngine(section, Path(addresses.vllm_python), folder, log)
        case _:
            yield TransformersEngine(section, log)


def check_addresses(section: AnyServing, addresses: ServingAddresses, where: str = "evaluation.serving") -> None:
    """Raise ValueError naming the variable to set where this deployment has no address for the recipe's engine. Asks
    and starts nothing: it is called before a training is paid for."""
    if isinstance(section, EndpointServing):
        if not addresses.endpoint.url:
            raise ValueError(
                f"{where}.kind is endpoint, and SERVING_URL is empty. Set it to the root of an API like "
                "http://127.0.0.1:8000/v1, and SERVING_API_KEY to a key where it wants one."
            )
        check_endpoint(addresses.endpoint, "The evaluation's", "SERVING")
    python = addresses.vllm_python
    if isinstance(section, VllmServing) and not (python and Path(python).is_file()):
        raise ValueError(
            f"{where}.kind is vllm, and VLLM_PYTHON ({python!r}) is no Python. Set it to that of an environment that "
            "has vLLM."
        )


class Machine(NamedTuple):
    """Bytes of memory that this process may use, and of each GPU that it sees."""

    memory: int
    devices: tuple[int, ...]
