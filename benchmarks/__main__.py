"""Runs every benchmark in its small size, two at a time: `python -m benchmarks [NAME ...]`.

Figures of a small size say nothing. A benchmark fails where it ends with another code than 0, or where its last line is
not JSON with the keys below.
"""

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

KEYS = {
    "chaos": ("kills", "episodes", "violations"),
    "resume": ("kill_schedules", "distinct_digests", "goodput"),
    "evaluation": ("gate_pass_at_margin", "gate_decisions_equal", "variance_ratio", "same_evidence_after_kills"),
    "signals": ("seeds", "probe_min", "chosen_is_best_share"),
    "gpu": ("speed", "attention", "matrix"),
    "sentinel": ("detected_share", "false_stop_share", "seeds"),
    "training": ("ratio_to_bare_trl", "same_weights"),
    "traces": ("floor_ratio", "cpu_ratio_to_pandas", "two_process_speedup"),
    "rewards": ("lost_labels",),
    "gateway": ("split_z", "users_on_both_arms", "unrecorded"),
    "rollout": ("false_rollback", "advance_worse", "tally_difference"),
    "mutation": ("mutants", "killed", "survived", "timed_out"),
    "erasure": ("planted", "found", "left_after", "others_changed", "kills", "proofs_differing"),
    "preemption": ("goodput", "worst", "time_share", "interval"),
    "pii": ("recall", "kept"),
}
"""Each program, the longest first, with keys that its last line must have."""


def outcome(name: str) -> tuple[str, float]:
    """Runs one; why it failed, or "", and its seconds."""
    begun = time.monotonic()
    command = [sys.executable, "-m", f"benchmarks.{name}", "--small"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    return _problem(name, process), time.monotonic() - begun


def _problem(name: str, process: subprocess.CompletedProcess[str]) -> str:
    if process.returncode:
        return f"ended with {process.returncode}:\n{process.stdout[-2000:]}{process.stderr[-2000:]}"
    last = process.stdout.strip().rpartition("\n")[2]
    try:
        figures = json.loads(last)
    except ValueError:
        return f"its last line is no JSON: {last}"
    missing = [key for key in KEYS[name] if key not in figures]
    return f"its last line has no {', '.join(missing)}: {last}" if missing else ""


def main(names: list[str]) -> int:
    if unknown := [name for name in names if name not in KEYS]:
        print(f"There is no benchmark {', '.join(unknown)}. There are: {', '.join(KEYS)}")
        return 2
    failed = 0
    with ThreadPoolExecutor(2) as pool:
        running = {pool.submit(outcome, name): name for name in names or KEYS}
        for each in as_completed(running):
            problem, seconds = each.result()
            failed += bool(problem)
            print(f"{running[each]:<11} {seconds:6.0f} s  {problem or 'ok'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
