"""The config file `tailrace.toml`: its sections (`model`) and its reader (`load_config`).

docs/reference/config.md lists every key.

Importing this is cheap on purpose (no driver, no Spark): every command imports it. Nothing here connects anywhere.
"""

from cdc.config.audit import Audit
from cdc.config.copy import Copy
from cdc.config.file import load_config, parse_config
from cdc.config.kafka import Kafka, Sasl
from cdc.config.model import Capture, Config, Spark
from cdc.config.seeing import Alerts, Dashboard, Lag, Slot
from cdc.config.shape import TableShape
from cdc.config.source import Source, SourceTls
from cdc.config.stores import Elasticsearch, Iceberg, Redis, Store
from cdc.config.tables import ColumnName, Mask, MaskKind, TableName, TableSelector
from cdc.config.tls import Tls

__all__ = [
    "Alerts",
    "Audit",
    "Capture",
    "ColumnName",
    "Config",
    "Copy",
    "Dashboard",
    "Elasticsearch",
    "Iceberg",
    "Kafka",
    "Lag",
    "Mask",
    "MaskKind",
    "Redis",
    "Sasl",
    "Slot",
    "Source",
    "SourceTls",
    "Spark",
    "Store",
    "TableName",
    "TableSelector",
    "TableShape",
    "Tls",
    "load_config",
    "parse_config",
]
