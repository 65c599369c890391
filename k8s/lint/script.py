"""Rules on what a trainer's container runs and on its environment: start commands, NCCL, where it writes."""

from __future__ import annotations

import re
from collections import Counter

from k8s.lint.manifests import Manifests
from k8s.lint.pods import ITERATION, Workload
from k8s.lint.rules import Hits, rule
from k8s.lint.tree import quantity, text, texts

_TUNED = re.compile(
    r"NCCL_(?:M(?:IN|AX)_(?:NCHANNELS|CTAS|P2P_NCHANNELS)|BUFFSIZE|NTHREADS|ALGO|PROTO|.*_BUFFER_?SIZE)"
)
_INTERFACE = re.compile(r"(?:NCCL|GLOO|TP)_SOCKET_IFNAME")
_INSTALLS = re.compile(
    r"\b(?:apt-get|apt|yum|dnf|apk)\s+(?:-\S+\s+)*(?:update|install|add)\b|\bpip3?\s+install\b|\buv\s+(?:venv|sync|pip|run)\b"
    r"|\bconda\s+(?:install|create)\b|\bgit\s+clone\b|\b(?:curl|wget)\b[^\n]*\|\s*(?:ba)?sh\b"
)
_IP_FILE = re.compile(
    r">\s*[\"']?[\w/${}.-]*(?:master|head|leader|rank0|rdzv)[\w${}.-]*|>>\s*/etc/hosts", re.IGNORECASE
)
_OUTPUT = re.compile(
    r"(?P<key>--?[\w.-]*(?:out|output|save|checkpoint|run|data)[\w.-]*|[\w.]*(?:checkpoint|output|save|run)[\w.]*_(?:dir|path))"
    r"[=\s]+[\"']?(?P<path>(?:/|\w+://)[^\s\"'\\]+)",
    re.IGNORECASE,
)
_TRAINS = re.compile(
    r"[\n;&|]\s*(?:python3?|torchrun|accelerate|ray)\b|\b(?:python3?|torchrun|accelerate|ray)\b.*[\n;&|]"
)
LONGEST_WAIT_S = 1800


@rule("warning", fix="Leave it unset.")
def nccl_tuning(seen: Manifests) -> Hits:
    """NCCL and the EFA plugin choose channels, buffers and algorithms for the machine they find; a number from another
    machine takes memory from the model and is often slower."""
    yield from _environment(seen, _TUNED)


@rule("error", fix="Remove it.")
def fork_safe(seen: Manifests) -> Hits:
    """It slows the registration of memory and fails with huge pages; kernels from 5.12 do without (read: rdma-core,
    ibv_fork_init)."""
    yield from _environment(seen, re.compile("RDMAV_FORK_SAFE"))


@rule("warning", fix="Leave it unset; set it in the recipe's env only for a network that you have looked at.")
def nccl_interface(seen: Manifests) -> Hits:
    """A guess at names of interfaces holds until the next image: then every rank fails to find one, or takes one that
    its peers cannot reach."""
    yield from _environment(seen, _INTERFACE)


@rule("warning", fix=f"Leave the defaults, or at most {LONGEST_WAIT_S} s.")
def hang_timeout(seen: Manifests) -> Hits:
    """When a peer dies without a word, the others hold all their devices for as long as this."""
    for container in seen.trainer_commands:
        for place, name, value in container.env():
            waits = name in {"NCCL_TIMEOUT", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"}
            if waits and quantity(value) > LONGEST_WAIT_S:
                yield place, f"{name}={value}"


@rule("error", fix="Name it once.")
def duplicate_env(seen: Manifests) -> Hits:
    """The last of two wins, and server-side apply refuses the list: env is keyed by name."""
    for pods in seen.pods:
        for container in pods.containers:
            counts = Counter(name for _, name, _ in container.env() if name)
            for name in [name for name, n in counts.items() if n > 1]:
                yield f"{container.where}.env", f"{name} {counts[name]} times"


@rule("error", fix="Install it in the image.")
def installs_at_start(seen: Manifests) -> Hits:
    """Every restart of every pod waits for a mirror, gets what is newest that day, and needs root and the network."""
    for container in seen.trainer_commands:
        if match := _INSTALLS.search(container.script):
            yield container.command, match[0]


@rule("error", fix="Meet through the headless Service: <jobset>-<job>-0-0.<jobset>.")
def master_ip_file(seen: Manifests) -> Hits:
    """A file on a shared disk outlives the run that wrote it: after a restart the workers read the address of a pod
    that is gone, and anybody who can write there chooses whom they talk to. Names in /etc/hosts age alike."""
    for container in seen.trainer_commands:
        if re.search(r"\b(?:ip|hostname)\b", container.script, re.IGNORECASE):
            for redirection in sorted({match[0] for match in _IP_FILE.finditer(container.script)}):
                yield container.command, repr(redirection)


@rule("error", fix="Start the trainer with exec, or make it the command itself.")
def signal_swallowed(seen: Manifests) -> Hits:
    """A shell as process 1 does not pass SIGTERM on: the trainer never hears of the pre-emption, and is killed with the
    shell when the grace is over."""
    for pods in seen.trainer_pods:
        for container in pods.containers:
            first = next(iter(texts(container.node, "command")), "").rpartition("/")[2]
            passes = re.search(r"\b(?:exec|trap)\b", container.script)
            if first in {"sh", "bash"} and _TRAINS.search(container.script) and not passes:
                yield f"{container.where}.command", f"{first} runs the trainer as a child, without exec or trap"


@rule("error", fix="Derive the path from the iteration or from the plan's digest.")
def shared_run_directory(seen: Manifests) -> Hits:
    """A path that is the same for each run lets the second resume from the first one's checkpoints, or both write
    there at once; data under a fixed name is not the data of yesterday's run."""
    for workload in seen.trainings:
        names = _identities(workload)
        for container in workload.commands:
            for match in _OUTPUT.finditer(re.sub(r"\$\((\w+)\)", r"$\1", container.script)):
                path = match["path"]
                varies = "$" in path or re.search(r"[0-9a-f]{12,}", path) or any(n in path for n in names)
                if not varies:
                    yield container.command, f"{match['key']} {path}"


@rule("error", fix="Pass --attempt <attempt> to pipeline.training.")
def unfenced(seen: Manifests) -> Hits:
    """A pod of an attempt that was given up may still run on a node that lost its network: without the attempt's
    number it writes into the checkpoints of the next one."""
    for container in seen.trainer_commands:
        if "pipeline.training" in container.script and "--attempt" not in container.script:
            yield container.command, "pipeline.training without --attempt"


def _environment(seen: Manifests, names: re.Pattern[str]) -> Hits:
    for container in seen.trainer_commands:
        for place, name, value in container.env():
            if names.fullmatch(name):
                yield place, f"{name}={value}"


def _identities(workload: Workload) -> list[str]:
    keys = (ITERATION, "preference-tuning/plan")
    marks = {pods.labels.get(key, "") for pods in workload.pods for key in keys}
    return [value for value in (*marks, text(workload.object, "metadata", "name")) if value]
