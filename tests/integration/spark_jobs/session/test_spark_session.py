"""The Spark session on real servers: packages, catalog, secrets and output."""

from __future__ import annotations

import socket
import struct
import sys
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from cdc.check.findings import Level
from cdc.check.spark import judge_spark
from cdc.config import Config, IcebergConfig, SparkConfig, parse_config
from cdc.config.settings import Location
from cdc.errors import UsageError
from cdc.secrets import Secret, SecretOptions, Url
from spark_jobs.session.catalog import catalog_settings
from spark_jobs.session.spark_session import session_properties, spark_session
from tests.harness.kafka.topics import create_topic
from tests.harness.postgres.database import Database
from tests.harness.processes.process import StartProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_session_reads_a_topic(spark: SparkSession, kafka_bootstrap: str, prefix: str) -> None:
    """Spark reads keys, values and headers of a topic as they were written."""
    topic = f"{prefix}.public.x"
    create_topic(kafka_bootstrap, topic, 2)
    producer = Producer({"bootstrap.servers": kafka_bootstrap})
    for number in range(10):
        producer.produce(topic, f"value {number}", f"key {number}", headers={"v": b"1"})
    assert producer.flush(30) == 0
    rows = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", kafka_bootstrap)
        .option("subscribe", topic)
        .option("includeHeaders", "true")
        .load()
        .selectExpr("string(key)", "string(value)", "string(headers[0].value) AS version")
        .collect()
    )
    assert {tuple(row) for row in rows} == {(f"key {n}", f"value {n}", "1") for n in range(10)}


def test_the_session_writes_and_reads_iceberg(spark: SparkSession, warehouse: IcebergConfig) -> None:
    """A table of the warehouse's catalog can be created, merged into and read; the catalog is one SQLite file."""
    table = f"tailrace.t{uuid.uuid4().hex[:8]}.x"
    spark.sql(f"CREATE NAMESPACE {table.rpartition('.')[0]}")
    spark.sql(f"CREATE TABLE {table} (id bigint, at timestamp) USING iceberg")
    spark.sql(f"INSERT INTO {table} VALUES (1, TIMESTAMP '2026-01-01 00:00:00'), (2, NULL)")
    spark.sql(
        f"MERGE INTO {table} AS t USING (SELECT 2 AS id) AS s ON t.id = s.id"
        " WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)"
    )
    rows = spark.sql(f"SELECT id, unix_seconds(at) FROM {table}").collect()
    assert [tuple(row) for row in rows] == [(1, 1_767_225_600)], "the session's time zone is UTC"
    assert Path(warehouse.path, "catalog.db").exists()


def test_the_session_reads_postgres(spark: SparkSession, database: Database) -> None:
    """Spark reads a Postgres table over JDBC."""
    database.execute("CREATE TABLE x AS SELECT n AS id FROM generate_series(1, 5) AS n")
    host, _, rest = database.dsn.partition("@")[2].partition("/")
    rows = spark.read.jdbc(f"jdbc:postgresql://{host}/{rest}", "x", properties={"user": "postgres"}).collect()
    assert sorted(row.id for row in rows) == [1, 2, 3, 4, 5]


def test_workers_run_this_python(spark: SparkSession) -> None:
    """Python code in tasks runs on the interpreter that Tailrace is installed in."""
    found = spark.sparkContext.parallelize([1], 1).map(lambda _: sys.executable).collect()
    assert found == [sys.executable]


def test_the_session_is_quiet_and_tells_no_secrets(start_process: StartProcess) -> None:
    """Starting and using a session prints nothing but the JVM's own line, and no option shows on a command line."""
    script = (
        "import psutil; from cdc.config import SparkConfig; from cdc.secrets import SecretOptions;"
        "from spark_jobs.session.spark_session import spark_session;"
        "options = SecretOptions({'spark.hadoop.fs.s3a.secret.key': 'h=i:d den'});"
        "spark = spark_session(SparkConfig(master='local[1]', options=options), 'quiet');"
        "assert spark.range(3).count() == 3;"
        "assert spark.conf.get('spark.hadoop.fs.s3a.secret.key') == 'h=i:d den';"
        "alive = [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE];"
        "lines = [' '.join(p.cmdline()) for p in alive];"
        "assert lines and not any('h=i' in line for line in lines), lines; spark.stop()"
    )
    process = start_process(sys.executable, "-c", script)
    process.expect_exit(0, deadline_seconds=120)
    said = [line for line in process.errors.splitlines() if "incubator modules" not in line]
    assert (process.output, said) == ("", [])


def test_a_connection_without_the_secret_is_refused(spark: SparkSession) -> None:
    """The driver and its block manager answer only after the secret, and listen on the loopback interface."""
    assert spark.sparkContext.getConf().get("spark.authenticate") == "true"
    blocks = spark._jvm.org.apache.spark.SparkEnv.get().blockManager().blockManagerId()
    driver = int(spark.sparkContext.getConf().get("spark.driver.port") or 0)
    assert blocks.host() == "127.0.0.1"
    for port in (driver, blocks.port()):
        kind, answer = _unauthenticated_call(port)
        assert kind == _RPC_FAILURE
        assert b"Expected SaslMessage" in answer


# Of Spark's network protocol: a frame is its length (8 bytes), its kind (1 byte) and the rest.
_RPC_REQUEST, _RPC_FAILURE = 3, 5


def _unauthenticated_call(port: int) -> tuple[int, bytes]:
    """The kind of the answer, and its text."""
    body = b"anything"
    request = struct.pack(">BqI", _RPC_REQUEST, 1, len(body)) + body
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(struct.pack(">q", len(request) + 8) + request)
        with connection.makefile("rb") as answers:
            (length,) = struct.unpack(">q", answers.read(8))
            answer = answers.read(length - 8)
    return answer[0], answer[1:]


def test_a_secret_is_named_for_a_standalone_cluster() -> None:
    """Connections are authenticated with Spark's own secret, or with the configured one on a standalone cluster.

    `check` warns where it is missing. Connections between machines are encrypted.
    """
    secret = SecretOptions({"spark.authenticate.secret": "s"})
    off = SecretOptions({"spark.authenticate": "false"})
    expected = {
        ("local[2]", SecretOptions()): ("true", None),
        ("k8s://https://host", SecretOptions()): ("true", "true"),
        ("spark://host:7077", secret): ("true", "true"),
        ("spark://host:7077", SecretOptions()): (None, None),
        ("local[2]", off): ("false", None),
    }
    for (master, options), (authenticate, crypto) in expected.items():
        settings = SparkConfig(master=master, options=options)
        properties = session_properties(settings, "job", [])
        assert properties.get("spark.authenticate") == authenticate
        assert properties.get("spark.network.crypto.enabled") == crypto
        warned = [finding for finding in judge_spark(_config(settings)) if finding.level is Level.WARN]
        assert bool(warned) == (authenticate != "true")


def _config(settings: SparkConfig) -> Config:
    text = """
        [source]
        dsn = "postgresql://x@localhost/x"
        [kafka]
        bootstrap = "localhost:9092"
        prefix = "x"
    """
    return replace(parse_config(text, file=Path("tailrace.toml"), environment={}), spark=settings)


def test_the_users_options_come_last() -> None:
    """A configured option wins over ours, and is added to ours where it is a list."""
    options = SecretOptions(
        {"spark.ui.enabled": "true", "spark.driver.extraJavaOptions": "-Dx=1", "spark.jars": "/b.jar"}
    )
    properties = session_properties(SparkConfig(master="spark://host:7077", options=options), "job", [Path("/a.jar")])
    assert properties["spark.jars"] == "/a.jar,/b.jar"
    assert properties["spark.ui.enabled"] == "true"
    assert properties["spark.master"] == "spark://host:7077"
    assert "spark.driver.host" not in properties
    assert properties["spark.driver.extraJavaOptions"].startswith("-Dlog4j2.configurationFile=file:/")
    assert properties["spark.driver.extraJavaOptions"].endswith(" -Dx=1")


@pytest.mark.parametrize(
    ("warehouse", "expected"),
    [
        (
            IcebergConfig(
                path=Location("s3://bucket/w"), catalog_uri=Url("https://catalog/x"), catalog_password=Secret("s")
            ),
            {
                "type": "rest",
                "uri": "https://catalog/x",
                "warehouse": "s3://bucket/w",
                "credential": "s",
                "rest.client.connection-timeout-ms": "10000",
                "rest.client.socket-timeout-ms": "60000",
            },
        ),
        (
            IcebergConfig(path=Location("/w"), catalog_uri=Url("postgresql://me:p%40ss@[::1]:5433/db?sslmode=require")),
            {
                "type": "jdbc",
                "uri": "jdbc:postgresql://[::1]:5433/db?sslmode=require",
                "warehouse": "/w",
                "jdbc.user": "me",
                "jdbc.password": "p@ss",
                "jdbc.connectTimeout": "10",
                "jdbc.socketTimeout": "60",
                "jdbc.tcpKeepAlive": "true",
                "jdbc.schema-version": "V1",
            },
        ),
        (
            IcebergConfig(path=Location("/w")),
            {
                "type": "jdbc",
                "uri": "jdbc:sqlite:/w/catalog.db?busy_timeout=60000&journal_mode=WAL",
                "warehouse": "/w",
                "jdbc.schema-version": "V1",
            },
        ),
    ],
)
def test_the_catalog_is_what_the_config_names(warehouse: IcebergConfig, expected: dict[str, str]) -> None:
    """SQLite beside the data by default; Postgres or REST where the config says so."""
    settings = catalog_settings(warehouse)
    assert settings.pop("spark.sql.catalog.tailrace") == "org.apache.iceberg.spark.SparkCatalog"
    found = {name.removeprefix("spark.sql.catalog.tailrace."): value for name, value in settings.items()}
    assert found == {"cache-enabled": "false", **expected}


def test_two_warehouses_need_a_choice() -> None:
    """With two warehouses in the config and none chosen, the job asks for a choice."""
    text = """
        [source]
        dsn = "postgresql://x@localhost/x"
        [kafka]
        bootstrap = "localhost:9092"
        prefix = "x"
        [stores.a]
        kind = "iceberg"
        path = "a"
        [stores.b]
        kind = "iceberg"
        path = "b"
    """
    with pytest.raises(UsageError, match=r"several warehouses \(a, b\)"):
        spark_session(parse_config(text, file=Path("tailrace.toml"), environment={}), "never started")
