"""The first name of a slot's server, `<model>@<first 12 of the digest>`, which its answers, spans and metrics carry;
the second is the plain one that callers ask for."""

import re

from pipeline.serving.endpoint import Endpoint

HEAD = 12
"""Hexadecimal digits of a digest that a name carries."""
_NAME = re.compile(rf"(?P<model>[^@\s]+)@(?P<head>[0-9a-f]{{{HEAD}}})")


def served_name(model_name: str, digest: str) -> str:
    """The first name of a server of that model."""
    return f"{model_name}@{digest[:HEAD]}"


def digest_head(name: str, model_name: str) -> str:
    """The digest's first 12 digits in a served name of that model; "" in any other text."""
    match = _NAME.fullmatch(name)
    return match["head"] if match is not None and match["model"] == model_name else ""


def served_names(endpoint: Endpoint, timeout_s: float = 10.0) -> list[str]:
    """What a server calls its model, its first name first. Raises OSError when it does not answer so."""
    import httpx2

    headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
    try:
        reply = httpx2.get(f"{endpoint.url}/models", headers=headers, timeout=timeout_s, trust_env=False)
        reply.raise_for_status()
        return [str(model["id"]) for model in reply.json()["data"]]
    except (httpx2.HTTPError, ValueError, LookupError, TypeError) as error:
        raise ConnectionError(f"{endpoint.url} does not list its models ({error or type(error).__name__})") from error
