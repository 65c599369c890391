"""A rule on the rights of whoever launches: the overlay has the component of the gang's backend."""

from __future__ import annotations

from collections.abc import Iterator

from k8s.lint.manifests import Manifests
from k8s.lint.pods import namespace
from k8s.lint.rules import Hits, rule
from k8s.lint.tree import labels, rows, text, texts

LAUNCHER = "launcher"
PLURALS = {"JobSet": "jobsets", "RayJob": "rayjobs", "VolcanoJob": "jobs", "Job": "jobs"}


@rule("error", fix="Add the component of its backend to the overlay (k8s/manifests/components).")
def no_right_to_launch(seen: Manifests) -> Hits:
    """Each backend's rights are a component of their own, and the launch ends at its first request with 403."""
    given = set(_creatable(seen))
    bound = {(namespace(b), text(s, "name")) for b in seen.of("RoleBinding") for s in rows(b, "subjects")}
    for workload in seen.workloads:
        obj, plural = workload.object, PLURALS.get(workload.kind)
        ours = labels(obj, "metadata", "labels").get("app.kubernetes.io/managed-by") == "preference-tuning"
        group = text(obj, "apiVersion").rpartition("/")[0]
        if ours and plural and (namespace(obj), LAUNCHER) in bound and (namespace(obj), group, plural) not in given:
            yield workload.where, f"account {LAUNCHER} may not create {plural} of {group}"


def _creatable(seen: Manifests) -> Iterator[tuple[str, str, str]]:
    """Namespace, group and resource that the launcher's Roles let it create."""
    roles = {
        (namespace(binding), text(binding, "roleRef", "name"))
        for binding in seen.of("RoleBinding")
        if any(text(subject, "name") == LAUNCHER for subject in rows(binding, "subjects"))
    }
    for role in seen.of("Role"):
        if (namespace(role), text(role, "metadata", "name")) in roles:
            for row in rows(role, "rules"):
                if "create" in texts(row, "verbs"):
                    yield from (
                        (namespace(role), group, resource)
                        for group in texts(row, "apiGroups")
                        for resource in texts(row, "resources")
                    )
