"""How a mistake is made: one field of a gang or of what it wants changed, deleted or added."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NamedTuple

import yaml

from tests.k8s.lint.cases import GONE, Edit, Object, change, find, put

JOB = "spec.replicatedJobs.0.template.spec"
POD = f"{JOB}.template.spec"
BOX = f"{POD}.containers.0"


class Mistake(NamedTuple):
    what: str
    rule: str
    edit: Edit
    backend: str = "jobset"


def jobset(what: str, rule: str, path: str, value: Any) -> Mistake:
    return Mistake(what, rule, change("JobSet", path, value))


def pod(what: str, rule: str, path: str, value: Any) -> Mistake:
    return jobset(what, rule, f"{POD}.{path}", value)


def box(what: str, rule: str, path: str, value: Any) -> Mistake:
    return jobset(what, rule, f"{BOX}.{path}", value)


def env(what: str, rule: str, name: str, value: str) -> Mistake:
    return Mistake(what, rule, lambda objects: container(objects)["env"].append({"name": name, "value": value}))


def script(what: str, rule: str, text: str) -> Mistake:
    return box(what, rule, "command", ["bash", "-c", text])


def job(what: str, rule: str, path: str, value: Any, kind: str = "Job") -> Mistake:
    return Mistake(what, rule, change(kind, path, value), "job")


def volcano(what: str, rule: str, path: str, value: Any) -> Mistake:
    return Mistake(what, rule, change("Job", path, value), "volcano")


def ray(what: str, rule: str, path: str, value: Any) -> Mistake:
    return Mistake(what, rule, change("RayJob", path, value), "rayjob")


def static(kind: str, what: str, rule: str, path: str, value: Any, name: str = "") -> Mistake:
    return Mistake(what, rule, change(kind, path, value, name))


def more(what: str, rule: str, text: str, backend: str = "jobset") -> Mistake:
    """One object more than there should be."""
    return Mistake(what, rule, lambda objects: objects.extend(yaml.safe_load_all(text)), backend)


def container(objects: list[Object]) -> Object:
    return find(objects, "JobSet")["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]


def twice(objects: list[Object]) -> None:
    objects.append(deepcopy(find(objects, "Role")))


def without(*paths: str) -> Edit:
    """Delete these from the gang."""

    def delete(objects: list[Object]) -> None:
        for path in paths:
            put(objects[0], path, GONE)

    return delete


def reverse(path: str) -> Edit:
    def turn(objects: list[Object]) -> None:
        node: Any = objects[0]
        for part in path.split("."):
            node = node[part]
        node.reverse()

    return turn


def second_route(objects: list[Object]) -> None:
    """A route beside the one that is there, as a rollback."""
    route = deepcopy(find(objects, "HTTPRoute"))
    put(route, "metadata.name", "rollback")
    put(route, "spec.rules.0.backendRefs", [{"name": "champion", "port": 8000}])
    objects.append(route)
