"""Checks of capture's Postgres role: replication, privileges that it needs, and privileges that it does not need.

The check for replication opens a replication connection. Managed services grant this right in ways that no catalog
column shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import psycopg

from cdc.check.findings import Finding, fail, ok, warn
from cdc.check.managed_services import Service, memberships
from cdc.config import SourceConfig
from cdc.errors import RefusedError, TailraceError
from cdc.lsn import LSN
from cdc.postgres.replication import ReplicationStream

PLACE = "role"


@dataclass(frozen=True, slots=True)
class RoleIdentity:
    """The results of IDENTIFY_SYSTEM and TIMELINE_HISTORY.

    `forks`: by earlier timeline, the LSN at which the server's history left it.
    """

    system_identifier: str
    timeline: int
    forks: Mapping[int, LSN]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleFacts:
    """The role's attributes and privileges."""

    name: str
    quoted: str
    superuser: bool
    replication: bool
    memberships: list[str]  # the service's replication roles of which it is a member
    may_create_in_database: bool
    forbidden_functions: list[str]  # variants of pg_logical_emit_message that it may not execute, with argument types


def read_role(connection: psycopg.Connection, service: Service) -> RoleFacts:
    """Read the attributes and privileges of the connected role."""
    row = connection.execute(
        "select rolname::text, quote_ident(rolname), rolsuper, rolreplication,"
        " has_database_privilege(current_database(), 'create'),"
        " array(select oid::regprocedure::text from pg_proc where proname = 'pg_logical_emit_message'"
        "  and pronamespace = 'pg_catalog'::regnamespace and not has_function_privilege(oid, 'execute') order by 1)"
        " from pg_roles where rolname = current_user"
    ).fetchone()
    assert row is not None  # noqa: S101  # the session is connected as this role
    return RoleFacts(
        name=row[0],
        quoted=row[1],
        superuser=row[2],
        replication=row[3],
        memberships=memberships(connection, service),
        may_create_in_database=row[4],
        forbidden_functions=row[5],
    )


def _forks(stream: ReplicationStream, timeline: int) -> dict[int, LSN]:
    """Return the earlier timelines, or {} if the server has no history file.

    A server restored from a backup may lack that file. It matters only when the timeline differs from the progress
    record's.
    """
    try:
        return stream.forks(timeline)
    except RefusedError:
        return {}


def try_replication(source: SourceConfig) -> RoleIdentity | TailraceError:
    """Open a replication connection as capture does, read the server's identity, and close the connection."""
    try:
        stream = ReplicationStream(
            source.conninfo(), slot=source.slot, publication=source.publication, stop=lambda: False
        )
    except TailraceError as error:
        return error
    try:
        system_identifier, timeline = stream.identify()
        return RoleIdentity(system_identifier, timeline, _forks(stream, timeline))
    except TailraceError as error:
        return error
    finally:
        stream.close()


def judge_role(facts: RoleFacts, service: Service, identity: RoleIdentity | TailraceError) -> Iterator[Finding]:
    """Yield the findings about the role. `identity`: the result of `try_replication`."""
    if facts.superuser:
        yield warn(
            PLACE,
            f"Role {facts.name} is a superuser. Capture needs far fewer privileges.",
            "Create a role for capture: create role tailrace login replication; (grants: docs/guides/source-setup.md).",
        )
    else:
        yield ok(PLACE, f"role {facts.name} is not a superuser")
    yield _replication(facts, service, identity)
    if facts.forbidden_functions:
        grants = " ".join(f"grant execute on function {each} to {facts.quoted};" for each in facts.forbidden_functions)
        yield fail(
            PLACE,
            "It may not execute pg_logical_emit_message, with which capture writes heartbeats.",
            f"As a superuser run: {grants}",
        )
    else:
        yield ok(PLACE, "it may write heartbeats (pg_logical_emit_message)")


def _replication(facts: RoleFacts, service: Service, identity: RoleIdentity | TailraceError) -> Finding:
    if isinstance(identity, RoleIdentity):
        return ok(PLACE, f"it may replicate ({_reason(facts)})")
    if facts.superuser or facts.replication or facts.memberships:
        # The role has the right, so the cause is another one. The server's message names it.
        remedy = "Allow the role in pg_hba.conf, and make sure that a WAL sender is free (max_wal_senders)."
        return fail(PLACE, f"A replication connection failed. {identity.message}", remedy)
    remedy = service.allow_replication.format(role=facts.quoted)
    return fail(PLACE, f"It may not replicate. {identity.message}", remedy)


def _reason(facts: RoleFacts) -> str:
    if facts.memberships:
        return f"a member of {', '.join(facts.memberships)}"
    if facts.replication:
        return "it has REPLICATION"
    return "a superuser" if facts.superuser else "the server accepted the connection"
