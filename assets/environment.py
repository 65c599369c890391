"""The environment, read here alone: which deployment a run works on, and addresses and secrets, which no recipe has.
It is light: `dagster job launch` imports it before anything else."""

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from pipeline.core.mark_keys import MarkKeys
from pipeline.core.redaction import secret_faults, without_secret
from pipeline.recipe import split_overrides
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
PROJECT = Path("recipe.yaml")
EMBEDDED = Path(__file__).parent.parent / "jobs" / "recipes" / "embedded.yaml"


class Choice(NamedTuple):
    """A recipe's file, as an absolute path, and what overrides its fields."""

    recipe_path: str
    overrides: list[str]


def _variable(*names: str) -> str:
    """The first of these that is set and not empty; else ""."""
    return field(default_factory=lambda: next((os.environ[e] for e in names if os.environ.get(e)), ""), repr=False)


@dataclass(frozen=True)
class Environment:
    """The variables as they are when it is made; "" for one that is not set. Its repr shows no secret."""

    recipe: str = _variable("PREFERENCE_TUNING_RECIPE")
    """A recipe's file; see `chosen`."""
    overrides: str = _variable("PREFERENCE_TUNING_OVERRIDES")
    """What overrides its fields, divided as a shell divides words."""
    code_version: str = _variable("PREFERENCE_TUNING_CODE_VERSION")
    """The commit that an image was built from."""
    traces_database: str = _variable("TRACES_DATABASE_URL")
    """The database that a query of traces goes to."""
    langfuse_url: str = _variable("LANGFUSE_BASE_URL", "LANGFUSE_HOST")
    """The second name is that of older SDKs."""
    langfuse_public_key: str = _variable("LANGFUSE_PUBLIC_KEY")
    langfuse_secret_key: str = _variable("LANGFUSE_SECRET_KEY")
    lake_catalogue: str = _variable("LAKE_CATALOGUE_URI")
    """The Iceberg catalogue, on PostgreSQL or REST."""
    lake_token: str = _variable("LAKE_CATALOGUE_TOKEN")
    """Of a REST catalogue, or the next one."""
    lake_credential: str = _variable("LAKE_CATALOGUE_CREDENTIAL")
    judge_url: str = _variable("JUDGE_URL")
    judge_key: str = _variable("JUDGE_API_KEY")
    serving: ServingAddresses = field(default_factory=lambda: serving_addresses(os.environ))
    """SERVING_URL and SERVING_API_KEY, and VLLM_PYTHON: a server, and the Python of an environment that has vLLM."""
    mlflow_traces: str = _variable("MLFLOW_TRACES_URI", "MLFLOW_TRACKING_URI")
    """The tracking server that traces are read from."""
    tracking: str = _variable("MLFLOW_TRACKING_URI")
    """Runs, and versions where no other address has those."""
    registry: str = _variable("MLFLOW_REGISTRY_URI")
    """Registered versions."""
    experiment: str = _variable("MLFLOW_EXPERIMENT_NAME")
    """The experiment of the runs; "" is that of the model's name."""
    dagster_home: str = _variable("DAGSTER_HOME")
    """Where the instance's `dagster.yaml` is, if not in the working directory."""
    notify: str = _variable("NOTIFY_URL")
    """A webhook that takes what people should know of a rollout."""
    kubeconfig: str = _variable("KUBECONFIG")
    """The file that names the cluster."""
    ray: str = _variable("RAY_ADDRESS")
    """The head of the cluster that works on data."""
    s3_endpoint: str = _variable("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    """PyArrow takes the keys from the environment by itself, but not this one and the region."""
    s3_region: str = _variable("AWS_REGION", "AWS_DEFAULT_REGION")
    dagster_port: str = _variable("DAGSTER_PORT")
    """Where `make ui` listens, as the next one."""
    mlflow_port: str = _variable("MLFLOW_PORT")
    dagster_hosts: str = _variable("DAGSTER_ALLOWED_HOSTS")
    """The names, without a port, that Dagster's web server is asked by, divided by commas."""

    @property
    def mark_keys(self) -> MarkKeys:
        """PREFERENCE_TUNING_MARK_KEYS, or the file that PREFERENCE_TUNING_MARK_KEY_FILE names; else a file of the
        account, made at first use: $XDG_CONFIG_HOME/preference-tuning/mark-keys, ~/.config/... by default."""
        read = os.environ.get
        given, file = read("PREFERENCE_TUNING_MARK_KEYS", ""), read("PREFERENCE_TUNING_MARK_KEY_FILE", "")
        if given or file:
            return MarkKeys(given, file)
        config = read("XDG_CONFIG_HOME") or Path("~/.config").expanduser()
        # A file of a pod ends with it, and so would the key.
        is_made = not read("KUBERNETES_SERVICE_HOST")
        return MarkKeys(file=Path(config, "preference-tuning", "mark-keys"), is_made=is_made)

    def lake_properties(self, is_rest: bool) -> dict[str, str]:
        rest = {"token": self.lake_token, "credential": self.lake_credential} if is_rest else {}
        named = {"s3.endpoint": self.s3_endpoint, "s3.region": self.s3_region, **rest}
        return {name: value for name, value in named.items() if value}

    def langfuse_address(self) -> str:
        """Of Langfuse, with the keys in it. Raises ValueError where one of the three is not set."""
        keys = self.langfuse_public_key, self.langfuse_secret_key
        names = ("LANGFUSE_BASE_URL", "LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY")
        if lacks := [name for name, value in zip(names, (self.langfuse_url, *keys), strict=True) if not value]:
            raise ValueError(f"The traces are in Langfuse: set {', '.join(lacks)} (Settings, API keys of the project).")
        scheme, _, host = self.langfuse_url.rstrip("/").partition("://")
        if scheme not in ("http", "https") or not host or "@" in host:
            raise ValueError(
                "LANGFUSE_BASE_URL is no address of a server. Write https://cloud.langfuse.com or the like."
            )
        return f"{scheme}://{':'.join(quote(key, safe='') for key in keys)}@{host}"


def named_address(variable: str, value: str, example: str) -> str:
    """Of a source. Raises ValueError where it is not set, or has a secret in it."""
    if not value:
        raise ValueError(f"The traces are on a server: set {variable} to {example}.")
    return without_secret(variable, value)


def environment() -> Environment:
    return Environment()


def choice_tag(tags: Mapping[str, str]) -> Choice:
    """What a run's tags say of its recipe; what the environment names where they say nothing."""
    return Choice(*json.loads(tags[CHOICE_TAG])) if CHOICE_TAG in tags else chosen()


def worker_environment(tags: Mapping[str, str]) -> dict[str, str]:
    """All variables of a run's worker, which chooses the recipe that the run's tags name."""
    choice = choice_tag(tags)
    overrides = shlex.join(choice.overrides)
    chosen_here = {"PREFERENCE_TUNING_RECIPE": choice.recipe_path, "PREFERENCE_TUNING_OVERRIDES": overrides}
    return {**os.environ, **chosen_here}


def address_faults() -> list[str]:
    """One line for each address of the environment that has a secret in it."""
    return secret_faults(os.environ)


def chosen() -> Choice:
    """What the environment names; else `recipe.yaml` in the working directory, as in a project of `pt init`; else the
    embedded recipe."""
    read = environment()
    default = PROJECT if PROJECT.is_file() else EMBEDDED
    return Choice(str(Path(read.recipe or default).absolute()), split_overrides(read.overrides))
