"""`Config`: all of `tailrace.toml` as frozen dataclasses. Larger sections have their own modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cdc.config.audit import AuditConfig
from cdc.config.kafka import KafkaConfig
from cdc.config.monitoring import AlertsConfig, DashboardConfig, LagConfig, SlotConfig
from cdc.config.settings import Problem, about, at_least, between, matching, not_empty
from cdc.config.snapshot import SnapshotConfig
from cdc.config.source import SourceConfig
from cdc.config.stores import SyncedStoreConfig
from cdc.config.tables import ALL_COLUMNS, ColumnName, Mask, MaskKind, TableName
from cdc.secrets import Secret, SecretOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureConfig:
    batch_milliseconds: int = field(
        default=50,
        metadata=about(
            "Longest time that capture waits for more source transactions to share one Kafka transaction",
            between(0, 10_000),
        ),
    )
    transaction_events: int = field(
        default=100_000,
        metadata=about("Most events of a source transaction that becomes visible atomically", at_least(1)),
    )
    transaction_timeout_seconds: int = field(
        default=60,
        metadata=about(
            "Kafka aborts a transaction that is open for longer (the broker's limit is 15 minutes)", between(5, 900)
        ),
    )
    mask_salt: Secret | None = field(
        default=None, metadata=about("Secret key of every hash of `[mask]`; without it, short values can be guessed")
    )


#: The Spark property that holds the secret of a standalone cluster.
SPARK_SECRET = "spark.authenticate.secret"  # noqa: S105 - a property's name
AUTHENTICATION_REMEDY = (
    "Start the cluster's master and workers with spark.authenticate=true and a secret, and put the same secret under"
    f' [spark.options]: "{SPARK_SECRET}" = "${{SPARK_SECRET}}".'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkConfig:
    master: str = field(
        default="local[*]", metadata=about("Spark master: `local[N]`, `spark://…`, `k8s://…`", not_empty)
    )
    options: SecretOptions = field(
        default_factory=SecretOptions, metadata=about("Spark properties, passed on unchanged")
    )

    @property
    def is_local(self) -> bool:
        """Whether Spark runs all tasks in the driver's process."""
        return self.master.startswith("local") and not self.master.startswith("local-cluster")

    @property
    def authenticates(self) -> bool:
        """Whether Spark authenticates connections to its own ports, as far as this config shows.

        On one machine, on Kubernetes and on YARN, Spark generates a secret for each application. In a standalone
        cluster, the operator starts the master and the workers, and has to configure the same secret for all of them.
        """
        asked = self.options.get("spark.authenticate")
        if asked is not None:
            return asked.strip().lower() == "true"
        return self.is_local or self.master.startswith(("k8s:", "yarn")) or SPARK_SECRET in self.options


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    source: SourceConfig = field(metadata=about("The Postgres database"))
    kafka: KafkaConfig = field(metadata=about("The brokers and topics"))
    capture: CaptureConfig = field(
        default_factory=CaptureConfig, metadata=about("How capture groups changes into Kafka transactions")
    )
    snapshot: SnapshotConfig = field(
        default_factory=SnapshotConfig, metadata=about("How Tailrace takes snapshots of tables", formerly="copy")
    )
    mask: Mapping[ColumnName, Mask] = field(
        default_factory=dict, metadata=about("Columns that Tailrace publishes only in masked form")
    )
    columns: Mapping[TableName, tuple[str, ...]] = field(
        default_factory=dict, metadata=about("Columns of a table that Tailrace publishes; it publishes no others")
    )
    stores: Mapping[str, SyncedStoreConfig] = field(
        default_factory=dict,
        metadata=about(
            "The derived stores, by name",
            names=matching("[a-z][a-z0-9_-]{0,62}", "a store's name is made of a-z, 0-9, _ and -, a letter first"),
        ),
    )
    spark: SparkConfig = field(default_factory=SparkConfig, metadata=about("Where Spark runs, and its properties"))
    audit: AuditConfig = field(default_factory=AuditConfig, metadata=about("Continuous comparison with the source"))
    lag: LagConfig = field(default_factory=LagConfig, metadata=about("Thresholds for lag"))
    slot: SlotConfig = field(default_factory=SlotConfig, metadata=about("Protection of the source's disk"))
    alerts: AlertsConfig = field(default_factory=AlertsConfig, metadata=about("Alert delivery"))
    dashboard: DashboardConfig = field(default_factory=DashboardConfig, metadata=about("Address of the dashboard"))
    #: The file that the config was read from. Not a key.
    file: Path | None = None

    def masks_of(self, table: TableName) -> dict[str, Mask]:
        """Return the table's masks by column, without those of kind `none`."""
        return {
            name.column: mask
            for name, mask in self.mask.items()
            if (name.schema, name.table) == table and mask.kind is not MaskKind.NONE
        }

    def columns_of(self, table: TableName) -> tuple[str, ...] | None:
        """Return the columns of the table that are published; None: all columns."""
        columns = self.columns.get(table)
        return None if columns == ALL_COLUMNS else columns

    def problems(self) -> Iterator[Problem]:
        if self.slot.action == "webhook" and self.alerts.webhook is None:
            yield "slot", "action `webhook` needs `[alerts] webhook`"
