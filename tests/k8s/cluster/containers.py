"""One container as a child process: its command and environment made from the pod, its lines stamped, its end told.

Owns the process. What the API hears of it is the kubelet's.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from ...ports import LOOPBACK, held_port
from .kinds import Object
from .objects import labels, notes, place

ROOT = Path(__file__).parents[3]
REFERENCE = re.compile(r"\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")
FIELD = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


class Container:
    """A running process group. It dies with the thread that made it, and everything in it with its leader, as the
    processes of a container die with its first."""

    def __init__(self, argv: list[str], environment: Mapping[str, str], log: Path) -> None:
        """Raises OSError where the command can't be run."""
        self.exited = threading.Event()
        self.oom = False
        self._doomed = threading.Lock()
        # A test that is killed with SIGKILL leaves no orphans.
        shield = [setpriv, "--pdeathsig", "KILL", "--"] if (setpriv := shutil.which("setpriv")) else []
        if shield and shutil.which(argv[0], path=environment.get("PATH")) is None:
            raise FileNotFoundError(2, "no such file or directory", argv[0])
        self._process = subprocess.Popen(
            [*shield, *argv],
            cwd=ROOT,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert self._process.stdout
        self._pump = threading.Thread(target=_stamp, args=(self._process.stdout, log), daemon=True)
        self._pump.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, signum: int) -> None:
        """To the leader; nothing where it has ended."""
        if self._process.poll() is None:
            self._process.send_signal(signum)

    def terminate(self, grace_s: float) -> None:
        """SIGTERM, and SIGKILL after the grace period; returns at once. Asked again it is nothing new."""
        if self._doomed.acquire(blocking=False):
            threading.Thread(target=self._doom, args=(grace_s,), daemon=True).start()

    def _doom(self, grace_s: float) -> None:
        self.signal(signal.SIGTERM)
        if not self.exited.wait(grace_s):
            self.signal(signal.SIGKILL)

    def wait(self) -> int:
        """The exit code, 128 + n after signal n, once every line is in the log."""
        code = self._process.wait()
        with suppress(ProcessLookupError):  # the leader was alone
            os.killpg(self._process.pid, signal.SIGKILL)
        self._pump.join()
        self.exited.set()
        return code if code >= 0 else 128 - code


class Names:
    """The cluster's DNS: a free loopback port for each port of a pod's name, fresh for each life of its gang."""

    def __init__(self) -> None:
        self._ports: dict[tuple[str, ...], socket.socket] = {}
        self._lock = threading.Lock()

    def resolved(self, pod: Object, text: str) -> str:
        """With `<hostname>.<subdomain>:port` of the pod's own gang as an address that can be connected to."""
        subdomain = pod["spec"].get("subdomain")
        if not subdomain:
            return text
        suffix = rf"(?:\.{re.escape(place(pod)[0])}(?:\.svc(?:\.cluster\.local)?)?)?"
        name = rf"(?<![-.\w])([a-z0-9][-a-z0-9]*)\.{re.escape(subdomain)}{suffix}:(\d+)"
        return re.sub(name, lambda m: f"{LOOPBACK}:{self._port((*_life(pod), m[1], subdomain, m[2]))}", text)

    def _port(self, key: tuple[str, ...]) -> int:
        with self._lock:
            if key not in self._ports:
                self._ports[key] = held_port()
            return self._ports[key].getsockname()[1]

    def free(self) -> None:
        """Give all ports back."""
        with self._lock:
            for held in self._ports.values():
                held.close()
            self._ports.clear()


def _life(pod: Object) -> tuple[str, ...]:
    """What changes when a gang is restarted as a whole, and only then."""
    of = labels(pod)
    if jobset := of.get("jobset.sigs.k8s.io/jobset-name"):
        uid = of.get("jobset.sigs.k8s.io/jobset-uid", "")
        return place(pod)[0], jobset, uid, of.get("jobset.sigs.k8s.io/restart-attempt", "")
    owner = (pod["metadata"].get("ownerReferences") or [{"uid": pod["metadata"]["uid"]}])[0]
    return place(pod)[0], owner["uid"], notes(pod).get("volcano.sh/job-version", "")


def projected(pod: Object, folder: Path) -> dict[str, str]:
    """Write the tokens of the pod's projected volumes. Returns, by mount path, where they are on this machine."""
    sources = {v["name"]: v["projected"]["sources"] for v in pod["spec"].get("volumes") or [] if "projected" in v}
    mounts: dict[str, str] = {}
    for mount in pod["spec"]["containers"][0].get("volumeMounts") or []:
        for source in sources.get(mount["name"], []):
            about = {"namespace": place(pod)[0], "pod": {"name": place(pod)[1], "uid": pod["metadata"]["uid"]}}
            token = source["serviceAccountToken"]
            claims = {"aud": [token["audience"]], "iat": int(time.time()), "kubernetes.io": about}
            file = folder / pod["metadata"]["uid"] / mount["name"] / token["path"]
            file.parent.mkdir(parents=True, exist_ok=True)
            parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({}, claims)]
            file.write_text(".".join([*parts, "unsigned"]))
            mounts[mount["mountPath"]] = str(file.parent)
    return mounts


def with_secrets(pod: Object, secret: Callable[[str, str], Object | None]) -> Object:
    """The pod with the keys of Secrets in its first container's environment. `secret`: by namespace and name. Raises
    ValueError for one that has to be there."""
    entries: list[Object] = []
    for entry in pod["spec"]["containers"][0].get("env") or []:
        reference = (entry.get("valueFrom") or {}).get("secretKeyRef")
        if reference is None:
            entries.append(entry)
            continue
        data = (secret(place(pod)[0], reference["name"]) or {}).get("data") or {}
        if reference["key"] in data:
            value = base64.b64decode(data[reference["key"]]).decode().replace("$", "$$")
            entries.append({"name": entry["name"], "value": value})
        elif not reference.get("optional"):
            raise ValueError(f"couldn't find key {reference['key']} in Secret {place(pod)[0]}/{reference['name']}")
    first, *rest = pod["spec"]["containers"]
    return {**pod, "spec": {**pod["spec"], "containers": [{**first, "env": entries}, *rest]}}


def command(
    pod: Object, names: Names, extra: Mapping[str, str], mounts: Mapping[str, str] | None = None
) -> tuple[list[str], dict[str, str]]:
    """What the first container runs and its environment. `mounts`: of `projected`, to be found in the arguments. Raises
    ValueError where the kubelet couldn't make either."""
    container = pod["spec"]["containers"][0]
    environment: dict[str, str] = {}
    for entry in container.get("env") or []:
        raw = expanded(str(entry.get("value") or ""), environment)
        environment[entry["name"]] = names.resolved(
            pod, _field(pod, entry["valueFrom"]) if "valueFrom" in entry else raw
        )
    argv = [names.resolved(pod, expanded(part, environment)) for part in _argv(container)]
    for inside, outside in (mounts or {}).items():
        argv = [part.replace(f"{inside}/", f"{outside}/") for part in argv]
    if argv[0] in ("python", "python3"):
        argv[0] = sys.executable
    host = pod["spec"].get("hostname") or place(pod)[1]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    given = {"PATH": path, "HOME": os.environ.get("HOME", "/"), "HOSTNAME": host}
    return argv, given | dict(extra) | environment


def expanded(text: str, of: Mapping[str, str]) -> str:
    """As Kubernetes expands it: $(NAME) where it is known, $$ to a dollar, all else as it stands."""
    return REFERENCE.sub(lambda m: "$" if m[0] == "$$" else of.get(m[1], m[0]), text)


def _argv(container: Object) -> list[str]:
    argv = [*(container.get("command") or []), *(container.get("args") or [])]
    if not container.get("command"):
        raise ValueError(f"the image {container.get('image')} has no entrypoint here: name a command in the pod.")
    return argv


def _field(pod: Object, source: Object) -> str:
    path = (source.get("fieldRef") or {}).get("fieldPath", "")
    if keyed := FIELD.fullmatch(path):
        return (labels(pod) if keyed[1] == "labels" else notes(pod)).get(keyed[2], "")
    plain = {
        "metadata.name": place(pod)[1],
        "metadata.namespace": place(pod)[0],
        "metadata.uid": pod["metadata"]["uid"],
        "spec.nodeName": pod["spec"].get("nodeName", ""),
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", "default"),
        "status.podIP": LOOPBACK,
        "status.hostIP": LOOPBACK,
    }
    if path not in plain:
        raise ValueError(f"the tests' kubelet can't take a variable from {source}: name a field of the pod.")
    return plain[path]


def _stamp(lines: IO[bytes], log: Path) -> None:
    """Each line with its time (RFC 3339, nanoseconds) in front, as a container runtime keeps it."""
    with log.open("ab", buffering=0) as file:
        for line in lines:
            seconds, nanos = divmod(time.time_ns(), 10**9)
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
            file.write(f"{stamp}.{nanos:09d}Z ".encode() + line.rstrip(b"\n") + b"\n")
