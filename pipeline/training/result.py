"""What a training leaves: its weights, its metrics by step, its health and where its time went; and its exit codes."""

from typing import Literal

from pipeline.core.storage import CheckpointRef, Record

Verdict = Literal["PASS", "HOLD", "STOP"]
CAUSES = ("start", "save", "validation", "lost", "waiting", "end")
"""Where time goes that trains nothing: processes and models that start, checkpoints, held-out answers, steps that were
computed again after a kill, no process running, and the export."""


class HealthFinding(Record):
    """A rule that fired; PASS is a note. `step`: the last one of the window that it looked at."""

    verdict: Verdict
    rule: str
    step: int
    reason: str


class Health(Record):
    """The sentinel's verdict on a training: the worst of its findings, the first of each rule kept."""

    verdict: Verdict = "PASS"
    findings: tuple[HealthFinding, ...] = ()

    @property
    def why(self) -> str:
        """The reasons for the verdict, in one line; for PASS its notes."""
        notes = [finding for finding in self.findings if (finding.verdict == "PASS") == (self.verdict == "PASS")]
        return "; ".join(f"{finding.reason} (step {finding.step})" for finding in notes)

    @property
    def solved(self) -> HealthFinding | None:
        """The note that the task was solved, if it was."""
        return next((finding for finding in self.findings if finding.rule == "solved"), None)


class Goodput(Record):
    """Seconds of a training by cause, over all its attempts, from the first one's start to the last one's end."""

    total_s: float
    productive_s: float
    """Steps that the final weights went through, each counted once."""
    badput_s: dict[str, float]
    """By cause, of `CAUSES`; with `productive_s` they sum to `total_s`."""

    @property
    def share(self) -> float:
        return self.productive_s / self.total_s if self.total_s else 0.0


class Preemption(Record):
    """One interruption: the signal or `killed`, the step that was reached, and the steps that were lost."""

    cause: str
    step: int
    lost_steps: int


class TrainingResult(Record):
    """What one training left. `metrics` holds a row per logged step; `seconds` is compute time over all attempts."""

    iteration: str
    plan_digest: str
    checkpoint: CheckpointRef
    metrics: tuple[dict[str, float], ...]
    seconds: float
    attempts: int
    resumed_from: tuple[int, ...]
    """Steps that an attempt resumed at, in order; empty for an undisturbed run."""
    health: Health = Health()
    goodput: Goodput = Goodput(total_s=0.0, productive_s=0.0, badput_s={})
    preemptions: tuple[Preemption, ...] = ()
    untrained_steps: int = 0
    """Steps of the plan that the weights did not go through because the task was solved before, or a brake ended it."""
    judge_tokens: int = 0
    """What the judge took that scored completions of this training, in tokens."""
    judge_usd: float = 0.0
    """The same in US dollars."""


PREEMPTED = 143
"""Run me again: it resumes at the newest checkpoint."""
NEVER_RETRY = 64
"""The plan, or what it names, is wrong; the last lines say what to change."""
BLOCKED = 65
"""An erasure removed data that the training learns from, before it began or while it ran: never again."""


BLOCKED_WORDS = "An erasure removed data that this training learns from. Begin a new iteration: materialise the traces."


class TrainingBlocked(Exception):
    """An erasure took data of the training away: exit code 65."""


class InvalidPlan(ValueError):
    """What no retry makes fit, found in the plan, the tokenizer, the data or the processes: exit code 64."""
