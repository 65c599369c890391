"""The rendered gangs that are kept as files. `python -m tests.k8s.render.golden` writes them anew: read the diff."""

from pathlib import Path
from typing import Any

import yaml

from k8s.gang import Gang, evaluation_gang, example
from k8s.render import render
from pipeline.recipe import Compute, Kubernetes, Training
from pipeline.recipe.compute import EvaluationPod

FOLDER = Path(__file__).parent / "golden"
IMAGE = "registry.example.com/preference-tuning/trainer@sha256:" + "0" * 64


def gang(nodes: int = 3, processes: int = 8, engine: str = "trl", **settings: Any) -> Gang:
    """A gang as a recipe would ask for it."""
    compute = Compute(nodes=nodes, processes=processes, kubernetes=Kubernetes(image=IMAGE, **settings))
    training = Training.model_validate({"engine": engine, "grace_s": 100.0, "timeout_s": 21_600.0})
    return example("spot_h200_grpo", "/checkpoints/data", compute, training)


def evaluation(backend: str = "jobset", **pod: Any) -> Gang:
    """The pod of an evaluation beside such a gang."""
    settings = Kubernetes.model_validate({"image": IMAGE, "backend": backend, "capacity": "spot_first"})
    return evaluation_gang(
        "example",
        "0" * 64,
        Path("/checkpoints/data/iterations/example/eval_plan.json"),
        Compute(kubernetes=settings, evaluation=EvaluationPod(**pod)),
        addresses={"JUDGE_URL": "http://judge.preference-tuning-serving:8000/v1"},
    )


CASES = {
    "jobset-p5en-spot": gang(),
    "jobset-one-node": gang(nodes=1, capacity="spot_first", instance_type="p4d.24xlarge"),
    "jobset-cpu": gang(nodes=2, processes=1, instance_type="cpu", shm_gb=1),
    "jobset-gke-on-demand": gang(nodes=2, instance_type="a3-ultragpu-8g", capacity="on_demand"),
    "volcano-p5en": gang(backend="volcano", capacity="on_demand"),
    "rayjob-gke": gang(nodes=2, engine="nemo_rl", backend="rayjob", instance_type="a4-highgpu-8g"),
    "evaluation-jobset": evaluation(devices=4, secret="endpoints", env={"VLLM_PYTHON": "/opt/venv/bin/python"}),
    "evaluation-vllm": evaluation(
        instance_type="g6e.12xlarge", devices=4, secret="endpoints", env={"VLLM_PYTHON": "/opt/vllm/bin/python"}
    ),
    "evaluation-rayjob": evaluation("rayjob", image=IMAGE, instance_type="a3-ultragpu-8g", devices=4),
    "evaluation-volcano": evaluation("volcano", instance_type="cpu"),
    "rayjob-eks": gang(engine="nemo_rl", backend="rayjob"),
}


def text(of: Gang) -> str:
    return yaml.safe_dump_all(render(of), sort_keys=False, width=120, explicit_start=True)


if __name__ == "__main__":
    for old in FOLDER.glob("*.yaml"):
        old.unlink()
    for name, case in CASES.items():
        (FOLDER / f"{name}.yaml").write_text(text(case))
