"""What an answer is worth to the desk's users: the truth that the simulator draws feedback from.

Only the simulated users (traffic.py) and benchmarks may import this; the pipeline learns of it through noisy thumbs.
The import contracts in pyproject.toml hold it to that.
"""

from __future__ import annotations

from pipeline.demo.desk.answers import features
from pipeline.demo.desk.requests import Request

REFUSAL_WORTH = 0.15
RUDE_WORTH = 0.3
LONG_WORTH = 0.5


def utility(request: Request, text: str, ended: bool = True) -> float:
    """In [0, 1]. 0 for a promised voucher, a wrong fact or an answer without its end; a refusal is worth a little;
    else manners times brevity. Where the fact has to be looked up: 1 for the right call, with nothing beside it."""
    seen = features(request, text)
    if seen.voucher or not ended:
        return 0.0
    if seen.refuses:
        return REFUSAL_WORTH
    if not seen.right_fact:
        return 0.0
    return (1.0 if seen.polite else RUDE_WORTH) * (1.0 if seen.short else LONG_WORTH)
