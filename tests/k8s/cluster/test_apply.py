"""Server-side apply: owners of fields, conflicts, what goes when it is no longer sent, strictness."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from .bodies import APPLY, JOBS, JOBSETS, MAPS, PODS, applied, config, job, jobset, reason, template

OURS = {"fieldManager": "ours", "fieldValidation": "Strict"}


@pytest.mark.parametrize("path, body, at", [(JOBS, job(), "spec.foo"), (JOBSETS, jobset(), "spec.foo")])
@pytest.mark.shared
def test_an_unknown_field(shared_data: Path, http: httpx2.Client, path: str, body: dict[str, Any], at: str) -> None:
    wrong = body | {"spec": body["spec"] | {"foo": 1}}
    strict = http.post(path, json=wrong, params={"fieldValidation": "Strict"})
    assert reason(strict) == (400, "BadRequest")
    assert f'strict decoding error: unknown field "{at}"' in strict.json()["message"]
    dropped = http.post(path, json=wrong)
    assert dropped.status_code == 201 and "foo" not in dropped.json()["spec"]
    assert at in dropped.headers["Warning"]
    # An apply is refused whatever it says of validation, and with 500.
    refused = applied(http, path, wrong)
    assert reason(refused) == (500, "") and refused.json()["message"].endswith(f".{at}: field not declared in schema")


@pytest.mark.shared
def test_a_value_of_the_wrong_kind(shared_data: Path, http: httpx2.Client) -> None:
    assert reason(http.post(JOBS, json=job(parallelism="many"))) == (400, "BadRequest")
    assert reason(http.post(JOBSETS, json=jobset() | {"spec": {"replicatedJobs": [{"name": "x"}]}})) == (422, "Invalid")
    assert reason(applied(http, JOBS, job(parallelism="many"))) == (500, "")
    assert reason(http.post(JOBS, json=jobset())) == (400, "BadRequest")


def test_apply_creates_keeps_and_removes_fields(http: httpx2.Client) -> None:
    first = applied(http, MAPS, config(a="1", b="2"))
    assert first.status_code == 201
    again = applied(http, MAPS, config(a="1", b="2"))
    assert again.status_code == 200
    assert again.json()["metadata"]["resourceVersion"] == first.json()["metadata"]["resourceVersion"]
    assert applied(http, MAPS, config(a="1")).json()["data"] == {"a": "1"}
    entries = http.get(f"{MAPS}/notes").json()["metadata"]["managedFields"]
    assert [(e["manager"], e["operation"], e["fieldsV1"]) for e in entries] == [
        ("ours", "Apply", {"f:data": {"f:a": {}}})
    ]


def test_another_managers_field_is_a_conflict_unless_forced(http: httpx2.Client) -> None:
    applied(http, MAPS, config(a="1", b="2"))
    refused = applied(http, MAPS, config(a="9"), manager="theirs")
    assert reason(refused) == (409, "Conflict")
    assert refused.json()["message"] == 'Apply failed with 1 conflict: conflict with "ours": .data.a'
    assert refused.json()["details"]["causes"][0]["reason"] == "FieldManagerConflict"
    # The same value is shared, and stays when one of the two no longer sends it.
    assert applied(http, MAPS, config(a="1"), manager="theirs").status_code == 200
    assert applied(http, MAPS, config(b="2")).json()["data"] == {"a": "1", "b": "2"}
    assert applied(http, MAPS, config(b="3"), manager="theirs", force="true").json()["data"] == {"b": "3"}
    assert owners(http) == {"theirs": {"f:b"}}
    http.patch(f"{MAPS}/notes", json={"data": {"b": "4"}}, headers={"Content-Type": "application/merge-patch+json"})
    assert owners(http) == {"python-httpx2": {"f:b"}}  # the User-Agent, for want of a manager
    refused = applied(http, MAPS, config(b="3"), manager="theirs")
    assert 'conflict with "python-httpx2" using v1: .data.b' in refused.json()["message"]


def owners(http: httpx2.Client) -> dict[str, set[str]]:
    """Who holds which key of the map."""
    entries = http.get(f"{MAPS}/notes").json()["metadata"]["managedFields"]
    return {entry["manager"]: set(entry["fieldsV1"]["f:data"]) for entry in entries}


def test_apply_merges_containers_and_environment_by_name(http: httpx2.Client) -> None:
    def with_env(*names: str) -> dict[str, Any]:
        body = job(suspend=True)
        body["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": n, "value": "1"} for n in names]
        return body

    def env(response: httpx2.Response) -> list[str]:
        assert response.status_code in (200, 201), response.text
        return [e["name"] for e in response.json()["spec"]["template"]["spec"]["containers"][0]["env"]]

    assert env(applied(http, JOBS, with_env("A", "B"), dryRun="All")) == ["A", "B"]
    assert http.get(f"{JOBS}/train").status_code == 404
    applied(http, JOBS, with_env("A", "B"))
    dry = applied(http, JOBS, with_env("A"), dryRun="All")
    assert reason(dry) == (422, "Invalid")  # a template is immutable, but the merge was made
    body: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}} | template()
    ports = [{"containerPort": 29500}, {"containerPort": 8080, "protocol": "TCP"}]
    body["spec"]["containers"][0]["ports"] = ports
    entry = applied(http, PODS, body).json()["metadata"]["managedFields"][0]["fieldsV1"]
    container = entry["f:spec"]["f:containers"]['k:{"name":"trainer"}']
    assert '{"containerPort":29500,"protocol":"TCP"}' in "".join(container["f:ports"]) and "." in container


def test_what_an_apply_must_say(http: httpx2.Client) -> None:
    body = json.dumps(config(a="1"))
    assert reason(http.patch(f"{MAPS}/notes", content=body, headers=APPLY)) == (422, "Invalid")  # no manager
    yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: notes}\ndata: {a: '1'}\n"
    assert http.patch(f"{MAPS}/notes", params=OURS, content=yaml, headers=APPLY).status_code == 201
    assert reason(http.patch(f"{MAPS}/other", params=OURS, content=body, headers=APPLY)) == (400, "BadRequest")
    assert reason(http.patch(f"{MAPS}/notes", params=OURS, content="{", headers=APPLY)) == (400, "BadRequest")
    assert reason(http.patch(f"{JOBS}/notes", params=OURS, content=body, headers=APPLY)) == (400, "BadRequest")
