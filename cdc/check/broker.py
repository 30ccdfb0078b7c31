"""Checks of the Kafka brokers: availability, version, number, and the settings that keep acknowledged records safe.

`read_broker` reads the facts and `judge_broker` judges them, so unit tests can cover every judgement without a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kafka.admin import ConfigResource, ConfigResourceType

from cdc.check.findings import Finding, fail, ok, warn
from cdc.config import Config
from cdc.kafka.admin import open_admin

PLACE = "broker"
# Transactions that survive every crash of a producer or a broker need KIP-447 and KIP-360. Kafka 2.5 has both.
_OLDEST = (2, 5)
_CONTROL_RECORD_BYTES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """What the brokers report.

    `settings`: those of the broker with the lowest id. Empty if the Kafka user may not describe them.
    """

    version: tuple[int, ...]
    brokers: int
    settings: Mapping[str, str]


def read_broker(config: Config) -> BrokerFacts:
    """Read the version, the number of brokers, and the settings of one broker."""
    admin = open_admin(config.kafka)
    try:
        ids = sorted(broker["broker_id"] for broker in admin.describe_cluster()["brokers"])
        resource = ConfigResource(ConfigResourceType.BROKER, str(ids[0]))
        described = admin.describe_configs([resource], config_filter="all").get("broker", {})
        return BrokerFacts(
            version=tuple(admin.get_broker_version_data(ids[0]).broker_version),
            brokers=len(ids),
            settings={
                name: entry["value"]
                for settings in described.values()
                for name, entry in settings.items()
                if not entry["is_sensitive"] and entry["value"] is not None
            },
        )
    finally:
        admin.close()


def judge_broker(facts: BrokerFacts, config: Config) -> Iterator[Finding]:
    """Yield the findings about the brokers."""
    yield _version(facts.version)
    yield _enough(facts.brokers, config.kafka.replication_factor)
    if not facts.settings:
        yield warn(
            PLACE,
            "The Kafka user may not read the brokers' settings, so they were not checked.",
            "Allow DescribeConfigs on the cluster, or compare the settings with docs/reference/check.md by hand.",
        )
        return
    settings = facts.settings
    yield _min_isr(int(settings.get("min.insync.replicas", 1)), config.kafka.replication_factor)
    yield _unclean_election(settings, config.kafka.replication_factor)
    yield _transaction_timeout(settings, config.capture.transaction_timeout_seconds)
    yield _transaction_log(settings, config.kafka.replication_factor)
    yield from _sizes(settings, config)
    yield _auto_create(settings)
    if settings.get("log.cleaner.enable", "true") != "true":
        yield fail(
            PLACE,
            "log.cleaner.enable is false: Kafka never compacts topics.",
            "Set log.cleaner.enable=true on the brokers, and restart them.",
        )


def _version(version: tuple[int, ...]) -> Finding:
    shown = ".".join(map(str, version))
    if version < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        return fail(PLACE, f"Kafka {shown} is too old for safe transactions.", f"Upgrade to {oldest} or later.")
    return ok(PLACE, f"Kafka answers, version {shown} or a later version with the same protocol")


def _enough(brokers: int, replication_factor: int) -> Finding:
    if brokers < replication_factor:
        return fail(
            PLACE,
            f"[kafka] replication_factor is {replication_factor}, but only {brokers} broker(s) answer.",
            "Start the other brokers, or lower replication_factor.",
        )
    if replication_factor == 1:
        return warn(
            PLACE,
            f"[kafka] replication_factor is 1 ({brokers} broker(s)): the loss of one disk loses the topics.",
            "Set [kafka] replication_factor = 3 in production, before the first start.",
        )
    return ok(PLACE, f"{brokers} brokers for replication_factor {replication_factor}")


def _min_isr(min_isr: int, replication_factor: int) -> Finding:
    what = f"min.insync.replicas is {min_isr} with replication_factor {replication_factor}"
    if min_isr > replication_factor:
        return fail(
            PLACE,
            f"{what}: the brokers would refuse every write.",
            "Raise [kafka] replication_factor, or lower min.insync.replicas on the brokers.",
        )
    if replication_factor > 1 and min_isr == 1:
        return warn(
            PLACE,
            f"{what}: an acknowledged record may exist on one broker only.",
            "Set min.insync.replicas=2 on the brokers.",
        )
    if replication_factor > 1 and min_isr == replication_factor:
        return warn(PLACE, f"{what}: capture stops while one broker is down.", "Raise replication_factor by one.")
    return ok(PLACE, what)


def _unclean_election(settings: Mapping[str, str], replication_factor: int) -> Finding:
    name = "unclean.leader.election.enable"
    if settings.get(name) != "true":
        return ok(PLACE, f"{name} is false")
    if replication_factor == 1:
        return ok(PLACE, f"{name} is true, which has no effect with replication_factor 1")
    return fail(
        PLACE,
        f"{name} is true: a replica that is behind may become leader, and acknowledged records are lost.",
        f"Set {name}=false on the brokers.",
    )


def _transaction_timeout(settings: Mapping[str, str], wanted_seconds: int) -> Finding:
    name = "transaction.max.timeout.ms"
    allowed = int(settings.get(name, 900_000))
    what = f"{name} is {allowed}, [capture] transaction_timeout_seconds is {wanted_seconds}"
    if allowed < wanted_seconds * 1000:
        return fail(
            PLACE,
            f"{what}: the brokers reject capture's producer.",
            f"Set {name}={wanted_seconds * 1000} on the brokers, or transaction_timeout_seconds = {allowed // 1000}.",
        )
    return ok(PLACE, what)


def _transaction_log(settings: Mapping[str, str], replication_factor: int) -> Finding:
    name = "transaction.state.log.replication.factor"
    copies = int(settings.get(name, 3))
    if copies < replication_factor:
        return warn(
            PLACE,
            f"{name} is {copies}: the transaction log has fewer replicas than the topics.",
            f"Set {name}={replication_factor} before the first transaction, or reassign __transaction_state later.",
        )
    return ok(PLACE, f"{name} is {copies}")


def _sizes(settings: Mapping[str, str], config: Config) -> Iterator[Finding]:
    wanted = config.kafka.max_message_bytes
    request = int(settings.get("socket.request.max.bytes", 104_857_600))
    if request <= wanted:
        yield fail(
            PLACE,
            f"socket.request.max.bytes is {request}, [kafka] max_message_bytes is {wanted}: the brokers would reject "
            "a record of that size.",
            f"Set [kafka] max_message_bytes below {request}, or raise socket.request.max.bytes on the brokers.",
        )
    else:
        yield ok(PLACE, f"socket.request.max.bytes is {request}, [kafka] max_message_bytes is {wanted}")
    fetch = int(settings.get("replica.fetch.max.bytes", 1_048_576))
    if fetch < wanted and config.kafka.replication_factor > 1:
        yield warn(
            PLACE,
            f"replica.fetch.max.bytes is {fetch}, below max_message_bytes: large records are replicated one by one.",
            f"Set replica.fetch.max.bytes={wanted} on the brokers.",
        )
    largest = int(settings.get("message.max.bytes", 1_048_588))
    if largest < _CONTROL_RECORD_BYTES:
        yield warn(
            PLACE,
            f"message.max.bytes is {largest}: the progress record of a pipeline with many tables may be larger (table "
            "topics have their own max.message.bytes).",
            "Set message.max.bytes=1048588 on the brokers.",
        )


def _auto_create(settings: Mapping[str, str]) -> Finding:
    name = "auto.create.topics.enable"
    if settings.get(name) == "true":
        return warn(
            PLACE,
            f"{name} is true: a consumer that starts before capture creates a table topic with the wrong settings.",
            f"Set {name}=false on the brokers.",
        )
    return ok(PLACE, f"{name} is false")
