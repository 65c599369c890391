"""How many servers a slot needs for a weight: in proportion to the champion's, and by what one server carries.

The champion's servers carry all requests now, so a slot with that share of them carries its share as well. Where the
recipe says what one server carries, the busiest look so far counts too. Refuses to scale a slot: its port, its
autoscaler or a person does.
"""

from __future__ import annotations

import math

from pipeline.rollout.policy import RolloutPolicy


def servers_for(percent: float, champion_servers: int, busiest_per_s: float, requests_per_server: float | None) -> int:
    """Servers that `percent` of the requests take, one at the least.

    `champion_servers`: those that carry all requests now; 0 where that is not known. `busiest_per_s`: requests a second
    of all production, 0 likewise. `requests_per_server`: requests a second that one server carries.
    """
    in_proportion = math.ceil(percent * champion_servers / 100)
    by_load = math.ceil(busiest_per_s * percent / 100 / requests_per_server) if requests_per_server else 0
    return max(1, in_proportion, by_load)


def percent_of(policy: RolloutPolicy, weight: int) -> int:
    """What the canary's slot is sized for at a weight: the last one leads to all requests."""
    return 100 if weight >= policy.weight_at(len(policy.weights) - 1) else weight


def too_few(policy: RolloutPolicy, weight: int, servers: int, champion_servers: int, busiest_per_s: float) -> str:
    """Why a slot with so many servers is not given a weight, or ""."""
    percent = percent_of(policy, weight)
    needed = servers_for(percent, champion_servers, busiest_per_s, policy.requests_per_server)
    if servers >= needed:
        return ""
    why = f"the champion has {champion_servers}" if champion_servers else "by its load"
    if policy.requests_per_server and busiest_per_s:
        why += (
            f", and {busiest_per_s:,.1f} requests a second came at the busiest, of which a server carries "
            f"{policy.requests_per_server:g} (rollout.requests_per_server)"
        )
    return f"{servers} of {needed} servers that {percent}% takes: {why}. Scale the canary's slot up"
