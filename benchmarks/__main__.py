"""Runs every benchmark in its small size: `python -m benchmarks [NAME ...]`.

A benchmark fails where it ends with another code than 0, or where its last line is not JSON with the keys below.
"""

import json
import subprocess
import sys
import time

KEYS = {
    "traces": ("floor_ratio", "cpu_ratio_to_pandas", "two_process_speedup"),
    "pii": ("recall", "kept"),
    "rewards": ("lost_labels",),
    "training": ("ratio_to_bare_trl", "same_weights"),
    "resume": ("kill_schedules", "distinct_digests", "goodput"),
    "sentinel": ("detected_share", "false_stop_share", "seeds"),
    "evaluation": (),
    "signals": (),
    "gateway": (),
    "rollout": (),
    "erasure": ("planted", "found", "left_after", "others_changed", "kills", "proofs_differing"),
    "chaos": ("kills", "episodes", "violations"),
    "preemption": ("goodput", "worst", "time_share", "interval"),
    "gpu": (),
    "mutation": ("mutants", "killed", "survived", "timed_out"),
}
"""Each program with keys that its last line must have."""


def failure(name: str) -> str:
    """Runs one; why it failed, or ""."""
    command = [sys.executable, "-m", f"benchmarks.{name}", "--small"]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if process.returncode:
        return f"ended with {process.returncode}:\n{process.stdout[-3000:]}"
    last = process.stdout.strip().rpartition("\n")[2]
    try:
        figures = json.loads(last)
    except ValueError:
        return f"its last line is no JSON: {last}"
    missing = [key for key in KEYS[name] if key not in figures]
    return f"its last line has no {', '.join(missing)}: {last}" if missing or not figures else ""


def main(names: list[str]) -> int:
    if unknown := [name for name in names if name not in KEYS]:
        print(f"There is no benchmark {', '.join(unknown)}. There are: {', '.join(KEYS)}")
        return 2
    failed = 0
    for name in names or KEYS:
        begun = time.monotonic()
        why = failure(name)
        failed += bool(why)
        print(f"{name:<11} {time.monotonic() - begun:6.0f} s  {why or 'ok'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
