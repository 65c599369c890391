"""The volume controller, small: binds a claim to the volume that it names; one whose volume is another's is Lost.

Not: provisioning, choosing a volume, sizes and modes.
"""

from __future__ import annotations

from .kinds import Object
from .objects import notes, place, set_status
from .storage import Storage

COMPLETED = "pv.kubernetes.io/bind-completed"


def reconcile(storage: Storage) -> None:
    volumes = {place(volume)[1]: volume for volume in storage.list("PersistentVolume")[0]}
    for claim in storage.list("PersistentVolumeClaim")[0]:
        if name := claim["spec"].get("volumeName"):
            _sync(storage, claim, volumes.get(name))


def _sync(storage: Storage, claim: Object, volume: Object | None) -> None:
    reference = (volume or {"spec": {}})["spec"].get("claimRef") or {}
    uid = claim["metadata"]["uid"]
    if COMPLETED in notes(claim):
        set_status(storage, claim, phase="Bound" if reference.get("uid") == uid else "Lost")
        return
    here = ("namespace", "name")
    named = not reference or tuple(reference.get(key) for key in here) == place(claim)
    if volume is None or not named or reference.get("uid", uid) != uid:
        set_status(storage, claim, phase="Pending")
        return
    of = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "uid": uid} | dict(zip(here, place(claim), strict=True))
    bound = storage.merge("PersistentVolume", "", place(volume)[1], {"spec": {"claimRef": of}})
    set_status(storage, bound, phase="Bound")
    claim = storage.merge("PersistentVolumeClaim", *place(claim), {"metadata": {"annotations": {COMPLETED: "yes"}}})
    shown = {"accessModes": claim["spec"]["accessModes"], "capacity": volume["spec"]["capacity"]}
    set_status(storage, claim, phase="Bound", **shown)
