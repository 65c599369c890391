"""The warm-up of a slot: recent prompts of production, asked before any user is sent there. A prompt that the server
does not take is the caller's fault; the answers are dropped."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from pipeline.core.conversation import to_request
from pipeline.serving.client import read_completion
from pipeline.serving.inference import Messages

if TYPE_CHECKING:
    import httpx2

PROMPTS = 32
TOKENS = 16
"""Of an answer at most: what is long and differs are the prompts."""
AT_ONCE = 8
TIMEOUT_S = 60.0
"""For one answer, of a server that may still compile."""
CALLERS = frozenset({400, 413, 422})
"""A prompt that the server does not take, such as one that is too long for it: a user's would not be answered either,
by whichever model."""
REFUSED = "refused"
"""The outcome of such a prompt."""


def newest(rows: Sequence[Mapping[str, Any]], agreed: Collection[tuple[str, str]]) -> list[tuple[str, str]]:
    """(trace_id, observation_id) of the newest prompts of those who agree. `rows`: labels with those columns, consent
    and timestamp."""
    ids = [(row["timestamp"], (row["trace_id"], row["observation_id"])) for row in rows if row["consent"]]
    return [id for _, id in sorted(ids, reverse=True) if id in agreed][:PROMPTS]


def warm_up(servers: Sequence[str], name: str, prompts: Sequence[str]) -> str:
    """Ask each server all prompts; why the slot is not ready for users, or "". `servers`: root URLs. `name`: what they
    serve the model as. `prompts`: chat messages as JSON, as labels have them."""
    for url in servers:
        outcomes = _outcomes(url, name, prompts)
        failed = [why for why in outcomes if why not in ("", REFUSED)]
        if failed:
            return f"warm-up: {len(failed)} of {len(prompts)} recent prompts got no answer at {url}, first: {failed[0]}"
        if outcomes and all(why == REFUSED for why in outcomes):
            return f"warm-up: {url} takes none of {len(prompts)} recent prompts. Look at its limits and chat template."
    return ""


def _outcomes(url: str, name: str, prompts: Sequence[str]) -> list[str]:
    """Over several connections: where a balancer stands before a slot, it has something to balance."""
    import httpx2

    with httpx2.Client(timeout=TIMEOUT_S, trust_env=False) as client, ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda prompt: _asked(client, url, name, json.loads(prompt)), prompts))


def _asked(client: httpx2.Client, url: str, name: str, messages: Messages) -> str:
    """REFUSED for a prompt that is not taken, "" for an answer, else what came."""
    import httpx2

    body = {"model": name, **to_request(messages), "max_tokens": TOKENS, "temperature": 0}
    try:
        reply = client.post(f"{url}/chat/completions", json=body)
    except httpx2.TransportError as error:
        return f"{error or type(error).__name__}"
    if reply.status_code != 200:
        return REFUSED if reply.status_code in CALLERS else f"HTTP {reply.status_code}"
    try:
        answered = read_completion(reply.content).model
    except ValueError as error:
        return str(error)
    return "" if answered == name else f"an answer of {answered}, not {name}"
