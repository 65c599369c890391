"""What of the candidates for a table is taken: users and tenants within their caps, and imports within their share."""

import hashlib
from collections.abc import Sequence
from typing import Generic, NamedTuple

from pipeline.recipe import Selection
from pipeline.selection.pairing import C, cap_principals, ids_of


class Mixture(NamedTuple, Generic[C]):
    kept: list[C]
    left_out: dict[str, int]
    """By reason: `cap`, `share`, `unproven`."""


def mix(candidates: Sequence[C], settings: Selection, own: int = 0, proven: bool = True) -> Mixture[C]:
    """`own`: rows of the table that are not among the candidates and no import's; `proven`: traces' candidates are
    worth as much as is known of imports', or else stay out where there are imports'. A hash decides who is over the
    share."""
    caps, share = (settings.max_principal_share, settings.max_tenant_share), settings.imported_share
    imported = [each for each in candidates if each.rows[0].origin]
    traces = [each for each in candidates if not each.rows[0].origin] if proven or not imported else []
    kept = cap_principals(traces, *caps)
    own += len(kept)
    within = imported
    if own and share < 1:
        order = sorted(imported, key=lambda each: hashlib.sha256("\x1f".join(ids_of(each)).encode()).hexdigest())
        within = order[: int(own * share / (1 - share) + 1e-9)]
    kept += cap_principals(within, *caps)
    unproven, beyond = len(candidates) - len(imported) - len(traces), len(imported) - len(within)
    left_out = {"cap": len(traces) + len(within) - len(kept), "share": beyond, "unproven": unproven}
    return Mixture(kept, {reason: count for reason, count in left_out.items() if count})
