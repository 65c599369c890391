"""Where the cluster of an overlay would put a gang: the quota that it takes, and Karpenter's pools for its pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from k8s.gang import Gang, example
from k8s.lint.tree import quantity
from k8s.render import primary
from pipeline.recipe import Compute, Kubernetes, Recipe, Training, load

from .manifests import Object, of_kind, overlay

ROOT = Path(__file__).parents[2]


def recipe_of(name: str) -> Recipe:
    """The recipe that the runs of an overlay get."""
    (environment,) = (
        obj for obj in of_kind(overlay(name), "ConfigMap") if obj["metadata"]["name"] == "run-environment"
    )
    file, overrides = (environment["data"][f"PREFERENCE_TUNING_{key}"] for key in ("RECIPE", "OVERRIDES"))
    return load(ROOT / Path(file).relative_to("/app"), overrides.split())


def gang_of(name: str, **settings: object) -> Gang:
    """The gang of that recipe, some of its `compute.kubernetes` replaced."""
    recipe = recipe_of(name)
    assert recipe.compute.kubernetes is not None
    chosen = Kubernetes.model_validate({**recipe.compute.kubernetes.model_dump(), **settings})
    processes = 1 if chosen.instance_type == "cpu" else recipe.compute.processes
    training = Training(engine="nemo_rl" if chosen.backend == "rayjob" else "trl", grace_s=100, timeout_s=3600)
    compute = Compute(nodes=recipe.compute.nodes, processes=processes, kubernetes=chosen)
    return example("recipe", recipe.data_root, compute, training)


def pod_specs(value: Any) -> Iterator[Object]:
    """Every pod's spec within an object."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for item in value.values():
            yield from pod_specs(item)
    for item in value if isinstance(value, list) else ():
        yield from pod_specs(item)


def pod_sets(gang: Gang) -> list[tuple[Object, int]]:
    """The pods of a gang's object and how many of each, as Kueue counts them."""
    obj = primary(gang)
    if obj["kind"] != "RayJob":
        ((pod),) = pod_specs(obj)
        return [(pod, gang.nodes)]
    cluster = obj["spec"]["rayClusterSpec"]
    groups = [(group["template"]["spec"], group["replicas"]) for group in cluster.get("workerGroupSpecs", ())]
    return [
        (cluster["headGroupSpec"]["template"]["spec"], 1),
        *groups,
        (obj["spec"]["submitterPodTemplate"]["spec"], 1),
    ]


def tolerated(taint: Object, pod: Object) -> bool:
    """Whether the pod may be on a node with that taint."""
    return any(
        toleration.get("key") == taint["key"]
        and (toleration.get("operator") == "Exists" or toleration.get("value") == taint["value"])
        for toleration in pod.get("tolerations", ())
    )


def asked(gang: Gang) -> Counter[str]:
    """What all pods of the gang ask for, by resource, as Kueue counts it."""
    total = Counter({"pods": sum(count for _, count in pod_sets(gang))})
    for pod, count in pod_sets(gang):
        for container in pod["containers"]:
            for name, value in container["resources"]["requests"].items():
                total[name] += quantity(value) * count
    return total


def quotas(objects: Sequence[Object]) -> dict[str, dict[str, float]]:
    """Of the one queue, by flavour and resource, in the order in which Kueue tries the flavours."""
    (queue,) = of_kind(objects, "ClusterQueue")
    (group,) = queue["spec"]["resourceGroups"]
    return {
        flavor["name"]: {each["name"]: quantity(each["nominalQuota"]) for each in flavor["resources"]}
        for flavor in group["flavors"]
    }


def flavors_for(objects: Sequence[Object], gang: Gang) -> list[Object]:
    """Those whose taints all pods tolerate, whose nodes they may select, and whose quota is enough for the gang."""
    matches: list[Object] = []
    wanted = asked(gang)
    for name, quota in quotas(objects).items():
        (flavor,) = (each for each in of_kind(objects, "ResourceFlavor") if each["metadata"]["name"] == name)
        taints, offered = flavor["spec"].get("nodeTaints", ()), flavor["spec"].get("nodeLabels", {})
        pods = [pod for pod, _ in pod_sets(gang)]
        selects = all(
            pod.get("nodeSelector", {}).get(key, value) == value for pod in pods for key, value in offered.items()
        )
        if (
            selects
            and all(tolerated(taint, pod) for taint in taints for pod in pods)
            and all(amount <= quota.get(resource, 0) for resource, amount in wanted.items())
        ):
            matches.append(flavor)
    return matches


def pools_for(objects: Sequence[Object], pod: Object, more: dict[str, str]) -> list[Object]:
    """Karpenter's pools whose nodes take the pod. `more`: labels that Kueue adds to its node selector."""
    selector = pod.get("nodeSelector", {}) | more
    device = any("nvidia.com/gpu" in c.get("resources", {}).get("requests", {}) for c in pod["containers"])
    matches: list[Object] = []
    for pool in of_kind(objects, "NodePool"):
        if device and "nvidia.com/gpu" not in pool["spec"]["limits"]:
            continue
        template = pool["spec"]["template"]
        offered = {key: [value] for key, value in template["metadata"]["labels"].items()}
        offered |= {item["key"]: item["values"] for item in template["spec"]["requirements"]}
        if all(value in offered.get(key, []) for key, value in selector.items()) and all(
            tolerated(taint, pod) for taint in template["spec"].get("taints", ())
        ):
            matches.append(pool)
    return matches
