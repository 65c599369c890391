"""Whether a training is healthy: PASS, HOLD (a person should look) or STOP (brakes.py: unless early), or solved.

The rules, over the metrics of the steps so far; each compares the mean of the last few steps, or validations, with a
limit or with the first ones, and is silent where its metric is absent.
- STOP by themselves: loss, gradient norm or reward that is no finite number, and a step without any reward; loss and
  gradient exactly 0 for a whole window while accuracy is no better than at first (TRL trains on, to the end); accuracy
  under half of the first; KL to the base over 0.5 a token, or over the method's own limit for a whole answer; a second
  scorer's held-out score that lies below its best at two validations in a row by more than their 95% noise, which is
  over-optimisation of a reward that nothing can check, or a second scorer that is silent twice in a row.
- HOLD, and STOP once accuracy has fallen as well: KL over 0.1 (limits of seed 000); entropy under 30% of the first,
  never an absolute threshold (entropy collapse, arXiv 2505.22617); length grown or shrunk by 30% (arXiv 2310.03716);
  openings shared across prompts, bigrams less varied (arXiv 1510.03055), refusals, missing answers, truncation, all of
  which a collapsed template or a fooled reward shows; gradient norm over 10 throughout a window (seed 000); one
  component other than correctness that makes 70% of the reward's variance; groups without a gradient over 80% (arXiv
  2503.14476); completions without a reward; log-probabilities of the engine that samples (vLLM) over 0.1 nats a token
  from the policy's own, which bf16 keeps near 0.01: the engine has other weights.
- Reward up while accuracy falls is over-optimisation (arXiv 2210.10760): HOLD at half of the fall that counts, STOP at
  all of it.
- What success shows too holds only as far as the held-out score does not explain it: groups whose rewards are all the
  same because they are right, a policy that is surer because it errs less, and a reward whose variance comes from its
  other components because nothing is wrong any more. Where held-out prompts are asked, these wait for the next asking.
- Solved (a finding that is PASS): most groups have no gradient, and two validations show accuracy risen to `SOLVED`.
Departures: openings, refusals and missing answers count from where the base model started; a sign that honest learning
shows too never stops by itself. Accuracy is that of held-out prompts or of the step's own, whichever fell further.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from pipeline.core.estimate import Z95
from pipeline.recipe.sentinel import Sentinel
from pipeline.training.result import Health, HealthFinding, Verdict

Row = Mapping[str, float]
Said = tuple[Verdict, str] | None

SOLVED = 0.9
"""Accuracy from which a task counts as solved, and groups that are all right are no failure."""
MOST = 0.5
"""Share of groups without a gradient from which entropy is that of the few others, and tells nothing of the policy."""
SAMPLING_GAP = "sampling/sampling_logp_difference/mean"
"""Mean |log-probability in vLLM - in the policy| of the sampled tokens, as TRL logs it."""
MAX_SAMPLING_GAP = 0.1
"""Nats a token; bf16 alone makes about 0.01."""
VALIDATIONS = 2
"""Held-out figures that are averaged: each is a mean over many answers already."""
_HELD_OUT = "held_out/"
_SCORE = "held_out/accuracy"
_NO_GRADIENT = "frac_reward_zero_std"
_COMPONENT = "component/"
_REASON = "abstained/"
_SECOND, _SILENT = "held_out/second_score", "held_out/second_abstained"
_SCORERS = tuple(f"{_COMPONENT}{name}" for name in ("judge", "reward_model", "custom"))
_SEVERITY: dict[Verdict, int] = {"PASS": 0, "HOLD": 1, "STOP": 2}


class MetricChange(NamedTuple):
    """A metric's mean at first and at last."""

    name: str
    first: float
    last: float

    @property
    def fall(self) -> float:
        """As a share of what it was; 0 for what was nothing."""
        return (self.first - self.last) / self.first if self.first > 0 else 0.0

    def __str__(self) -> str:
        return f"{self.name} went from {self.first:.3g} to {self.last:.3g}"


class HealthMonitor:
    """The sentinel over a training as it goes: give it each row once. A row costs the same in a long history."""

    def __init__(self, settings: Sentinel, answer_kl_stop: float | None = None) -> None:
        """`answer_kl_stop`: KL to the base model in nats an answer that stops the training; None: no such limit."""
        self.settings, self.answer_kl_stop = settings, answer_kl_stop
        self.row: Row = {}
        self._values: defaultdict[str, list[float]] = defaultdict(list)
        self._rows = 0

    def add(self, row: Row) -> tuple[HealthFinding, ...]:
        """What the rules say at this row."""
        self.row, self._rows = row, self._rows + 1
        for name, value in row.items():
            if math.isfinite(value):
                self._values[name].append(value)
        step = int(row.get("step", self._rows))
        rules = RULES if step > self.settings.warm_up else (not_finite,)
        results = ((rule.__name__, rule(self)) for rule in rules)
        return tuple(HealthFinding(verdict=it[0], rule=name, step=step, reason=it[1]) for name, it in results if it)

    def first(self, name: str) -> float | None:
        """Mean of the first window's values; of held-out metrics the first one, which is the base model's."""
        values = self._values.get(name, [])
        if name.startswith(_HELD_OUT):
            return values[0] if values else None
        return _mean(values[: self.settings.window]) if len(values) >= self.settings.window else None

    def last(self, name: str) -> float | None:
        """Mean of the last window's values, none of them among the first ones; None while they are few."""
        values, window = self._values.get(name, []), self.settings.window
        if name.startswith(_HELD_OUT):
            return _mean(values[max(1, len(values) - VALIDATIONS) :]) if len(values) > 1 else None
        enough = len(values) >= window + (window + 1) // 2
        return _mean(values[max(window, len(values) - window) :]) if enough else None

    def recent(self, name: str) -> list[float]:
        """A whole window of the last values, the first ones too; none while they are fewer."""
        values = self._values.get(name, [])
        return values[-self.settings.window :] if len(values) >= self.settings.window else []

    def latest(self, name: str) -> float | None:
        return self._values[name][-1] if self._values.get(name) else None

    @property
    def score(self) -> float | None:
        """Held-out accuracy at the last validation, which may be the base model's; None without any."""
        return self.latest(_SCORE)

    @property
    def confirmed(self) -> float | None:
        """Held-out accuracy that each of the last two validations reached; None before there are two."""
        values = self._values.get(_SCORE, [])
        return min(values[-VALIDATIONS:]) if len(values) > VALIDATIONS else None

    def held_out(self, name: str) -> list[float]:
        """A metric at every validation that has it."""
        return self._values.get(name, [])

    def level(self, name: str) -> float | None:
        """Mean of the last values, for a metric with a limit of its own."""
        if name.startswith(_HELD_OUT):
            return self.last(name)
        values = self.recent(name)
        return _mean(values) if values else None

    def changes(self, *names: str) -> list[MetricChange]:
        """Of these metrics, those whose first and last values are known."""
        known = ((name, self.first(name), self.last(name)) for name in names)
        return [
            MetricChange(name, first, last) for name, first, last in known if first is not None and last is not None
        ]

    def components(self) -> list[str]:
        return [name for name in self._values if name.startswith(_COMPONENT) and name != f"{_COMPONENT}correct"]


def check(history: Sequence[Row], settings: Sentinel) -> tuple[HealthFinding, ...]:
    """What the rules say at the last row of a history. Raises nothing, whatever metrics there are."""
    watch, findings = HealthMonitor(settings), tuple[HealthFinding, ...]()
    for row in history:
        findings = watch.add(row)
    return findings


def review(history: Sequence[Row], settings: Sentinel) -> Health:
    """What the rules said at any row: the first finding of each rule and verdict, and the worst verdict."""
    watch, health = HealthMonitor(settings), Health()
    for row in history:
        health = remember(health, watch.add(row))
    return health


def remember(health: Health, latest_findings: Sequence[HealthFinding]) -> Health:
    """The health with what was found since."""
    known = {(finding.rule, finding.verdict) for finding in health.findings}
    new = tuple(finding for finding in latest_findings if (finding.rule, finding.verdict) not in known)
    if not new:
        return health
    findings = (*health.findings, *new)
    worst = max(findings, key=lambda finding: _SEVERITY[finding.verdict])
    return Health(verdict=worst.verdict, findings=findings)


Rule = Callable[[HealthMonitor], Said]


def not_finite(watch: HealthMonitor) -> Said:
    for name in ("loss", "grad_norm", "reward"):
        value = watch.row.get(name, 0.0)
        if not math.isfinite(value):
            return "STOP", f"{name} is {value}"
    return None


def unscored(watch: HealthMonitor) -> Said:
    if watch.row.get("abstained") == 1.0:
        reasons = {name: share for name, share in watch.row.items() if name.startswith(_REASON)}
        why = f": {max(reasons, key=lambda name: reasons[name]).removeprefix(_REASON)}" if reasons else ""
        return "STOP", f"no completion of the step has a reward{why}"
    return _over(watch, watch.settings.abstained, "abstained")


def no_gradient(watch: HealthMonitor) -> Said:
    losses, norms = watch.recent("loss"), watch.recent("grad_norm")
    if not losses or not norms or any(losses) or any(norms):
        return None
    accuracy = next(iter(watch.changes("held_out/accuracy", "accuracy")), None)
    if accuracy and (accuracy.last > accuracy.first or accuracy.last >= SOLVED):  # nothing is left to learn
        return None
    return "STOP", f"loss and gradient were exactly 0 for {len(norms)} steps"


def accuracy_collapse(watch: HealthMonitor) -> Said:
    accuracy = _fallen(watch, 1 - watch.settings.accuracy_floor, watch.settings.accuracy_noise)
    return ("STOP", str(accuracy)) if accuracy else None


def reward_diverges(watch: HealthMonitor) -> Said:
    enough = watch.settings.reward_rise * (watch.first("reward_std") or 0.0)
    rose = [change for change in watch.changes("reward") if change.last - change.first > enough]
    accuracy = _fallen(watch, watch.settings.accuracy_fall / 2, watch.settings.accuracy_noise / 2)
    return _suspect(watch, f"{rose[0]} while {accuracy}") if rose and accuracy else None


def kl(watch: HealthMonitor) -> Said:
    for name in ("held_out/kl", "kl"):
        far = watch.latest(name) if name.startswith(_HELD_OUT) else watch.level(name)
        if far is not None and far > watch.settings.kl_hold:
            reason = f"{name} is {far:.2f} a token from the base model"
            return ("STOP", reason) if far > watch.settings.kl_stop else _suspect(watch, reason)
    return None


def answer_kl(watch: HealthMonitor) -> Said:
    far, limit = watch.row.get("held_out/answer_kl"), watch.answer_kl_stop
    if far is None or limit is None or far <= limit:
        return None
    return "STOP", f"held-out answers are {far:.1f} nats from the base model, and kl_stop is {limit:g}"


def second_score(watch: HealthMonitor) -> Said:
    """Fallen below its best at two validations in a row, by more than the noise of the difference."""
    scores = watch.held_out(_SECOND)
    if _SECOND not in watch.row or len(scores) < 3:
        return None
    errors, last = watch.held_out("held_out/second_error"), len(scores) - VALIDATIONS
    best = max(range(last), key=lambda at: scores[at])
    noise = [Z95 * math.hypot(errors[best], errors[at]) for at in range(last, len(scores))]
    if any(scores[best] - scores[at] <= most for at, most in zip(range(last, len(scores)), noise, strict=True)):
        return None
    return "STOP", (
        f"the second scorer's held-out score fell from {scores[best]:.3g} to {scores[-2]:.3g} and {scores[-1]:.3g}, by "
        f"more than noise ({noise[-1]:.2g}): the policy has learned to please its reward"
    )


def unwatched(watch: HealthMonitor) -> Said:
    silent = watch.row.get(_SILENT)
    if silent is None or _SECOND in watch.row:
        return None
    reason = f"the second scorer was silent on {silent:.0%} of the held-out answers"
    twice = [share > 0.5 for share in watch.held_out(_SILENT)[-VALIDATIONS:]]
    return ("STOP", f"{reason}, twice in a row: nobody watches") if len(twice) > 1 and all(twice) else ("HOLD", reason)


def entropy(watch: HealthMonitor) -> Said:
    low, high = watch.settings.entropy_floor, watch.settings.entropy_ceiling
    errors = _errors_left(watch)
    for change in watch.changes("entropy"):
        if not low * change.first <= change.last <= high * change.first:
            surer = low * change.first * errors <= change.last <= change.first
            return _unexplained(watch, _suspect(watch, str(change)), explained=surer or errors == 0 or _settled(watch))
    return None


def length(watch: HealthMonitor) -> Said:
    changes = watch.changes("held_out/length", "completions/mean_length")
    return _first_suspect(watch, (c for c in changes if abs(c.last - c.first) > watch.settings.length_drift * c.first))


def template(watch: HealthMonitor) -> Said:
    shared = watch.changes("held_out/prefix_share", "text/prefix_share")
    varied = watch.changes("held_out/distinct_2", "text/distinct_2")
    suspect_changes = [change for change in shared if change.last - change.first > watch.settings.prefix_share]
    suspect_changes += [change for change in varied if change.fall > 1 - watch.settings.distinct_floor]
    return _first_suspect(watch, suspect_changes)


def unanswered(watch: HealthMonitor) -> Said:
    answered = watch.changes("held_out/answered", "text/answered")
    refused = watch.changes("held_out/refusals", "text/refusals")
    suspect_changes = [change for change in answered if change.first - change.last > watch.settings.unanswered]
    suspect_changes += [change for change in refused if change.last - change.first > watch.settings.unanswered]
    return _first_suspect(watch, suspect_changes)


def truncated(watch: HealthMonitor) -> Said:
    return _over(watch, watch.settings.truncated, "completions/clipped_ratio", "held_out/truncated")


def zero_variance(watch: HealthMonitor) -> Said:
    over = _over(watch, watch.settings.zero_variance, _NO_GRADIENT)
    return _unexplained(watch, over, explained=_all_right(watch))


def solved(watch: HealthMonitor) -> Said:
    first, now, share = watch.first(_SCORE), watch.confirmed, watch.level(_NO_GRADIENT)
    if _SCORE not in watch.row or first is None or now is None or share is None:
        return None
    risen = now >= SOLVED and now - first > watch.settings.accuracy_noise
    if not risen or share <= watch.settings.zero_variance or not _all_right(watch):
        return None
    rose = f"held-out accuracy rose from {first:.3g} to {now:.3g}"
    return "PASS", f"solved: {rose}, and {share:.0%} of the groups have nothing left to learn from"


def grad_norm(watch: HealthMonitor) -> Said:
    values, limit = watch.recent("grad_norm"), watch.settings.grad_norm
    return _suspect(watch, f"grad_norm was over {limit:g} all the time") if values and min(values) > limit else None


def sampling_gap(watch: HealthMonitor) -> Said:
    return _over(watch, MAX_SAMPLING_GAP, SAMPLING_GAP)


def one_component(watch: HealthMonitor) -> Said:
    components = watch.components()
    if watch.latest(_SECOND) is not None:  # nothing here can be checked: the scorers are what the reward is to be of
        components = [name for name in components if name not in _SCORERS]
    over = _over(watch, watch.settings.component_share, *components)
    return _unexplained(watch, over, explained=(watch.score or 0.0) >= SOLVED)


RULES: tuple[Rule, ...] = (
    not_finite, unscored, no_gradient, accuracy_collapse, reward_diverges, kl, answer_kl, second_score, unwatched,
    entropy, length, template, unanswered, truncated, zero_variance, grad_norm, sampling_gap,
    one_component, solved,
)  # fmt: skip


def _over(watch: HealthMonitor, limit: float, *names: str) -> Said:
    levels = ((name, watch.level(name)) for name in names)
    over = [f"{name} is {level:.2f}" for name, level in levels if level is not None and level > limit]
    return _suspect(watch, over[0]) if over else None


def _first_suspect(watch: HealthMonitor, changes: Iterable[MetricChange]) -> Said:
    return next((_suspect(watch, str(change)) for change in changes), None)


def _unexplained(watch: HealthMonitor, sign: Said, explained: bool) -> Said:
    """What is left of a HOLD: nothing if the held-out score explains it, nor while the next one is awaited."""
    if sign is None or sign[0] != "HOLD":
        return sign
    awaited = watch.score is not None and _SCORE not in watch.row
    return None if explained or awaited else sign


def _all_right(watch: HealthMonitor) -> bool:
    """Whether so many groups without a gradient may all be right: no more of them than answers are."""
    share, score = watch.level(_NO_GRADIENT), watch.score
    if share is None or score is None:
        return False
    accuracy = watch.level("accuracy")
    return share - min(score, score if accuracy is None else accuracy) <= watch.settings.accuracy_noise


def _settled(watch: HealthMonitor) -> bool:
    """Whether most groups have nothing left to learn and are right: the entropy that is left is noise of the others."""
    share = watch.level(_NO_GRADIENT)
    return share is not None and share > MOST and _all_right(watch)


def _errors_left(watch: HealthMonitor) -> float:
    """Share of the base model's errors on held-out prompts that are left; 0 in a task that is solved."""
    first, now = watch.first(_SCORE), watch.score
    if first is None or now is None or first >= 1:
        return 1.0
    return 0.0 if now >= SOLVED else min(1.0, (1 - now) / (1 - first))


def _suspect(watch: HealthMonitor, reason: str) -> Said:
    """HOLD, or STOP once accuracy has fallen too."""
    accuracy = _fallen(watch, watch.settings.accuracy_fall, watch.settings.accuracy_noise)
    return ("STOP", f"{reason}, and {accuracy}") if accuracy else ("HOLD", reason)


def _fallen(watch: HealthMonitor, share: float, noise: float) -> MetricChange | None:
    """Accuracy, if it lost more than this share of its first value, and more than noise."""
    accuracy = _accuracy(watch)
    if accuracy is None or accuracy.fall <= share or accuracy.first - accuracy.last <= noise:
        return None
    return accuracy


def _accuracy(watch: HealthMonitor) -> MetricChange | None:
    """On held-out prompts or on the step's own, whichever fell further."""
    return max(watch.changes("held_out/accuracy", "accuracy"), key=lambda change: change.fall, default=None)


def _mean(values: Sequence[float]) -> float:
    """Unlike `fmean` it raises nothing on numbers near the largest."""
    return sum(values) / len(values)
