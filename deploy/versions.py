"""Every version pin of everything that does not come with `pip install`: one file, and the only one.

Holds names and numbers, no code. `compose.yaml` repeats the image pins; a unit test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Coordinates(NamedTuple):
    """An artifact by its Maven name."""

    group: str
    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.group}:{self.name}:{self.version}"


JAVA_MAJORS: Final = (17, 21)  # 25 is too new for Spark 4.0's Hadoop

# The local stack.
POSTGRES: Final[Mapping[int, str]] = {14: "14.24", 15: "15.19", 16: "16.15", 17: "17.11", 18: "18.6"}
POSTGRES_DEFAULT_MAJOR: Final = 18
# Not every minor was published for every platform.
POSTGRES_ELSEWHERE: Final[Mapping[tuple[int, str], str]] = {
    (14, "linux-arm64v8"): "14.23",
    (14, "darwin-amd64"): "14.22",
    (14, "darwin-arm64v8"): "14.23",
}
POSTGRES_GROUP: Final = "io.zonky.test.postgres"
POSTGRES_NAME: Final = "embedded-postgres-binaries-{platform}"
# (system, machine) as Python names them -> how the Postgres artifacts name them.
POSTGRES_PLATFORMS: Final[Mapping[tuple[str, str], str]] = {
    ("Linux", "x86_64"): "linux-amd64",
    ("Linux", "aarch64"): "linux-arm64v8",
    ("Darwin", "x86_64"): "darwin-amd64",
    ("Darwin", "arm64"): "darwin-arm64v8",
}

KAFKA_VERSION: Final = "4.3.1"
KAFKA: Final = Coordinates("org.apache.kafka", "kafka_2.13", KAFKA_VERSION)
KAFKA_LOGGING: Final = Coordinates("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4")

ELASTICSEARCH_VERSION: Final = "8.19.21"
ELASTICSEARCH: Final = Coordinates(
    "org.elasticsearch.distribution.integ-test-zip", "elasticsearch", ELASTICSEARCH_VERSION
)

# An optional server of the stack. OpenSearch 3 needs Java 21.
OPENSEARCH_VERSION: Final = "2.19.6"
OPENSEARCH: Final = Coordinates("org.opensearch.distribution.integ-test-zip", "opensearch", OPENSEARCH_VERSION)

# The same servers as containers.
POSTGRES_IMAGE: Final = "postgres:{major}"
KAFKA_IMAGE: Final = f"apache/kafka:{KAFKA_VERSION}"
ELASTICSEARCH_IMAGE: Final = f"elasticsearch:{ELASTICSEARCH_VERSION}"
REDIS_IMAGE: Final = "redis:7.4"

# Spark. The Kafka connector stays at 4.0.0: a dependency of the later ones cannot be had.
SPARK_KAFKA: Final = Coordinates("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.0.0")
SPARK_ICEBERG: Final = Coordinates("org.apache.iceberg", "iceberg-spark-runtime-4.0_2.13", "1.11.0")
SPARK_POSTGRES_JDBC: Final = Coordinates("org.postgresql", "postgresql", "42.7.13")
SPARK_SQLITE_JDBC: Final = Coordinates("org.xerial", "sqlite-jdbc", "3.53.4.0")
SPARK_PACKAGES: Final = (SPARK_KAFKA, SPARK_ICEBERG, SPARK_POSTGRES_JDBC, SPARK_SQLITE_JDBC)

# The peer that the benchmarks compare with.
DEBEZIUM: Final = Coordinates("io.debezium", "debezium-connector-postgres", "3.6.2.Final")
CONNECT_RUNTIME: Final = Coordinates("org.apache.kafka", "connect-runtime", KAFKA_VERSION)
CONNECT_JSON: Final = Coordinates("org.apache.kafka", "connect-json", KAFKA_VERSION)
