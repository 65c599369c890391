"""One model's run over a library's suite: the library asks the engine's server and grades, and its log is read.

Owns the log, which is kept as an answer journal is: a model that was asked once is not asked again. Refuses an engine
that has no server, and to read what is in a log (inspect_log, lm_eval_log).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from evals.libraries import inspect_log, lm_eval_log
from evals.libraries.environment import LibraryEnvironments
from evals.libraries.tasks import task_spec
from evals.results import EvalArm, ItemResult
from evals.results import Protocol as EvalProtocol
from evals.suites import Suite
from evals.suites.tasks import task_digest
from pipeline.core import layout
from pipeline.core.storage import ModelRef, Store, digest_json, write_atomically
from pipeline.recipe.serving import HttpServing
from pipeline.recipe.suites import InspectSuite, LibrarySuite, LmEvalSuite
from pipeline.rewards.verifiers import Outcome
from pipeline.serving.inference import InferenceSession, Sampling
from pipeline.serving.journal import AnswerProtocol


@runtime_checkable
class ServerSession(Protocol):
    """A session whose model answers at a URL, for programs that are not ours."""

    @property
    def url(self) -> str:
        """Root of an OpenAI-compatible API, such as `http://127.0.0.1:8000/v1`."""
        ...

    @property
    def api_key(self) -> str: ...

    @property
    def model_name(self) -> str:
        """Name under which the server has this session's model."""
        ...

    @property
    def extra(self) -> Mapping[str, Any]:
        """What each question has to carry beside OpenAI's fields, so that it is answered as our runner's are."""
        ...


class LibraryRun(NamedTuple):
    """What a run needs beside the suite."""

    model: ModelRef
    session: InferenceSession
    serving: object
    environments: LibraryEnvironments
    store: Store
    log: Callable[[str], None]

    def arm(self, section: LibrarySuite, suite: Suite, plan: Sampling) -> EvalArm:
        """The graded answers of the model to every item of the suite.

        Raises ValueError with an instruction where engine, environment, task or log is none that can be used, and
        RuntimeError where the library ends.
        """
        session = self.session
        if not isinstance(session, ServerSession):
            raise ValueError(
                f"The suite {suite.name} is a library's, which asks a server by its URL, and this engine has none. Set "
                "evaluation.serving.kind to vllm or endpoint."
            )
        answers = AnswerProtocol(
            decoding=session.decoding,
            temperature=plan.temperature,
            max_completion_tokens=plan.max_completion_tokens,
            seed=plan.seed,
        )
        task = task_digest(section, self.store)
        release = self._release(section)
        kept = digest_json([answers.digest(), suite.digest(), plan.samples, task, release])
        path = self.store.path(layout.library_log(self.model.digest, kept))
        log = json.loads(path.read_bytes()) if path.is_file() else None
        count = f"{len(suite.items) * plan.samples:,} answers"
        if log is None:
            self.log(f"evaluation: {suite.name}: {section.task} asks for {count}")
            log = self._run(section, suite, plan, session)
        else:
            self.log(f"evaluation: {suite.name}: {count} are there, 0 asked")
        results, graded_by = read_log(section, log, suite, plan.samples)
        if not path.is_file() and not any(s.outcome is Outcome.error for each in results for s in each.samples):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(log))
        return EvalArm(
            model=self.model,
            protocol=EvalProtocol(
                suite=suite.name,
                suite_digest=suite.digest(),
                samples=plan.samples,
                verifier=f"{graded_by}, task {task[:16]}",
                answers=answers,
            ),
            results=results,
        )

    def _release(self, section: LibrarySuite) -> str:
        if isinstance(section, InspectSuite):
            return str(self.environments.inspect.call("inspect_tasks", "version"))
        return str(self.environments.lm_eval.call("lm_eval_tasks", "version"))

    def _run(self, section: LibrarySuite, suite: Suite, plan: Sampling, session: ServerSession) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="library-log-") as folder:
            arguments = {
                "spec": task_spec(section),
                "server": _server(session),
                "plan": _plan(plan, self.serving),
                "sample_ids": [item.id for item in suite.items],
                "log_folder": folder,
            }
            if isinstance(section, InspectSuite):
                path = self.environments.inspect.call("inspect_tasks", "run", **arguments)
            else:
                path = self.environments.lm_eval.call("lm_eval_tasks", "run", **arguments)
            return json.loads(Path(path).read_bytes())


def read_log(
    section: LibrarySuite, log: Mapping[str, Any], suite: Suite, samples: int
) -> tuple[tuple[ItemResult, ...], str]:
    """The results in a library's log, and what graded them."""
    if isinstance(section, LmEvalSuite):
        metric, filter = section.metric, section.filter
        return lm_eval_log.results(log, suite, metric, filter), lm_eval_log.version(log, metric, filter)
    assert isinstance(section, InspectSuite)
    return inspect_log.results(log, suite, samples, section.scorer), inspect_log.version(log, section.scorer)


def _server(session: ServerSession) -> dict[str, Any]:
    return {
        "url": session.url,
        "api_key": session.api_key,
        "model": session.model_name,
        "extra": dict(session.extra),
    }


def _plan(plan: Sampling, serving: object) -> dict[str, Any]:
    settings = serving if isinstance(serving, HttpServing) else HttpServing()
    return {
        "samples": plan.samples,
        "temperature": plan.temperature,
        "max_tokens": plan.max_completion_tokens,
        "seed": plan.seed,
        "in_flight": settings.in_flight,
        "timeout_s": settings.timeout_s,
        "attempts": settings.attempts,
    }
