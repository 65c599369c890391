"""Writes Inspect logs of answers that this project drew. Runs where inspect_ai is, and imports nothing of ours."""

# pyright: basic, reportMissingImports=false

from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def export(folder: str, logs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Write each log (evals/libraries/export.py says what is in one) and return its file's name and size in bytes."""
    from inspect_ai.log import write_eval_log

    Path(folder).mkdir(parents=True, exist_ok=True)
    written = []
    for log in logs:
        path = Path(folder, log["file"])
        write_eval_log(eval_log(log), str(path))
        written.append({"file": log["file"], "bytes": path.stat().st_size})
    return written


def eval_log(log: dict[str, Any]) -> Any:
    from inspect_ai.log import (
        EvalConfig,
        EvalDataset,
        EvalLog,
        EvalMetric,
        EvalPlan,
        EvalResults,
        EvalSample,
        EvalScore,
        EvalSpec,
        EvalStats,
    )
    from inspect_ai.model import ChatCompletionChoice, ChatMessageAssistant, GenerateConfig, ModelOutput, ModelUsage
    from inspect_ai.scorer import Score

    now = datetime.now(UTC).isoformat()
    metrics = {name: EvalMetric(name=name, value=value) for name, value in log["metrics"].items()}
    samples = []
    for each in log["samples"]:
        message = ChatMessageAssistant(content=each["text"], model=log["model"], source="generate")
        usage = ModelUsage(
            input_tokens=each["prompt_tokens"],
            output_tokens=each["tokens"],
            total_tokens=each["prompt_tokens"] + each["tokens"],
        )
        choice = ChatCompletionChoice(message=message, stop_reason=each["stop"])
        score = {"answer": each["answer"], "explanation": each["explanation"]}
        samples.append(
            EvalSample(
                id=each["id"],
                epoch=each["epoch"],
                input=_messages(each["messages"]),
                target=each["target"],
                messages=[*_messages(each["messages"]), message],
                output=ModelOutput(model=log["model"], choices=[choice], usage=usage),
                scores={
                    log["scorer"]: Score.unscored(**score)
                    if each["value"] is None
                    else Score(value=each["value"], **score)
                },
                metadata=each["metadata"],
                model_usage={log["model"]: usage},
                uuid=each["uuid"],
            )
        )
    return EvalLog(
        status="success",
        eval=EvalSpec(
            eval_id=log["id"],
            run_id=log["run"],
            task_id=log["id"],
            created=now,
            task=log["task"],
            task_display_name=log["display"],
            dataset=EvalDataset(
                name=log["task"], samples=log["items"], sample_ids=list(dict.fromkeys(s.id for s in samples))
            ),
            model=log["model"],
            model_generate_config=GenerateConfig(**log["config"]),
            config=EvalConfig(epochs=log["epochs"]),
            metadata=log["metadata"],
            tags=log["tags"],
        ),
        plan=EvalPlan(config=GenerateConfig(**log["config"])),
        results=EvalResults(
            total_samples=len(samples),
            completed_samples=len(samples),
            scores=[EvalScore(name=log["scorer"], scorer=log["scorer"], metrics=metrics)],
        ),
        stats=EvalStats(started_at=now, completed_at=now),
        samples=samples,
    )


def _messages(messages: list[dict[str, str]]) -> list[Any]:
    from inspect_ai.model import ChatMessageAssistant, ChatMessageSystem, ChatMessageTool, ChatMessageUser

    kinds = {"system": ChatMessageSystem, "user": ChatMessageUser, "assistant": ChatMessageAssistant}
    kinds |= {"tools": ChatMessageSystem, "tool": ChatMessageTool}  # definitions are shown as a text
    return [kinds[each["role"]](content=each["content"]) for each in messages]
