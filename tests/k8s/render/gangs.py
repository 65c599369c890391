"""Gangs of every kind, for properties that hold of all."""

from __future__ import annotations

from hypothesis import strategies as st

from k8s.gang import Gang, object_name
from k8s.instances import INSTANCES
from pipeline.recipe import Kubernetes
from pipeline.recipe.compute import WeightsCache

NAMES = st.from_regex(r"[A-Z][A-Z0-9_]{0,20}", fullmatch=True)
VALUES = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=30) | st.just(
    "$(NODE_RANK) $$(X)"
)


@st.composite
def gangs(draw: st.DrawFn) -> Gang:
    machine = draw(st.sampled_from(list(INSTANCES.values())))
    iteration = draw(st.text(min_size=1, max_size=300))
    digest = draw(st.text("0123456789abcdef", min_size=64, max_size=64))
    attempt = draw(st.integers(1, 9999))
    backend = draw(st.sampled_from(["jobset", "volcano", "rayjob"]))
    return Gang(
        name=object_name("train", iteration, digest[:8], str(attempt)),
        iteration=iteration,
        plan_digest=digest,
        plan_path="/checkpoints/" + draw(VALUES),
        attempt=attempt,
        engine="nemo_rl" if backend == "rayjob" else "trl",
        nodes=draw(st.integers(1, 999)),
        processes=machine.gpus or draw(st.integers(1, 4)),
        grace_s=draw(st.integers(1, 110)),
        timeout_s=draw(st.integers(1, 10**6)),
        instance=machine,
        settings=Kubernetes(
            backend=backend,
            image="r.example.com/t@sha256:" + digest,
            instance_type=machine.name,
            capacity=draw(st.sampled_from(["spot", "spot_first", "on_demand"])),
            weights=draw(st.none() | st.builds(WeightsCache, claim=st.none() | st.just("disk"))),
            shm_gb=draw(st.integers(1, 4096)),
            start_timeout_s=draw(st.floats(0.1, 1e6)),
            env=draw(st.dictionaries(NAMES | st.sampled_from(["NODE_RANK", "NCCL_DEBUG"]), VALUES, max_size=4)),
        ),
        pipes=draw(st.dictionaries(NAMES, VALUES, max_size=2)),
    )
