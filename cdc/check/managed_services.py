"""Managed Postgres services, and how each of them grants replication and changes server settings.

Each service has predefined roles that no other server has. `find_service` recognizes the service by them.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A managed service, or an ordinary Postgres server, with the remedies that apply to it.

    `replication_roles`: roles whose members may replicate. `allow_replication`: the remedy that grants replication,
    with `{role}` for the quoted name of the role.
    """

    name: str
    replication_roles: tuple[str, ...]
    allow_replication: str
    set_wal_level: str
    change_setting: str  # how to change a server setting, with {name} and {value} of the setting


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
    """Return the service whose predefined roles exist on this server, or `ORDINARY`."""
    rows = connection.execute("select rolname::text from pg_roles").fetchall()
    roles = {row[0] for row in rows}
    return next((service for service in SERVICES if roles.intersection(service.replication_roles)), ORDINARY)


def memberships(connection: psycopg.Connection, service: Service) -> list[str]:
    """Return the service's replication roles of which the connected role is a member."""
    rows = connection.execute(
        "select rolname::text from pg_roles where rolname = any(%s) and pg_has_role(oid, 'member') order by 1",
        [list(service.replication_roles)],
    ).fetchall()
    return [row[0] for row in rows]
