"""Where a judge listens: JUDGE_URL, and the key to it in JUDGE_API_KEY."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.serving import endpoint as serving
from pipeline.serving.endpoint import Endpoint


def judge_endpoint(environment: Mapping[str, str]) -> Endpoint | None:
    """As these variables say; None where JUDGE_URL is not set."""
    url = environment.get("JUDGE_URL", "")
    return Endpoint(url, environment.get("JUDGE_API_KEY", "")) if url else None


def check_endpoint(endpoint: Endpoint) -> None:
    """Raise ValueError for one that cannot be used. Neither URL nor key is shown: both may hold a secret."""
    serving.check_endpoint(endpoint, "The judge's", "JUDGE")
