"""The subresources of a pod that are deeds: its log, its eviction within the budgets, its binding to a node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from math import ceil
from pathlib import Path
from threading import Event

from .kinds import Object, Refused
from .reading import whole
from .selectors import selected
from .storage import Storage
from .writes import now, refused

Logs = Callable[[str, str], Path | None]
"""The file of a pod's log by namespace and name: lines with their time (RFC 3339, nanoseconds) in front."""
SUCCESS: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
ENDED = ("Succeeded", "Failed")


def log(
    storage: Storage, logs: Logs | None, namespace: str, name: str, query: dict[str, str], stop: Event
) -> Iterator[bytes]:
    """The lines. Raises Refused 400 where there is no log yet or the container is not known, 404."""
    pod = storage.get("Pod", namespace, name)
    containers = [c["name"] for c in pod["spec"].get("containers", [])]
    asked = query.get("container", "")
    if not asked and len(containers) > 1:
        text = f"a container name must be specified for pod {name}, choose one of: [{' '.join(containers)}]"
        raise Refused(400, "BadRequest", text)
    if asked and asked not in containers:
        raise Refused(400, "BadRequest", f"container {asked} is not valid for pod {name}")
    container = asked or containers[0]
    if query.get("previous") in ("true", "1"):
        text = f'previous terminated container "{container}" in pod "{name}" not found'
        raise Refused(400, "BadRequest", text)
    if not pod["spec"].get("nodeName"):
        raise Refused(400, "BadRequest", f"pod {name} does not have a host assigned")
    file = logs(namespace, name) if logs else None
    states = {s["name"]: s.get("state") or {} for s in pod["status"].get("containerStatuses") or []}
    state = states.get(container, {"waiting": {}} if pod["status"].get("phase") == "Pending" else {})
    if "waiting" in state:
        reason = state["waiting"].get("reason", "ContainerCreating")
        text = f'container "{container}" in pod "{name}" is waiting to start: {reason}'
        raise Refused(400, "BadRequest", text)
    if file is None:
        node = pod["spec"]["nodeName"]
        url = f"https://{node}:10250/containerLogs/{namespace}/{name}/{container}"
        raise Refused(500, "InternalError", f'Get "{url}": dial tcp: lookup {node}: no such host')
    return _lines(storage, file, namespace, name, query, stop)


def _lines(
    storage: Storage, file: Path, namespace: str, name: str, query: dict[str, str], stop: Event
) -> Iterator[bytes]:
    since = _since(query)
    left = whole(query, "limitBytes", 1 << 40)
    stamped = query.get("timestamps") in ("true", "1")
    with file.open("rb") as stream:
        first = stream.read()
        complete, _, partial = first.rpartition(b"\n")
        lines = complete.split(b"\n") if complete else []
        if "tailLines" in query:
            lines = lines[max(0, len(lines) - whole(query, "tailLines")) :]
        for line in lines:
            stamp, _, text = line.partition(b" ")
            if since and _time(stamp.decode()) < since:
                continue
            out = (line if stamped else text) + b"\n"
            yield out[:left]
            left -= len(out)
            if left <= 0:
                return
        if query.get("follow") not in ("true", "1"):
            return
        while not stop.is_set():
            over = _over(storage, namespace, name)  # asked first: what was written before the end is still read
            partial += stream.read()
            complete, newline, partial = partial.rpartition(b"\n")
            for line in complete.split(b"\n") if newline else []:
                yield (line if stamped else line.partition(b" ")[2]) + b"\n"
            if over:
                return
            if not newline:
                stop.wait(0.05)


def _over(storage: Storage, namespace: str, name: str) -> bool:
    try:
        return storage.get("Pod", namespace, name)["status"].get("phase") in ENDED
    except Refused:
        return True


def _time(stamp: str) -> datetime:
    """RFC 3339 with up to nine digits of a second, of which six are read."""
    whole, _, rest = stamp.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}.{(rest + '000000')[:6]}+00:00")


def _since(query: dict[str, str]) -> datetime | None:
    if "sinceTime" in query:
        try:
            return _time(query["sinceTime"])
        except ValueError as error:
            raise Refused(400, "BadRequest", f"parsing time {query['sinceTime']!r}: {error}") from error
    seconds = whole(query, "sinceSeconds")
    return datetime.now(UTC) - timedelta(seconds=seconds) if seconds else None


def evict(storage: Storage, namespace: str, name: str, options: Object) -> Object:
    """Mark the pod and delete it with its grace period. Raises Refused 429 when a budget forbids it."""
    with storage.changed:
        pod = storage.get("Pod", namespace, name)
        phase = pod["status"].get("phase")
        if phase not in (*ENDED, "Pending") and not pod["metadata"].get("deletionTimestamp"):
            _within_budgets(storage, pod)
        if phase not in ENDED:
            target = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
            target |= {"message": "Eviction API: evicting", "lastTransitionTime": now()}
            others = [c for c in pod["status"].get("conditions") or [] if c["type"] != "DisruptionTarget"]
            patch = {"status": {"conditions": [*others, target]}}
            storage.merge("Pod", namespace, name, patch, "status", manager="kube-apiserver")
        grace, uid = options.get("gracePeriodSeconds"), (options.get("preconditions") or {}).get("uid", "")
        storage.delete("Pod", namespace, name, grace_s=grace, uid=uid)
    return SUCCESS


def _ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _within_budgets(storage: Storage, pod: Object) -> None:
    """Raises Refused 429 when one pod fewer is against a budget over this pod."""
    namespace = pod["metadata"]["namespace"]
    for budget in storage.list("PodDisruptionBudget", namespace)[0]:
        spec = budget["spec"]
        if not selected(spec.get("selector"), pod["metadata"].get("labels") or {}):
            continue
        pods = [
            p
            for p in storage.list("Pod", namespace)[0]
            if selected(spec["selector"], p["metadata"].get("labels") or {})
        ]
        expected = [p for p in pods if p["status"].get("phase") not in ENDED]
        healthy = sum(1 for p in expected if _ready(p) and not p["metadata"].get("deletionTimestamp"))
        if "maxUnavailable" in spec:
            needed = len(expected) - _share(spec["maxUnavailable"], len(expected))
        else:
            needed = _share(spec.get("minAvailable", 1), len(expected))
        if healthy - 1 < needed and (_ready(pod) or healthy < needed):
            why = f"needs {needed} healthy pods and has {healthy} currently"
            cause = {
                "reason": "DisruptionBudget",
                "message": f"The disruption budget {budget['metadata']['name']} {why}",
            }
            text = "Cannot evict pod as it would violate the pod's disruption budget."
            raise Refused(429, "TooManyRequests", text, {"causes": [cause]})


def _share(amount: int | str, of: int) -> int:
    return ceil(int(amount.rstrip("%")) * of / 100) if isinstance(amount, str) else amount


def bind(storage: Storage, namespace: str, name: str, binding: Object) -> Object:
    """Put the pod on a node. Raises Refused 409 when it is on one."""
    with storage.changed:
        pod = storage.get("Pod", namespace, name)
        if pod["spec"].get("nodeName"):
            text = f'pod {name} is already assigned to node "{pod["spec"]["nodeName"]}"'
            raise refused("Pod", name, 409, "Conflict", text)
        pod["spec"]["nodeName"] = binding["target"]["name"]
        storage.update("Pod", namespace, pod, manager="kube-scheduler")
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": now()}
        others = [c for c in pod["status"].get("conditions") or [] if c["type"] != "PodScheduled"]
        patch = {"status": {"conditions": [*others, scheduled]}}
        storage.merge("Pod", namespace, name, patch, "status", manager="kube-scheduler")
    return SUCCESS
