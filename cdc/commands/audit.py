"""`tailrace audit`: does a store hold what the source holds? And `--repair` makes it so."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType

import click
import msgspec
import orjson

from cdc.audit.audit_records import TOPIC, AuditRecord
from cdc.commands.options import config_option, json_option
from cdc.config import Config, load_config
from cdc.errors import UsageError

_SHOWN = 20
_STOP_SECONDS = 5.0


@click.command()
@click.argument("stores", nargs=-1, metavar="STORE...")
@config_option
@click.option("--topic", "topic_only", is_flag=True, help="The topics themselves, and no store.")
@click.option("--table", "tables", multiple=True, metavar="SCHEMA.TABLE", help="Only this table; may be repeated.")
@click.option("--repair", is_flag=True, help="Mend the rows that differ, and look at them again.")
@click.option("--continuous", is_flag=True, help="Compare samples of all stores, until stopped.")
@click.option(
    "--timeout", type=click.FloatRange(min=1), default=60.0, show_default=True, help="Seconds to wait for lag."
)
@json_option
def audit(
    stores: tuple[str, ...],
    config_path: Path,
    topic_only: bool,
    tables: tuple[str, ...],
    repair: bool,
    continuous: bool,
    timeout: float,
    as_json: bool,
) -> int:
    """Compare every row of STOREs with the source, by content and version, while everything runs.

    Each side is read once, on Spark. What differs is looked at again until it is known to be wrong or to have moved, so
    that a busy source raises no alarm. Capture and the stores' sync must be running.

    With --repair the rows that differ are written again from the topic; where the topic itself is wrong, they are
    copied from the source. Exit code 0: equal (or made so); 1: some rows differ or are parked, or it cannot be told.

    With --continuous, [audit] rows_per_second rows at random are compared all the time, without Spark; `tailrace run`
    starts this by itself. What was found last is on <prefix>.__audits in any case.
    """
    if continuous:
        if stores or topic_only or tables or repair:
            raise UsageError("--continuous looks at all stores, and only looks.")
        return _run_continuously(load_config(config_path), timeout)
    from spark_jobs.audit.run import AuditOptions, exit_code, lazily, run_audit  # noqa: PLC0415 - Spark takes its time

    if topic_only == bool(stores):
        raise UsageError("Name the stores to audit, or say --topic.", remedy="tailrace audit search cache")
    config = load_config(config_path)
    options = AuditOptions(stores=stores, tables=tables, repair=repair, timeout_seconds=timeout)
    session, closing = lazily(config, stores)
    found = []
    with closing:
        for record in run_audit(config, options, session):
            found.append(record)
            if not as_json:
                click.echo("\n".join(_lines(record)))
    if as_json:
        click.echo(orjson.dumps({"audits": msgspec.to_builtins(found)}, option=orjson.OPT_INDENT_2).decode())
    return exit_code(found)


def _run_continuously(config: Config, timeout: float) -> int:
    from cdc.audit.sampled_audit import ContinuousAudit  # noqa: PLC0415 - the stores' clients take their time
    from sinks.scanning import BY_SPARK  # noqa: PLC0415 - as above
    from spark_jobs.tasks.parked_rows import read_parked  # noqa: PLC0415 - as above

    if not config.audit.rows_per_second:
        raise UsageError("[audit] rows_per_second is 0.", remedy="Say how many rows a second are to be compared.")
    stop = threading.Event()

    def ask_to_stop(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, ask_to_stop)
    signal.signal(signal.SIGINT, ask_to_stop)
    kinds = {store.kind in BY_SPARK for store in config.stores.values()} or {False}
    audits = [
        ContinuousAudit(
            config,
            rows_per_second=config.audit.rows_per_second,
            timeout_seconds=timeout,
            warehouses=warehouses,
            parked=lambda: {row.name for row in read_parked(config)},
        )
        for warehouses in sorted(kinds)
    ]

    failed: list[BaseException] = []

    def run(audit: ContinuousAudit) -> None:
        try:
            audit.run(stop)
        except BaseException as error:  # told by the main thread
            failed.append(error)
        finally:
            stop.set()  # the others too

    # Daemons: one that waits for a warehouse's batch does not hold up the end.
    threads = [threading.Thread(target=run, args=(audit,), daemon=True) for audit in audits]
    for thread in threads:
        thread.start()
    stop.wait()
    for thread in threads:
        thread.join(_STOP_SECONDS)
    if failed:
        raise failed[0]
    return 0


def _lines(record: AuditRecord) -> list[str]:
    what = "the topic" if record.store == TOPIC else record.store
    verdict = f"equal except {record.parked:,} parked" if record.verdict == "equal except parked" else record.verdict
    head = f"{record.table} in {what}: {verdict}"
    if record.verdict == "incomplete":
        return [f"{head}: {record.reason}"]
    parts = [f"{record.source_rows:,} rows", f"as of {record.lsn}", f"{record.seconds:.1f} s"]
    parts += [
        f"{count:,} {word}"
        for count, word in (
            (record.differing, "differ"),
            (record.repaired, "repaired"),
            (record.parked, "parked"),
            (record.evicted, "evicted"),
            (record.moving, "moving"),
        )
        if count
    ]
    lines = [f"{head} ({', '.join(parts)}){': ' + record.reason if record.reason else ''}"]
    for each in record.differences[:_SHOWN]:
        fields = f": {', '.join(each.fields)}" if each.fields else ""
        lines.append(f"  {each.id}  {each.kind} in the {each.wrong}{fields}")
    if record.differing > _SHOWN:
        lines.append(f"  … and {record.differing - _SHOWN:,} more (--json has up to 1,000)")
    return lines
