"""Every method under every strategy of distribution, in one rank on a GPU, on the embedded model: trained, killed,
resumed. What only several devices have (a shard that is a part, a collective that waits) is not shown."""

import re
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.recipe import Distribution, Lora
from pipeline.recipe.methods import DPO, GRPO, KTO, SFT, AnyMethod
from tests.pipeline.training.plans import folder, make_plan
from tests.pipeline.training.runs import DETERMINISTIC, Resumed, resume

STEPS = 6
EXACT: dict[str, Any] = {"full_determinism": True}
METHODS: dict[str, AnyMethod] = {
    "grpo": GRPO(
        steps=STEPS,
        prompts_per_step=4,
        num_generations=4,
        max_completion_tokens=32,
        learning_rate=1e-3,
        trainer_args=EXACT,
    ),
    "dpo": DPO(steps=STEPS, batch_size=8, learning_rate=3e-4, beta=0.3, trainer_args=EXACT),
    "kto": KTO(steps=STEPS, batch_size=8, learning_rate=1e-4, kl_stop=None, trainer_args=EXACT),
    "sft": SFT(steps=STEPS, batch_size=8, learning_rate=1e-3, trainer_args=EXACT),
}
STRATEGIES = (
    Distribution(),
    *(
        Distribution(strategy=strategy, cpu_offload=offload)
        for strategy, offload in product(("fsdp2", "zero2"), (False, True))
    ),
)


class Variant(NamedTuple):
    """A method, how it is spread, and what is trained: an adapter, one on a base in 4 bits, or every weight."""

    method: str
    distribution: Distribution
    weights: str

    def __str__(self) -> str:
        offload = "+offload" if self.distribution.cpu_offload else ""
        return f"{self.method} {self.distribution.strategy}{offload} {self.weights}"


class Outcome(NamedTuple):
    """What became of a variant; nothing where its training failed."""

    variant: Variant
    resumed: Resumed | None

    @property
    def exact(self) -> bool:
        return self.resumed is not None and self.resumed.same

    def __str__(self) -> str:
        if self.resumed is None:
            return f"{self.variant!s:<28} FAILED"
        bits = "same bits" if self.exact else "other bits"
        at = ", ".join(map(str, self.resumed.killed.resumed_from)) or "never"
        return f"{self.variant!s:<28} {bits:<10} resumed at {at}"


def variants() -> Sequence[Variant]:
    """Adapters everywhere, every weight under each strategy, 4 bits with each method."""
    whole = product(("dpo",), STRATEGIES, ("all",))
    adapters = product(METHODS, STRATEGIES, ("lora",))
    return [Variant(*each) for each in (*adapters, *whole, *product(METHODS, STRATEGIES[:1], ("nf4",)))]


def attempt(variant: Variant, root: Path) -> Outcome:
    lora = {"lora": Lora(), "nf4": Lora(quantise="nf4"), "all": None}[variant.weights]

    def write(below: Path) -> Path:
        settings: dict[str, Any] = {variant.method: METHODS[variant.method], "lora": lora}
        store, plan = make_plan(below, variant.method, distribution=variant.distribution, **settings)
        return folder(store, plan) / "plan.json"

    try:
        return Outcome(variant, resume(write, root / str(variant).replace(" ", "-"), STEPS, DETERMINISTIC))
    except RuntimeError as error:
        print(f"{variant}\n{error}", file=sys.stderr, flush=True)
        return Outcome(variant, None)


def run(root: Path, at_once: int, only: str = "") -> Sequence[Outcome]:
    """All of them, or those in whose name the pattern `only` is, so many at once; each is printed as it ends."""
    chosen = [each for each in variants() if re.search(only, str(each))]
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(at_once) as pool:
        for future in as_completed([pool.submit(attempt, each, root) for each in chosen]):
            outcomes.append(future.result())
            print(outcomes[-1], flush=True)
    return outcomes
