"""The parts of Dagster 1.13 that have no public name: launcher, coordinator and storage of one's own are documented,
but importable from private modules alone."""

from dagster._config import StringSource
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.events import DagsterEvent, DagsterEventType, EngineEventData
from dagster._core.launcher import CheckRunHealthResult, LaunchRunContext, RunLauncher, WorkerStatus
from dagster._core.run_coordinator import QueuedRunCoordinator, SubmitRunContext
from dagster._core.storage.dagster_run import ACTIVE_RUN_STATUSES
from dagster._core.storage.sqlite_storage import DagsterSqliteStorage, SqliteStorageConfig
from dagster._grpc.types import ExecuteRunArgs
from dagster._serdes import ConfigurableClass, ConfigurableClassData, deserialize_value, serialize_value
from dagster_shared.error import SerializableErrorInfo

__all__ = [
    "ACTIVE_RUN_STATUSES",
    "CheckRunHealthResult",
    "ConfigurableClass",
    "ConfigurableClassData",
    "DagsterEvent",
    "DagsterEventType",
    "DagsterSqliteStorage",
    "EngineEventData",
    "ExecuteRunArgs",
    "LaunchRunContext",
    "QueuedRunCoordinator",
    "RunLauncher",
    "SerializableErrorInfo",
    "SqliteStorageConfig",
    "StringSource",
    "SubmitRunContext",
    "UnresolvedAssetJobDefinition",
    "WorkerStatus",
    "deserialize_value",
    "queue_daemon_type",
    "serialize_value",
]


def queue_daemon_type() -> str:
    """The name under which the daemon that takes queued runs writes its heartbeat."""
    from dagster._daemon.run_coordinator import QueuedRunCoordinatorDaemon  # heavy, and only of use here

    return QueuedRunCoordinatorDaemon.daemon_type()
