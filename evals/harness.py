"""Suites of lm-evaluation-harness, run in a Python environment of its own. It says neither how many tokens an answer
has (words are counted) nor whether it was cut, so such a suite reports and decides nothing."""

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from evals.records import EvalArm, EvalSample, ItemResult, Protocol
from evals.runner import defects
from evals.suites import Item, Suite, task_digest, task_list
from pipeline.core import layout
from pipeline.core.processes import Child
from pipeline.core.storage import ModelRef, Store, digest_json, write_atomically
from pipeline.recipe.serving import HttpServing
from pipeline.recipe.suites import LmEvalSuite
from pipeline.rewards.verifiers import Outcome
from pipeline.serving.chat import ChatSession
from pipeline.serving.inference import AnswerProtocol, Sampling

SCRIPT = Path(__file__).with_name("harness_script.py")
NO_ANSWER = ("", "[invalid]")
"""What the harness's filters put where they matched nothing."""
Log = Callable[[str], None]


class LmEvalEnvironment(NamedTuple):
    """The Python that LM_EVAL_PYTHON names; "" where it is not set."""

    python: str = ""

    def check(self) -> None:
        """Raise ValueError, with how to make one, where there is no such environment. Starts nothing."""
        if not Path(self.python or "/").is_file():
            raise ValueError(
                f"lm-eval runs in an environment of its own, and there is no Python at {self.python!r}. Make one "
                "(python -m venv .venv-lm-eval; .venv-lm-eval/bin/pip install -r constraints/lm-eval.txt) and set "
                "LM_EVAL_PYTHON to its Python, .venv-lm-eval/bin/python."
            )

    def run(self, section: LmEvalSuite, key: str = "", **request: Any) -> dict[str, Any]:
        """What harness_script.py replies: `lm_eval`, its release, and `rows`. Raises ValueError as `check`, and
        RuntimeError with the last lines where the harness fails."""
        self.check()
        with tempfile.TemporaryDirectory() as folder:
            asked, reply = Path(folder, "request.json"), Path(folder, "reply.json")
            asked.write_text(json.dumps({"file": str(Path(section.task).absolute()), "args": section.args, **request}))
            command = [self.python, "-I", str(SCRIPT), str(asked), str(reply)]
            with Child(command, grace_s=1.0, watched=True, environment={"OPENAI_API_KEY": key}) as child:
                for _ in child.lines():
                    pass
                if child.wait():
                    raise RuntimeError(f"lm-eval at {self.python} failed:\n" + "\n".join(child.tail))
            return json.loads(reply.read_bytes())


def ensure_listed(section: LmEvalSuite, store: Store, environment: LmEvalEnvironment, log: Log) -> Path:
    """The file of the task's items, after the harness listed them where it is not there. Raises as `run`."""
    path = task_list(section, store)
    if not path.is_file():
        log(f"evaluation: listing the items of {section.name} ({section.task})")
        items = [
            Item(
                id=row["id"],
                cluster=row.get("cluster", row["id"]),
                messages=[{"role": "user", "content": row["prompt"]}],
                reference=row["target"],
                slice=row.get("slice", ""),
            )
            for row in environment.run(section)["rows"]
        ]
        write_atomically(path, "".join(item.model_dump_json() + "\n" for item in items))
    return path


class LmEvalRun(NamedTuple):
    """One model's run over tasks. Its answers are kept: a model that was asked once is not asked again."""

    model: ModelRef
    session: ChatSession
    serving: HttpServing
    environment: LmEvalEnvironment
    store: Store

    def arm(self, section: LmEvalSuite, suite: Suite, plan: Sampling) -> EvalArm:
        """The graded answers. Raises as `LmEvalEnvironment.run`, and ValueError for answers that cannot be used."""
        answers, task = AnswerProtocol.under(self.session.decoding, plan), task_digest(section, self.store)
        kept = digest_json([answers.digest(), suite.digest(), task])
        path = self.store.path(f"{layout.LIBRARY_LOGS}/{self.model.digest}/{kept}.json")
        reply = json.loads(path.read_bytes()) if path.is_file() else self._ask(section, suite, plan)
        results = read_rows(reply["rows"], suite, section)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(reply))
        protocol = Protocol(
            suite=suite.name,
            suite_digest=suite.digest(),
            samples=plan.samples,
            verifier=f"lm_eval {reply['lm_eval']}: {section.metric} of {section.filter}, task {task[:16]}",
            answers=answers,
        )
        return EvalArm(model=self.model, protocol=protocol, results=results)

    def _ask(self, section: LmEvalSuite, suite: Suite, plan: Sampling) -> dict[str, Any]:
        url, key, model, extra = self.session.server
        server = {
            "base_url": f"{url.rstrip('/')}/chat/completions",
            "model": model,
            "num_concurrent": self.serving.in_flight,
            "max_retries": self.serving.attempts,
            "timeout": max(1, round(self.serving.timeout_s)),
            "seed": plan.seed,
        }
        sampling = {"temperature": plan.temperature, "do_sample": plan.temperature > 0, "top_p": 1.0}
        drawn = {**sampling, "max_gen_toks": plan.max_completion_tokens, **extra}
        ids = [item.id for item in suite.items]
        return self.environment.run(section, key, server=server, gen_kwargs=drawn, ids=ids)


def read_rows(rows: list[Mapping[str, Any]], suite: Suite, section: LmEvalSuite) -> tuple[ItemResult, ...]:
    """The results in the order of the suite's items. Raises ValueError for other items, another text or target than
    were listed, and for an unknown filter or metric."""
    by_id = {row["id"]: row for row in rows if row["filter"] == section.filter}
    results: list[ItemResult] = []
    for item in suite.items:
        row = by_id.get(item.id)
        if row is None or (row["prompt"], row["target"]) != (item.messages[0]["content"], item.reference):
            filters = ", ".join(sorted({row["filter"] for row in rows}))
            raise ValueError(
                f"{suite.name}: filter {section.filter} (of {filters}) has no item {item.id!r} as it was listed. Name "
                "another filter, or begin a new iteration."
            )
        score, text = row["metrics"].get(section.metric), row["response"] or ""
        if score not in (0, 1):
            raise ValueError(f"{suite.name}: {section.metric} is neither 0 nor 1 in {row['metrics']}. Name another.")
        wrong = Outcome.no_answer if row["answer"] in NO_ANSWER else Outcome.wrong
        sample = EvalSample(
            text=text,
            tokens=max(1, len(text.split())),
            finished=True,
            outcome=Outcome.correct if score == 1 else wrong,
            answer=str(row["answer"]),
            defects=defects(text, suite.messages(item)),
        )
        results.append(ItemResult(id=item.id, samples=(sample,)))
    return tuple(results)
