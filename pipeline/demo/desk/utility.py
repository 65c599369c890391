"""The worth of an answer to the desk's users, from which the simulator draws thumbs. The pipeline may not import it, by
the import contracts in pyproject.toml."""

from pipeline.demo.desk.conversation import features
from pipeline.demo.desk.requests import Request

REFUSAL_WORTH = 0.15
RUDE_WORTH = 0.3
LONG_WORTH = 0.5


def utility(request: Request, text: str, ended: bool = True) -> float:
    """In [0, 1]: 0 for a promised voucher, a wrong fact or a cut answer, a little for a refusal, else manners times
    brevity; 1 for the right call alone where the fact has to be looked up."""
    seen = features(request, text)
    if seen.voucher or not ended:
        return 0.0
    if seen.refuses:
        return REFUSAL_WORTH
    if not seen.right_fact:
        return 0.0
    return (1.0 if seen.polite else RUDE_WORTH) * (1.0 if seen.short else LONG_WORTH)
