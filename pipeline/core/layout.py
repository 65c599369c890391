"""The names of everything below the data root, relative to it, with slashes. Names that one package alone uses below
one of these folders stay with it."""

# audit: the log of what was done to data and models. erasures: a proof for each forgotten user. evaluation: answers,
# judgements and the ledger of gates. iterations: the records of each pass. lake: the governed table. production: the
# embedded traffic and the gateway's spans. rewards: findings by day. rollout: events and the split. suites: items of
# evaluations. traces: watermark, reports, rejected rows and datasets.
AUDIT, ERASURES, ITERATIONS, LAKE, MLFLOW = "audit", "erasures", "iterations", "lake", "mlflow"
EVALUATION = "evaluation"
PRODUCTION, REGISTRY, REWARDS, ROLLOUT, TRACES = "production", "registry", "rewards", "rollout", "traces"
EVALUATION_RESULTS = "evaluation_results"
"""A folder below the spans of an `otel` source whose files hold scores of the calls."""
SAMPLES, BASE_MODELS = "samples", "base_models"
SUITES = "suites"
OWN = frozenset([
    AUDIT, BASE_MODELS, ERASURES, EVALUATION, ITERATIONS, LAKE, MLFLOW, REGISTRY, REWARDS, ROLLOUT, SAMPLES,
    TRACES,
])  # fmt: skip
"""What the loop keeps below the data root; `production` and `suites` are raw data, as a user's own would be."""

# Below `audit/`.
AUDIT_LOG, AUDIT_HEAD, AUDIT_LOCK = f"{AUDIT}/log.jsonl", f"{AUDIT}/head.json", f"{AUDIT}/lock"

# Below `traces/`.
WATERMARK, ERASED, ERASED_LOCK = f"{TRACES}/watermark.json", f"{TRACES}/erased.json", f"{TRACES}/erased.lock"
MARKS = f"{TRACES}/marks.json"
"""The ids of the keys of users' marks; the keys are elsewhere."""
DAYS, RETIRED_DAYS, REJECTED = f"{TRACES}/days", f"{TRACES}/days/retired", f"{TRACES}/rejected"
DATASETS, STAGING = f"{TRACES}/datasets", f"{TRACES}/staging"
SCORED_TRACES = f"{STAGING}/scored"
"""Hashes of the traces that a part of scores is about: of one that is not about a run's calls nothing is read."""

# Below `rewards/`.
FINDINGS, REVIEWS = f"{REWARDS}/findings", f"{REWARDS}/reviews"
JUDGES, JUDGE_SERVER = f"{REWARDS}/judges", f"{REWARDS}/judge_server"

# Below `samples/`.
SAMPLE_ANSWERS, SAMPLE_SERVING = f"{SAMPLES}/answers", f"{SAMPLES}/serving"

ANSWERS, GATE_LEDGER = f"{EVALUATION}/answers", f"{EVALUATION}/ledger"
JUDGEMENTS = f"{EVALUATION}/judgements"
FROZEN_SUITES = f"{EVALUATION}/suites"
SERVING = f"{EVALUATION}/serving"
BLOCKS = f"{REGISTRY}/blocks"
MLFLOW_DATABASE, MLFLOW_ARTIFACTS = f"{MLFLOW}/mlflow.db", f"{MLFLOW}/artifacts"
LATEST = f"{ITERATIONS}/latest.json"
"""The newest iteration; a run that names none works on it."""

# Below `iterations/<id>/`: the records of the stages, and their other files.
RECIPE = "recipe.json"
GOVERNED = "traces.json"
LABELS, LABEL_TABLE, OPINIONS = "reward_labels.json", "reward_labels", "opinions"
LABELLING_LOCK = "labelling.lock"
REWARD_MODEL, REWARD_MODEL_FOLDER = "reward_model.json", "reward_model"
REWARD_MODEL_LOCK = "reward_model.lock"
FRESH, SAMPLE_TABLE = "samples.json", "samples"
PREFERENCES, PREFERENCE_TABLES = "preference_dataset.json", "preference_dataset"
TRAINING = "training"
PLAN_FILE, RESULT_FILE, ROWS_FILE, HELD_OUT_FILE = "plan.json", "result.json", "data.parquet", "held_out.parquet"
"""Inside a training's folder, which is all that a trainer knows of the data root."""
BLOCKED_FILE = "blocked.json"
"""In the same folder: an erasure's word that the training is to end."""
JOURNAL_FILE, METRICS_FILE = "journal.jsonl", "metrics.jsonl"
"""In the same folder: what happened when, and the metrics of each step as they came."""
PLAN, RESULT, LEDGER = f"{TRAINING}/{PLAN_FILE}", f"{TRAINING}/{RESULT_FILE}", f"{TRAINING}/ledger.json"
TRAINING_ROWS, HELD_OUT_ROWS = f"{TRAINING}/{ROWS_FILE}", f"{TRAINING}/{HELD_OUT_FILE}"
JOURNAL = f"{TRAINING}/{JOURNAL_FILE}"
MIRRORS = "mirrors.json"
"""The places of copied checkpoints; outside the training's folder, which `pt retry` empties."""
CHECKPOINTS, ATTEMPTS = f"{TRAINING}/checkpoints", f"{TRAINING}/attempts"
SUITE_PINS, EVAL_PLAN, EVAL_ATTEMPTS = "suites.json", "eval_plan.json", "eval_attempts"
EVAL_REPORT, EVIDENCE, GATE_VERDICT = "eval_report.json", "evidence", "gate_verdict.json"
MODEL_VERSION = "model_version.json"
BEGUN, OUTCOME = "begun.json", "outcome.json"
PAGE = "report.html"
"""Rendered for people from the records."""


def iteration(id: str, *parts: str) -> str:
    return "/".join((ITERATIONS, id, *parts))


def suite(name: str, seed: int, items: int) -> str:
    return f"{SUITES}/{name}-seed-{seed}-items-{items}.jsonl"


def answers(model: str, protocol: str, folder: str = ANSWERS) -> str:
    """The journal of one model's answers under one protocol (both by digest)."""
    return f"{folder}/{model}/{protocol}.jsonl"


def gate_ledger(model_name: str) -> str:
    return f"{GATE_LEDGER}/{model_name}"


def day_report(day: str) -> str:
    return f"{DAYS}/{day}.json"


def rejected_rows(day: str) -> str:
    return f"{REJECTED}/{day}.jsonl"


def window(digest: str) -> str:
    return f"{DATASETS}/{digest}.json"


def proof(id: str) -> str:
    return f"{ERASURES}/{id}.json"


def pending_erasure(id: str) -> str:
    return f"{ERASURES}/pending/{id}.json"


def rollout(model_name: str, *parts: str) -> str:
    return "/".join((ROLLOUT, model_name, *parts))


def split_file(model_name: str) -> str:
    return rollout(model_name, "router.json")


def slot_file(model_name: str) -> str:
    return rollout(model_name, "slots.json")


def gateway(model_name: str, *parts: str) -> str:
    return rollout(model_name, "gateway", *parts)


def served(model_name: str) -> str:
    """The folder of the gateway's spans: a file for each day and process."""
    return "/".join((PRODUCTION, "served", model_name))


def feedback(model_name: str) -> str:
    """Users' feedback on answers of the gateway, below its spans, so that one source reads both."""
    return f"{served(model_name)}/{EVALUATION_RESULTS}"
