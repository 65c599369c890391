from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import pytest
import responses
from pydantic import ValidationError

from pipeline.core.storage import Store
from pipeline.traces.lake import LakeConfig, local_lake, open_lake
from pipeline.traces.lake.catalogue import governed_table, load_catalogue
from pipeline.traces.lake.files import numbered_schema

from .lakes import DAY, ids, put, row

SECRETS = {"s3.secret-access-key": "hunter2", "credential": "id:hunter2"}


def test_secrets_reach_workers_and_no_repr_or_error() -> None:
    config = LakeConfig(
        catalogue="postgres", uri="postgresql://me:hunter2@h/db", warehouse="s3://b/p", properties=SECRETS
    )
    assert "hunter2" not in f"{config!r} {config} {[config]}"
    assert LakeConfig.model_validate_json(config.model_dump_json()) == config
    with pytest.raises(ValidationError) as error:
        LakeConfig.model_validate({"catalogue": "other", "warehouse": "hunter2", "properties": SECRETS})
    assert "hunter2" not in f"{error.value} {error.value!r}"


@pytest.mark.parametrize(
    ("catalogue", "uri", "warehouse", "said"),
    [
        ("sqlite", "sqlite:///x", "/data/lake", "give file:///directory or s3://"),
        ("sqlite", "sqlite:///x", "file:///data/a#b", "choose a path without"),
    ],
)
def test_a_wrong_setting_says_what_to_give(catalogue: str, uri: str, warehouse: str, said: str) -> None:
    config = LakeConfig.model_validate({"catalogue": catalogue, "uri": uri, "warehouse": warehouse})
    with pytest.raises(ValueError, match=said), open_lake(config):
        pass


@pytest.mark.parametrize("catalogue", ["postgres", "rest"])
def test_a_catalogue_without_an_address_is_not_opened(catalogue: Literal["postgres", "rest"]) -> None:
    config = LakeConfig(catalogue=catalogue, warehouse="s3://b/p")  # a stage that reads no table needs none
    with pytest.raises(ValueError, match="set LAKE_CATALOGUE_URI"), open_lake(config):
        pass


def test_an_odd_directory_is_no_trouble(tmp_path: Path) -> None:
    config = local_lake(Store(tmp_path / "a b%2Fc" / "ü;d=e&f"))
    with open_lake(config) as lake:
        put(lake, config, DAY, [row(1)], "a")
    with open_lake(config) as lake:
        assert ids(lake, DAY) == ["t1"]
        assert lake.sweep(0).files == 0


def test_a_warehouse_that_is_not_the_tables_is_refused(tmp_path: Path) -> None:
    config = local_lake(Store(tmp_path))
    with open_lake(config):
        pass
    moved = config.model_copy(update={"warehouse": f"file://{tmp_path}/elsewhere"})
    with pytest.raises(ValueError, match=r"Set traces\.lake\.warehouse to where it is"), open_lake(moved):
        pass


def test_columns_are_numbered_as_the_catalogue_numbers_them(tmp_path: Path) -> None:
    from pyiceberg.io.pyarrow import pyarrow_to_schema

    config = local_lake(Store(tmp_path))
    with closing(load_catalogue(config)) as catalogue:
        table = governed_table(catalogue, config)
        assert pyarrow_to_schema(numbered_schema()).as_struct() == table.schema().as_struct()
        with table.update_schema() as update:
            update.rename_column("reference", "answer")
        with pytest.raises(ValueError, match="materialise the traces again"):
            governed_table(catalogue, config)


def test_rest_catalogue_gets_the_warehouse_and_the_token() -> None:
    config = LakeConfig(catalogue="rest", uri="http://c", warehouse="s3://b/p", properties={"token": "t0ken"})
    with responses.RequestsMock() as server:
        server.get("http://c/v1/config", json={"defaults": {"prefix": "p"}, "overrides": {"s3.region": "eu-west-1"}})
        catalogue = load_catalogue(config)
        asked: Any = server.calls[0].request
    assert (asked.params, asked.headers["Authorization"]) == ({"warehouse": "s3://b/p"}, "Bearer t0ken")
    assert type(catalogue).__name__ == "RestCatalog"
    assert catalogue.properties["s3.region"] == "eu-west-1"


@pytest.mark.slow
def test_glue_registers_and_commits(bucket: str, s3_endpoint: str) -> None:
    config = LakeConfig(
        catalogue="glue",
        warehouse=f"s3://{bucket}/lake",
        properties={"glue.endpoint": s3_endpoint, "glue.region": "us-east-1", "s3.endpoint": s3_endpoint},
    )
    with open_lake(config) as one, open_lake(config) as two:
        put(one, config, DAY, [row(1)], "a")
        put(two, config, "2026-01-06", [row(2, "2026-01-06")], "b")
        assert ids(two, DAY, "2026-01-06") == ["t1", "t2"]
        with pytest.raises(ValueError, match="run again"):
            put(two, config, DAY, [row(3)], "c")
        two.expire(None)
        assert two.sweep(0).files > 0
    with open_lake(config) as again:
        assert ids(again, DAY, "2026-01-06") == ["t1", "t2"]
