"""What a recipe asks of an evaluation's pod: refused where it cannot be, and what its digest holds."""

from pathlib import Path

import pytest

from k8s.gang import evaluation_gang, example
from k8s.launch import EvaluationRefused, machine
from k8s.render import primary, render
from pipeline.core.storage import Store
from pipeline.recipe import Compute, Evaluation, Kubernetes, Training, load
from pipeline.recipe.compute import EvaluationPod
from pipeline.recipe.serving import TransformersServing
from pipeline.serving.node_cache import CACHE, SIZE, SOURCE

from .evaluations import SECTION, noisy, published, task
from .render.kubelet import pods
from .world import World, cluster_settings

ROOT = Path(__file__).parents[2]
IMAGE = "trainer@sha256:" + "0" * 64
SPOT = ROOT / "jobs" / "recipes" / "spot_h200_dpo.yaml"


def test_a_pod_without_a_cluster_is_refused() -> None:
    with pytest.raises(ValueError, match=r"needs a cluster: add compute\.kubernetes"):
        Compute(evaluation=EvaluationPod())


def test_a_rayjobs_image_is_no_evaluations() -> None:
    settings = Kubernetes(image=IMAGE, backend="rayjob")
    with pytest.raises(ValueError, match=r"set compute\.evaluation\.image"):
        Compute(kubernetes=settings, evaluation=EvaluationPod())
    own = Compute(kubernetes=settings, evaluation=EvaluationPod(image=IMAGE))
    assert primary(evaluation_gang("i", "0" * 64, Path("/checkpoints/p"), own))["kind"] == "JobSet"


def test_a_recipe_without_a_pod_has_no_evaluation_gang() -> None:
    with pytest.raises(ValueError, match=r"add compute\.evaluation"):
        evaluation_gang("i", "0" * 64, Path("/p"), Compute())


def test_the_memory_is_that_of_the_nodes_gpus() -> None:
    pod = EvaluationPod(instance_type="g6e.12xlarge", devices=4)
    assert machine(Compute(kubernetes=Kubernetes(image=IMAGE), evaluation=pod)).devices == (48 * 10**9,) * 4


@pytest.mark.parametrize("backend", ["jobset", "volcano", "rayjob"])
def test_an_evaluations_pod_has_its_nodes_cache(backend: str) -> None:
    """Also beside NeMo RL, whose own pods have none."""
    cache = {"size_gb": 300, "claim": "models", "source": "s3://models/tuned"}
    own = {"image": IMAGE, "env": {"VLLM_PYTHON": "/opt/vllm/bin/python"}, "secret": "endpoints"}
    settings = Kubernetes.model_validate({"image": IMAGE, "backend": backend, "weights": cache})
    compute = Compute(kubernetes=settings, evaluation=EvaluationPod.model_validate(own))
    (result,) = pods(render(evaluation_gang("i", "0" * 64, Path("/checkpoints/p"), compute)))
    spec = result.template["spec"]
    (container,) = spec["containers"]
    env = {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}
    expected = {CACHE: "/weights", SIZE: "300", SOURCE: "s3://models/tuned", "VLLM_PYTHON": "/opt/vllm/bin/python"}
    assert expected.items() <= env.items()
    assert env["JUDGE_API_KEY"]["secretKeyRef"]["name"] == "endpoints"
    assert {"name": "weights", "mountPath": "/weights"} in container["volumeMounts"]
    assert {"name": "weights", "persistentVolumeClaim": {"claimName": "models"}} in spec["volumes"]
    assert not spec.keys() & {"initContainers", "hostNetwork"}
    assert container["command"] == ["python", "-m", "evals", "run", "/checkpoints/p"]

    engine = "nemo_rl" if backend == "rayjob" else "trl"
    training = Training.model_validate({"engine": engine, "timeout_s": 3600.0})
    trainer = str(render(example("i", "/checkpoints/data", compute, training)))
    assert (CACHE in trainer) == (engine == "trl")


def test_where_an_evaluation_runs_is_in_no_digest() -> None:
    pod = "compute.evaluation={devices: 8, secret: endpoints}"
    assert load(SPOT, [pod]).digest() == load(SPOT).digest()


def test_a_batch_size_does_not_make_another_evaluation(tmp_path: Path) -> None:
    candidate, store = noisy(tmp_path / "candidate"), Store(tmp_path / "data")
    first = published(store, candidate)

    def other(section: Evaluation) -> str:
        return first.model_copy(update={"section": section}).digest()

    assert other(SECTION.model_copy(update={"serving": TransformersServing(batch_size=8)})) == first.digest()
    assert other(SECTION.model_copy(update={"seed": 12})) != first.digest()


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [(64, EvaluationRefused, "refuses the plan"), (1, RuntimeError, "what was answered is not asked again")],
)
def test_an_evaluations_end_is_told(tmp_path: Path, code: int, kind: type[Exception], words: str) -> None:
    store, world = Store(tmp_path / "data"), World()
    world.script += [world.run, lambda: world.end(code)]
    error = world.fails(task(store, published(store, noisy(tmp_path / "candidate")), cluster_settings()))
    assert type(error) is kind and words in str(error)
