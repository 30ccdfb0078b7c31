"""The config file `tailrace.toml`: its sections (`model`) and its reader (`load_config`).

docs/reference/config.md lists every key.

Importing it is cheap (no driver, no Spark), because every command imports it. Nothing here opens a connection.
"""

from cdc.config.audit import AuditConfig
from cdc.config.kafka import KafkaConfig, SaslConfig
from cdc.config.model import CaptureConfig, Config, SparkConfig
from cdc.config.monitoring import AlertsConfig, DashboardConfig, LagConfig, SlotConfig
from cdc.config.shape import TableShape
from cdc.config.snapshot import SnapshotConfig
from cdc.config.source import SourceConfig, SourceTlsConfig
from cdc.config.stores import (
    ElasticsearchConfig,
    IcebergConfig,
    OpenSearchConfig,
    RedisConfig,
    SearchConfig,
    SyncedStoreConfig,
)
from cdc.config.tables import ColumnName, Mask, MaskKind, TableName, TableSelector
from cdc.config.tls import TlsConfig
from cdc.config.toml.file import load_config, parse_config

__all__ = [
    "AlertsConfig",
    "AuditConfig",
    "CaptureConfig",
    "ColumnName",
    "Config",
    "DashboardConfig",
    "ElasticsearchConfig",
    "IcebergConfig",
    "KafkaConfig",
    "LagConfig",
    "Mask",
    "MaskKind",
    "OpenSearchConfig",
    "RedisConfig",
    "SaslConfig",
    "SearchConfig",
    "SlotConfig",
    "SnapshotConfig",
    "SourceConfig",
    "SourceTlsConfig",
    "SparkConfig",
    "SyncedStoreConfig",
    "TableName",
    "TableSelector",
    "TableShape",
    "TlsConfig",
    "load_config",
    "parse_config",
]
