"""What a set of manifests must hold beyond the schemas: names, references, rights, selectors, node pools."""

import functools
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from k8s.gang import Gang, example
from pipeline.recipe import Compute, Kubernetes, Recipe, Training, load

Object = dict[str, Any]

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "k8s" / "manifests"
RUNS, PLATFORM, SERVING = "preference-tuning", "preference-tuning-platform", "preference-tuning-serving"
COMPONENT = "app.kubernetes.io/component"
CLUSTER_KINDS = {
    "Namespace", "PersistentVolume", "NodePool", "EC2NodeClass", "ClusterQueue", "ResourceFlavor", "Queue",
    "ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
}  # fmt: skip
SECRETS = {"dagster-postgresql", "mlflow-postgresql", "oauth2-proxy", "endpoints", "mark-keys"}
"""That a person makes: platform/kustomization.yaml names them. Manifests hold none."""


class Pods(NamedTuple):
    """Pods that come of one object, or from outside the manifests."""

    namespace: str
    owner: str
    labels: Mapping[str, str]
    spec: Object


@functools.cache
def objects_of(folder: Path) -> tuple[Object, ...]:
    """What `kubectl kustomize` makes of a base or an overlay. For reading: every test gets the same objects."""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl to build the manifests with")
    built = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return tuple(yaml.load_all(built.stdout, yaml.CSafeLoader))


def overlay(name: str) -> tuple[Object, ...]:
    return objects_of(MANIFESTS / "overlays" / name)


def build(base: str) -> tuple[Object, ...]:
    return objects_of(MANIFESTS / "bases" / base)


def both() -> tuple[Object, ...]:
    return build("platform") + build("serving")


def named(objects: Sequence[Object], kind: str, name: str) -> Object:
    (result,) = (obj for obj in of_kind(objects, kind) if obj["metadata"]["name"] == name)
    return result


def of_kind(objects: Sequence[Object], *kinds: str) -> list[Object]:
    return [obj for obj in objects if obj["kind"] in kinds]


def name_of(obj: Object) -> str:
    return f"{obj['kind']} {obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"


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


def misnamed(objects: Sequence[Object]) -> list[str]:
    """Objects without their namespace, with one that they can't have, in one that isn't made, or twice."""
    namespaces = {obj["metadata"]["name"] for obj in of_kind(objects, "Namespace")}
    matches = [f"{name} twice" for name, times in Counter(map(name_of, objects)).items() if times > 1]
    for obj in objects:
        namespace = obj["metadata"].get("namespace")
        if (obj["kind"] in CLUSTER_KINDS) != (namespace is None):
            matches.append(f"{name_of(obj)}: namespace {namespace!r}")
        elif namespace is not None and namespace not in namespaces:
            matches.append(f"{name_of(obj)}: no such namespace")
    return matches


def pods(objects: Sequence[Object]) -> list[Pods]:
    """What makes pods, KServe's predictors included."""
    matches: list[Pods] = []
    for obj in objects:
        namespace, name = obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
        if obj["kind"] == "InferenceService":
            predictor = obj["spec"]["predictor"]
            labels = {"app": f"isvc.{name}-predictor", "serving.kserve.io/inferenceservice": name}
            more = predictor.get("labels", {}) | obj["metadata"].get("labels", {})
            matches.append(Pods(namespace, name_of(obj), labels | more, predictor))
        elif isinstance(template := obj.get("spec", {}).get("template"), dict) and "containers" in template["spec"]:
            labels = template.get("metadata", {}).get("labels", {})
            matches.append(Pods(namespace, name_of(obj), labels, template["spec"]))
    return matches


def bare_pods(objects: Sequence[Object]) -> list[Pods]:
    """With the bare name of their owner."""
    return [pod._replace(owner=pod.owner.rpartition("/")[2]) for pod in pods(objects)]


def dangling(objects: Sequence[Object]) -> list[str]:
    """References to what is not there, beside those that the lint follows."""
    there = {(obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]) for obj in objects}
    for obj in of_kind(objects, "InferenceService"):  # KServe makes these two
        result = (obj["metadata"]["namespace"], f"{obj['metadata']['name']}-predictor")
        there |= {("Deployment", *result), ("Service", *result)}
    wanted = [*_wanted_by_objects(objects), *_wanted_by_pods(pods(objects))]
    return [f"{by}: no {kind} {space}/{name}" for by, kind, space, name in wanted if (kind, space, name) not in there]


def _wanted_by_objects(objects: Sequence[Object]) -> Iterator[tuple[str, str, str, str]]:
    for obj in objects:
        by, spec, namespace = name_of(obj), obj.get("spec", {}), obj["metadata"].get("namespace", "")
        match obj["kind"]:
            case "ValidatingAdmissionPolicyBinding":
                yield by, "ValidatingAdmissionPolicy", "", spec["policyName"]
                if reads := spec.get("paramRef"):
                    yield by, "ConfigMap", reads["namespace"], reads["name"]
            case "ClusterQueue":
                for group in spec["resourceGroups"]:
                    yield from ((by, "ResourceFlavor", "", flavor["name"]) for flavor in group["flavors"])
            case "NodePool":
                wanted = spec["template"]["spec"]["nodeClassRef"]
                yield by, wanted["kind"], "", wanted["name"]
            case "PersistentVolumeClaim":
                yield by, "PersistentVolume", "", spec["volumeName"]
            case "PersistentVolume":
                yield by, "PersistentVolumeClaim", spec["claimRef"]["namespace"], spec["claimRef"]["name"]
            case "ScaledObject":
                target = spec["scaleTargetRef"]
                yield by, target.get("kind", "Deployment"), namespace, target["name"]
            case _:
                pass


def _wanted_by_pods(made: Sequence[Pods]) -> Iterator[tuple[str, str, str, str]]:
    for space, by, _, spec in made:
        if "serviceAccountName" in spec:
            yield by, "ServiceAccount", space, spec["serviceAccountName"]
        for volume in spec.get("volumes", ()):
            if "persistentVolumeClaim" in volume:
                yield by, "PersistentVolumeClaim", space, volume["persistentVolumeClaim"]["claimName"]
            if "configMap" in volume:
                yield by, "ConfigMap", space, volume["configMap"]["name"]
        containers = [*spec.get("initContainers", ()), *spec.get("containers", ()), *filter(None, [spec.get("model")])]
        for container in containers:
            sources = [*container.get("envFrom", ()), *(env.get("valueFrom", {}) for env in container.get("env", ()))]
            for source in sources:
                for key, kind in (("configMapRef", "ConfigMap"), ("configMapKeyRef", "ConfigMap")):
                    if key in source:
                        yield by, kind, space, source[key]["name"]
                for key in ("secretRef", "secretKeyRef"):
                    if key in source and source[key]["name"] not in SECRETS:
                        yield by, "Secret", space, source[key]["name"]


def rights(objects: Sequence[Object], namespace: str, account: str) -> set[tuple[str, str, str, str]]:
    """(namespace, API group, resource, verb) that the bound Roles give a service account."""
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    bound = {
        (obj["metadata"]["namespace"], obj["roleRef"]["name"])
        for obj in of_kind(objects, "RoleBinding")
        if subject in obj["subjects"]
    }
    return {
        (role["metadata"]["namespace"], group, resource, verb)
        for role in of_kind(objects, "Role")
        if (role["metadata"]["namespace"], role["metadata"]["name"]) in bound
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector takes these labels; an empty one takes all."""
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    for expression in selector.get("matchExpressions", ()):
        present, value = expression["key"] in labels, labels.get(expression["key"])
        match expression["operator"]:
            case "In":
                fits = value in expression["values"]
            case "NotIn":
                fits = value not in expression["values"]
            case "Exists":
                fits = present
            case _:
                fits = not present
        if not fits:
            return False
    return True


def idle_selectors(objects: Sequence[Object], from_outside: Sequence[Pods]) -> list[str]:
    """Selectors of policies, services and budgets that take no pod, of monitors that take no service."""
    matches: list[str] = []
    created = [*pods(objects), *from_outside]
    services = of_kind(objects, "Service")
    for obj in objects:
        spec, namespace = obj.get("spec", {}), obj["metadata"].get("namespace", "")
        if obj["kind"] == "ServiceMonitor":
            spaces = spec.get("namespaceSelector", {}).get("matchNames", [namespace])
            taken = [
                service for service in services
                if service["metadata"]["namespace"] in spaces
                and selects(spec["selector"], service["metadata"].get("labels", {}))
            ]  # fmt: skip
            ports = {port.get("name") for service in taken for port in service["spec"]["ports"]}
            matches += [
                f"{name_of(obj)}: no port {end['port']}" for end in spec["endpoints"] if end["port"] not in ports
            ]
            continue
        selectors: list[Mapping[str, Any]] = []
        if obj["kind"] == "NetworkPolicy":
            selectors = [spec["podSelector"]]
        elif obj["kind"] == "PodDisruptionBudget":
            selectors = [spec["selector"]]
        elif obj["kind"] == "Service" and "selector" in spec:
            selectors = [{"matchLabels": spec["selector"]}]
        for selector in selectors:
            if not any(pod.namespace == namespace and selects(selector, pod.labels) for pod in created):
                matches.append(f"{name_of(obj)}: selects nothing")
    return matches


def open_namespaces(objects: Sequence[Object]) -> list[str]:
    """Namespaces whose pods may talk to anybody."""
    denied = {
        obj["metadata"]["namespace"]
        for obj in of_kind(objects, "NetworkPolicy")
        if not obj["spec"]["podSelector"]
        and set(obj["spec"]["policyTypes"]) == {"Ingress", "Egress"}
        and not obj["spec"].get("ingress")
        and not obj["spec"].get("egress")
    }
    return [obj["metadata"]["name"] for obj in of_kind(objects, "Namespace") if obj["metadata"]["name"] not in denied]
