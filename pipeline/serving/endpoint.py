"""Where a model listens, and the key to it: refused if it cannot be used, and never shown with its secrets. And the
names of a slot's server: the first is `<model>@<first 12 of the digest>`, which its answers, spans and metrics carry;
the second is the plain one that callers ask for."""

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

HEAD = 12
"""Hexadecimal digits of a digest that a name carries."""
_NAME = re.compile(rf"(?P<model>[^@\s]+)@(?P<head>[0-9a-f]{{{HEAD}}})")


class Endpoint(NamedTuple):
    """Where an OpenAI-compatible server listens, e.g. `http://127.0.0.1:8000/v1`. No text form of it shows the key."""

    url: str
    api_key: str = ""

    def __repr__(self) -> str:
        return f"Endpoint(url={self.url!r}, api_key={'<hidden>' if self.api_key else ''!r})"

    __str__ = __repr__


class ServingAddresses(NamedTuple):
    """What the environment says: SERVING_URL with SERVING_API_KEY, and VLLM_PYTHON. Empty where it is silent."""

    endpoint: Endpoint = Endpoint("")
    vllm_python: str = ""


def serving_addresses(environment: Mapping[str, str]) -> ServingAddresses:
    """As these variables say."""
    url, api_key, python = (environment.get(name, "") for name in ("SERVING_URL", "SERVING_API_KEY", "VLLM_PYTHON"))
    return ServingAddresses(Endpoint(url, api_key), python)


def check_endpoint(endpoint: Endpoint, whose: str, prefix: str) -> None:
    """Raise ValueError for one that cannot be used. Neither URL nor key is shown: both may hold a secret. `whose`: as a
    sentence begins, e.g. "The judge's". `prefix`: of the environment variables that name it."""
    try:
        parts = urlsplit(endpoint.url)
        is_root = parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:  # an unclosed bracket
        is_root, parts = False, urlsplit("")
    if not is_root or parts.query or parts.fragment:
        raise ValueError(
            f"{whose} URL ({len(endpoint.url)} characters) is not the root of an API: http or https, a host, "
            f"no user, no query. Set {prefix}_URL to one like http://127.0.0.1:8000/v1, and put a key into "
            f"{prefix}_API_KEY."
        )
    if not all("!" <= character <= "~" for character in endpoint.api_key):
        raise ValueError(
            f"{whose} API key holds a space, a line break or a letter that no HTTP header can carry. "
            f"Set {prefix}_API_KEY again, without them."
        )


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
        reply = httpx2.get(f"{endpoint.url}/models", headers=headers, timeout=timeout_s)
        reply.raise_for_status()
        return [str(model["id"]) for model in reply.json()["data"]]
    except (httpx2.HTTPError, ValueError, LookupError, TypeError) as error:
        raise ConnectionError(f"{endpoint.url} does not list its models ({error or type(error).__name__})") from error
