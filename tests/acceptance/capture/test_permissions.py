"""With a real broker that has access control, capture refuses a forbidden operation with the reason and does not
retry.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from deploy.stack import Stack, open_stack
from deploy.stack.servers import kafka
from tests.harness.pipeline.pipeline import Pipeline
from tests.harness.postgres.background_writer import SCHEMA, Writer
from tests.harness.postgres.database import Database
from tests.harness.processes.process import StartProcess


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    """A broker that allows any operation that no rule covers."""
    monkeypatch.setitem(
        kafka.SETTINGS, "authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    )
    monkeypatch.setitem(kafka.SETTINGS, "allow.everyone.if.no.acl.found", "true")
    stack = open_stack(tmp_path / "stack")
    stack.up(["kafka"])
    yield stack
    stack.down()


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
def test_a_topic_that_may_not_be_written_is_refused(
    broker: Stack, database: Database, tmp_path: Path, tailrace: StartProcess, is_busy: bool
) -> None:
    """Exit code 3 with Kafka's reason, so that a supervisor does not restart it; nothing is lost."""
    bootstrap = broker.server("kafka").address
    pipeline = Pipeline(database=database, bootstrap=bootstrap, prefix="acl", folder=tmp_path, start=tailrace)
    pipeline.configure()
    database.execute(SCHEMA)
    capture = pipeline.start()
    database.execute("INSERT INTO items VALUES (1, 0, 'a')")
    pipeline.assert_same("items", while_running=capture)
    _write_is_denied(bootstrap, pipeline.topic("items"))
    if is_busy:
        with Writer(database):
            capture.expect_exit(3, 120)
    else:
        database.execute("INSERT INTO items VALUES (2, 0, 'b')")
        capture.expect_exit(3, 120)
    assert "Topic authorization failed" in capture.errors, capture.transcript()
    assert "ACL" in capture.errors, capture.transcript()
    _write_is_allowed(bootstrap, pipeline.topic("items"))
    pipeline.assert_same("items", while_running=pipeline.start())


def _rule(topic: str) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        "User:ANONYMOUS",
        "*",
        AclOperation.WRITE,
        AclPermissionType.DENY,
    )


def _write_is_denied(bootstrap: str, topic: str) -> None:
    """Deny writes; once a topic has a rule Kafka denies everything else, so the other operations are allowed
    explicitly.
    """
    every = AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        "User:ANONYMOUS",
        "*",
        AclOperation.ALL,
        AclPermissionType.ALLOW,
    )
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_acls([every, _rule(topic)]).values():
        made.result(30)


def _write_is_allowed(bootstrap: str, topic: str) -> None:
    rule = _rule(topic)
    wanted = AclBindingFilter(
        rule.restype,
        rule.name,
        rule.resource_pattern_type,
        rule.principal,
        rule.host,
        rule.operation,
        rule.permission_type,
    )
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for gone in admin.delete_acls([wanted]).values():
        gone.result(30)
