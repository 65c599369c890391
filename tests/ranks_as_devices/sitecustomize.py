"""Read by the processes of a training that a test starts: accelerate takes its ranks on CPU for devices.

It runs FSDP2 and DeepSpeed on accelerators alone, and on CPU trains as plain DDP. torch's FSDP2 and DeepSpeed
themselves work over gloo, so only accelerate's word for the ranks is changed.
"""

import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

MODULE = "accelerate.state"


def asked_for(strategy: str) -> bool:
    return os.environ.get(f"ACCELERATE_USE_{strategy}", "false") == "true"


def change(state: Any) -> None:
    partial, whole = state.PartialState.__init__, state.AcceleratorState.__init__

    def partial_init(self: Any, cpu: bool = False, **given: Any) -> None:
        if asked_for("DEEPSPEED"):
            os.environ["ACCELERATE_USE_CPU"], cpu = "false", False
        partial(self, cpu, **given)

    def whole_init(self: Any, mixed_precision: Any = None, cpu: bool = False, *given: Any, **named: Any) -> None:
        whole(self, mixed_precision, cpu and not asked_for("DEEPSPEED"), *given, **named)
        if asked_for("FSDP") and self.distributed_type == state.DistributedType.MULTI_CPU:
            self.distributed_type, self.fsdp_plugin = state.DistributedType.FSDP, named["fsdp_plugin"]
            state.PartialState._shared_state["distributed_type"] = self.distributed_type

    state.PartialState.__init__, state.AcceleratorState.__init__ = partial_init, whole_init


class Changed(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        change(module)


class Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != MODULE:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = Changed(spec.loader)
        return spec


sys.meta_path.insert(0, Finder())
