"""Managed Postgres services, told by the roles that only they have: there the same things are done with other words."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """`replication_roles` let a member replicate; `{role}` in `allow_replication` stands for the role's quoted name."""

    name: str
    replication_roles: tuple[str, ...]
    allow_replication: str
    set_wal_level: str
    change_setting: str  # where a server setting is changed; {name} and {value} stand for the setting


ORDINARY = Service(
    name="",
    replication_roles=(),
    allow_replication="As a superuser run: alter role {role} replication;",
    set_wal_level="As a superuser run: alter system set wal_level = logical; then restart the server.",
    change_setting="As a superuser run: alter system set {name} = '{value}'; select pg_reload_conf();",
)

SERVICES = (
    Service(
        name="Amazon RDS or Aurora",
        replication_roles=("rds_replication", "rds_superuser"),
        allow_replication="As a member of rds_superuser run: grant rds_replication to {role};",
        set_wal_level="Set rds.logical_replication = 1 in the parameter group (Aurora: the cluster's), then reboot.",
        change_setting="Set {name} = {value} in the parameter group.",
    ),
    Service(
        name="Google Cloud SQL",
        replication_roles=("cloudsqlreplica", "cloudsqlsuperuser"),
        allow_replication="As a member of cloudsqlsuperuser run: alter user {role} with replication;",
        set_wal_level="Set the instance's flag cloudsql.logical_decoding = on; it restarts.",
        change_setting="Set the instance's flag {name} = {value}.",
    ),
    Service(
        name="Azure Database for PostgreSQL",
        replication_roles=("azure_pg_admin",),
        allow_replication="As a member of azure_pg_admin run: alter role {role} with replication;",
        set_wal_level="Set the server parameter wal_level = logical, then restart.",
        change_setting="Set the server parameter {name} = {value}.",
    ),
)


def find_service(connection: psycopg.Connection) -> Service:
    """The service whose roles this server has, or the ordinary one."""
    rows = connection.execute("select rolname::text from pg_roles").fetchall()
    roles = {row[0] for row in rows}
    return next((service for service in SERVICES if roles.intersection(service.replication_roles)), ORDINARY)


def memberships(connection: psycopg.Connection, service: Service) -> list[str]:
    """Those of the service's replication roles that this session's role is a member of."""
    rows = connection.execute(
        "select rolname::text from pg_roles where rolname = any(%s) and pg_has_role(oid, 'member') order by 1",
        [list(service.replication_roles)],
    ).fetchall()
    return [row[0] for row in rows]
