"""Which engine answers: what the recipe's section `evaluation.serving` names, at the addresses of this deployment. And
whether a model's weights fit there, asked before a training is paid for; activations and the cache of attention are not
counted."""

import shutil
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import NamedTuple

from pipeline.core.model_files import header, weight_files
from pipeline.recipe.serving import AnyServing, EndpointServing, VllmServing
from pipeline.serving.endpoint import ServingAddresses, check_endpoint
from pipeline.serving.inference import InferenceEngine, served_dtype
from pipeline.serving.transformers_engine import TransformersEngine

CGROUP = Path("/sys/fs/cgroup/memory.max")
BYTES = {"float32": 4, "bfloat16": 2}


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
    match section:
        case EndpointServing():
            if not addresses.endpoint.url:
                raise ValueError(
                    f"{where}.kind is endpoint, and SERVING_URL is empty. Set it to the root of an API like "
                    "http://127.0.0.1:8000/v1, and SERVING_API_KEY to a key where it wants one."
                )
            check_endpoint(addresses.endpoint, "The evaluation's", "SERVING")
        case VllmServing():
            if not addresses.vllm_python or not Path(addresses.vllm_python).is_file():
                raise ValueError(
                    f"{where}.kind is vllm, and VLLM_PYTHON ({addresses.vllm_python!r}) is no Python. Set it to that "
                    "of an environment that has vLLM."
                )
        case _:
            pass


class Machine(NamedTuple):
    """Bytes of memory that this process may use, and of each GPU that it sees."""

    memory: int
    devices: tuple[int, ...]


def this_machine(cgroup: Path = CGROUP) -> Machine:
    """The smaller of the machine's memory and the container's; GPUs as nvidia-smi lists them."""
    text = Path("/proc/meminfo").read_text(encoding="utf-8")
    total = next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("MemTotal:"))
    limit = cgroup.read_text(encoding="utf-8").strip() if cgroup.is_file() else "max"
    return Machine(total if limit == "max" else min(total, int(limit)), _devices())


def _devices() -> tuple[int, ...]:
    command = shutil.which("nvidia-smi")
    if command is None:
        return ()
    asked = [command, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    done = subprocess.run(asked, capture_output=True, encoding="utf-8", timeout=30, check=False)
    return tuple(int(line) << 20 for line in done.stdout.split() if line.isdecimal()) if done.returncode == 0 else ()


def too_large(serving: AnyServing, folder: str | Path, machine: Machine) -> str:
    """Why the weights in `folder`, or those of a model trained on top of them, do not fit; "" where they may."""
    if isinstance(serving, EndpointServing) or not Path(folder).is_dir():
        return ""  # its own machine; the absence is for the preflight to name
    weights = weight_bytes(Path(folder), on_gpu=bool(machine.devices))
    if not machine.devices:
        return _over(weights, machine.memory, "of memory that this machine has for it")
    if isinstance(serving, VllmServing):
        share = serving.tensor_parallel
        if share > len(machine.devices):
            return f"evaluation.serving.tensor_parallel is {share}, and there are {len(machine.devices)} devices here"
        room = int(min(machine.devices) * serving.memory_share)
        return _over(-(-weights // share), room, f"that each of {share} devices has for it")
    return _over(weights, machine.devices[0], "that the first device has")


def weight_bytes(folder: Path, on_gpu: bool) -> int:
    """Bytes of the weights as an engine loads them."""
    shapes = [shape for file in weight_files(folder) for _, shape in header(file).values()]
    return sum(map(prod, shapes)) * BYTES[served_dtype(on_gpu)]


def _over(weights: int, room: int, whose: str) -> str:
    if weights <= room:
        return ""
    return f"the weights take {weights / 1e9:.1f} GB where they are evaluated, over the {room / 1e9:.1f} GB {whose}"
