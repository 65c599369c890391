import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from pipeline.core.redaction import (
    HIDDEN,
    errors_redacted,
    kept_secrets,
    redacted,
    secret_faults,
    secrets,
    without_secret,
    without_values,
)
from pipeline.recipe import load
from tests.loop import EMBEDDED
from tests.planted import planted

SECRET = "s3cr3t-canary-0123456789"


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://ann:{SECRET}@db:5432/traces",
        f"https://{SECRET}@host/path",
        f"http://catalogue/v1?token={SECRET}&warehouse=w",
        f"api_key: {SECRET}",
        f"{{'api_key': '{SECRET}', 'model': 'm'}}",
        f'{{"password": "{SECRET} with spaces"}}',
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        f"OPENAI_API_KEY={SECRET}",
        f"MLFLOW_TRACKING_PASSWORD={SECRET}",
        f"hf_token: {SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"given sk-{SECRET} and more",
        f"ghp_{SECRET.replace('-', '')}",
        f"hf_{SECRET.replace('-', '')}",
        f"glpat-{SECRET}",
    ],
)
def test_a_secret_is_hidden(text: str) -> None:
    shown = redacted(text)
    assert SECRET not in shown and SECRET.replace("-", "") not in shown
    assert HIDDEN in shown


@pytest.mark.parametrize(
    "text",
    [
        "training.dpo.max_tokens=512", "max_tokens: 512, tokens: many", "token: null",
        "traces.consent_key=user_consent", "s3://bucket/prefix/ask-me.yaml", "/models/champion@2",
        "rollout.weights=[5, 25, 100]", "the key 'a' is there twice; the first would be dropped",
        "models:/assistant@champion",
    ],
)  # fmt: skip
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted(text) == text


def test_values_of_the_environment_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", "an ordinary/word")
    monkeypatch.setenv("SERVING_API_KEY", "short")
    text = '{"a": "an ordinary/word", "b": "an%20ordinary%2Fword", "token": "short"}'
    assert without_values(text) == f'{{"a": "{HIDDEN}", "b": "{HIDDEN}", "token": "short"}}'


def test_secrets_are_told_by_their_variables() -> None:
    variables = {
        **planted(),
        "MLFLOW_TRACKING_URI": "https://ann:pass0word@host",
        "https_proxy": "http://ann:pr0xy-word@proxy:3128",
        "AWS_ACCESS_KEY_ID": "AKIA-no-secret",
        "MONKEY": "no-secret-either",
        "LAKE_CATALOGUE_URI": "https://host/v1?token=t0ken0000",
        "PATH": "/usr/bin:/bin",
    }
    assert {*planted().values(), "pass0word", "t0ken0000", "pr0xy-word"} <= set(secrets(variables))
    assert not {"AKIA-no-secret", "/usr/bin:/bin"} & set(secrets(variables))


@pytest.mark.parametrize("unit", ["a_", "://", "sk-", "password='", "eyJ", "access_", "token "])
def test_hostile_texts_are_read_in_linear_time(unit: str) -> None:
    redacted(unit * 100_000)  # of a quadratic pattern the run's time limit would tell


def test_what_a_process_prints_is_guarded() -> None:
    code = (
        "import os; from pipeline.core.redaction import guard_output; guard_output(); guard_output();"
        "key = os.environ['JUDGE_API_KEY']; print(key, 'token=kept');"
        "raise RuntimeError(f'no answer: {key}, password=gone-gone')"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**planted(), "PYTHONPATH": "."}, capture_output=True,
                          text=True, cwd=Path(__file__).parents[3], check=False)  # fmt: skip
    assert done.stdout == f"{HIDDEN} token=kept\n"
    assert f"RuntimeError: no answer: {HIDDEN}, password={HIDDEN}" in done.stderr


def test_no_error_that_leaves_a_step_quotes_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", "s3cr3t-t0ken")
    with pytest.raises(ValueError, match=r"refused \*\*\*") as caught, errors_redacted():
        try:
            raise OSError("the server said s3cr3t-t0ken")
        except OSError as cause:
            raise ValueError("refused s3cr3t-t0ken") from cause
    assert "s3cr3t" not in f"{caught.value!r} {caught.value.__cause__!r}"
    with pytest.raises(dg.Failure) as failed, errors_redacted():
        raise dg.Failure("no access with s3cr3t-t0ken")
    assert failed.value.description == "no access with ***"
    with pytest.raises(RuntimeError, match=r"\*\*\*"), errors_redacted():
        raise FileNotFoundError(2, "not there", "/srv/s3cr3t-t0ken")


PASSWORD = "s3cr3t-canary"


@pytest.mark.parametrize(
    ("variable", "address", "instead"),
    [
        ("MLFLOW_TRACKING_URI", f"https://ann:{PASSWORD}@host:5000", "MLFLOW_TRACKING_PASSWORD"),
        ("MLFLOW_TRACKING_URI", f"https://{PASSWORD}@host:5000", "MLFLOW_TRACKING_TOKEN"),
        ("MLFLOW_TRACKING_URI", f"postgresql://ann:{PASSWORD}@host/mlflow", "PGPASSWORD"),
        ("MLFLOW_TRACES_URI", f"http://ann:{PASSWORD}@host:5000", "MLFLOW_TRACKING_USERNAME"),
        ("TRACES_DATABASE_URL", f"postgresql://ann:{PASSWORD}@host/traces", "PGPASSFILE"),
        ("TRACES_DATABASE_URL", f"postgresql://host/traces?password={PASSWORD}", "PGPASSWORD"),
        ("TRACES_DATABASE_URL", f"mysql://ann:{PASSWORD}@host/traces", "read_default_file"),
        ("TRACES_DATABASE_URL", f"host=h dbname=traces password='{PASSWORD}'", "PGPASSWORD"),
        ("LAKE_CATALOGUE_URI", f"https://host/v1?token={PASSWORD}", "LAKE_CATALOGUE_TOKEN"),
        ("LAKE_CATALOGUE_URI", f"https://host/v1?credential=id:{PASSWORD}", "LAKE_CATALOGUE_CREDENTIAL"),
        ("LAKE_CATALOGUE_URI", f"postgresql://ann:{PASSWORD}@host/catalogue", "PGPASSWORD"),
        ("JUDGE_URL", f"https://host/v1?api_key={PASSWORD}", "JUDGE_API_KEY"),
        ("SERVING_URL", f"https://{PASSWORD}@host/v1", "SERVING_API_KEY"),
        ("AWS_ENDPOINT_URL", f"http://key:{PASSWORD}@host:9000", "AWS_SECRET_ACCESS_KEY"),
        ("MLFLOW_TRACKING_URI", f"http://ann:{PASSWORD}@[host", "MLFLOW_TRACKING_PASSWORD"),
    ],
)
def test_an_address_with_a_secret_is_refused(variable: str, address: str, instead: str) -> None:
    with pytest.raises(ValueError, match=f"^{variable} has a .* set .*{instead}") as refusal:
        without_secret(variable, address)
    assert PASSWORD not in str(refusal.value)
    assert secret_faults({variable: address}) == [str(refusal.value)]


@pytest.mark.parametrize(
    "address",
    ["", "databricks", "http://host:5000", "postgresql://ann@host/db?sslmode=require", "sqlite:////a b/mlflow.db"],
)
def test_an_address_without_a_secret_is_itself(address: str) -> None:
    assert without_secret("MLFLOW_TRACKING_URI", address) == address


def test_a_kept_tree_has_neither_keys_nor_passwords() -> None:
    env = {"JUDGE_API_KEY": PASSWORD, "VLLM_PYTHON": "/opt/vllm/bin/python"}
    tree = {
        "source": {"uri": f"s3://key:{PASSWORD}@bucket"},
        "suites": [{"url": f"https://h?token={PASSWORD}"}],
        "env": env,
    }
    faults = list(kept_secrets(tree))
    assert [fault.split()[0] for fault in faults] == ["source.uri", "suites.0.url", "env.JUDGE_API_KEY"]
    assert PASSWORD not in "".join(faults)


def test_a_recipe_with_a_secret_does_not_resolve() -> None:
    with pytest.raises(ValueError, match=r"traces\.source\.uri has a password") as refusal:
        load(EMBEDDED, [f"traces.source={{kind: otel, uri: 's3://key:{PASSWORD}@bucket'}}"])
    assert PASSWORD not in str(refusal.value)
