"""A labelled trace, made up for the tests of selection."""

import json
from typing import Any

from pipeline.selection.pairing import LabelledRow


def row(trace: str, reward: float | None, prompt: str = "p", **fields: Any) -> LabelledRow:
    usual: dict[str, Any] = {
        "observation_id": f"o-{trace}",
        "user_id": f"u-{trace}",
        "tenant_id": None,
        "consent": True,
        "completion": f"c-{trace}",
        "reference": "1",
        "verifier": "number",
        "profile": "verified",
        "correct": None if reward is None else float(reward > 0.5),
        "feedback": None,
        "judge": None,
    }
    chat = json.dumps([{"role": "user", "content": prompt}])
    return LabelledRow(trace_id=trace, prompt=chat, final_reward=reward, **{**usual, **fields})
