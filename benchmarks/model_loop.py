"""The loop of one base model: refused before labels, or trained by each method, evaluated, registered and loaded back.
Traces and labels are one set for all models."""

import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.base_tokenizers import SYSTEM, TEMPLATES, answer, question
from benchmarks.contexts import context_of, quiet, recipe_of, stage_context
from evals.base_check import check_base, of_level
from evals.evaluate import EvalServices, evaluate
from evals.freezing import held_apart
from evals.records import EvalPlan
from pipeline.core.iteration import identify
from pipeline.core.storage import CheckpointRef, DatasetRef, ModelRef, Record, Store, digest_file
from pipeline.places.checks import Places, place_faults
from pipeline.recipe import BaseModelSection, ChatSettings, Evaluation, Selection, Traces, Training, Validation
from pipeline.recipe.methods import DPO, GRPO, KTO, SFT, MethodName
from pipeline.recipe.serving import TransformersServing
from pipeline.recipe.sources import ExportSource
from pipeline.recipe.suites import ItemsSuite
from pipeline.registry.base_models import fetch_base, pin_base
from pipeline.registry.runs import MlflowAddresses
from pipeline.registry.versions import RunContents, record
from pipeline.rewards.label import label_traces
from pipeline.rewards.verifiers import Grader
from pipeline.rollout.record import JudgedCandidate
from pipeline.selection.draw import SAMPLES
from pipeline.selection.preferences import ScoredSamples, build
from pipeline.serving.transformers_engine import TransformersEngine
from pipeline.traces.context import IterationContext
from pipeline.traces.materialize import materialize
from pipeline.traces.scope import Producer, consented
from pipeline.traces.sources.protocol import Address
from pipeline.traces.unrendered import refuse_unrendered_rows
from pipeline.training.launch import train
from pipeline.training.plan import TrainingPlan, plan_training

CHAT: dict[str, ChatSettings] = {
    **dict.fromkeys(("gemma2", "mistral", "mistralp", "phi3"), ChatSettings(system="merge_into_user")),
    "llama31d": ChatSettings(date=date(2026, 1, 5)),
    "neoxbase": ChatSettings(template=str(TEMPLATES / "plain.jinja")),
}
"""What a person has to set for a model."""
TOKENS, FEW = 32, {"steps": 4, "batch_size": 8, "learning_rate": 5e-4}
TRAINING = Training(
    grpo=GRPO(steps=4, prompts_per_step=4, num_generations=4, max_completion_tokens=TOKENS, learning_rate=5e-4),
    dpo=DPO.model_validate(FEW),
    kto=KTO.model_validate({**FEW, "kl_stop": None}),
    sft=SFT.model_validate(FEW),
    validation=Validation(every_steps=4, prompts=4, samples=1, max_completion_tokens=TOKENS),
)
CARD = dict.fromkeys(("Data", "Evaluation", "Intended use", "Limits"), "a benchmark")


class Labelled(Record):
    """What all models are trained on."""

    governed: DatasetRef
    labels: DatasetRef
    samples: DatasetRef


@dataclass
class ModelOutcome:
    name: str
    base: Path
    """With the chat settings, as it is trained."""
    refused: str = ""
    """Before labels; "" where it may be trained."""
    check_s: float = 0.0
    trained: dict[MethodName, tuple[TrainingPlan, CheckpointRef]] = field(default_factory=dict[Any, Any])
    failed: dict[str, str] = field(default_factory=dict[str, str])
    """Why, by method or later stage."""
    wrong: list[str] = field(default_factory=list[str])
    """What the benchmark finds, and no stage said."""
    unequal: bool = False
    nats: float = 0.0
    rounded_nats: float = 0.0


class ModelLoop:
    """Below `root`, which several processes may share once `prepare` was called."""

    def __init__(self, root: Path) -> None:
        self.store, self.export = Store(root / "data"), root / "export"
        self.suite, self._labelled = self.store.path("suites", "sums.jsonl"), root / "labelled.json"
        self.addresses = MlflowAddresses(f"sqlite:///{root / 'mlflow.db'}")

    def prepare(self, base: ModelRef) -> None:
        """Traces, suite and labels. `base`: whose traces they are said to be."""
        write_traces(self.export)
        write_suite(self.suite)
        sections = self._sections("grpo")
        address, stage = Address(sections["traces"].source, str(self.export)), stage_context(self.store, **sections)
        iteration = materialize(stage, address, Producer(base, "own"), 0, datetime.now(UTC)).iteration
        labels = label_traces(context_of(self.store, iteration, **sections), None, ()).dataset
        fresh = {"finished": True, "completion_tokens": TOKENS, "reward_model": None}
        rows = [{**row, **fresh, "sample": n % 4} for n, row in enumerate(pq.read_table(labels.uri).to_pylist())]
        path = self.store.path("samples.parquet")
        pq.write_table(pa.Table.from_pylist(rows, SAMPLES), path)
        samples = DatasetRef(uri=str(path), rows=len(rows), digest=digest_file(path))
        labelled = Labelled(governed=iteration.dataset, labels=labels, samples=samples)
        self._labelled.write_text(labelled.model_dump_json(), encoding="utf-8")

    def run(self, name: str, folder: Path, methods: Sequence[MethodName]) -> ModelOutcome:
        """What becomes of a model. To be refused before labels is no failure; all that comes later is."""
        labelled = Labelled.model_validate_json(self._labelled.read_bytes())
        outcome, begun = ModelOutcome(name, folder), time.monotonic()
        section = BaseModelSection(name=name, uri=str(folder), chat=CHAT.get(name, ChatSettings()))
        try:
            pin = pin_base(self.store, section, self.addresses, quiet)
            outcome.base, base = Path(pin.folder), ModelRef(uri=pin.folder, digest=pin.digest)
            contexts = [self._context(labelled.governed, name, base, each) for each in methods]
            refuse(contexts[0])
        except ValueError as error:
            outcome.refused = _line(error)
        outcome.check_s = time.monotonic() - begun
        for method, context in () if outcome.refused else zip(methods, contexts, strict=True):
            try:
                plan = self._plan(context, labelled)
                result = train(self.store, plan, 600.0, quiet)
                if result is None:
                    raise ValueError("; ".join(plan.decision.reasons))
                if not result.checkpoint.step:
                    raise ValueError("; ".join(finding.reason for finding in result.health.findings))
                outcome.trained[method] = plan, result.checkpoint
                if len(outcome.trained) == 1:
                    self._evaluate(context, result.checkpoint)
                    self._register(context, result.checkpoint)
            except Exception as error:  # boundary: it is counted, and the other models go on
                outcome.failed[method] = _line(error)
        return outcome

    def _sections(self, method: MethodName) -> dict[str, Any]:
        suites = (ItemsSuite(name="sums", path=str(self.suite)),)
        return {
            "traces": Traces(source=ExportSource(kind="langfuse_export", uri=str(self.export))),
            "selection": Selection(method=method, held_out_share=0.1, max_principal_share=1.0),
            "training": TRAINING,
            "evaluation": Evaluation(suites=suites, samples_per_item=1, max_completion_tokens=TOKENS),
        }

    def _context(self, governed: DatasetRef, name: str, base: ModelRef, method: MethodName) -> IterationContext:
        sections, section = self._sections(method), BaseModelSection(name=name, uri=base.uri)
        recipe = recipe_of(**sections).model_copy(update={"base_model": section})
        iteration = identify(0, name, base, governed, recipe.digest())
        return replace(context_of(self.store, iteration, **sections), recipe=recipe)

    def _plan(self, context: IterationContext, labelled: Labelled) -> TrainingPlan:
        def agreed() -> frozenset[tuple[str, str]]:
            return consented(self.store, context.lake, labelled.governed)

        apart = held_apart(context, labelled.labels, datetime.now(UTC))
        dataset = build(context, labelled.labels, apart, agreed, fresh=ScoredSamples(labelled.samples))
        return plan_training(context, dataset, agreed)

    def _evaluate(self, context: IterationContext, checkpoint: CheckpointRef) -> None:
        section, verifier = context.recipe.evaluation, context.recipe.rewards.verifier
        plan = EvalPlan(iteration=context.iteration, section=section, verifier=verifier, candidate=checkpoint)
        with closing(Grader(verifier)) as grader:
            services = EvalServices(TransformersEngine(TransformersServing(), quiet), grader, None)
            (measured,) = evaluate(self.store, plan, services, quiet).measurements
        if measured.problems:
            raise ValueError("; ".join(measured.problems))

    def _register(self, context: IterationContext, checkpoint: CheckpointRef) -> None:
        judged = JudgedCandidate("PASS", checkpoint.model.digest, "bundle")
        contents = RunContents(params={}, metrics=[], plots={}, card=CARD, code_version="benchmark")
        version = record(self.addresses, self.store, context.iteration, checkpoint, judged, contents).version
        assert version is not None, "a candidate that passed has a version"
        section = BaseModelSection(name=version.name, uri=f"models:/{version.name}/{version.version}")
        loaded = fetch_base(self.store, section, self.addresses, quiet)
        if loaded.digest != checkpoint.model.digest:
            raise ValueError(f"the registry gives {loaded.digest[:12]} for {checkpoint.model.digest[:12]}")


def refuse(context: IterationContext) -> None:
    """Raises ValueError as the first stage of a run does, before labels."""
    found = check_base(Path(context.recipe.base_model.uri), context.recipe.training.lora)
    if faults := [*place_faults(context.recipe, Places()), *of_level(found, "error")]:
        raise ValueError(faults[0])
    refuse_unrendered_rows(context, context.iteration)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[-400:]}"


def conversations(prompts: int = 90) -> Iterator[tuple[int, int, list[dict[str, str]]]]:
    """Two numbers and the messages that ask for their sum: a third with a system message, a third with an earlier
    turn."""
    draw = random.Random(7)
    for a, b in draw.sample([(a, b) for a in range(30) for b in range(30)], prompts):
        messages = [{"role": "user", "content": question(a, b)}]
        if draw.random() < 1 / 3:
            earlier = {"role": "assistant", "content": answer(b, a)}
            messages = [{"role": "user", "content": question(b, a)}, earlier, *messages]
        if draw.random() < 1 / 3:
            messages = [{"role": "system", "content": SYSTEM}, *messages]
        yield a, b, messages


def write_traces(folder: Path) -> None:
    """A Langfuse export: each prompt answered four times, half of them wrong, two with a thumb."""
    at, lines = datetime(2026, 1, 5, 9, tzinfo=UTC), {"observations_v2": list[str](), "scores": list[str]()}
    for number, (a, b, messages) in enumerate(conversations()):
        for place, error in enumerate((0, 1, 0, -2)):
            at += timedelta(minutes=13)
            id, output = f"{number}-{place}", {"role": "assistant", "content": answer(a, b, error)}
            trace = {"trace_id": f"t-{id}", "observation_id": f"o-{id}", "updated_at": f"{at:%Y-%m-%d %H:%M:%S}"}
            row = {"id": f"o-{id}", "trace_id": f"t-{id}", "type": "GENERATION", "start_time": trace["updated_at"],
                   "user_id": f"user-{number}", "provided_model_name": "own-1", "level": "DEFAULT", "latency": 0.5,
                   "metadata": {"expected_answer": str(a + b), "user_consent": "true"},
                   "input": json.dumps(messages), "output": json.dumps(output)}  # fmt: skip
            thumb = {"id": f"s-{id}", "name": "thumb", "value": int(not error), "data_type": "BOOLEAN", **trace}
            lines["observations_v2"].append(json.dumps(row))
            lines["scores"] += [json.dumps({**thumb, "source": "ANNOTATION"})] if place < 2 else []
    for kind, of in lines.items():
        (folder / kind).mkdir(parents=True)
        (folder / kind / "all.jsonl").write_text("\n".join(of), encoding="utf-8")


def write_suite(path: Path, items: int = 40) -> None:
    pairs = random.Random(11).sample([(a, b) for a in range(30, 40) for b in range(30)], items)
    lines = ({"prompt": question(a, b), "reference": str(a + b)} for a, b in pairs)
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
