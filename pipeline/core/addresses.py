"""Addresses of servers and databases carry no secret: they are shown, logged and passed as arguments."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

from pipeline.core.redaction import is_secret_name, named_secrets

MLFLOW = "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
POSTGRES = "PGPASSWORD, or PGPASSFILE with the path of a passfile"
CATALOGUE = "LAKE_CATALOGUE_TOKEN, or LAKE_CATALOGUE_CREDENTIAL with client:secret"
INSTEAD = {
    "MLFLOW_TRACKING_URI": MLFLOW,
    "MLFLOW_REGISTRY_URI": MLFLOW,
    "MLFLOW_TRACES_URI": MLFLOW,
    "TRACES_DATABASE_URL": POSTGRES,
    "LAKE_CATALOGUE_URI": CATALOGUE,
    "LANGFUSE_BASE_URL": "LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY",
    "LANGFUSE_HOST": "LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY",
    "JUDGE_URL": "JUDGE_API_KEY",
    "SERVING_URL": "SERVING_API_KEY",
    "AWS_ENDPOINT_URL": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "AWS_ENDPOINT_URL_S3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "RAY_ADDRESS": "the cluster's own configuration",
}
"""Variable of an address to the variables for its secret."""


def without_secret(variable: str, address: str) -> str:
    """The address, or ValueError that names the variables for the secret in it and shows no part of it."""
    if what := _secret_in(address):
        database = address.startswith(("postgres", "host=", "mysql", "mssql")) or "://" not in address
        instead = POSTGRES if database else INSTEAD[variable]
        raise ValueError(
            f"{variable} has {what} in it, and an address is logged and listed with the processes. Take it out, and "
            f"set {instead}."
        )
    return address


def secret_faults(variables: Mapping[str, str]) -> list[str]:
    """One line for each variable whose address has a secret in it."""
    faults: list[str] = []
    for name in INSTEAD:
        try:
            without_secret(name, variables.get(name, ""))
        except ValueError as error:
            faults.append(str(error))
    return faults


def kept_secrets(tree: Any, field: str = "") -> Iterator[str]:
    """One line for each secret in a record: in an address, or by the name of a variable of a section `env`."""
    if isinstance(tree, Mapping):
        for name, below in cast(Mapping[str, Any], tree).items():
            inside = f"{field}.{name}" if field else name
            if field.endswith("env") and is_secret_name(name):
                yield f"{inside} is a secret by its name; a pod gets those from a Secret of its namespace"
            else:
                yield from kept_secrets(below, inside)
    elif isinstance(tree, (list, tuple)):
        for number, below in enumerate(cast(Sequence[Any], tree)):
            yield from kept_secrets(below, f"{field}.{number}")
    elif isinstance(tree, str) and "://" in tree and (what := _secret_in(tree)):
        yield f"{field} has {what} in its address; those belong into environment variables"


def _secret_in(address: str) -> str:
    try:
        parts = urlsplit(address)
        password, user = parts.password, parts.username
    except ValueError:  # an unclosed bracket: the scheme decides later, and nothing is shown
        return "a user or password" if "@" in address else ""
    if password:
        return "a password"
    if user and parts.scheme in ("http", "https", "s3", "s3a"):
        return "a user"
    if named := named_secrets(parts.query or ("" if parts.scheme else address)):
        return f"a {named[0][0]}"
    return ""
