"""What an iteration left, gathered for people: the records of its stages, and what MLflow is told from them."""

from dataclasses import dataclass

from evals import report
from evals.gate import GateVerdict
from evals.measurements import EvalReport
from k8s.ledger import Ledger
from pipeline.recipe import Evaluation
from pipeline.rewards.records import RewardLabels
from pipeline.selection.samples.records import FreshSamples
from pipeline.traces.records import GovernedTraces
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import TrainingResult
from pipeline.training.throughput import typical


@dataclass(frozen=True)
class IterationRecords:
    """The records of an iteration that got as far as its training; `report` is missing where that stopped itself."""

    traces: GovernedTraces
    labels: RewardLabels
    plan: TrainingPlan
    trained: TrainingResult
    report: EvalReport | None = None
    account: Ledger | None = None
    samples: FreshSamples | None = None
    """None, as the account, in an iteration from before there were any."""

    @property
    def rejected(self) -> dict[str, int]:
        return {str(reason): count for reason, count in self.traces.rejected.items()}

    @property
    def why(self) -> str:
        """What the sentinel found in the training; empty where it had nothing to say."""
        return self.trained.health.why

    @property
    def tags(self) -> dict[str, str]:
        """The training's health, and each rule that spoke."""
        health = self.trained.health
        rule_tags = {
            f"health.{each.rule}": f"{each.verdict} at step {each.step}: {each.reason}" for each in health.findings
        }
        return {"health": health.verdict, **rule_tags, **scorer_tags(self.samples)}

    @property
    def metrics(self) -> list[dict[str, float]]:
        """Metrics over the steps of the training, and at its last step where its time went and the held-out figures."""
        goodput = self.trained.goodput
        last = {
            "step": max([float(self.trained.checkpoint.step), *(row["step"] for row in self.trained.metrics)]),
            "goodput/share": goodput.share,
            "goodput/total_s": goodput.total_s,
            "goodput/productive_s": goodput.productive_s,
            **{f"badput/{cause}_s": seconds for cause, seconds in goodput.badput_s.items()},
            **{f"typical/{name}": value for name, value in typical(self.trained.metrics).items()},
        }
        if self.account is not None:
            last |= {
                "cost/usd_low": self.account.usd.low,
                "cost/usd_high": self.account.usd.high,
                "cost/device_hours": self.account.device_hours,
                "launch/attempts": float(self.account.attempts),
                "launch/restarts": float(self.account.restarts),
                "launch/preemptions": float(self.account.preemptions),
                "launch/lost_steps": float(self.account.lost_steps),
            }
        for measured in self.report.measurements if self.report else ():
            if compared := measured.comparison:
                last |= {
                    f"held_out/{measured.suite}/champion": compared.champion.value,
                    f"held_out/{measured.suite}/candidate": compared.candidate.value,
                    f"held_out/{measured.suite}/difference": compared.difference.value,
                    f"held_out/{measured.suite}/difference_low": compared.difference.low,
                    f"held_out/{measured.suite}/difference_high": compared.difference.high,
                }
        for judged in self.report.judged if self.report else ():
            if rate := judged.win_rate:
                last |= {
                    f"judged/{judged.suite}/win_rate": 0.5 + rate.controlled.value,
                    f"judged/{judged.suite}/win_rate_low": 0.5 + rate.controlled.low,
                    f"judged/{judged.suite}/win_rate_high": 0.5 + rate.controlled.high,
                    f"judged/{judged.suite}/win_rate_raw": 0.5 + rate.raw.value,
                }
        return [*self.trained.metrics, last]


def scorer_tags(samples: FreshSamples | None) -> dict[str, str]:
    """Digests of the fresh samples and of who scored them: a part of what the model was made from."""
    if samples is None or samples.dataset is None:
        return {}
    digests = {
        "samples": samples.dataset.digest,
        "samples.judge": samples.judge_id,
        "reward_model": samples.reward_model,
    }
    return {name: digest for name, digest in digests.items() if digest}


def limits(section: Evaluation) -> str:
    """What a verdict over these suites cannot see."""
    text = f"Asked: {', '.join(each.name for each in section.suites)}. "
    if judged := [each.name for each in section.judged]:
        return f"{text}A judge compares the answers of {', '.join(judged)}: what it does not see, the verdict does not."
    return f"{text}Reward and evaluation share the verifier: what it cannot see, neither of them sees."


def card_sections(records: IterationRecords, verdict: GateVerdict | None) -> dict[str, str]:
    """The sections of the model card, in Markdown. Without a verdict nothing was evaluated."""
    evaluated = "Not evaluated: the training stopped itself, and these are the best weights that it had before."
    if records.report is not None and verdict is not None:
        evaluated = f"{report.table(records.report, verdict)}\n\nVerdict: **{verdict.verdict}**."
    days = [day.day for day in records.traces.days]
    rejected = ", ".join(f"{count} {reason}" for reason, count in sorted(records.rejected.items())) or "none"
    method, why = records.plan.decision.method.upper(), "; ".join(records.plan.decision.reasons)
    return {
        "Data": (
            f"{records.traces.admitted} of {records.traces.seen} production traces of {days[0]} to {days[-1]}, with "
            f"the users' consent and personal data masked. Kept out: {rejected}. {records.labels.labelled} are "
            f"labelled ({records.labels.coverage:.0%}). Trained with {method}, {records.trained.checkpoint.step} "
            f"steps: {why}. "
            f"Health of the training: **{records.trained.health.verdict}**{f', {records.why}' if records.why else ''}."
        ),
        "Evaluation": evaluated,
        "Intended use": "The same traffic as the champion's that the traces come from; nothing else was measured.",
        "Limits": limits(records.report.section) if records.report else "Nothing was measured.",
    }
