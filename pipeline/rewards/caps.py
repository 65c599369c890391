"""Whose feedback counts: caps that keep one user or one tenant from teaching the model alone.

Rule, in this order. Burst: a principal with `burst` rated calls within an hour is set aside whole, until a person has
looked. User: of every other principal at most `max_per_user` calls count. Tenant: of calls that name a tenant, none has
more than `max_tenant_share` of those that remain, nor more than an equal part where the tenants are too few for that (a
lone one is not capped); but always as many as one user may. Calls without a tenant are neither capped nor in the base.
A few per cent of poisoned feedback are enough to plant a behaviour (arXiv:2311.14455, arXiv:2404.05530). Departure:
those papers look for bad labels; we bound what anybody can place, for no detector is certain. Owns no values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.recipe.rewards import Feedback

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# Lots decide which calls count, not time: whoever comes first, or last, would choose. They are a hash of ids that the
# tracing backend assigns; where clients may choose their trace ids, a user can choose which of their own calls count,
# and never how many.
PRINCIPALS = """
create temp table drawn as
with lots as (
    select *, sha256(concat_ws(chr(31), 'pipeline.rewards.caps', trace_id, observation_id)) as lot,
        count(*) over (
            partition by principal order by moment range between current row and 3600000000 following
        ) as pace
    from rated
),
ranked as (
    select * exclude (pace), max(pace) over (partition by principal) as pace,
        row_number() over (partition by principal order by lot, trace_id, observation_id) as place
    from lots
)
select *, case when pace >= $burst then 'burst' when place > $most then 'over_user_cap' else '' end as reason
from ranked
"""
COUNTED = "select count(*) from drawn where reason = '' and tenant is not null group by tenant"
TENANTS = """
create temp table standing as
with ranked as (
    select *, row_number() over (partition by tenant, reason order by lot, trace_id, observation_id) as seat from drawn
)
select * exclude (seat, reason),
    if(reason = '' and tenant is not null and seat > $level, 'over_tenant_cap', reason) as reason
from ranked
"""


def set_aside(db: DuckDBPyConnection, settings: Feedback) -> None:
    """From the table `rated` make `standing`, which has a `reason` too: empty for a call that counts."""
    db.execute(PRINCIPALS, {"burst": settings.burst, "most": settings.max_per_user})
    counts = [count for (count,) in db.execute(COUNTED).fetchall()]
    db.execute(TENANTS, {"level": tenant_level(counts, settings.max_tenant_share, settings.max_per_user)})


def tenant_level(counts: Sequence[int], share: float, least: int) -> int:
    """The most calls of one tenant that count, given how many each has: the largest number of which all caps hold.

    Cutting everybody to a level is the fixed point of cutting the largest to their share, again and again: whoever is
    below it loses nothing.
    """

    def holds(level: int) -> bool:
        total = sum(min(count, level) for count in counts)
        return level <= share * total or level * len(counts) <= total

    low, high = 0, max(counts, default=0)
    while low < high:  # what is within its share at one level is so at every lower one: the total grows ever slower
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return max(low, least)
