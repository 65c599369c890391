"""Who acts on which end of a pod: the policies, read as their controllers read them."""

import re

import pytest

from k8s.render import render

from .golden import CASES, gang

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
