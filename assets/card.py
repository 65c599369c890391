"""What an iteration left, gathered for people: the records of its stages, and the model card written from them."""

from dataclasses import dataclass

from evals import report
from evals.comparison import EvalReport
from evals.gate import GateVerdict
from pipeline.rewards.records import RewardLabels
from pipeline.traces.records import GovernedTraces
from pipeline.training.plan import TrainingPlan, TrainingResult


@dataclass(frozen=True)
class IterationRecords:
    """The records of an iteration that got as far as its evaluation."""

    traces: GovernedTraces
    labels: RewardLabels
    plan: TrainingPlan
    trained: TrainingResult
    report: EvalReport

    @property
    def rejected(self) -> dict[str, int]:
        return {str(reason): count for reason, count in self.traces.rejected.items()}

    @property
    def metrics(self) -> list[dict[str, float]]:
        """Metrics over the steps of the training, and the held-out figures at its last step."""
        compared = self.report.measurement.comparison
        if compared is None:
            return list(self.trained.metrics)
        held_out = {
            "step": float(self.trained.checkpoint.step),
            "held_out/accuracy_champion": compared.champion.value,
            "held_out/accuracy_candidate": compared.candidate.value,
            "held_out/difference": compared.difference.value,
            "held_out/difference_low": compared.difference.low,
            "held_out/difference_high": compared.difference.high,
        }
        return [*self.trained.metrics, held_out]


def card_sections(told: IterationRecords, verdict: GateVerdict) -> dict[str, str]:
    """The sections of the model card, in Markdown."""
    days = [day.day for day in told.traces.days]
    rejected = ", ".join(f"{count} {reason}" for reason, count in sorted(told.rejected.items())) or "none"
    method, why = told.plan.decision.method.upper(), "; ".join(told.plan.decision.reasons)
    return {
        "Data": (
            f"{told.traces.admitted} of {told.traces.seen} production traces of {days[0]} to {days[-1]}, with the "
            f"users' consent and personal data masked. Kept out: {rejected}. {told.labels.labelled} are labelled "
            f"({told.labels.coverage:.0%}). Trained with {method}, {told.trained.checkpoint.step} steps: {why}."
        ),
        "Evaluation": f"{report.table(told.report, verdict)}\n\nVerdict: **{verdict.verdict}**.",
        "Intended use": "The same traffic as the champion's that the traces come from; nothing else was measured.",
        "Limits": (
            "Judged on one held-out suite by one verifier. The reward and the evaluation share that verifier, so what "
            "it cannot see, neither of them sees."
        ),
    }
