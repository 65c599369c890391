"""The process that `benchmarks.signals kills` kills: `python -m benchmarks.signals_draw FOLDER SEED PROMPTS`."""

import random
import sys
from datetime import UTC, datetime

from benchmarks.contexts import quiet
from benchmarks.signals_world import MAX_TOKENS, base
from pipeline.core.storage import Store
from pipeline.demo.desk.requests import Request
from pipeline.demo.desk.requests import draw as draw_request
from pipeline.recipe import Samples
from pipeline.recipe.serving import TransformersServing
from pipeline.rewards.records import DOES_NOT_APPLY
from pipeline.rewards.samples import RewardSample
from pipeline.selection.samples.draw import AskedModel, draw
from pipeline.serving.transformers_engine import TransformersEngine


def main(folder: str, seed: int, prompts: int) -> None:
    """Draw eight samples of each prompt into the journal below the folder; what it holds already is not asked."""
    rng = random.Random(f"draw/{seed}")
    asked = [_sample(number, draw_request(rng, "train")) for number in range(prompts)]
    Samples.seed = seed
    section = Samples(per_prompt=8, max_completion_tokens=MAX_TOKENS)
    engine, model = TransformersEngine(TransformersServing(), quiet), base()
    with engine.open("champion", model) as session:
        draw(AskedModel(model, session, Store(folder), quiet), asked, section)


def _sample(number: int, request: Request) -> RewardSample:
    return RewardSample(
        trace_id=f"t{number}", observation_id="", day="2026-01-05", timestamp=datetime(2026, 1, 5, tzinfo=UTC),
        user_id="u", principal="u", tenant_id=None, consent=True, messages=request.messages, completion="",
        latency_s=None, reference=None, kind="math", feedback=DOES_NOT_APPLY, unscored="",
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
