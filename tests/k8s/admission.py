"""Where the cluster of an overlay would put a gang: Kueue's choice of a flavour, and Karpenter's pools for the pods.

As the controllers decide, on the manifests alone: no capacity, no other gang. Kueue compares selectors over the label
keys of all flavours of the queue (its flavorassigner), takes the first that fits and adds its labels to the pods.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from k8s.gang import Gang, example
from k8s.render import primary
from pipeline.recipe import Kubernetes, Recipe, load

from .manifests import Object, of_kind, overlay

ROOT = Path(__file__).parents[2]
UNITS = {"": 1.0, "m": 1e-3, "G": 1e9, "Mi": 2.0**20, "Gi": 2.0**30}


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
    engine = "nemo_rl" if chosen.backend == "rayjob" else "trl"
    return example("recipe", recipe.data_root, recipe.compute.nodes, processes, engine, 100, 3600, chosen)


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


def quantity(text: str | int) -> float:
    """Kubernetes' quantities, as far as the manifests use them."""
    number = str(text).rstrip("mGMi")
    return float(number) * UNITS[str(text)[len(number) :]]


def flavor_of(objects: Sequence[Object], gang: Gang) -> Object:
    """The flavour that Kueue takes for the gang. Raises LookupError when it would wait for ever."""
    (queue,) = of_kind(objects, "ClusterQueue")
    (group,) = queue["spec"]["resourceGroups"]
    flavors = {flavor["metadata"]["name"]: flavor for flavor in of_kind(objects, "ResourceFlavor")}
    keys = {key for flavor in flavors.values() for key in flavor["spec"].get("nodeLabels", {})}
    sets = pod_sets(gang)
    asked = {"pods": float(sum(count for _, count in sets))}
    for pod, count in sets:
        for resource, amount in pod["containers"][0]["resources"]["requests"].items():
            asked[resource] = asked.get(resource, 0.0) + count * quantity(amount)
    for quotas in group["flavors"]:
        spec = flavors[quotas["name"]]["spec"]
        quota = {resource["name"]: quantity(resource["nominalQuota"]) for resource in quotas["resources"]}
        if all(_fits(pod, spec, keys) for pod, _ in sets) and all(asked[key] <= quota.get(key, -1) for key in asked):
            return flavors[quotas["name"]]
    raise LookupError(f"{gang.name} asks for {asked}: no flavour takes it")


def _fits(pod: Object, flavor: Object, keys: set[str]) -> bool:
    node = flavor.get("nodeLabels", {})
    wanted = {key: value for key, value in pod.get("nodeSelector", {}).items() if key in keys}
    nodes = pod.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
    absent = {e["key"] for term in nodes.get("nodeSelectorTerms", ()) for e in term["matchExpressions"]}
    return (
        all(node.get(key) == value for key, value in wanted.items())
        and not absent & set(node)
        and all(tolerated(taint, pod) for taint in flavor.get("nodeTaints", ()))
    )


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
