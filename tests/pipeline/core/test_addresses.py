import pytest

from pipeline.core.redaction import kept_secrets, secret_faults, without_secret
from pipeline.recipe import load
from tests.loop import EMBEDDED

SECRET = "s3cr3t-canary"


@pytest.mark.parametrize(
    ("variable", "address", "instead"),
    [
        ("MLFLOW_TRACKING_URI", f"https://ann:{SECRET}@host:5000", "MLFLOW_TRACKING_PASSWORD"),
        ("MLFLOW_TRACKING_URI", f"https://{SECRET}@host:5000", "MLFLOW_TRACKING_TOKEN"),
        ("MLFLOW_TRACKING_URI", f"postgresql://ann:{SECRET}@host/mlflow", "PGPASSWORD"),
        ("MLFLOW_TRACES_URI", f"http://ann:{SECRET}@host:5000", "MLFLOW_TRACKING_USERNAME"),
        ("TRACES_DATABASE_URL", f"postgresql://ann:{SECRET}@host/traces", "PGPASSFILE"),
        ("TRACES_DATABASE_URL", f"postgresql://host/traces?password={SECRET}", "PGPASSWORD"),
        ("TRACES_DATABASE_URL", f"host=h dbname=traces password='{SECRET}'", "PGPASSWORD"),
        ("LAKE_CATALOGUE_URI", f"https://host/v1?token={SECRET}", "LAKE_CATALOGUE_TOKEN"),
        ("LAKE_CATALOGUE_URI", f"https://host/v1?credential=id:{SECRET}", "LAKE_CATALOGUE_CREDENTIAL"),
        ("LAKE_CATALOGUE_URI", f"postgresql://ann:{SECRET}@host/catalogue", "PGPASSWORD"),
        ("JUDGE_URL", f"https://host/v1?api_key={SECRET}", "JUDGE_API_KEY"),
        ("SERVING_URL", f"https://{SECRET}@host/v1", "SERVING_API_KEY"),
        ("AWS_ENDPOINT_URL", f"http://key:{SECRET}@host:9000", "AWS_SECRET_ACCESS_KEY"),
        ("MLFLOW_TRACKING_URI", f"http://ann:{SECRET}@[host", "MLFLOW_TRACKING_PASSWORD"),
    ],
)
def test_an_address_with_a_secret_is_refused(variable: str, address: str, instead: str) -> None:
    with pytest.raises(ValueError, match=f"^{variable} has a .* set .*{instead}") as refusal:
        without_secret(variable, address)
    assert SECRET not in str(refusal.value)
    assert secret_faults({variable: address}) == [str(refusal.value)]


@pytest.mark.parametrize(
    "address",
    ["", "databricks", "http://host:5000", "postgresql://ann@host/db?sslmode=require", "sqlite:////a b/mlflow.db"],
)
def test_an_address_without_a_secret_is_itself(address: str) -> None:
    assert without_secret("MLFLOW_TRACKING_URI", address) == address


def test_a_kept_tree_has_neither_keys_nor_passwords() -> None:
    env = {"JUDGE_API_KEY": SECRET, "VLLM_PYTHON": "/opt/vllm/bin/python"}
    tree = {
        "source": {"uri": f"s3://key:{SECRET}@bucket"},
        "suites": [{"url": f"https://h?token={SECRET}"}],
        "env": env,
    }
    faults = list(kept_secrets(tree))
    assert [fault.split()[0] for fault in faults] == ["source.uri", "suites.0.url", "env.JUDGE_API_KEY"]
    assert SECRET not in "".join(faults)


def test_a_recipe_with_a_secret_does_not_resolve() -> None:
    with pytest.raises(ValueError, match=r"traces\.source\.uri has a password") as refusal:
        load(EMBEDDED, [f"traces.source={{kind: otel, uri: 's3://key:{SECRET}@bucket'}}"])
    assert SECRET not in str(refusal.value)
