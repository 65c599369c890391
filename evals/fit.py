"""Whether a model's weights fit where they are evaluated, asked before a training is paid for; activations and the
cache of attention are not counted."""

import shutil
import subprocess
from math import prod
from pathlib import Path

from pipeline.core.model_files import header, weight_files
from pipeline.recipe.serving import AnyServing, EndpointServing, VllmServing
from pipeline.serving.engines import Machine
from pipeline.serving.inference import served_dtype

CGROUP = Path("/sys/fs/cgroup/memory.max")
BYTES = {"float32": 4, "bfloat16": 2}


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
