"""Kubernetes' own admission code, as a program of tests/k8s/apiserver: built where Go and its packages are installed.

Debian's golang-go, golang-k8s-apiserver-dev and golang-k8s-apiextensions-apiserver-dev (0.36 of both) have all that it
needs. GOPATH names the folder of the packages where they lie elsewhere. The first build takes minutes, a later one
seconds.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from k8s.client import resource_of

from .manifests import Object
from .verdicts import AdmissionDenial, AdmissionRequest

SOURCE = Path(__file__).with_name("apiserver")
GOPATH = Path(os.environ.get("GOPATH") or "/usr/share/gocode")
NEEDED = ("k8s.io/apiserver/pkg/admission/plugin/policy/validating", "k8s.io/apiextensions-apiserver/pkg/apiserver")


def missing() -> str:
    """Why it can't be built here; "" where it can."""
    if shutil.which("go") is None:
        return "no Go (golang-go)"
    absent = [each for each in NEEDED if not (GOPATH / "src" / each).is_dir()]
    return f"no package {', '.join(absent)} below {GOPATH}" if absent else ""


def build(folder: Path) -> Path:
    """The program, in this folder. Raises RuntimeError with the compiler's words."""
    program = folder / "apiserver"
    settings = {"GO111MODULE": "off", "GOFLAGS": "", "GOTOOLCHAIN": "local", "GOPATH": str(GOPATH)}
    command = ["go", "build", "-o", str(program), "."]
    done = subprocess.run(command, cwd=SOURCE, env=os.environ | settings, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return program


class PolicyAnswer(NamedTuple):
    """Of one set of policies."""

    expressions: int
    uncompiled: list[str]
    denials: list[list[AdmissionDenial]]
    """Of each request, by policy."""
    messages: list[str]
    """What the client is told of each request; "" for one that is admitted."""


def ask_policies(program: Path, objects: Sequence[Object], requests: Sequence[AdmissionRequest]) -> PolicyAnswer:
    """Raises RuntimeError for objects that Kubernetes does not read."""
    asked = {"policies": [{"objects": list(objects), "requests": [_as_asked(each) for each in requests]}]}
    (answer,) = _answers(program, asked)["policies"]
    denials = [[AdmissionDenial(**each) for each in decision["denials"]] for decision in answer["decisions"]]
    messages = [decision["message"] for decision in answer["decisions"]]
    return PolicyAnswer(answer["expressions"], answer["uncompiled"], denials, messages)


def ask_resources(program: Path, pairs: Sequence[tuple[Object, Object]]) -> list[list[str]]:
    """The rules that each (schema, object) breaks."""
    return _answers(program, {"resources": [{"schema": schema, "object": obj} for schema, obj in pairs]})["resources"]


def _answers(program: Path, question: Object) -> Any:
    done = subprocess.run([program], input=json.dumps(question), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)


def _as_asked(request: AdmissionRequest) -> Object:
    of = request.new or request.old or {}
    resource = resource_of(of)
    return {
        "operation": request.operation,
        "user": request.user,
        "group": resource.group,
        "version": resource.version,
        "resource": resource.plural,
        "kind": request.kind,
        "namespace": request.namespace,
        "name": request.name,
        "object": request.new,
        "oldObject": None if request.operation == "CREATE" else request.old,
    }
