"""`Config`: the whole of `tailrace.toml` as frozen dataclasses; the sections that need room have their own modules."""

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
from cdc.config.stores import Store
from cdc.config.tables import ALL_COLUMNS, ColumnName, Mask, MaskKind, TableName
from cdc.secrets import Secret, SecretOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureConfig:
    batch_milliseconds: int = field(
        default=50,
        metadata=about("Longest wait for more source transactions to share one Kafka transaction", between(0, 10_000)),
    )
    transaction_events: int = field(
        default=100_000,
        metadata=about("A source transaction up to this many events becomes visible at once", at_least(1)),
    )
    transaction_timeout_seconds: int = field(
        default=60,
        metadata=about(
            "Kafka aborts a transaction that stalls for longer (broker's limit: 15 minutes)", between(5, 900)
        ),
    )
    mask_salt: Secret | None = field(
        default=None, metadata=about("Secret that goes into every hash of `[mask]`, so that nobody can guess values")
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
        default="local[*]", metadata=about("Where jobs run: `local[N]`, `spark://…`, `k8s://…`", not_empty)
    )
    options: SecretOptions = field(
        default_factory=SecretOptions, metadata=about("Spark properties, passed on as they are")
    )

    @property
    def is_local(self) -> bool:
        """Whether everything runs in the driver's own process."""
        return self.master.startswith("local") and not self.master.startswith("local-cluster")

    @property
    def authenticates(self) -> bool:
        """Whether Spark asks for a secret on its own ports, as far as this config says.

        On one machine, on Kubernetes and on YARN Spark makes a secret for each application. The master and the workers
        of a standalone cluster are started by the cluster's operator, and have to be given the same secret.
        """
        asked = self.options.get("spark.authenticate")
        if asked is not None:
            return asked.strip().lower() == "true"
        return self.is_local or self.master.startswith(("k8s:", "yarn")) or SPARK_SECRET in self.options


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    source: SourceConfig = field(metadata=about("The Postgres database"))
    kafka: KafkaConfig = field(metadata=about("The log"))
    capture: CaptureConfig = field(default_factory=CaptureConfig, metadata=about("How changes are grouped"))
    copy: SnapshotConfig = field(default_factory=SnapshotConfig, metadata=about("How tables are copied"))
    mask: Mapping[ColumnName, Mask] = field(
        default_factory=dict, metadata=about("Columns that leave the database only masked")
    )
    columns: Mapping[TableName, tuple[str, ...]] = field(
        default_factory=dict, metadata=about("Columns of a table that leave the database; the others do not")
    )
    stores: Mapping[str, Store] = field(
        default_factory=dict,
        metadata=about(
            "The stores, each by a name",
            names=matching("[a-z][a-z0-9_-]{0,62}", "a store's name is made of a-z, 0-9, _ and -, a letter first"),
        ),
    )
    spark: SparkConfig = field(default_factory=SparkConfig, metadata=about("Where and how Spark runs"))
    audit: AuditConfig = field(default_factory=AuditConfig, metadata=about("What is compared all the time"))
    lag: LagConfig = field(default_factory=LagConfig, metadata=about("When a hop counts as behind or stalled"))
    slot: SlotConfig = field(default_factory=SlotConfig, metadata=about("What is done before the slot is lost"))
    alerts: AlertsConfig = field(default_factory=AlertsConfig, metadata=about("Who is told of trouble"))
    dashboard: DashboardConfig = field(default_factory=DashboardConfig, metadata=about("Where the page is served"))
    #: The file that this was read from; not a key.
    file: Path | None = None

    def masks_of(self, table: TableName) -> dict[str, Mask]:
        """By column; without those that say `none`."""
        return {
            name.column: mask
            for name, mask in self.mask.items()
            if (name.schema, name.table) == table and mask.kind is not MaskKind.NONE
        }

    def columns_of(self, table: TableName) -> tuple[str, ...] | None:
        """None: all of them."""
        columns = self.columns.get(table)
        return None if columns == ALL_COLUMNS else columns

    def problems(self) -> Iterator[Problem]:
        if self.slot.action == "webhook" and self.alerts.webhook is None:
            yield "slot", "action `webhook` needs `[alerts] webhook`"
