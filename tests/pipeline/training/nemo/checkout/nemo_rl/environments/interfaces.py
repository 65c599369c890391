from abc import ABC, abstractmethod
from typing import Any, NamedTuple


class EnvironmentReturn(NamedTuple):
    observations: list
    metadata: list
    next_stop_strings: list
    rewards: Any
    terminateds: Any
    answers: list | None


class EnvironmentInterface(ABC):
    @abstractmethod
    def step(self, message_log_batch, metadata): ...

    @abstractmethod
    def global_post_process_and_metrics(self, batch): ...
