"""`tailrace check` as roles with too few, enough and too many rights: each missing right has its GRANT."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from psycopg import sql

from cdc.check import Finding, Level, inspect
from tests.harness.pipeline.check_runs import (
    as_role,
    assert_found,
    assert_no_fail,
    forget_role,
    make_config,
    role,
)
from tests.harness.postgres.database import Database

CREATE_PUBLICATION = "CREATE PUBLICATION tailrace FOR TABLE ONLY t"


class Logins:
    """Checks of the test's database as one role."""

    def __init__(self, database: Database, bootstrap: str, prefix: str, name: str) -> None:
        self.name = name
        self._database = database
        self._config = make_config(as_role(database.dsn, name), bootstrap, prefix)

    def inspect(self) -> list[Finding]:
        return inspect(self._config)

    def admin(self, statement: str) -> None:
        """Run SQL as superuser; `{role}` stands for the role's name."""
        self._database.execute(statement.replace("{role}", sql.Identifier(self.name).as_string(None)))


@pytest.fixture
def logins(
    database: Database, kafka_bootstrap: str, prefix: str, postgres_url: str, request: pytest.FixtureRequest
) -> Iterator[Logins]:
    """A role with LOGIN REPLICATION, or the given attributes, and a table that it does not own."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    with role(postgres_url, *getattr(request, "param", ("LOGIN", "REPLICATION"))) as name:
        yield Logins(database, kafka_bootstrap, prefix, name)
        forget_role(database.dsn, name)


def test_login_replication_and_select_are_enough(logins: Logins) -> None:
    """With a publication made by the owner, these rights give no failure and no warning about superusers."""
    logins.admin("GRANT SELECT ON t TO {role}")
    logins.admin(CREATE_PUBLICATION)
    found = logins.inspect()
    assert_no_fail(found)
    assert_found(found, Level.OK, "role", "is not a superuser")
    assert_found(found, Level.OK, "role", "may replicate (it has REPLICATION)")
    assert_found(found, Level.OK, "table public.t", "may read it")


def test_each_missing_right_has_its_grant(logins: Logins) -> None:
    """The printed remedies for SELECT, USAGE, EXECUTE and the publication make the check pass."""
    logins.admin("REVOKE USAGE ON SCHEMA public FROM PUBLIC")
    logins.admin("REVOKE EXECUTE ON FUNCTION pg_logical_emit_message(boolean, text, text, boolean) FROM PUBLIC")
    found = logins.inspect()
    reading = assert_found(found, Level.FAIL, "table public.t", "grant usage on schema public", "grant select on")
    publishing = assert_found(found, Level.FAIL, "publication tailrace", "may not create", "does not own public.t")
    messages = assert_found(found, Level.FAIL, "role", "pg_logical_emit_message", "grant execute")
    for finding in (reading, publishing, messages):
        assert finding.remedy is not None
        for statement in finding.remedy.partition("run: ")[2].split(";"):
            if statement.strip():
                logins.admin(statement)
    assert_no_fail(logins.inspect())


def test_the_right_to_make_the_publication_will_do(logins: Logins) -> None:
    """A role that owns the tables and may create in the database needs no existing publication."""
    logins.admin("ALTER TABLE t OWNER TO {role}")
    logins.admin(f'GRANT CREATE ON DATABASE "{logins._database.name}" TO {{role}}')
    found = logins.inspect()
    assert_no_fail(found)
    assert_found(found, Level.OK, "publication tailrace", "capture creates it")


def test_row_level_security_that_hides_rows_is_refused(logins: Logins) -> None:
    """Row-level security fails unless the role bypasses it, since a re-select would miss existing rows."""
    logins.admin("GRANT SELECT ON t TO {role}")
    logins.admin(CREATE_PUBLICATION)
    logins.admin("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    hidden = assert_found(logins.inspect(), Level.FAIL, "table public.t", "Row-level security", "bypassrls")
    assert hidden.remedy is not None
    logins.admin(hidden.remedy.partition("run: ")[2].partition(";")[0])
    assert_no_fail(logins.inspect())


@pytest.mark.parametrize("logins", [("LOGIN",)], indirect=True)
def test_without_replication(logins: Logins) -> None:
    """A role without REPLICATION fails, by a real attempt, with the ordinary server's remedy."""
    found = logins.inspect()
    assert_found(found, Level.FAIL, "role", "may not replicate", f"alter role {logins.name} replication;")


MANAGED = {
    "rds_replication": ("Amazon RDS", "grant rds_replication to"),
    "cloudsqlsuperuser": ("Google Cloud SQL", "with replication;"),
    "azure_pg_admin": ("Azure Database", "with replication;"),
}


@pytest.mark.parametrize("service_role", MANAGED)
@pytest.mark.parametrize("logins", [("LOGIN",)], indirect=True)
def test_managed_services_are_recognised(logins: Logins, postgres_url: str, service_role: str) -> None:
    """A managed service is recognised by a role that only it has, and the remedy is that service's."""
    service, remedy = MANAGED[service_role]
    with role(postgres_url, name=service_role):
        found = logins.inspect()
        assert_found(found, Level.OK, "server", service)
        assert_found(found, Level.FAIL, "role", "may not replicate", remedy)
        logins.admin(f"GRANT {service_role} TO {{role}}")
        logins.admin("ALTER ROLE {role} REPLICATION")  # what membership means on the service itself
        assert_found(logins.inspect(), Level.OK, "role", f"may replicate (a member of {service_role})")
