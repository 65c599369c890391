"""The client of the Kubernetes API: objects in and out as plain mappings, every refusal with what to do about it, over
lightkube's authenticated connection."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import quote

MANAGER = "preference-tuning"
"""Field manager of everything that is applied."""
PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Before each further try of a request that got no answer, a 5xx, a 410 or a 429."""
TIMEOUT_S = 20.0
PASSING = (410, 429)
"""Statuses below 500 that the same request may not get again: 410 says that a list has expired, and to list anew."""
APPLY = "application/apply-patch+yaml"
"""Content of a server-side apply; JSON is YAML."""
LINES = 2000
"""Of a log, at most in one answer: the newest."""
ADMISSION = {
    "exceeded quota": " Raise that ResourceQuota, or remove what fills it.",
    "being terminated": " Make the namespace again once it is gone (k8s/README.md).",
    "ValidatingAdmissionPolicy": " Change the recipe, or what the policy allows (k8s/manifests/bases/admission).",
}
"""Words of a 403 or 422 that is no matter of rights or of the schema, and what helps."""

ADVICE = {
    401: " Log in to the cluster again: the kubeconfig's credentials are not taken.",
    403: " Give the service account that right: k8s/manifests/bases/rbac and the component of its backend list all "
    "that a launch needs, bases/serving what a rollout needs.",
    404: " Install what serves it, or create the namespace (k8s/README.md).",
    409: " Somebody else manages it: see kubectl get -o yaml --show-managed-fields, and rename or remove it.",
    422: " The recipe asks for what the cluster does not take: run pt k8s lint RECIPE.",
    400: " The manifest does not fit the API that is installed: check the operator's version in k8s/README.md.",
}

Object = dict[str, Any]


class ApiResource(NamedTuple):
    """Where a kind lives in the API."""

    group: str
    version: str
    plural: str

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = ("namespaces", namespace, self.plural, name, subresource)
        return "/".join([root, *(quote(part, safe="") for part in parts if part)])


RESOURCES = {
    "JobSet": ApiResource("jobset.x-k8s.io", "v1alpha2", "jobsets"),
    "Job": ApiResource("batch", "v1", "jobs"),
    "VolcanoJob": ApiResource("batch.volcano.sh", "v1alpha1", "jobs"),
    "RayJob": ApiResource("ray.io", "v1", "rayjobs"),
    "Pod": ApiResource("", "v1", "pods"),
    "Event": ApiResource("", "v1", "events"),
    "Workload": ApiResource("kueue.x-k8s.io", "v1beta2", "workloads"),
}


def resource_of(obj: Mapping[str, Any]) -> ApiResource:
    """Of an object that the renderers make. Raises ValueError for another kind."""
    volcano = obj["kind"] == "Job" and obj["apiVersion"].startswith("batch.volcano.sh/")
    kind = "VolcanoJob" if volcano else obj["kind"]
    if kind not in RESOURCES:
        raise ValueError(f"The client knows no {kind}: it knows {', '.join(RESOURCES)}. Render one of them.")
    return RESOURCES[kind]


class Refused(ValueError):
    """The API server said no, and would again: 400, 401, 403, 404, 409, 422. `code` is its status."""

    def __init__(self, code: int, message: str, about: str = "") -> None:
        """`about`: the name of the object that the answer is about."""
        super().__init__(message)
        self.code, self.about = code, about


class Unreachable(RuntimeError):
    """No usable answer after every try: nobody listens, the answer never came, or it was 410, 429 or 5xx throughout."""


class KubernetesClient:
    """One connection to one cluster. Every method raises Refused or Unreachable."""

    def __init__(self, http: Any, transient: type[Exception], pauses_s: tuple[float, ...] = PAUSES_S) -> None:
        """`transient`: what `http` raises when no answer came."""
        self._http, self._transient, self.pauses_s = http, transient, pauses_s
        self.answered = False
        """Whether the server ever gave an answer of any kind."""

    def get(self, resource: ApiResource, namespace: str, name: str) -> Object | None:
        """The object; None when there is none of that name. A kind that is not installed is Refused (404)."""
        try:
            return self._ask("GET", resource.path(namespace, name)).json()
        except Refused as refusal:
            if refusal.code == 404 and refusal.about == name:
                return None
            raise

    def list(self, resource: ApiResource, namespace: str, labels: str = "", fields: str = "") -> list[Object]:
        """Every object that the selectors of labels and of fields take."""
        selectors = {"labelSelector": labels, "fieldSelector": fields}
        params = {name: selector for name, selector in selectors.items() if selector}
        return self._ask("GET", resource.path(namespace), params=params).json()["items"]

    def apply(self, obj: Mapping[str, Any]) -> Object:
        """Server-side apply, strict about unknown fields; never takes a field from another manager (409)."""
        meta = obj["metadata"]
        return self._patch(resource_of(obj).path(meta["namespace"], meta["name"]), obj, APPLY, force="false").json()

    def dry_run(self, obj: Mapping[str, Any]) -> None:
        """Let the API server look at an object of any kind that it serves, strictly, without keeping it."""
        version, meta = obj["apiVersion"], obj["metadata"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        kinds = {each["kind"]: each for each in self._ask("GET", root).json()["resources"] if "/" not in each["name"]}
        if (kind := kinds.get(obj["kind"])) is None:
            raise Refused(404, f"{version} has no kind {obj['kind']}. Install what serves it (k8s/README.md).")
        place = ["namespaces", meta.get("namespace", "default")] if kind["namespaced"] else []
        path = "/".join([root, *place, kind["name"], quote(meta["name"], safe="")])
        self._patch(path, obj, APPLY, force="true", dryRun="All")

    def patch(
        self, resource: ApiResource, namespace: str, name: str, operations: Sequence[Object], subresource: str = ""
    ) -> Object:
        """JSON patch (RFC 6902), whole or not at all: a `test` that fails is Refused (422).

        One whose answer was lost is sent again, so it has to test what it changes, or to set what may be set twice.
        """
        path = resource.path(namespace, name, subresource)
        return self._patch(path, list(operations), "application/json-patch+json").json()

    def delete(self, resource: ApiResource, namespace: str, name: str, uid: str = "", version: str = "") -> bool:
        """Delete in the foreground: the object goes after its pods. False where there is nothing to delete.

        `uid`: only that one; `version`: only as it was at that resourceVersion.
        """
        options: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground"}
        if uid or version:
            options["preconditions"] = {k: v for k, v in {"uid": uid, "resourceVersion": version}.items() if v}
        try:
            self._ask("DELETE", resource.path(namespace, name), json=options)
        except Refused as refusal:
            if refusal.code not in (404, 409):  # 409: it is not that one any more
                raise
            return False
        return True

    def log(self, namespace: str, pod: str, container: str, since: str = "") -> list[str]:
        """The container's lines from `since` (RFC 3339) on, each with its time in front; none before it began.

        Asked once: a node that does not answer must not hold the launcher up.
        """
        params = {"container": container, "timestamps": "true", "tailLines": str(LINES)}
        if since:
            params["sinceTime"] = since
        try:
            path = RESOURCES["Pod"].path(namespace, pod, "log")
            return self._ask("GET", path, once=True, params=params).text.split("\n")
        except Refused as refusal:
            if refusal.code in (400, 404):
                return []
            raise

    def _patch(self, path: str, content: Any, kind: str, **options: str) -> Any:
        params = {"fieldManager": MANAGER, "fieldValidation": "Strict", **options}
        return self._ask("PATCH", path, params=params, json=content, headers={"Content-Type": kind})

    def _ask(self, method: str, path: str, once: bool = False, **arguments: Any) -> Any:
        """One request, tried again while that can help: each verb here may be carried out twice without harm."""
        trouble, pauses_s = "", () if once else self.pauses_s
        for pause_s in (*pauses_s, None):
            try:
                response = self._http.request(method, path, **arguments)
            except self._transient as error:
                trouble = f"{type(error).__name__}: {error}"
            except Exception as error:  # the boundary of lightkube and its HTTP library: addresses, credentials
                raise Refused(
                    0, f"{method} {path} could not be asked ({type(error).__name__}: {error}). Mend the kubeconfig."
                ) from error
            else:
                self.answered = True
                if (status := response.status_code) < 400:
                    return response
                message, about = _said(response)
                # 500: how server-side apply answers an unknown field, a wrong type, a key that is there twice.
                code = 400 if status == 500 and message.startswith("failed to create typed patch object") else status
                if code < 500 and code not in PASSING:
                    raise Refused(code, f"{method} {path}: {status} {message}{_advice(code, message)}", about)
                trouble = f"{status} {message}"
            if pause_s is not None:
                time.sleep(pause_s)
        raise Unreachable(
            f"The API server at {self._http.base_url} gave no usable answer to {method} {path} in "
            f"{len(pauses_s) + 1} tries ({trouble}). Check that it is up and that this host reaches it."
        )


def connect(kubeconfig: str = "", timeout_s: float = TIMEOUT_S) -> KubernetesClient:
    """The cluster of that kubeconfig file; without one, the pod's own, KUBECONFIG's or ~/.kube/config.

    `timeout_s`: for each answer. Raises ValueError when no configuration is found or lightkube is not installed.
    """
    try:
        config: Any = importlib.import_module("lightkube.config.kubeconfig")
        adapter: Any = importlib.import_module("lightkube.config.client_adapter")
        transport: Any = importlib.import_module("httpx2")
    except ModuleNotFoundError as error:
        raise ValueError(f"{error.name} is not installed: pip install 'preference-tuning[k8s]'.") from error
    try:
        cluster_config = config.KubeConfig.from_file(kubeconfig) if kubeconfig else config.KubeConfig.from_env()
        single = cluster_config.get()
    except Exception as error:  # the boundary of lightkube's configuration: files of any shape
        raise ValueError(f"There is no usable kubeconfig ({error}). Set KUBECONFIG, or run in a pod.") from error
    http = adapter.Client(single, adapter.ConnectionParams(timeout=transport.Timeout(timeout_s)))
    return KubernetesClient(http, transport.TransportError)


def _said(response: Any) -> tuple[str, str]:
    """The message of a refusal, and the name of what it is about; "" where the answer is no Status."""
    with suppress(ValueError, AttributeError):
        status = response.json()
        return str(status.get("message", "")), str((status.get("details") or {}).get("name", ""))
    return response.text[:300].strip(), ""


def _advice(code: int, message: str) -> str:
    of_admission = [advice for words, advice in ADMISSION.items() if code in (403, 422) and words in message]
    return [*of_admission, ADVICE.get(code, "")][0]
