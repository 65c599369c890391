"""The two brakes of a training: its limit on KL, and the second scorer's fall. A stop by them alone is an early stop
where an earlier checkpoint beat the start: that one is the candidate."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.training.result import HealthFinding

BRAKES = ("answer_kl", "second_score")
"""Rules of the sentinel."""
SAME_DISTANCE = "kl"
"""Its limit on KL a token: of the same answers as `answer_kl`, so with a brake it is no other reason to stop."""


class HeldOutScores:
    """The score that checkpoints are ranked by, at the start and at each validation since."""

    def __init__(self, metric: str) -> None:
        """`metric`: its name in a row."""
        self._metric = metric
        self._start: float | None = None
        self._later: list[tuple[int, float | None]] = []

    def add(self, row: Mapping[str, Any]) -> None:
        """Take the row of a step or of the start; one without a validation changes nothing."""
        if "held_out/length" not in row:
            return
        step, score = int(row.get("step", 0)), row.get(self._metric)
        if step > 0:
            self._later.append((step, score))
        else:
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


def early_stop(findings: Sequence[HealthFinding], best: int | None) -> tuple[HealthFinding, ...]:
    """The findings of a row, those of brakes as notes where nothing else stops and the checkpoint of step `best`
    stands for the training; None: there is none to keep."""
    stops = {finding.rule for finding in findings if finding.verdict == "STOP"}
    if best is None or not stops.intersection(BRAKES) or stops - {*BRAKES, SAME_DISTANCE}:
        return tuple(findings)

    def note(finding: HealthFinding) -> HealthFinding:
        reason = f"{finding.reason}: ends here, the checkpoint of step {best} stays"
        return finding.model_copy(update={"verdict": "PASS", "reason": reason})

    return tuple(note(finding) if finding.verdict == "STOP" else finding for finding in findings)


def braked(findings: Sequence[HealthFinding]) -> bool:
    """Whether a brake ended the training early."""
    return any(finding.rule in BRAKES and finding.verdict == "PASS" for finding in findings)
