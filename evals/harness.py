"""Suites of lm-evaluation-harness, run in a Python environment of its own. It says neither how many tokens an answer
has (words are counted) nor whether it was cut, so such a suite reports and decides nothing."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from evals.results import EvalArm, EvalSample, ItemResult
from evals.results import Protocol as EvalProtocol
from evals.runner import defects
from evals.suites import Item, Suite
from evals.suites.tasks import list_path, task_digest
from pipeline.core import layout
from pipeline.core.processes import piped
from pipeline.core.storage import ModelRef, Store, digest_json, write_atomically
from pipeline.recipe.serving import HttpServing
from pipeline.recipe.suites import LmEvalSuite
from pipeline.rewards.verifiers import Outcome
from pipeline.serving.inference import InferenceSession, Sampling, ServedAt
from pipeline.serving.journal import AnswerProtocol

SCRIPT = Path(__file__).with_name("harness_script.py")
NO_ANSWER = "[invalid]"
"""What the harness's filters put where they matched nothing."""
Log = Callable[[str], None]


class LmEvalEnvironment(NamedTuple):
    """The Python that LM_EVAL_PYTHON names; "" where nobody named one."""

    python: str = ""

    def call(self, function: str, **arguments: Any) -> Any:
        """What that function of harness_script.py returns; arguments and result are plain JSON.

        Raises ValueError with an instruction where there is no such environment or the script refuses, RuntimeError
        with its last lines where it ends otherwise. The process ends with the caller.
        """
        self.check()
        request = json.dumps({"function": function, "arguments": arguments})
        with piped([self.python, "-I", str(SCRIPT)]) as child:
            answered = json.loads(child.ask(request, f"lm-eval at {self.python}"))
        if "refused" in answered:
            raise ValueError(answered["refused"])
        return answered["result"]

    def check(self) -> None:
        """Raise ValueError, with how to make one, where there is no such environment. Starts nothing."""
        if not self.python or not Path(self.python).is_file():
            problem = f"there is no Python at {self.python}" if self.python else "none is named"
            raise ValueError(
                f"lm-eval runs in an environment of its own, and {problem}. Make one (python -m venv .venv-lm-eval; "
                ".venv-lm-eval/bin/pip install -r constraints/lm-eval.txt) and set LM_EVAL_PYTHON to its Python, "
                ".venv-lm-eval/bin/python."
            )


def ensure_listed(section: LmEvalSuite, store: Store, environment: LmEvalEnvironment, log: Log) -> Path:
    """The file of the task's items, after the harness listed them where it is not there.

    Raises ValueError for a task that cannot be asked here, RuntimeError where the harness ends.
    """
    path = list_path(section, store)
    if not path.is_file():
        log(f"evaluation: listing the items of {section.name} ({section.task})")
        items = parse(environment.call("listing", spec=_spec(section)), section.name)
        write_atomically(path, "".join(item.model_dump_json() + "\n" for item in items))
    return path


def parse(listed: list[dict[str, Any]], name: str) -> tuple[Item, ...]:
    """The items that the harness listed. Raises ValueError where there are none."""
    items = tuple(
        Item(
            id=each["id"],
            cluster=each["metadata"].get("cluster", each["id"]),
            messages=each["messages"],
            reference=each["target"],
            slice=each["metadata"].get("slice", ""),
        )
        for each in listed
    )
    if not items:
        raise ValueError(f"The task of the suite {name} has no items. Give it a dataset.")
    return items


def _spec(section: LmEvalSuite) -> dict[str, Any]:
    return {"file": str(Path(section.task).absolute()), "args": section.args}


@runtime_checkable
class ServerSession(Protocol):
    """A session whose model answers at a URL, for programs that are not ours."""

    @property
    def server(self) -> ServedAt: ...


class LmEvalRun(NamedTuple):
    """One model's run over a task. Its samples are kept as answers are: a model that was asked once is not asked
    again."""

    model: ModelRef
    session: InferenceSession
    serving: object
    environment: LmEvalEnvironment
    store: Store
    log: Log

    def arm(self, section: LmEvalSuite, suite: Suite, plan: Sampling) -> EvalArm:
        """The graded answers of the model to every item of the suite.

        Raises ValueError with an instruction where engine, environment, task or samples cannot be used, and
        RuntimeError where the harness ends.
        """
        session = self.session
        if not isinstance(session, ServerSession):
            raise ValueError(
                f"The suite {suite.name} is a library's, which asks a server by its URL, and this engine has none. Set "
                "evaluation.serving.kind to vllm or endpoint."
            )
        answers = AnswerProtocol.under(session.decoding, plan)
        task = task_digest(section, self.store)
        release = self.environment.call("version")
        kept = digest_json([answers.digest(), suite.digest(), plan.samples, task, release])
        path = self.store.path(layout.library_log(self.model.digest, kept))
        log = json.loads(path.read_bytes()) if path.is_file() else None
        count = f"{len(suite.items) * plan.samples:,} answers"
        if log is None:
            self.log(f"evaluation: {suite.name}: {section.task} asks for {count}")
            log = self._run(section, suite, plan, session)
        else:
            self.log(f"evaluation: {suite.name}: {count} are there, 0 asked")
        results = read_samples(log, suite, section.metric, section.filter)
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(log))
        return EvalArm(
            model=self.model,
            protocol=EvalProtocol(
                suite=suite.name,
                suite_digest=suite.digest(),
                samples=plan.samples,
                verifier=f"lm_eval {log['lm_eval']}: {section.metric} of {section.filter}, task {task[:16]}",
                answers=answers,
            ),
            results=results,
        )

    def _run(self, section: LmEvalSuite, suite: Suite, plan: Sampling, session: ServerSession) -> dict[str, Any]:
        server = self.serving if isinstance(self.serving, HttpServing) else HttpServing()
        return self.environment.call(
            "run",
            spec=_spec(section),
            server=session.server._asdict(),
            plan={
                "temperature": plan.temperature,
                "max_tokens": plan.max_completion_tokens,
                "seed": plan.seed,
                "in_flight": server.in_flight,
                "timeout_s": server.timeout_s,
                "attempts": server.attempts,
            },
            sample_ids=[item.id for item in suite.items],
        )


def read_samples(log: Mapping[str, Any], suite: Suite, metric: str, filter: str) -> tuple[ItemResult, ...]:
    """The results in the order of the suite's items.

    Raises ValueError for samples of other items, another text or target, or a metric that is neither 0 nor 1.
    """
    filters = sorted({row["filter"] for row in log["samples"]})
    if filter not in filters:
        raise ValueError(f"{suite.name}: the task has the filters {', '.join(filters)}, not {filter}. Name one.")
    rows = {row["id"]: row for row in log["samples"] if row["filter"] == filter}
    if rows.keys() != {item.id for item in suite.items}:
        raise ValueError(
            f"{suite.name}: the harness answered {len(rows)} items, and {len(suite.items)} were asked for, or others. "
            "Evaluate again."
        )
    return tuple(_result(item, rows[item.id], suite, metric) for item in suite.items)


def _result(item: Item, row: Mapping[str, Any], suite: Suite, metric: str) -> ItemResult:
    if [{"role": "user", "content": row["prompt"]}] != item.messages or row["target"] != item.reference:
        raise ValueError(
            f"{suite.name}: the harness asked item {item.id!r} with another text or target than it was listed with. "
            "Keep the task's data as they were, or begin a new iteration."
        )
    text = row["response"] or ""
    sample = EvalSample(
        text=text,
        tokens=max(1, len(text.split())),
        finished=True,
        outcome=_outcome(row, suite.name, metric),
        answer=str(row["answer"]),
        defects=defects(text, suite.messages(item)),
    )
    return ItemResult(id=item.id, samples=(sample,))


def _outcome(row: Mapping[str, Any], name: str, metric: str) -> Outcome:
    metrics: Mapping[str, float] = row["metrics"]
    if metric not in metrics:
        raise ValueError(f"{name}: the task has the metrics {', '.join(sorted(metrics))}, not {metric}. Name one.")
    if metrics[metric] not in (0, 1):
        raise ValueError(f"{name}: its {metric} is {metrics[metric]}, and right and wrong are counted. Name another.")
    if metrics[metric] == 1:
        return Outcome.correct
    return Outcome.no_answer if row["answer"] in ("", NO_ANSWER) else Outcome.wrong
