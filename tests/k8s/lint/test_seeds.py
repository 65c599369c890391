"""The manifests that the pipeline's seeds propose: all that is wrong with them is found, and nothing else is said."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.lint import lint_objects

WRONG = Path(__file__).parent / "wrong"
EVERYWHERE = {"api-token", "no-grace", "no-iteration-label", "root"}
"""Of every seed's pods."""

FOUND: dict[str, set[str]] = {
    "plain_job": {
        # of the Job
        "job-completions", "job-not-indexed", "restart-policy", "eviction-replaces-one", "job-exit-64",
        "no-gang-scheduler", "no-rendezvous", "no-deadline", "no-ttl", "capacity-label", "efa-missing", "no-shm",
        "not-guaranteed", "image-not-pinned", "nccl-tuning", "shared-run-directory",
        # of the NodePool
        "node-class-ref", "node-class-missing", "several-zones", "drift-budget", "node-expiry", "pool-limits",
    },
    "volcano": {
        "volcano-exit-64", "volcano-eviction", "volcano-max-retry", "volcano-plugins", "restart-policy",
        "no-containers", "no-deadline", "no-ttl", "no-namespace",
    },
    "raycluster": {
        "ray-uneven-gpus", "ray-no-entrypoint", "no-gang-scheduler", "tolerates-everything", "instance-unselected",
        "host-path", "privileged", "image-not-pinned", "installs-at-start", "nccl-interface", "memory-disk",
        "no-namespace",
    },
    "seed 000": {
        "eviction-fails-job", "success-policy", "no-gang-scheduler", "no-rendezvous", "no-deadline", "no-ttl",
        "no-namespace", "host-namespaces", "privileged", "capabilities", "image-not-pinned", "master-ip-file",
        "shared-run-directory", "signal-swallowed", "fork-safe", "nccl-interface", "hang-timeout", "not-guaranteed",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ["plain_job", "volcano", "raycluster"])
def test_a_seed_s_mistakes_are_found(name: str) -> None:
    expect(name, list(yaml.safe_load_all((WRONG / f"{name}.yaml").read_text())))


@pytest.mark.shared
def test_the_workshop_s_own_text(shared_data: Path) -> None:
    """Seed 000 as it stands: the only one whose YAML has kept its indentation."""
    (text,) = [file.read_text() for file in (shared_data.parent / "seeds").glob("000_*.txt")]
    (block,) = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "kind: Job" in block]
    expect("seed 000", list(yaml.safe_load_all(block)))


def expect(name: str, objects: list[dict[str, Any]]) -> None:
    by_name = {finding.rule for finding in lint_objects(objects)}
    wanted = FOUND[name] | (EVERYWHERE - {"root"} if name == "volcano" else EVERYWHERE)  # a pod without a container
    assert by_name - wanted == set()
    assert wanted - by_name == set()
