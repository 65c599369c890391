"""The rules by which a training is healthy: PASS, HOLD, STOP, or a note that its task is solved; limits and sources are
in docs/health.md. A rule is silent where its metric is absent."""

import math
from collections.abc import Callable, Sequence
from statistics import stdev

from pipeline.core.estimate import Z95
from pipeline.recipe import Sentinel
from pipeline.training.history import HELD_OUT, VALIDATIONS, WINDOW, MetricChange, MetricHistory, Row
from pipeline.training.result import Health, HealthFinding, Verdict

Said = tuple[Verdict, str] | None

SOLVED = 0.9  # accuracy from which a task counts as solved, and groups that are all right are no failure
MOST = 0.5  # share of groups without a gradient above which entropy is that of the few others
ACCURACY_FLOOR = 0.5  # of the first accuracy; under it a training stops
ACCURACY_FALL = 0.2  # share of the first accuracy whose loss turns any other sign into a stop
ACCURACY_NOISE = 0.1  # a smaller fall of accuracy is none: a window of a few hundred completions says no more
REWARD_RISE = 0.25  # in standard deviations of the first rewards: a rise against accuracy that counts
ENTROPY = (0.3, 3.0)  # least and most, of the first entropy: a policy that collapses, or dissolves into noise
SHARED_OPENINGS = 0.2  # of completions to different prompts with the same first eight words, over the first share
DISTINCT_FALL = 0.5  # share of the first steps' distinct bigrams that are lost
UNANSWERED = 0.2  # of completions that lost their final answer, or refuse, over the first share
ABSTAINED = 0.2  # of completions without a reward, because their check failed
ZERO_VARIANCE = 0.8  # share of groups without a gradient
TRUNCATED = 0.2  # share of completions that are cut off at the length limit
COMPONENT_SHARE = 0.7  # of the reward's variance, from one component other than correctness
LOSS_SPIKE = (10.0, 0.5)  # times the largest loss before, and at least this
FLAT_STEPS = 50  # from which a reward that has not risen is said
GENERATION_RISE = 0.5  # share by which the time of a generated token may rise
SAMPLING_GAP = 0.1  # mean |log-probability in vLLM - in the policy| in nats a token; bf16 alone makes about 0.01
BRAKES = ("answer_kl", "second_score")
"""Rules that end a training early where an earlier checkpoint beat the start: that one is the candidate."""
SAME_DISTANCE = "kl"
"""Its limit on KL a token: of the same answers as `answer_kl`, so with a brake it is no other reason to stop."""
SEVERITY: tuple[Verdict, ...] = ("PASS", "HOLD", "STOP")
_SCORE, _NO_GRADIENT = "held_out/accuracy", "frac_reward_zero_std"
_SECOND, _SILENT = "held_out/second_score", "held_out/second_abstained"
_SCORERS = ("component/judge", "component/reward_model", "component/custom")


class HeldOutScores:
    """The score that checkpoints are ranked by, at the start and at each validation since."""

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self._start: float | None = None
        self._later: list[tuple[int, float | None]] = []

    def add(self, step: int, row: Row) -> None:
        """Take the row of a step or of the start; one without a validation changes nothing."""
        score = row.get(self._metric)
        if "held_out/length" in row and step:
            self._later.append((step, score))
        elif "held_out/length" in row:
            self._start = score

    @property
    def was_better(self) -> bool:
        """Whether an earlier checkpoint has a score that the last weights do not pass."""
        *earlier, last = [score for _, score in self._later] or [None]
        scores = [score for score in earlier if score is not None]
        return bool(scores) and (last is None or last <= max(scores))

    @property
    def best(self) -> int | None:
        """Step of the best checkpoint before the last validation, if it beat the start; of equal ones the first."""
        ranked = [(score, -step) for step, score in self._later[:-1] if score is not None]
        if self._start is None or not ranked or max(ranked)[0] <= self._start:
            return None
        return -max(ranked)[1]


class HealthMonitor(MetricHistory):
    """The sentinel over a training as it goes: give it each row once. A row costs the same in a long history."""

    def __init__(
        self,
        settings: Sentinel,
        answer_kl_stop: float | None = None,
        judged_by: str = _SCORE,
        keeps_best: bool = False,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`answer_kl_stop`: KL to the base model in nats an answer that stops the training; None: no such limit.
        `judged_by`: the metric that ranks checkpoints; `keeps_best`: the best one is on the disk. `say` hears each new
        finding."""
        self.settings, self.answer_kl_stop, self._keeps_best, self._say = settings, answer_kl_stop, keeps_best, say
        self.scores = HeldOutScores(judged_by)
        self.health = Health()
        """The first finding of each rule and verdict, and the worst verdict."""
        super().__init__()

    def add(self, row: Row) -> tuple[HealthFinding, ...]:
        """What the rules say at this row; it is kept in `health`."""
        step = self.take(row)
        self.scores.add(step, row)
        rules = RULES if step > self.settings.warm_up else {"not_finite": not_finite}
        results = ((name, rule(self)) for name, rule in rules.items())
        found = [HealthFinding(verdict=it[0], rule=name, step=step, reason=it[1]) for name, it in results if it]
        findings = early_stop(found, self.scores.best if self._keeps_best else None)
        self.keep(*findings)
        return findings

    def keep(self, *findings: HealthFinding) -> None:
        """Take findings into `health`."""
        known = {(finding.rule, finding.verdict) for finding in self.health.findings}
        if new := tuple(each for each in findings if (each.rule, each.verdict) not in known):
            kept = (*self.health.findings, *new)
            worst = max(kept, key=lambda each: SEVERITY.index(each.verdict))
            self.health = Health(verdict=worst.verdict, findings=kept)
            for each in new:
                self._say(f"{each.verdict} at step {each.step}: {each.reason}")

    @property
    def braked(self) -> bool:
        """Whether a brake ended the training early."""
        return any(finding.rule in BRAKES and finding.verdict == "PASS" for finding in self.health.findings)


def review(history: Sequence[Row], settings: Sentinel) -> Health:
    """What the rules said at any row of a whole training."""
    watch = HealthMonitor(settings)
    for row in history:
        watch.add(row)
    return watch.health


def early_stop(findings: Sequence[HealthFinding], best: int | None) -> tuple[HealthFinding, ...]:
    """The findings of a row. A stop by brakes alone is an early stop where the checkpoint of step `best` beat the
    start: then they are notes. None: there is none to keep."""
    stops = {finding.rule for finding in findings if finding.verdict == "STOP"}
    if best is None or not stops.intersection(BRAKES) or stops - {*BRAKES, SAME_DISTANCE}:
        return tuple(findings)
    kept = f"ends here, the checkpoint of step {best} stays"
    notes = {each: each.model_copy(update={"verdict": "PASS", "reason": f"{each.reason}: {kept}"}) for each in findings}
    return tuple(notes[each] if each.verdict == "STOP" else each for each in findings)


def not_finite(watch: HealthMonitor) -> Said:
    values = {name: watch.row[name] for name in ("loss", "grad_norm", "reward") if name in watch.row}
    return next((("STOP", f"{name} is {value}") for name, value in values.items() if not math.isfinite(value)), None)


def unscored(watch: HealthMonitor) -> Said:
    if watch.row.get("abstained") == 1.0:
        reasons = {name: share for name, share in watch.row.items() if name.startswith("abstained/")}
        why = f": {max(reasons, key=lambda name: reasons[name]).removeprefix('abstained/')}" if reasons else ""
        return "STOP", f"no completion of the step has a reward{why}"
    return _over(watch, ABSTAINED, "abstained")


def no_gradient(watch: HealthMonitor) -> Said:
    losses, norms = watch.recent("loss"), watch.recent("grad_norm")
    if not losses or not norms or any(losses) or any(norms):
        return None
    accuracy = next(iter(watch.changes(_SCORE, "accuracy")), None)
    if accuracy and (accuracy.last > accuracy.first or accuracy.last >= SOLVED):  # nothing is left to learn
        return None
    return "STOP", f"loss and gradient were exactly 0 for {len(norms)} steps"


def reward_diverges(watch: HealthMonitor) -> Said:
    """Over-optimisation (arXiv 2210.10760): HOLD at half of the fall that counts, STOP at all of it."""
    enough = REWARD_RISE * (watch.first("reward_std") or 0.0)
    rose = [change for change in watch.changes("reward") if change.rise > enough]
    accuracy = _fallen(watch, ACCURACY_FALL / 2, ACCURACY_NOISE / 2)
    return _suspect(watch, f"{rose[0]} while {accuracy}") if rose and accuracy else None


def kl(watch: HealthMonitor) -> Said:
    for name in ("held_out/kl", "kl"):
        far = watch.latest(name) if name.startswith(HELD_OUT) else watch.level(name)
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
    scores, errors = watch.values(_SECOND), watch.values("held_out/second_error")
    if _SECOND not in watch.row or len(scores) < 3:
        return None
    last = range(len(scores) - VALIDATIONS, len(scores))
    best = max(range(last.start), key=lambda at: scores[at])
    noise = {at: Z95 * math.hypot(errors[best], errors[at]) for at in last}
    if any(scores[best] - scores[at] <= noise[at] for at in last):
        return None
    return "STOP", (
        f"the second scorer's held-out score fell from {scores[best]:.3g} to {scores[-2]:.3g} and {scores[-1]:.3g}, by "
        f"more than noise ({noise[last[-1]]:.2g}): the policy has learned to please its reward"
    )


def unwatched(watch: HealthMonitor) -> Said:
    silent = watch.row.get(_SILENT)
    if silent is None or _SECOND in watch.row:
        return None
    reason = f"the second scorer was silent on {silent:.0%} of the held-out answers"
    twice = [share > 0.5 for share in watch.values(_SILENT)[-VALIDATIONS:]]
    return ("STOP", f"{reason}, twice in a row") if len(twice) > 1 and all(twice) else ("HOLD", reason)


def entropy(watch: HealthMonitor) -> Said:
    """Collapse (arXiv 2505.22617), never an absolute threshold. It may fall as far as the held-out errors do, and is
    noise where most groups have nothing left to learn and are right."""
    least, most = ENTROPY
    share, errors = watch.level(_NO_GRADIENT), _errors_left(watch)
    for change in watch.changes("entropy"):
        if not least * change.first <= change.last <= most * change.first:
            surer = least * change.first * errors <= change.last <= change.first
            few = share is not None and share > MOST and _all_right(watch)
            return _unexplained(watch, _suspect(watch, str(change)), explained=surer or errors == 0 or few)
    return None


def solved(watch: HealthMonitor) -> Said:
    first, scores, share = watch.first(_SCORE), watch.values(_SCORE), watch.level(_NO_GRADIENT)
    if _SCORE not in watch.row or first is None or share is None:
        return None
    now = min(scores[-VALIDATIONS:])
    risen = now >= SOLVED and now - first > ACCURACY_NOISE
    if not risen or share <= ZERO_VARIANCE or not _all_right(watch):
        return None
    rose = f"held-out accuracy rose from {first:.3g} to {now:.3g}"
    return "PASS", f"solved: {rose}, and {share:.0%} of the groups have nothing left to learn from"


def grad_norm(watch: HealthMonitor) -> Said:
    values, limit = watch.recent("grad_norm"), watch.settings.grad_norm
    return _suspect(watch, f"grad_norm was over {limit:g} all the time") if values and min(values) > limit else None


def loss_spike(watch: HealthMonitor) -> Said:
    """A loss that is beyond all that it was in the first window and in the one before."""
    losses, (times, least) = watch.values("loss"), LOSS_SPIKE
    if not losses:
        return None
    before = max(map(abs, (*losses[:WINDOW], *losses[-WINDOW - 1 : -1])))
    limit = max(times * before, least)
    return _suspect(watch, f"loss jumped to {losses[-1]:.3g}") if abs(losses[-1]) > limit else None


def reward_flat(watch: HealthMonitor) -> Said:
    """A fall beyond the noise between steps; and, as a note, no rise beyond it in a long training."""
    change = next(iter(watch.changes("reward")), None)
    if change is None or change.last >= SOLVED or (watch.level("accuracy") or 0.0) >= SOLVED:
        return None
    values = watch.values("reward")
    noise = Z95 * math.hypot(stdev(values[:WINDOW]), stdev(values[-WINDOW:])) / math.sqrt(WINDOW)
    if change.fall > ACCURACY_FALL and -change.rise > noise:
        return _suspect(watch, str(change))
    flat = len(values) >= FLAT_STEPS and change.rise <= noise
    return ("PASS", f"no rise in {len(values)} steps: {change}") if flat else None


def generation(watch: HealthMonitor) -> Said:
    """A note on the machine: the time of a token, for longer answers take longer."""
    seconds, length = (
        next(iter(watch.changes(name)), None) for name in ("seconds/generate", "completions/mean_length")
    )
    if seconds is None or length is None or not seconds.first * length.last:
        return None
    slower = seconds.last * length.first / (seconds.first * length.last) - 1
    return ("PASS", f"a generated token takes {slower:.0%} longer than at first") if slower > GENERATION_RISE else None


def _over(watch: HealthMonitor, limit: float, *names: str) -> Said:
    levels = ((name, watch.level(name)) for name in names)
    over = [f"{name} is {level:.2f}" for name, level in levels if level is not None and level > limit]
    return _suspect(watch, over[0]) if over else None


def _changed(watch: HealthMonitor, name: str, over: Callable[[MetricChange], bool], live: str = "") -> Said:
    """A metric of the held-out answers, or of a step's own (`live`: its name there)."""
    changes = watch.changes(f"{HELD_OUT}{name}", live or f"text/{name}")
    return next((_suspect(watch, str(change)) for change in changes if over(change)), None)


RULES: dict[str, Callable[[HealthMonitor], Said]] = {
    "not_finite": not_finite,
    "unscored": unscored,
    "no_gradient": no_gradient,
    "accuracy_collapse": lambda watch: (
        ("STOP", str(fell)) if (fell := _fallen(watch, 1 - ACCURACY_FLOOR, ACCURACY_NOISE)) else None
    ),
    "reward_diverges": reward_diverges,
    "kl": kl,
    "answer_kl": answer_kl,
    "second_score": second_score,
    "unwatched": unwatched,
    "entropy": entropy,
    "loss_spike": loss_spike,
    "reward_flat": reward_flat,
    "generation": generation,
    "length": lambda watch: _changed(
        watch, "length", lambda c: abs(c.rise) > watch.settings.length_drift * c.first, "completions/mean_length"
    ),
    "template": lambda watch: (
        _changed(watch, "prefix_share", lambda c: c.rise > SHARED_OPENINGS)
        or _changed(watch, "distinct_2", lambda c: c.fall > DISTINCT_FALL)
    ),
    "unanswered": lambda watch: (
        _changed(watch, "answered", lambda c: -c.rise > UNANSWERED)
        or _changed(watch, "refusals", lambda c: c.rise > UNANSWERED)
    ),
    "truncated": lambda watch: _over(watch, TRUNCATED, "completions/clipped_ratio", "held_out/truncated"),
    "zero_variance": lambda watch: _unexplained(watch, _over(watch, ZERO_VARIANCE, _NO_GRADIENT), _all_right(watch)),
    "grad_norm": grad_norm,
    "sampling_gap": lambda watch: _over(watch, SAMPLING_GAP, "sampling/sampling_logp_difference/mean"),
    "one_component": lambda watch: _unexplained(
        watch, _over(watch, COMPONENT_SHARE, *_components(watch)), (watch.latest(_SCORE) or 0.0) >= SOLVED
    ),
    "solved": solved,
}


def _unexplained(watch: HealthMonitor, sign: Said, explained: bool) -> Said:
    """What is left of a HOLD: nothing if the held-out score explains it, nor before the next validation."""
    if sign is None or sign[0] != "HOLD":
        return sign
    awaited = watch.values(_SCORE) and _SCORE not in watch.row
    return None if explained or awaited else sign


def _all_right(watch: HealthMonitor) -> bool:
    """Whether so many groups without a gradient may all be right: no more of them than answers are."""
    share, score, accuracy = watch.level(_NO_GRADIENT), watch.latest(_SCORE), watch.level("accuracy")
    if share is None or score is None:
        return False
    return share - min(score, score if accuracy is None else accuracy) <= ACCURACY_NOISE


def _errors_left(watch: HealthMonitor) -> float:
    """Share of the base model's errors on held-out prompts that are left; 0 in a task that is solved."""
    scores = watch.values(_SCORE)
    if not scores or scores[0] >= 1:
        return 1.0
    return 0.0 if scores[-1] >= SOLVED else (1 - scores[-1]) / (1 - scores[0])


def _suspect(watch: HealthMonitor, reason: str) -> Said:
    """HOLD, or STOP once accuracy has fallen too: honest learning shows each such sign as well."""
    accuracy = _fallen(watch, ACCURACY_FALL, ACCURACY_NOISE)
    return ("STOP", f"{reason}, and {accuracy}") if accuracy else ("HOLD", reason)


def _fallen(watch: HealthMonitor, share: float, noise: float) -> MetricChange | None:
    """Accuracy, on held-out prompts or on the step's own, whichever fell further, if it lost more than this share of
    its first value, and more than noise."""
    accuracy = max(watch.changes(_SCORE, "accuracy"), key=lambda change: change.fall, default=None)
    if accuracy is None or accuracy.fall <= share or -accuracy.rise <= noise:
        return None
    return accuracy


def _components(watch: HealthMonitor) -> list[str]:
    """Of the reward, those whose share may be too large. Where nothing can be checked, the scorers are what the reward
    is to be of."""
    apart = {"component/correct", *(_SCORERS if watch.values(_SECOND) else ())}
    return [name for name in watch.names() if name.startswith("component/") and name not in apart]
