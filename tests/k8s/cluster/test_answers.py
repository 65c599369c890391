"""Answers that were compared one by one with those of k8s.io/apiextensions-apiserver 0.36 to the same requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from .bodies import APPLY, JOBS, JOBSETS, MAPS, applied, config, job, jobset, reason

MERGE = {"Content-Type": "application/merge-patch+json"}


def env(jobset: dict[str, Any]) -> dict[str, Any]:
    """The first container of a jobset."""
    return jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.shared
@pytest.mark.parametrize("validation", ["Strict", "Warn", "Ignore", ""])
def test_what_the_schema_cannot_tell_is_500_by_the_keys_of_lists(
    shared_data: Path, http: httpx2.Client, validation: str
) -> None:
    twice, deep, wrong = jobset(), jobset(), jobset()
    env(twice)["env"] = [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]
    env(deep)["imagee"] = "x"
    wrong["spec"]["suspend"] = "yes"
    trainer = '.spec.replicatedJobs[name="trainer"].template.spec.template.spec.containers[name="trainer"]'
    for body, words in (
        (twice, f'{trainer}.env: duplicate entries for key [name="A"]'),
        (deep, f"{trainer}.imagee: field not declared in schema"),
        (wrong, ".spec.suspend: wrong type"),
    ):
        refused = applied(http, JOBSETS, body, fieldValidation=validation)
        assert reason(refused) == (500, "")
        start = "failed to create typed patch object (/train; jobset.x-k8s.io/v1alpha2, Kind=JobSet): "
        assert refused.json()["message"] == start + words
    assert reason(http.post(JOBSETS, json=twice)) == (422, "Invalid")
    # Told before an admission webhook is asked.
    applied(http, JOBSETS, jobset())
    assert reason(applied(http, JOBSETS, twice)) == (500, "")


@pytest.mark.shared
def test_a_null_is_dropped_at_a_creation_and_refused_at_an_apply(shared_data: Path, http: httpx2.Client) -> None:
    body = jobset()
    body["spec"]["ttlSecondsAfterFinished"] = None
    assert reason(applied(http, JOBSETS, body)) == (422, "Invalid")
    assert "ttlSecondsAfterFinished" not in http.post(JOBSETS, json=body).json()["spec"]


def test_a_key_that_is_there_twice(http: httpx2.Client) -> None:
    body = json.dumps(config(a="1"))[:-1] + ', "data": {"a": "2"}}'
    strict = {"fieldManager": "ours", "fieldValidation": "Strict"}
    refused = http.patch(f"{MAPS}/notes", params=strict, content=body, headers=APPLY)
    assert reason(refused) == (400, "BadRequest") and '"data" already set in map' in refused.json()["message"]
    refused = http.post(MAPS, params=strict, content=body)
    assert reason(refused) == (400, "BadRequest") and 'duplicate field "data"' in refused.json()["message"]
    assert http.patch(f"{MAPS}/notes", params=strict | {"fieldValidation": ""}, content=body, headers=APPLY).is_success
    assert reason(http.patch(f"{MAPS}/notes", params=strict, content=body, headers=MERGE)) == (422, "Invalid")


@pytest.mark.shared
@pytest.mark.parametrize("validation, told", [("Warn", True), ("", True), ("Ignore", False)])
def test_a_dropped_field_is_told_unless_it_is_to_be_ignored(
    shared_data: Path, http: httpx2.Client, validation: str, told: bool
) -> None:
    answer = http.post(JOBSETS, json=jobset() | {"extra": 1}, params={"fieldValidation": validation})
    assert answer.status_code == 201 and ("Warning" in answer.headers) is told


@pytest.mark.parametrize(
    "query, words",
    [
        ({"dryRun": "Some"}, 'dryRun: Unsupported value: ["Some"]'),
        ({"fieldValidation": "Maybe"}, 'fieldValidation: Unsupported value: "Maybe"'),
        ({"fieldManager": "m" * 129}, "may not be more than 128 bytes"),
        ({"fieldManager": "a\nb"}, "invalid character"),
    ],
)
def test_an_option_that_no_write_has(http: httpx2.Client, query: dict[str, str], words: str) -> None:
    refused = http.post(MAPS, json=config(), params=query)
    assert reason(refused) == (422, "Invalid") and words in refused.json()["message"]
    assert reason(http.patch(f"{MAPS}/x", json={}, params={"force": "true"}, headers=MERGE)) == (422, "Invalid")


def test_an_apply_says_the_name_and_no_uid_of_what_is_not_there(http: httpx2.Client) -> None:
    def send(**metadata: Any) -> httpx2.Response:
        body = json.dumps(jobset() | {"metadata": metadata})
        return http.patch(f"{JOBSETS}/train", content=body, params={"fieldManager": "ours"}, headers=APPLY)

    assert reason(send()) == (400, "BadRequest")
    assert reason(send(name="train", namespace="elsewhere")) == (400, "BadRequest")
    assert reason(send(name="train", managedFields=[])) == (400, "BadRequest")
    assert reason(send(name="train", uid="abc")) == (409, "Conflict")
    assert send(name="train", resourceVersion="5").status_code == 201


def test_a_custom_resource_says_its_kind_and_keeps_it(http: httpx2.Client) -> None:
    body = jobset()
    assert reason(http.post(JOBSETS, json={k: v for k, v in body.items() if k != "kind"})) == (400, "BadRequest")
    assert reason(http.post(JOBSETS, json=body | {"kind": "Job"})) == (422, "Invalid")
    assert http.post(JOBS, json={k: v for k, v in job().items() if k not in ("kind", "apiVersion")}).is_success
    http.post(JOBSETS, json=body)
    assert reason(http.patch(f"{JOBSETS}/train", json={"kind": "Job"}, headers=MERGE)) == (422, "Invalid")
    moved = {"metadata": {"namespace": "elsewhere"}}
    assert reason(http.patch(f"{JOBSETS}/train", json=moved, headers=MERGE)) == (400, "BadRequest")


def test_a_rule_on_the_old_value_lets_it_go(http: httpx2.Client) -> None:
    http.post(JOBSETS, json=jobset())
    gone = http.patch(f"{JOBSETS}/train", json={"spec": {"failurePolicy": None}}, headers=MERGE)
    assert gone.status_code == 200 and "failurePolicy" not in gone.json()["spec"]


def test_conflicts_with_several_managers_and_with_a_status(http: httpx2.Client) -> None:
    for manager in ("theirs", "ours"):
        applied(http, JOBSETS, jobset(), manager)
    refused = applied(http, JOBSETS, jobset(suspend=True), "third").json()["message"]
    each = [f'conflicts with "{manager}":\n- .spec.suspend' for manager in ("ours", "theirs")]
    assert refused == "Apply failed with 2 conflicts: " + "\n".join(each)
    status = {"status": {"restarts": 4}}
    http.patch(f"{JOBSETS}/train/status", json=status, headers=MERGE, params={"fieldManager": "ctrl"})
    body = json.dumps(jobset() | {"status": {"restarts": 5}})
    answer = http.patch(f"{JOBSETS}/train/status", content=body, headers=APPLY, params={"fieldManager": "x"})
    using = 'conflict with "ctrl" with subresource "status" using jobset.x-k8s.io/v1alpha2: .status.restarts'
    assert answer.json()["message"] == f"Apply failed with 1 conflict: {using}"
    assert reason(http.delete(f"{JOBSETS}/train/status")) == (405, "MethodNotAllowed")


@pytest.mark.shared
def test_a_status_is_validated_too(shared_data: Path, http: httpx2.Client) -> None:
    http.post(JOBSETS, json=jobset())
    path, strict = f"{JOBSETS}/train/status", {"fieldValidation": "Strict"}
    assert reason(http.patch(path, json={"status": {"restarts": "x"}}, headers=MERGE)) == (422, "Invalid")
    assert reason(http.patch(path, json={"status": {"foo": 4}}, headers=MERGE, params=strict)) == (422, "Invalid")
    dropped = http.patch(path, json={"status": {"foo": 4, "restarts": 2}}, headers=MERGE)
    assert dropped.json()["status"] == {"restarts": 2} and "status.foo" in dropped.headers["Warning"]
    assert reason(applied(http, path.removesuffix("/train/status"), jobset() | {"status": {"foo": 4}})) == (500, "")


def test_a_wrong_content_type_is_told_before_what_is_missing(http: httpx2.Client) -> None:
    assert reason(http.patch(f"{JOBSETS}/never", json={})) == (415, "UnsupportedMediaType")
    kind = {"Content-Type": "application/json-patch+json"}
    http.post(MAPS, json=config())
    for patch in ([{"op": "frob", "path": "/data"}], {"op": "add"}):
        assert reason(http.patch(f"{MAPS}/notes", content=json.dumps(patch), headers=kind)) == (400, "BadRequest")


def test_a_name_may_come_encoded(http: httpx2.Client) -> None:
    missing = http.get(f"{MAPS}/{quote('two' + chr(10) + 'lines')}")
    assert reason(missing) == (404, "NotFound") and missing.json()["details"]["name"] == "two\nlines"


@pytest.mark.parametrize("selector", ["a=1,", ", ", "a=1,,b=2", "a=-x", "a=b c", "a/b/c=1", "a=" + "x" * 64, "a>x"])
def test_a_selector_that_selects_nothing_that_can_be(http: httpx2.Client, selector: str) -> None:
    for query in ({}, {"watch": "1"}):
        assert reason(http.get(MAPS, params={"labelSelector": selector} | query)) == (400, "BadRequest")


def test_a_selector_by_order_and_a_version_that_is_not_yet(http: httpx2.Client) -> None:
    for number in (1, 5):
        body = config(f"m{number}")
        body["metadata"]["labels"] = {"n": str(number)}
        http.post(MAPS, json=body)
    for selector, names in (("n>2", ["m5"]), ("n<2", ["m1"]), ("n > 0", ["m1", "m5"])):
        items = http.get(MAPS, params={"labelSelector": selector}).json()["items"]
        assert [item["metadata"]["name"] for item in items] == names
    assert reason(http.get(MAPS, params={"resourceVersion": "abc"})) == (400, "BadRequest")
    assert reason(http.get(MAPS, params={"resourceVersion": "99999"})) == (504, "Timeout")
    token = http.get(MAPS, params={"limit": 1}).json()["metadata"]["continue"]
    assert reason(http.get(MAPS, params={"continue": token, "resourceVersion": "1"})) == (400, "BadRequest")


@pytest.mark.parametrize("metadata", [{"finalizers": ["bad one"]}, {"annotations": {"a": "x" * (256 * 1024)}}])
def test_metadata_that_no_object_may_have(http: httpx2.Client, metadata: dict[str, Any]) -> None:
    assert reason(http.post(MAPS, json=config() | {"metadata": {"name": "a"} | metadata})) == (422, "Invalid")
