"""The tests' API server answers as a real one was seen to: objects, versions, lists, patches, names, deletion."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from .bodies import JOBS, JOBSETS, MAPS, PODS, applied, job, jobset, pod, reason
from .server import Server


def test_an_object_is_created_once_found_and_deleted(http: httpx2.Client) -> None:
    result = http.post(JOBS, json=job())
    assert result.status_code == 201
    meta = result.json()["metadata"]
    assert meta["generation"] == 1 and meta["uid"] and meta["creationTimestamp"].endswith("Z")
    assert reason(http.post(JOBS, json=job())) == (409, "AlreadyExists")
    assert http.get(f"{JOBS}/train").json()["metadata"]["uid"] == meta["uid"]
    status = http.delete(f"{JOBS}/train").json()
    assert status["status"] == "Success" and status["details"]["uid"] == meta["uid"]
    missing = http.get(f"{JOBS}/train")
    assert reason(missing) == (404, "NotFound") and missing.json()["message"] == 'jobs.batch "train" not found'


def test_list_is_selected_and_its_items_name_no_kind(http: httpx2.Client, server: Server) -> None:
    for name, labels in (("a", {"run": "1"}), ("b", {"run": "2", "odd": ""}), ("c", {})):
        pod(server, name, labels=labels)
    server.storage.merge("Pod", "lab", "c", {"status": {"phase": "Failed"}}, "status")

    def names(**query: str) -> list[str]:
        return [item["metadata"]["name"] for item in http.get(PODS, params=query).json()["items"]]

    assert names() == names(labelSelector="") == ["a", "b", "c"]
    assert names(labelSelector="run=1") == names(labelSelector="run in (1, 3)") == ["a"]
    assert names(labelSelector="run,odd") == ["b"]
    assert names(labelSelector="run!=1,!odd") == names(labelSelector="run notin (1,2)") == ["c"]
    assert names(fieldSelector="status.phase=Failed") == names(fieldSelector="metadata.name==c") == ["c"]
    assert reason(http.get(PODS, params={"fieldSelector": "spec.hostname=x"})) == (400, "BadRequest")
    body = http.get("/api/v1/pods").json()
    assert body["kind"] == "PodList" and all("kind" not in item for item in body["items"])


def test_a_long_list_comes_in_pages_and_an_old_page_has_expired(http: httpx2.Client, server: Server) -> None:
    for number in range(5):
        server.storage.create("ConfigMap", "lab", {"metadata": {"name": f"m{number}"}})
    first = http.get(MAPS, params={"limit": 2}).json()
    assert first["metadata"]["remainingItemCount"] == 3
    token = first["metadata"]["continue"]
    rest = http.get(MAPS, params={"continue": token}).json()
    names = [i["metadata"]["name"] for i in first["items"] + rest["items"]]
    assert names == [f"m{n}" for n in range(5)] and "continue" not in rest["metadata"]
    server.storage.history = 1
    server.storage.create("ConfigMap", "lab", {"metadata": {"name": "m9"}})
    server.storage.create("ConfigMap", "lab", {"metadata": {"name": "m8"}})
    assert reason(http.get(MAPS, params={"continue": token})) == (410, "Expired")


def test_spec_and_status_are_apart_and_stale_writes_refused(http: httpx2.Client) -> None:
    old = http.post(JOBS, json=job() | {"status": {"active": 7}}).json()
    assert "status" not in old
    new = http.put(f"{JOBS}/train/status", json=old | {"status": {"active": 1}, "spec": {}}).json()
    assert new["status"] == {"active": 1} and new["spec"] == old["spec"] and new["metadata"]["generation"] == 1
    assert reason(http.put(f"{JOBS}/train", json=old)) == (409, "Conflict")
    new["spec"]["suspend"], new["status"] = True, {}
    newer = http.put(f"{JOBS}/train", json=new).json()
    assert newer["status"] == {"active": 1} and newer["metadata"]["generation"] == 2
    assert int(newer["metadata"]["resourceVersion"]) > int(new["metadata"]["resourceVersion"])
    again = http.put(f"{JOBS}/train", json=newer).json()
    assert again["metadata"]["resourceVersion"] == newer["metadata"]["resourceVersion"]


def test_a_custom_resource_is_not_replaced_without_its_version(http: httpx2.Client) -> None:
    assert http.post(JOBSETS, json=jobset()).status_code == 201
    refused = http.put(f"{JOBSETS}/train", json=jobset())
    assert reason(refused) == (422, "Invalid") and "must be specified for an update" in refused.json()["message"]


@pytest.mark.parametrize(
    "type_, patch, suspend",
    [
        ("merge-patch", {"spec": {"suspend": True}, "metadata": {"labels": {"run": None}}}, True),
        ("strategic-merge-patch", {"spec": {"suspend": True}, "metadata": {"labels": {"run": None}}}, True),
        (
            "json-patch",
            [{"op": "add", "path": "/spec/suspend", "value": True}, {"op": "remove", "path": "/metadata/labels"}],
            True,
        ),
    ],
)
def test_patches_by_their_content_type(http: httpx2.Client, type_: str, patch: Any, suspend: bool) -> None:
    http.post(JOBS, json=job())
    kind = {"Content-Type": f"application/{type_}+json"}
    new = http.patch(f"{JOBS}/train", content=json.dumps(patch), headers=kind).json()
    assert new["spec"]["suspend"] is suspend and not new["metadata"].get("labels")


def test_strategic_patch_merges_conditions_of_built_in_kinds(http: httpx2.Client, server: Server) -> None:
    pod(server)
    kind = {"Content-Type": "application/strategic-merge-patch+json"}
    patch = {"status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "Other", "status": "True"}]}}
    new = http.patch(f"{PODS}/rank-0/status", json=patch, headers=kind).json()
    assert [(c["type"], c["status"]) for c in new["status"]["conditions"]] == [("Ready", "False"), ("Other", "True")]
    http.post(JOBSETS, json=jobset())
    assert reason(http.patch(f"{JOBSETS}/train", json={}, headers=kind)) == (415, "UnsupportedMediaType")
    html = {"Content-Type": "text/html"}
    assert reason(http.post(JOBS, content="<p>", headers=html)) == (415, "UnsupportedMediaType")
    assert reason(http.post(JOBS, content="{")) == (400, "BadRequest")


NAMES = ["a" * 300, "two\nlines", "a: ---", "Upper", "-x", "x_y", "", "..", "ü"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_no_object_may_have(http: httpx2.Client, name: str) -> None:
    assert reason(http.post(JOBS, json=job(name))) == (422, "Invalid")


@pytest.mark.parametrize("value", ["a" * 64, "two\nlines", "---", "a b", "x/y"])
def test_a_label_that_no_object_may_have(http: httpx2.Client, value: str) -> None:
    body = job()
    body["metadata"]["labels"] = {"run": value}
    assert reason(http.post(JOBS, json=body)) == (422, "Invalid")
    body["metadata"]["labels"] = {value if "/" not in value else "x/y/z": "a"}
    assert reason(http.post(JOBS, json=body)) == (422, "Invalid")
    assert reason(http.post(JOBS, json=job() | {"metadata": {"name": "a", "labels": {"run": 7}}}))[0] in (400, 422)


def test_a_namespace_that_is_not_there(http: httpx2.Client) -> None:
    refused = http.post(JOBS.replace("lab", "nowhere"), json=job())
    assert reason(refused) == (404, "NotFound") and 'namespaces "nowhere" not found' in refused.json()["message"]


def test_a_job_keeps_its_template_unless_it_is_suspended(http: httpx2.Client) -> None:
    result = http.post(JOBS, json=job()).json()
    result["spec"]["template"]["spec"]["nodeSelector"] = {"pool": "spot"}
    refused = http.put(f"{JOBS}/train", json=result)
    assert reason(refused) == (422, "Invalid") and "field is immutable" in refused.json()["message"]
    assert reason(http.put(f"{JOBS}/train", json=job(completions=4))) == (422, "Invalid")
    assert http.put(f"{JOBS}/train", json=job(suspend=True)).status_code == 200
    result["spec"]["suspend"] = False
    del result["metadata"]["resourceVersion"]
    assert http.put(f"{JOBS}/train", json=result).status_code == 200


def test_a_jobset_keeps_its_jobs_and_says_so_through_its_webhook(http: httpx2.Client) -> None:
    http.post(JOBSETS, json=jobset())
    refused = applied(http, JOBSETS, jobset("trainer:2"), force="true")
    assert reason(refused) == (403, "Forbidden") and "vjobset" in refused.json()["message"]
    body = jobset()
    body["spec"]["failurePolicy"]["maxRestarts"] = 9
    assert reason(applied(http, JOBSETS, body, force="true")) == (422, "Invalid")


def test_finalizers_and_preconditions_hold_a_deletion(http: httpx2.Client) -> None:
    uid = http.post(JOBS, json=job()).json()["metadata"]["uid"]
    wrong = {"preconditions": {"uid": "someone-else"}}
    assert reason(http.request("DELETE", f"{JOBS}/train", json=wrong)) == (409, "Conflict")
    right = {"preconditions": {"uid": uid}, "propagationPolicy": "Foreground", "kind": "DeleteOptions"}
    assert http.request("DELETE", f"{JOBS}/train", json=right | {"dryRun": ["All"]}).status_code == 200
    held = http.request("DELETE", f"{JOBS}/train", json=right).json()
    assert held["metadata"]["finalizers"] == ["foregroundDeletion"] and held["metadata"]["generation"] == 2
    assert reason(http.post(JOBS, json=job())) == (409, "AlreadyExists")
    merge = {"Content-Type": "application/merge-patch+json"}
    more = {"metadata": {"finalizers": ["foregroundDeletion", "x.io/y"]}}
    assert reason(http.patch(f"{JOBS}/train", json=more, headers=merge)) == (422, "Invalid")
    http.patch(f"{JOBS}/train", json={"metadata": {"finalizers": None}}, headers=merge)
    assert http.get(f"{JOBS}/train").status_code == 404


def test_a_namespace_goes_after_what_is_in_it(http: httpx2.Client, server: Server) -> None:
    pod(server, finalizers=["x.io/y"])
    http.post(JOBS, json=job())
    assert http.delete("/api/v1/namespaces/lab").json()["status"]["phase"] == "Terminating"
    assert reason(http.post(JOBS, json=job())) == (403, "Forbidden")
    assert http.get(f"{JOBS}/train").status_code == 404
    server.storage.delete("Pod", "lab", "rank-0", grace_s=0)
    assert http.get("/api/v1/namespaces/lab").status_code == 200
    server.storage.merge("Pod", "lab", "rank-0", {"metadata": {"finalizers": None}})
    assert http.get("/api/v1/namespaces/lab").status_code == 404


@pytest.mark.parametrize(
    "method, path, body",
    [
        ("POST", JOBS, {"metadata": "x"}),
        ("POST", JOBS, {"metadata": {"name": 7}}),
        ("POST", JOBS, {"metadata": {"name": "a", "finalizers": "b"}}),
        ("POST", JOBS, {"metadata": {"name": "a", "labels": ["b"]}}),
        ("POST", JOBS, {"metadata": {"name": "a"}, "spec": []}),
        ("POST", JOBS, []),
        ("PUT", f"{JOBS}/train", {"metadata": {}}),
        ("PATCH", f"{JOBS}/train", {"metadata": None}),
        ("PATCH", f"{JOBS}/train", {"metadata": {"name": "other"}}),
        ("DELETE", f"{JOBS}/train", {"gracePeriodSeconds": "soon"}),
        ("GET", f"{JOBS}?limit=many", None),
        ("GET", f"{JOBS}?continue=guess", None),
        ("GET", f"{JOBS}?watch=1&timeoutSeconds=x", None),
    ],
)
def test_what_cannot_be_read_is_a_bad_request(http: httpx2.Client, method: str, path: str, body: Any) -> None:
    http.post(JOBS, json=job())
    kind = {"Content-Type": "application/merge-patch+json" if method == "PATCH" else "application/json"}
    assert reason(http.request(method, path, json=body, headers=kind)) == (400, "BadRequest")
