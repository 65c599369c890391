"""The base `serving`: two slots, the route between them, the rollout's rights, the judges and their metrics."""

import yaml

from pipeline.core.storage import ModelRef
from pipeline.recipe.rollout import HttpRouteTraffic
from pipeline.serving.inference import served_dtype

from .manifests import build, named
from .slotted import SlottedCluster, split


def test_the_port_fills_the_shipped_slots() -> None:
    """From nothing to a champion that has everything and a canary that waits for its weight."""
    slotted = SlottedCluster(build("serving"))
    port, champion, canary = slotted.port(), *(ModelRef(uri=f"/{x}", digest=x * 64) for x in "ab")
    assert port.read() is None
    port.apply(split(0, epoch=1, champion=champion, other=None))
    slotted.obey()
    wanted = split(0, epoch=2, champion=champion, other=canary)
    for _ in range(2):
        port.apply(wanted)
    slotted.obey()
    own = {name: ModelRef(uri=slotted.location(model), digest=model.digest)
           for name, model in (("champion", champion), ("canary", canary))}  # fmt: skip
    assert port.read() == wanted.model_copy(update=own)
    assert [slotted.wanted(name) for name in ("slot-a", "slot-b")] == [1, 1]
    keys = {"MODEL_URI", "MODEL_DIGEST", "SERVED_MODEL_NAME", "MODEL_NAME"}
    assert slotted.data("slot-b").keys() == keys, "the port writes what the shipped pods read"


def test_the_rollout_acts_on_the_route_and_its_slots_alone() -> None:
    section = HttpRouteTraffic()
    for rule in named(build("serving"), "Role", "rollout")["rules"]:
        slots = list(section.slots)
        if rule["verbs"] == ["list"]:  # which no name can restrict
            continue
        assert rule["resourceNames"] == ([section.route] if rule["resources"] == ["httproutes"] else slots)


def test_the_slots_differ_by_their_weights_alone() -> None:
    a, b = (named(build("serving"), "Deployment", name) for name in ("slot-a", "slot-b"))
    assert yaml.safe_load(yaml.safe_dump(b).replace("slot-b", "slot-a")) == a
    (server,) = a["spec"]["template"]["spec"]["containers"]
    assert f"--dtype={served_dtype(on_gpu=True)}" in server["args"], "as the gate measured them"
    place = server["args"].index("--served-model-name")
    assert server["args"][place + 1 : place + 3] == ["$(SERVED_MODEL_NAME)", "$(MODEL_NAME)"]
