"""Writes the SQL that prepares a surveyed database for capture. It contains only what is missing, ready to run.

The server quotes the names in statements. Comments contain no names, so that no name can end a comment.
"""

from __future__ import annotations

from collections.abc import Iterator

from cdc.setup.survey import Survey

_NOTHING = "-- The source has everything that capture needs. There is nothing to run."


def source_sql(found: Survey, *, publication: str) -> str:
    """Return the SQL, with each statement on its own lines, for any SQL client. `publication` is a quoted name."""
    makers = (_settings, _role, _identities, lambda found: _publication(found, publication), _advice)
    sections = [list(lines_of(found)) for lines_of in makers]
    body = ["\n".join(section) for section in sections if section]
    if not any(_is_statement(line) for section in sections for line in section):
        return "\n\n".join([_NOTHING, *body]) + "\n"
    return "\n\n".join([_heading(found), *body]) + "\n"


def _heading(found: Survey) -> str:
    who = "an administrator" if found.service.name else "a superuser"
    return (
        f"-- Prepares the source for Tailrace. Run this in the database of the DSN, as {who}.\n"
        "-- The tables' owner can set replica identities and, with CREATE on the database, create the publication."
    )


def _is_statement(line: str) -> bool:
    return not line.startswith("--")


# -- settings ------------------------------------------------------------------------------------------------


def _settings(found: Survey) -> Iterator[str]:
    changes = dict(_setting_changes(found))
    if changes and found.service.name:
        yield f"-- Settings of {found.service.name}, which SQL cannot change:"
        for name, value in changes.items():
            how = found.service.set_wal_level if name == "wal_level" else found.service.change_setting
            yield f"--   {how.format(name=name, value=value)}"
    elif changes:
        yield "-- Settings. They take effect after a restart: restart the server before you start capture."
        for name, value in changes.items():
            yield f"alter system set {name} = '{value}';"


def _advice(found: Survey) -> Iterator[str]:
    if found.settings["max_slot_wal_keep_size"] == "-1":
        yield "-- Advice: the server keeps WAL without limit while capture is down. A limit protects the disk, but the"
        yield "-- server invalidates a slot that exceeds it, and `tailrace recover` must then create a new one. A third"
        yield "-- of the WAL disk is usual:"
        yield "--   alter system set max_slot_wal_keep_size = '50GB'; select pg_reload_conf();"


def _setting_changes(found: Survey) -> Iterator[tuple[str, str]]:
    if found.settings["wal_level"] != "logical":
        yield "wal_level", "logical"
    # Capture needs one slot and one WAL sender. A standby capture needs a second sender while the first one streams.
    if int(found.settings["max_replication_slots"]) < found.slots_used + 1:
        yield "max_replication_slots", str(found.slots_used + 4)
    if int(found.settings["max_wal_senders"]) < found.senders_used + 2:
        yield "max_wal_senders", str(found.senders_used + 5)


# -- the role ------------------------------------------------------------------------------------------------


def _role(found: Survey) -> Iterator[str]:
    lines = [*_role_itself(found), *_grants(found)]
    if lines:
        yield "-- The role that capture connects as. It can only replicate and read."
        yield from lines


def _role_itself(found: Survey) -> Iterator[str]:
    role, service = found.role, found.service
    attributes = [] if role.can_login else ["login"]
    if not role.replicates and not service.name:
        attributes.append("replication")
    if not role.bypasses_row_security and any(table.row_security for table in found.capturable):
        yield "-- The role bypasses row-level security, which would hide rows from it."
        attributes.append("bypassrls")
    if not role.exists:
        yield f"create role {role.sql_name} with {' '.join(attributes)};"
        yield "-- If the server requires a password, set one; in psql: \\password and the role's name"
    elif attributes:
        yield f"alter role {role.sql_name} with {' '.join(attributes)};"
    if not role.replicates and service.name:
        yield service.allow_replication.partition("run: ")[2].format(role=role.sql_name)


def _grants(found: Survey) -> Iterator[str]:
    role = found.role
    if not role.connects:
        yield f"grant connect on database {found.sql_database} to {role.sql_name};"
    schemas = {table.schema for table in found.capturable} - role.schemas
    for schema in sorted(schemas):
        yield f"grant usage on schema {found.sql_schemas[schema]} to {role.sql_name};"
    for table in found.capturable:
        if not table.readable:
            yield f"grant select on {table.sql_name} to {role.sql_name};"


# -- tables --------------------------------------------------------------------------------------------------


def _identities(found: Survey) -> Iterator[str]:
    changes = [(table, table.wanted_identity) for table in found.capturable if table.wanted_identity]
    if changes:
        yield "-- Replica identity: which old values of an updated or deleted row the WAL contains. A deferrable"
        yield "-- primary key needs full, which makes updates larger in the WAL."
    for table, identity in changes:
        yield f"alter table {table.sql_name} replica identity {identity};"


def _publication(found: Survey, publication: str) -> Iterator[str]:
    # ONLY excludes tables that inherit from this one. A partitioned table includes its partitions.
    names = {t.sql_name: t.sql_name if t.kind == "p" else f"only {t.sql_name}" for t in found.capturable}
    existing = found.publication_tables
    if existing is None and names:
        yield "-- The publication. The tables' owner must create it. If you remove a table from the config, remove"
        yield "-- it here too."
        yield f"create publication {publication} for table"
        yield from _listed([*names.values()])
        generated = ", publish_generated_columns = stored" if found.major >= 18 else ""
        yield f"with (publish = 'insert, update, delete, truncate', publish_via_partition_root = false{generated});"
    elif existing is not None and (missing := [entry for name, entry in names.items() if name not in existing]):
        yield "-- The publication exists, but lacks tables. Run this only before the first start of capture:"
        yield "-- afterwards, capture refuses to continue if the publication was changed by hand."
        yield f"alter publication {publication} add table"
        yield from _listed(missing, end=";")


def _listed(entries: list[str], end: str = "") -> Iterator[str]:
    for number, entry in enumerate(entries, start=1):
        yield f"  {entry}{',' if number < len(entries) else end}"
