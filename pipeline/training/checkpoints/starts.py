"""When a pod was started, by the API server's clock: a number that grows with each generation of a gang's pods.

A gang's restart count stays the same when its queue suspends and resumes it, so that two generations have one number.
What tells them apart is a projected service account token: the API server signs it for one pod, by its own clock, and
for no pod that is deleted. So every token of an earlier generation is older than any of the next one, on a node that is
cut off too. The signature is not checked: the kubelet wrote the file, and the token opens nothing.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, NamedTuple


class PodStart(NamedTuple):
    """`issued_at`: seconds since the epoch. `uid`: of the pod."""

    issued_at: int
    uid: str


def pod_start(path: Path) -> PodStart:
    """The start that the token in this file tells of. Raises RuntimeError where it tells none: another pod may do."""
    try:
        payload = path.read_text().split(".")[1]
        claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        uid = claims["kubernetes.io"]["pod"]["uid"]
        if isinstance(uid, str) and uid and isinstance(claims["iat"], int):
            return PodStart(claims["iat"], uid)
    except (OSError, ValueError, IndexError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
    else:
        reason = "it names no pod, or no time"
    raise RuntimeError(
        f"{path} does not tell when this pod was started ({reason}). Mount a projected service account token there, as "
        "k8s/render does."
    )
