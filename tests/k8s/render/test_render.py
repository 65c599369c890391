"""Rendered gangs: as files that a person can read, which nodes they ask for, who acts on which end of a pod."""

import json
import re

import pytest
import yaml

from k8s.render import primary, render

from .golden import CASES, FOLDER, gang, text
from .kubelet import pods


@pytest.mark.parametrize("name", CASES)
def test_file_is_what_is_rendered(name):
    kept = (FOLDER / f"{name}.yaml").read_text()
    assert list(yaml.safe_load_all(kept)) == render(CASES[name])
    assert kept == text(CASES[name]), "stale: python -m tests.k8s.render.golden, and read the diff"


def test_no_file_is_left_over():
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(CASES)


@pytest.mark.shared
@pytest.mark.parametrize("name", CASES)
def test_the_api_server_takes_it(name, shared_data):
    from ..schemas import problems

    for obj in render(CASES[name]):
        assert problems(obj) == []
        obj["spec"]["foo"] = 1
        assert problems(obj) != []


@pytest.mark.parametrize("name", CASES)
def test_primary_has_the_status(name):
    kinds = {"jobset": "JobSet", "rayjob": "RayJob", "volcano": "Job"}
    assert primary(CASES[name])["kind"] == kinds[CASES[name].settings.backend]


EKS, GKE = "karpenter.sh/capacity-type", "cloud.google.com/gke-spot"


def _spec(**settings):
    return pods(render(gang(**settings)))[0].template["spec"]


@pytest.mark.parametrize(
    ("machine", "capacity", "selected"),
    [
        ("p5en.48xlarge", "spot", {EKS: "spot"}),
        ("p5en.48xlarge", "on_demand", {EKS: "on-demand"}),
        ("p5en.48xlarge", "spot_first", {}),
        ("a4-highgpu-8g", "spot", {GKE: "true", "cloud.google.com/gke-accelerator": "nvidia-b200"}),
        ("a4-highgpu-8g", "on_demand", {"cloud.google.com/gke-accelerator": "nvidia-b200"}),
        ("a4-highgpu-8g", "spot_first", {"cloud.google.com/gke-accelerator": "nvidia-b200"}),
    ],
)
def test_type_and_capacity_are_selected(machine, capacity, selected):
    spec = _spec(instance_type=machine, capacity=capacity)
    assert spec["nodeSelector"] == {"node.kubernetes.io/instance-type": machine} | selected


@pytest.mark.parametrize("machine", ["p5en.48xlarge", "a4-highgpu-8g"])
@pytest.mark.parametrize("capacity", ["spot", "spot_first", "on_demand"])
def test_named_taints_are_tolerated_and_no_others(machine, capacity):
    keys = [toleration["key"] for toleration in _spec(instance_type=machine, capacity=capacity)["tolerations"]]
    spot = [GKE] if machine.startswith("a4") and capacity != "on_demand" else []
    assert keys == ["nvidia.com/gpu", "preference-tuning/training", *spot]


def test_on_demand_on_gke_keeps_away_from_spot_nodes():
    wanted = _spec(instance_type="a4-highgpu-8g", capacity="on_demand")["affinity"]["nodeAffinity"]
    (term,) = wanted["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchExpressions": [{"key": GKE, "operator": "DoesNotExist"}]}


@pytest.mark.parametrize("backend", ["jobset", "volcano", "rayjob"])
def test_a_node_holds_one_pod_of_the_gang(backend):
    objects = render(gang(backend=backend))
    for result in pods(objects):
        (term,) = result.template["spec"]["affinity"]["podAntiAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        assert term["labelSelector"]["matchLabels"].items() <= result.template["metadata"]["labels"].items()


def test_any_node_does_for_small_models():
    assert not _spec(instance_type="cpu", processes=1).keys() & {"nodeSelector", "tolerations", "affinity"}


@pytest.mark.parametrize(
    ("machine", "nodes", "joined"), [("a4-highgpu-8g", 2, 10), ("a4-highgpu-8g", 1, 0), ("p5en.48xlarge", 2, 0)]
)
def test_gke_gangs_join_the_networks_between_gpus(machine, nodes, joined):
    annotations = pods(render(gang(nodes=nodes, instance_type=machine)))[0].template["metadata"].get("annotations", {})
    interfaces = json.loads(annotations.get("networking.gke.io/interfaces", "[]"))
    assert len(interfaces) == joined
    assert len({interface["network"] for interface in interfaces}) == joined


def test_the_submitter_fits_beside_the_head():
    spec = render(gang(backend="rayjob"))[0]["spec"]
    submitter = spec["submitterPodTemplate"]["spec"]
    head = spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    assert submitter["nodeSelector"] == head["nodeSelector"]
    assert "affinity" not in submitter
    (term,) = head["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["labelSelector"]["matchExpressions"] == [
        {"key": "ray.io/node-type", "operator": "In", "values": ["head", "worker"]}
    ]
    left = gang().instance.cpu_m - int(head["containers"][0]["resources"]["requests"]["cpu"]) * 1000
    assert left >= 500


JOB_RULES = {64: 0, 65: 0, "DisruptionTarget": 1, 143: 2, 1: None, 137: None}


def _matching(rules, code=None, condition=None, container="trainer"):
    """Index of the first rule of a podFailurePolicy that matches a pod; None: it counts against backoffLimit."""
    for position, rule in enumerate(rules):
        codes = rule.get("onExitCodes")
        if codes and codes["operator"] == "In" and codes["containerName"] == container and code in codes["values"]:
            return position
        if any(c["type"] == condition and c["status"] == "True" for c in rule.get("onPodConditions", [])):
            return position
    return None


def _outcome(jobset, reason, message):
    """JobSet's action on a failed Job, and the rule's name."""
    for rule in jobset["spec"]["failurePolicy"]["rules"]:
        reasons, patterns = rule.get("onJobFailureReasons"), rule.get("onJobFailureMessagePatterns")
        if (not reasons or reason in reasons) and (not patterns or any(re.search(p, message) for p in patterns)):
            return rule["action"], rule["name"]
    return "RestartJobSet", ""


@pytest.mark.parametrize("ended", JOB_RULES)
def test_pods_fail_their_job_at_once(ended):
    job = render(gang())[0]["spec"]["replicatedJobs"][0]["template"]["spec"]
    rules = job["podFailurePolicy"]["rules"]
    code, condition = (None, ended) if isinstance(ended, str) else (ended, None)
    result = _matching(rules, code, condition, job["template"]["spec"]["containers"][0]["name"])
    assert result == JOB_RULES[ended]
    assert all(rule["action"] == "FailJob" for rule in rules)
    assert job["backoffLimit"] == 0


def test_never_retry_wins_over_a_preemption_of_the_same_pod():
    rules = render(gang())[0]["spec"]["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]["rules"]
    assert _matching(rules, code=64, condition="DisruptionTarget") == 0


@pytest.mark.parametrize(
    ("reason", "message", "action"),
    [
        (
            "PodFailurePolicy",
            "Container trainer for pod preference-tuning/t-trainer-0-1-x7k2p failed with exit code 64 matching FailJob "
            "rule at index 0",
            "FailJobSet",
        ),
        (
            "PodFailurePolicy",
            "Container trainer for pod preference-tuning/t-trainer-0-1-x7k2p failed with exit code 65 matching FailJob "
            "rule at index 0",
            "FailJobSet",
        ),
        (
            "PodFailurePolicy",
            "Pod preference-tuning/t-trainer-0-1-x7k2p has condition DisruptionTarget matching FailJob rule at index 1",
            "RestartJobSetAndIgnoreMaxRestarts",
        ),
        (
            "PodFailurePolicy",
            "Container trainer for pod preference-tuning/t-64-trainer-0-64-x7k2p failed with exit code 143 matching "
            "FailJob rule at index 2",
            "RestartJobSetAndIgnoreMaxRestarts",
        ),
        ("BackoffLimitExceeded", "Job has reached the specified backoff limit", "RestartJobSet"),
        ("DeadlineExceeded", "Job was active longer than specified deadline", "FailJobSet"),
    ],
)
def test_the_gang_restarts_or_ends(reason, message, action):
    assert _outcome(render(gang())[0], reason, message)[0] == action


def test_rule_names_are_ones_that_jobset_takes():
    names = [rule["name"] for rule in render(gang())[0]["spec"]["failurePolicy"]["rules"]]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z](?:[A-Za-z0-9_,:]*[A-Za-z0-9_])?", name) for name in names)


@pytest.mark.parametrize(
    ("code", "action"), [(64, "AbortJob"), (65, "AbortJob"), (143, "RestartJob"), (1, "RestartJob")]
)
def test_volcano_aborts_before_it_restarts(code, action):
    spec = render(gang(backend="volcano"))[0]["spec"]
    rules = spec["policies"]
    assert next(r["action"] for r in rules if r.get("exitCode") == code or r.get("event") == "PodFailed") == action
    assert any(rule == {"event": "PodEvicted", "action": "RestartJob"} for rule in rules)
    assert spec["minAvailable"] == spec["tasks"][0]["replicas"] == 3
    assert spec["maxRetry"] >= 50


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("rayjob")])
def test_rayjob_retries_nothing(name):
    spec = render(CASES[name])[0]["spec"]
    assert spec["backoffLimit"] == spec["submitterConfig"]["backoffLimit"] == 0
    assert spec["shutdownAfterJobFinishes"] is True


@pytest.mark.parametrize("name", CASES)
def test_kueue_alone_suspends(name):
    assert all("suspend" not in obj["spec"] for obj in render(CASES[name]))
