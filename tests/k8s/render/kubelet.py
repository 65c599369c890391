"""What a kubelet and the controllers make of a rendered gang, as far as the tests ask."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

Object = dict[str, Any]


class Pods(NamedTuple):
    """Pods of one template."""

    template: Object
    names: list[str]
    """As the controllers name them, with their random suffix."""
    hosts: list[str]
    """DNS names by which peers know them; empty where nobody asks."""


def pods(objects: list[Object]) -> list[Pods]:
    """All pods with the trainer in them."""
    obj = objects[0]
    name, spec = obj["metadata"]["name"], obj["spec"]
    match obj["kind"], obj["apiVersion"].split("/")[0]:
        case "JobSet", _:
            (job,) = spec["replicatedJobs"]
            prefix, run = f"{name}-{job['name']}-0", job["template"]["spec"]
            return [_indexed(prefix, spec["network"]["subdomain"], run)]
        case "Job", _:
            (task,) = spec["tasks"]
            names = [f"{name}-{task['name']}-{i}" for i in range(task["replicas"])]
            return [Pods(task["template"], names, [f"{pod}.{name}" for pod in names])]
        case _:
            cluster = spec["rayClusterSpec"]
            matches = [Pods(cluster["headGroupSpec"]["template"], [f"{name}-abcde-head-svc"[:63]], [])]
            for group in cluster["workerGroupSpecs"]:
                # KubeRay cuts what it makes of these to 50 characters and adds 6.
                result = [f"{name}-abcde-{group['groupName']}-worker"[:50] + "-abcde"] * group["replicas"]
                matches.append(Pods(group["template"], result, []))
            return matches


def _indexed(prefix: str, subdomain: str, job: Object) -> Pods:
    assert job["completionMode"] == "Indexed"
    assert job["completions"] == job["parallelism"]
    indices = range(job["completions"])
    hosts = [f"{prefix}-{i}.{subdomain}" for i in indices]
    return Pods(job["template"], [f"{prefix}-{i}-abcde" for i in indices], hosts)


def environment(template: Object, fields: Mapping[str, str]) -> dict[str, str]:
    """Of the trainer. `fields`: by field path, of this pod."""
    known: dict[str, str] = {}
    for variable in template["spec"]["containers"][0]["env"]:
        value = variable.get("value")
        if value is None:
            known[variable["name"]] = fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        else:
            known[variable["name"]] = expand(value, known)
    return known


def expand(text: str, known: Mapping[str, str]) -> str:
    """$(NAME) where NAME is known, $$ as $, and nothing else, from left to right."""

    def found(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else known.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", found, text)
