"""The environment, read here alone: which deployment a run works on, and the addresses and secrets that no recipe has.

What torchrun and accelerate tell a trainer's process is theirs and is read there (pipeline/training). Light on
purpose: `dagster job launch` asks this module before anything else is imported.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from evals.lm_eval import LmEvalEnvironment
from pipeline.core.addresses import secret_faults, without_secret
from pipeline.core.mark_keys import MarkKeys
from pipeline.recipe.overrides import split
from pipeline.serving.endpoint import ServingAddresses, serving_addresses

ITERATION_TAG = "iteration"
"""On a run: the id of the iteration that it makes or goes on with."""
PINNED_TAG = "preference_tuning/pinned"
"""On a run: the id of the iteration with which its first step pinned its recipe."""
DATA_ROOT_TAG = "preference_tuning/data_root"
"""On a run: the folder that it works on."""
CHOICE_TAG = "preference_tuning/recipe"
"""On a run: the recipe's file and overrides that its launcher means, as JSON. The process that starts the run's worker,
a daemon for one, may have been started with others."""
ONE_AT_A_TIME = "preference_tuning/one_at_a_time"
"""On a run: the runs with one value of this tag work on the same records, and one of them works at a time."""
LATEST_ITERATION = "latest"
"""In a run's config: the iteration that is the newest when the run is made."""
PROJECT = Path("recipe.yaml")
EMBEDDED = Path(__file__).parent.parent / "jobs" / "recipes" / "embedded.yaml"


class Choice(NamedTuple):
    """A recipe's file, as an absolute path, and what overrides its fields."""

    recipe_path: str
    overrides: list[str]


@dataclass(frozen=True)
class Environment:
    """The variables as they are now; "" for one that is not set. Its repr shows no secret."""

    recipe: str
    """PREFERENCE_TUNING_RECIPE: a recipe's file; see `chosen`."""
    overrides: str
    """PREFERENCE_TUNING_OVERRIDES: what overrides its fields, divided by white space."""
    code_version: str
    """PREFERENCE_TUNING_CODE_VERSION: the commit that an image was built from."""
    traces_database: str = field(repr=False)
    """TRACES_DATABASE_URL: the PostgreSQL database with the table of traces."""
    langfuse: tuple[str, str, str] = field(repr=False)
    """LANGFUSE_BASE_URL (or LANGFUSE_HOST, as older SDKs call it), LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY."""
    lake_catalogue: str = field(repr=False)
    """LAKE_CATALOGUE_URI: the Iceberg catalogue, on PostgreSQL or REST."""
    lake_secrets: dict[str, str] = field(repr=False)
    """LAKE_CATALOGUE_TOKEN and LAKE_CATALOGUE_CREDENTIAL of a REST catalogue, as PyIceberg names them."""
    judge: tuple[str, str] = field(repr=False)
    """JUDGE_URL and JUDGE_API_KEY."""
    lm_eval: LmEvalEnvironment
    """LM_EVAL_PYTHON: the Python of an environment with lm-evaluation-harness."""
    serving: ServingAddresses
    """SERVING_URL and SERVING_API_KEY, and VLLM_PYTHON: a server, and the Python of an environment that has vLLM."""
    mlflow_traces: str = field(repr=False)
    """MLFLOW_TRACES_URI: the tracking server that traces are read from, where it is not that of MLFLOW_TRACKING_URI."""
    tracking: str = field(repr=False)
    """MLFLOW_TRACKING_URI: runs, and versions where no other address has those."""
    registry: str = field(repr=False)
    """MLFLOW_REGISTRY_URI: registered versions."""
    experiment: str
    """MLFLOW_EXPERIMENT_NAME: the experiment of the runs; "" is that of the model's name."""
    mark_keys: MarkKeys
    """PREFERENCE_TUNING_MARK_KEYS, or the file that PREFERENCE_TUNING_MARK_KEY_FILE names; else a file of the account,
    made at first use: $XDG_CONFIG_HOME/preference-tuning/mark-keys, ~/.config/... by default."""
    dagster_home: str
    """DAGSTER_HOME: where the instance's `dagster.yaml` is, if not in the working directory."""
    notify: str = field(repr=False)
    """NOTIFY_URL: a webhook that takes what people should know of a rollout."""
    kubeconfig: str
    """KUBECONFIG: the file that names the cluster."""
    ray: str
    """RAY_ADDRESS: the head of the cluster that works on data."""
    s3: dict[str, str]
    """AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, and AWS_REGION or AWS_DEFAULT_REGION, as PyIceberg names them: PyArrow
    takes the keys from the environment by itself, but not these."""
    ports: dict[str, str]
    """DAGSTER_PORT and MLFLOW_PORT: where `make ui` listens."""
    dagster_hosts: list[str]
    """DAGSTER_ALLOWED_HOSTS, divided by commas: the names, without a port, that Dagster's web server is asked by."""

    def traces_address(self) -> str:
        """Of the database with the table of traces. Raises ValueError where it is not set."""
        if not self.traces_database:
            raise ValueError(
                "The traces are in PostgreSQL: set TRACES_DATABASE_URL to postgresql://user@host/database."
            )
        return without_secret("TRACES_DATABASE_URL", self.traces_database)

    def catalogue_address(self) -> str:
        """Of the Iceberg catalogue; "" where none is set. Raises ValueError where a secret is in it."""
        return without_secret("LAKE_CATALOGUE_URI", self.lake_catalogue)

    def tracking_address(self) -> str:
        """Of MLflow's tracking; "" where none is set. Raises ValueError where a secret is in it."""
        return without_secret("MLFLOW_TRACKING_URI", self.tracking)

    def registry_address(self) -> str:
        """Of MLflow's registry; "" where it is that of the runs. Raises ValueError where a secret is in it."""
        return without_secret("MLFLOW_REGISTRY_URI", self.registry)

    def mlflow_address(self) -> str:
        """Of the tracking server with the traces. Raises ValueError where none is set."""
        if not (self.mlflow_traces or self.tracking):
            raise ValueError(
                "The traces are in MLflow: set MLFLOW_TRACES_URI to its tracking server, http://host:5000."
            )
        if self.mlflow_traces:
            return without_secret("MLFLOW_TRACES_URI", self.mlflow_traces)
        return self.tracking_address()

    def langfuse_address(self) -> str:
        """Of Langfuse, with the keys in it. Raises ValueError where one of the three is not set, or no address."""
        base_url, *keys = self.langfuse
        names = ("LANGFUSE_BASE_URL", "LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY")
        lacks = [name for name, value in zip(names, self.langfuse, strict=True) if not value]
        if lacks:
            raise ValueError(f"The traces are in Langfuse: set {', '.join(lacks)} (Settings, API keys of the project).")
        scheme, sign, host = base_url.rstrip("/").partition("://")
        if scheme not in ("http", "https") or not sign or not host or "@" in host:
            raise ValueError(
                "LANGFUSE_BASE_URL is no address of a server. Write https://cloud.langfuse.com or the like."
            )
        return f"{scheme}://{':'.join(quote(key, safe='') for key in keys)}@{host}"


def environment() -> Environment:
    read = os.environ.get
    s3 = {
        "s3.endpoint": read("AWS_ENDPOINT_URL_S3") or read("AWS_ENDPOINT_URL", ""),
        "s3.region": read("AWS_REGION") or read("AWS_DEFAULT_REGION", ""),
    }
    return Environment(
        recipe=read("PREFERENCE_TUNING_RECIPE", ""),
        overrides=read("PREFERENCE_TUNING_OVERRIDES", ""),
        code_version=read("PREFERENCE_TUNING_CODE_VERSION", ""),
        traces_database=read("TRACES_DATABASE_URL", ""),
        langfuse=(
            read("LANGFUSE_BASE_URL") or read("LANGFUSE_HOST", ""),
            read("LANGFUSE_PUBLIC_KEY", ""),
            read("LANGFUSE_SECRET_KEY", ""),
        ),
        lake_catalogue=read("LAKE_CATALOGUE_URI", ""),
        lake_secrets={
            name: value for name in ("token", "credential") if (value := read(f"LAKE_CATALOGUE_{name.upper()}", ""))
        },
        judge=(read("JUDGE_URL", ""), read("JUDGE_API_KEY", "")),
        lm_eval=LmEvalEnvironment(os.environ.get("LM_EVAL_PYTHON", "")),
        serving=serving_addresses(os.environ),
        mlflow_traces=read("MLFLOW_TRACES_URI", ""),
        tracking=read("MLFLOW_TRACKING_URI", ""),
        registry=read("MLFLOW_REGISTRY_URI", ""),
        experiment=read("MLFLOW_EXPERIMENT_NAME", ""),
        mark_keys=_mark_keys(),
        dagster_home=read("DAGSTER_HOME", ""),
        notify=read("NOTIFY_URL", ""),
        kubeconfig=read("KUBECONFIG", ""),
        ray=read("RAY_ADDRESS", ""),
        s3={name: value for name, value in s3.items() if value},
        ports={"DAGSTER": read("DAGSTER_PORT", "3000"), "MLFLOW": read("MLFLOW_PORT", "5000")},
        dagster_hosts=(read("DAGSTER_ALLOWED_HOSTS") or "127.0.0.1,localhost").replace(",", " ").split(),
    )


def choice_tag(tags: Mapping[str, str]) -> Choice:
    """What a run's tags say of its recipe; what the environment names where they say nothing."""
    return Choice(*json.loads(tags[CHOICE_TAG])) if CHOICE_TAG in tags else chosen()


def worker_environment(tags: Mapping[str, str]) -> dict[str, str]:
    """All variables of a run's worker, which chooses the recipe that the run's tags name."""
    choice = choice_tag(tags)
    words = [each if split(each) == [each] else f'"{each}"' for each in choice.overrides]
    chosen_here = {"PREFERENCE_TUNING_RECIPE": choice.recipe_path, "PREFERENCE_TUNING_OVERRIDES": " ".join(words)}
    return {**os.environ, **chosen_here}


def address_faults() -> list[str]:
    """One line for each address of the environment that has a secret in it."""
    return secret_faults(os.environ)


def _mark_keys() -> MarkKeys:
    read = os.environ.get
    given, file = read("PREFERENCE_TUNING_MARK_KEYS", ""), read("PREFERENCE_TUNING_MARK_KEY_FILE", "")
    if given or file:
        return MarkKeys(given, file)
    config = read("XDG_CONFIG_HOME") or Path("~/.config").expanduser()
    # A file of a pod ends with it, and so would the key.
    is_made = not read("KUBERNETES_SERVICE_HOST")
    return MarkKeys(file=Path(config, "preference-tuning", "mark-keys"), is_made=is_made)


def chosen() -> Choice:
    """What the environment names; else `recipe.yaml` in the working directory, as in a project of `pt init`; else the
    embedded recipe."""
    read = environment()
    default = PROJECT if PROJECT.is_file() else EMBEDDED
    return Choice(str(Path(read.recipe or default).absolute()), split(read.overrides))
