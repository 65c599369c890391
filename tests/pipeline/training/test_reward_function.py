"""The composite as TRL calls it: the same verdicts and the same sums as for logged traces."""

import threading
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.core.storage import Store
from pipeline.recipe.rewards import Rewards
from pipeline.rewards.verifiers import Grader
from pipeline.training.reward_function import RewardFunction
from tests.pipeline.rewards.conftest import call, day_file, labeller, rows_of

pytestmark = pytest.mark.slow

SETTINGS = Rewards(verifier={"timeout_s": 2.0})  # type: ignore[arg-type]
FRESH = [
    ("#### 1/2", "0.5", "math"),
    ("I think that it is a half of it, so the final answer follows.\n#### 2/4", "0.5", "math"),
    ("#### 1/3", "0.5", "math"),
    ("no idea", "0.5", "math"),
    (r"\boxed{" + "9^{" * 12 + "9" + "}" * 12 + "}", "1/7", "math"),
    ("Oslo", "oslo", "normalised"),
    ('{"a": 1}', '{"required": ["a"]}', "json_schema"),
    ("```python\ndef f(x):\n    return x + 1\n```", "assert f(1) == 2", "code"),
]


def test_fresh_completions_are_worth_what_logged_ones_are(tmp_path: Path) -> None:
    export, store = tmp_path / "export", Store(tmp_path / "data")
    day_file(export, 5, [call(n, t, gold, metadata={"verifier": kind}) for n, (t, gold, kind) in enumerate(FRESH)])
    logged = rows_of(labeller(store, export)(**SETTINGS.model_dump()))
    metrics: dict[str, float] = {}
    with closing(Grader(SETTINGS.verifier)) as check:
        composite = RewardFunction(SETTINGS, check)
        texts, references, kinds = zip(*FRESH, strict=True)

        def score() -> None:  # off the main thread, as asynchronous trainers do: no signal can time anything out there
            for _ in range(2):  # batch after batch, with the same workers
                rewards.append(
                    composite(
                        prompts=[[]] * len(texts),
                        completions=[[{"role": "assistant", "content": text}] for text in texts],
                        completion_ids=[[]] * len(texts),
                        reference=list(references),
                        verifier=list(kinds),
                        log_metric=metrics.__setitem__,
                    )
                )

        rewards: list[list[float | None]] = []
        thread = threading.Thread(target=score)
        thread.start()
        thread.join()
    assert rewards[0] == rewards[1] == [logged[f"t{n}"]["final_reward"] for n in range(len(FRESH))]
    assert rewards[0][4] is None, "a check that failed is no 0"
    assert [reward is not None and reward > 0.8 for reward in rewards[0]] == [1, 1, 0, 0, 0, 1, 1, 1]
    assert metrics["accuracy"] == pytest.approx(5 / 7)
    assert metrics["abstained"] == pytest.approx(1 / 8)
    shares = [value for name, value in metrics.items() if name.startswith("component/")]
    assert sum(shares) == pytest.approx(1.0), "what the reward's variance comes from, in parts"
