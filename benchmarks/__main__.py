"""Runs every benchmark in its small size, two at a time: `python -m benchmarks [NAME ...]`. Figures of a small size say
nothing; a benchmark fails by its exit code, or where its last line is not JSON with the figures below."""

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

ANY = None
FIGURES: dict[str, dict[str, Any]] = {
    "chaos": {"kills": ANY, "episodes": ANY, "violations": 0},
    "resume": {"kill_schedules": ANY, "distinct_digests": {"grpo": 1, "dpo": 1}, "goodput": ANY},
    "evaluation": {"gate_pass_at_margin": ANY, "gate_decisions_equal": 1, "same_evidence_after_kills": 1},
    "signals": {"seeds": ANY, "probe_min": ANY, "chosen_is_best_share": ANY},
    "gpu": {"speed": ANY, "serving embedded": ANY, "matrix": ANY},
    "sentinel": {"detected_share": ANY, "false_stop_share": ANY, "seeds": ANY},
    "training": {"ratio_to_bare_trl": ANY, "same_weights": 1},
    "traces": {"floor_ratio": ANY, "cpu_ratio_to_pandas": ANY, "two_process_speedup": ANY},
    "rewards": {"lost_labels": 0, "ours_mislabelled": 0},
    "gateway": {"split_z": ANY, "users_on_both_arms": 0, "unrecorded": 0, "errors_with_default_retries": 0},
    "rollout": {"false_rollback": ANY, "harmless_promoted": ANY, "loss3_promoted": ANY, "rollback_ticks": 1},
    "mutation": {"mutants": ANY, "killed": ANY, "survived": ANY, "timed_out": ANY},
    "erasure": {"planted": ANY, "found": ANY, "left_after": 0, "others_changed": 0, "proofs_differing": 0},
    "preemption": {"goodput": ANY, "worst": ANY, "time_share": ANY},
    "models": {"trained_or_refused_before_labels": 1.0, "silently_wrong": 0, "exports_equal": 1.0, "refused": ANY},
    "places": {"right": ANY, "refused_before_paid": ANY, "silently_wrong": 0, "preflight_s": ANY},
    "nights": {"false_discovery_rate": ANY, "nights_refused": 0, "harmless_promoted": ANY, "mb_a_night": ANY},
    "pii": {"recall": ANY, "kept": ANY},
}
"""Each program, the longest first, with the figures of its last line; a value is a promise that holds at any size."""


def outcome(name: str) -> tuple[str, float]:
    """Runs one; why it failed, or "", and its seconds."""
    begun = time.monotonic()
    command = [sys.executable, "-m", f"benchmarks.{name}", "--small"]
    process = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    return _problem(name, process), time.monotonic() - begun


def _problem(name: str, process: subprocess.CompletedProcess[str]) -> str:
    if process.returncode:
        return f"ended with {process.returncode}:\n{process.stdout[-2000:]}{process.stderr[-2000:]}"
    last = process.stdout.strip().rpartition("\n")[2]
    try:
        figures = json.loads(last)
    except ValueError:
        return f"its last line is no JSON: {last}"
    wrong = [
        f"{key} is {figures.get(key, 'missing')}"
        for key, value in FIGURES[name].items()
        if key not in figures or (value is not ANY and figures[key] != value)
    ]
    return f"{', '.join(wrong)} in its last line: {last}" if wrong else ""


def main(names: list[str]) -> int:
    if unknown := [name for name in names if name not in FIGURES]:
        print(f"There is no benchmark {', '.join(unknown)}. There are: {', '.join(FIGURES)}")
        return 2
    failed = 0
    with ThreadPoolExecutor(2) as pool:
        running = {pool.submit(outcome, name): name for name in names or FIGURES}
        for each in as_completed(running):
            problem, seconds = each.result()
            failed += bool(problem)
            print(f"{running[each]:<11} {seconds:6.0f} s  {problem or 'ok'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
