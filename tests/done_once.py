"""What libraries do again for every client, table and database, always with the same outcome: once a test process.

In a program's life they do it once, in that of the tests hundreds of times. Nothing of the project is left out.
"""

import copy
import functools
import gc
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest


@contextmanager
def done_once() -> Iterator[None]:
    """Inside, what the tests imported is not looked through for garbage, and the following happens the first time
    alone: certificate authorities, botocore's descriptions of AWS, Alembic's migrations and each text of YAML are read,
    and MLflow's tables made one migration after the other."""
    import alembic.script
    import botocore.loaders
    import httpcore2
    import yaml

    scripts, described = alembic.script.ScriptDirectory, botocore.loaders.JSONFileLoader
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpcore2, "default_ssl_context", _by_environment(httpcore2.default_ssl_context))
        patch.setattr(described, "load_file", _by_last_argument(described.load_file, str))
        read = _by_last_argument(scripts.from_config, lambda config: config.get_alembic_option("script_location"))
        patch.setattr(scripts, "from_config", staticmethod(read))
        patch.setattr(yaml, "safe_load", _by_text(yaml.safe_load))
        patch.setattr(yaml, "safe_load_all", _by_text(lambda text: list(yaml.load_all(text, yaml.SafeLoader))))
        if "mlflow" in sys.modules:  # no fast test needs it, and to import it takes a second
            import mlflow.store.db.utils as tables

            patch.setattr(tables, "_initialize_tables", _copied(tables._initialize_tables))
        gc.freeze()
        gc.collect()  # of nothing: ends what sitecustomize began
        usual = gc.get_threshold()
        gc.set_threshold(20 * usual[0], *usual[1:])
        gc.enable()
        yield
        gc.set_threshold(*usual)


def _by_environment(make: Callable[..., Any]) -> Callable[..., Any]:
    context_of = functools.cache(lambda trust_env, cert_file, cert_dir: make(_trust_env=trust_env))
    return lambda *, _trust_env=True: context_of(_trust_env, *map(os.environ.get, ("SSL_CERT_FILE", "SSL_CERT_DIR")))


def _by_last_argument(read: Callable[..., Any], key: Callable[[Any], Any]) -> Callable[..., Any]:
    results: dict[Any, Any] = {}

    def cached(*arguments: Any) -> Any:
        name = key(arguments[-1])
        if name not in results:
            results[name] = read(*arguments)
        return results[name]

    return cached


def _by_text(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A copy of the value for each call; an open file is read as ever."""
    parsed = functools.cache(parse)
    return lambda text: copy.deepcopy(parsed(text)) if isinstance(text, str | bytes) else parse(text)


def _copied(make: Callable[[Any], None]) -> Callable[[Any], None]:
    """Makes the tables of one empty file of SQLite; every later one gets a copy of that, page by page."""
    template = sqlite3.connect(":memory:", check_same_thread=False)

    def initialize(engine: Any) -> None:
        if engine.dialect.name != "sqlite":
            return make(engine)
        is_first = not template.execute("SELECT * FROM sqlite_master").fetchall()
        if is_first:
            make(engine)
        with closing(engine.raw_connection()) as connection:
            here = connection.driver_connection
            source, target = (here, template) if is_first else (template, here)
            source.backup(target)
        return None

    return initialize
