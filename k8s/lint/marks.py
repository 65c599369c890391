"""Rules on the keys of the marks of users: who has to have them, and who must not (docs/operations.md, Keys)."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from k8s.lint.manifests import Manifests
from k8s.lint.pods import Container, where
from k8s.lint.rules import Hits, rule
from k8s.lint.tree import Node, rows, sub, text, texts

SECRET = "mark-keys"
VARIABLE = "PREFERENCE_TUNING_MARK_KEYS"
CODE_LOCATION = ["dagster", "api", "grpc"]


@rule("error", fix=f"Take Secret {SECRET} as environment (envFrom; env_secrets of the run launcher), not optional.")
def mark_keys(seen: Manifests) -> Hits:
    """Without the keys nobody is forgotten, and once somebody was, no row is read: traces, labels, reward models and
    trainings fail in the middle of a run. A pod that waits for a Secret says so before it begins."""
    for container in seen.commands:
        if _is_code_location(container) and not any(required for required in _sources(container)):
            yield f"{container.where}.envFrom", f"no Secret {SECRET} that has to be there"
    for config in seen.of("ConfigMap"):
        launcher = sub(_yaml(text(config, "data", "dagster.yaml")), "run_launcher")
        if text(launcher, "class") == "K8sRunLauncher" and SECRET not in texts(launcher, "config", "env_secrets"):
            yield where(config, "data.dagster.yaml run_launcher.config.env_secrets"), f"no Secret {SECRET}"


@rule("error", fix="Leave it to Dagster's code location and runs.")
def mark_keys_elsewhere(seen: Manifests) -> Hits:
    """Who has the keys and a copy of the data root can tell who was forgotten. Gangs run a model's code, and servers
    answer strangers: neither reads a row by its user."""
    for pods in seen.pods:
        for container in pods.containers:
            if not _is_code_location(container) and list(_sources(container)):
                yield f"{container.where}.env", f"the keys of Secret {SECRET}"
        for i, volume in enumerate(rows(pods.spec, "volumes")):
            projected = [text(source, "secret", "name") for source in rows(volume, "projected", "sources")]
            if SECRET in (text(volume, "secret", "secretName"), *projected):
                yield f"{pods.where}.volumes[{i}]", f"the keys of Secret {SECRET}"


def _sources(container: Container) -> Iterator[bool]:
    """Of the keys in its environment: whether each has to be there for the container to begin."""
    references = [sub(row, "secretRef") for row in rows(container.node, "envFrom")]
    references = [reference for reference in references if text(reference, "name") == SECRET]
    for row in rows(container.node, "env"):
        reference = sub(row, "valueFrom", "secretKeyRef")
        if text(reference, "name") == SECRET or (reference and text(row, "name") == VARIABLE):
            references.append(reference)
    yield from (reference.get("optional") is not True for reference in references)


def _is_code_location(container: Container) -> bool:
    return (texts(container.node, "command") + texts(container.node, "args"))[:3] == CODE_LOCATION


def _yaml(content: str) -> Node:
    try:
        return sub({"": yaml.safe_load(content)}, "")
    except (yaml.YAMLError, ValueError, RecursionError):  # Dagster's own to refuse
        return {}
