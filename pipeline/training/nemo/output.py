"""NeMo RL's output lines, read as metrics: a row for each of its steps, in our names.

Its numbers by step go to logging services or to the terminal and nowhere else; the terminal needs no service. A line
that is not known is passed over, so another release costs metrics and never a training. `mfu` is its own: of the
update alone, by its own table of peaks. Its math environment pays 1 or 0, so a step's reward is its accuracy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

Row = dict[str, float]

_BULLET = re.compile(r"\s*[•-]\s+(?P<label>[^:]+):\s+(?P<value>[-+\w.]+)(?P<unit>%?)")
_STEP = re.compile(r"=+ Step \d+/\d+ =+\s*$")
_SECTION = re.compile(r"\W*(Training Results|Validation Results|Validation Timing|Timing|Performance Metrics)\b.*:\s*$")

LABELS = {
    "Training Results": {
        "loss": ("loss",),
        "avg reward": ("reward", "accuracy"),
        "avg total reward": ("reward", "accuracy"),
        "mean generation length": ("completions/mean_length",),
        "accuracy": ("rewards/accuracies",),  # of DPO
    },
    "Timing": {
        "total step time": ("seconds/step",),
        "generation": ("seconds/generate",),
        "reward_calculation": ("seconds/reward",),
        "policy_and_reference_logprobs": ("seconds/logprobs",),
        "policy_training": ("seconds/update",),
        "checkpointing": ("seconds/save",),
    },
    "Performance Metrics": {
        "e2e (tokens/sec/gpu)": ("tokens_per_s_per_device",),
        "e2e (tokens/sec)": ("tokens_per_s",),
        "training model floating point utilization": ("mfu",),
    },
    "Validation Results": {
        "accuracy": ("held_out/accuracy",),
        "average response length": ("held_out/length",),
    },
    "Validation Timing": {"total validation time": ("seconds/validation",)},
}
"""By section of its output and lower-case label: our metrics."""
UNSEEN = ("kl", "entropy", "grad_norm", "frac_reward_zero_std", "completions/clipped_ratio", "text/distinct")
"""Metrics with a limit in `training.sentinel` that it sends to logging services alone."""


class Output:
    """Reads lines from `step` on, which is where the training resumes. Its own count starts anew with each epoch."""

    def __init__(self, step: int) -> None:
        self.step = step
        """The last one whose results were read."""
        self._section = ""
        self._row: Row = {}
        self._results = False

    def read(self, line: str) -> Row | None:
        """Take a line; returns a step's row once the next step begins."""
        if _STEP.search(line):
            return self.flush()
        if header := _SECTION.match(line):
            return self._enter(header[1])
        if match := _BULLET.match(line):
            for name, value in self._values(match):
                self._row[name] = value
        return None

    def flush(self) -> Row | None:
        """The row that is open, if its step was finished."""
        row = self._row
        done = self._results or any(name.startswith("held_out/") for name in row)  # asked before the first step
        self._row, self._results, self._section = {}, False, ""
        if not done:
            return None
        beside = row.get("seconds/save", 0.0) + row.get("seconds/validation", 0.0)
        if "seconds/step" in row:  # NeMo RL counts them in
            row["seconds/step"] = max(0.0, row["seconds/step"] - beside)
        return {"step": float(self.step), **row}

    def _enter(self, section: str) -> Row | None:
        closed = None
        if section == "Training Results":
            closed = self.flush() if self._results else None
            self.step += 1
            self._results = True
        self._section = section
        return closed

    def _values(self, match: re.Match[str]) -> Iterator[tuple[str, float]]:
        names = LABELS.get(self._section, {}).get(match["label"].strip().lower(), ())
        try:
            value = float(match["value"].rstrip("s") if self._section.endswith("Timing") else match["value"])
        except ValueError:
            return
        yield from ((name, value / 100 if match["unit"] else value) for name in names)


def begins(line: str) -> bool:
    """Whether the training loop has been reached."""
    return bool(_STEP.search(line)) or "Starting validation at step" in line
