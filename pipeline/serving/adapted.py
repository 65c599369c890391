"""A model directory with adapters beside its weights: each row of a batch is answered by one of them, or by the weights
alone (PEFT's mixed batches). For processes that have loaded torch."""

import itertools
from pathlib import Path

from peft import PeftConfig, PeftModel

from pipeline.serving.adapters import unservable
from pipeline.serving.inference import Sampling
from pipeline.serving.loaded import LoadedModel

BASE = "__base__"
"""PEFT's name of no adapter."""


class AdaptedModel(LoadedModel):
    """`adapters`: by the name that callers ask for, the name in a batch, which no later adapter gets again."""

    def __init__(self, folder: str, batch_size: int) -> None:
        super().__init__(folder, batch_size)
        self.adapters: dict[str, str] = {}
        self._numbers = itertools.count()

    def put(self, name: str, folder: str) -> None:
        """Load an adapter, and draw a token by it. Raises ValueError for one that the model does not take."""
        if why := unservable(Path(folder)):
            raise ValueError(f"{name} cannot be served as an adapter: {why}")
        key = f"adapter{next(self._numbers)}"
        try:
            if isinstance(self.model, PeftModel):
                self.model.load_adapter(folder, key)
            else:
                self.model = PeftModel(self.model, PeftConfig.from_pretrained(folder), adapter_name=key)
                self.model.load_adapter(folder, key)
            self.model.eval()
            self.answered([[0], [0]], [0, 0], Sampling(max_completion_tokens=1), names=[key, BASE])
        except (RuntimeError, ValueError, TypeError, KeyError, OSError) as error:
            self.remove(key)
            raise ValueError(f"{name} is no adapter of this model ({type(error).__name__}: {error})") from error
        self.adapters[name] = key

    def remove(self, key: str) -> None:
        """Free an adapter that no row asks for any more; nothing where there is none."""
        if not isinstance(self.model, PeftModel) or key not in self.model.peft_config:
            return
        if len(self.model.peft_config) > 1:
            self.model.delete_adapter(key)
        else:
            self.model = self.model.unload()

    def answered(
        self, prompts: list[list[int]], seeds: list[int], sampling: Sampling, names: list[str], top_p: float = 1.0
    ) -> list[list[int]]:
        """As `generate`, each row by the adapter of its name in a batch."""
        how = {"adapter_names": names} if isinstance(self.model, PeftModel) else {}
        return self.generate(prompts, seeds, sampling, top_p, **how)
