"""`tailrace audit`: compare stores or topics with the source, and repair differences with `--repair`."""

from __future__ import annotations

import threading
from pathlib import Path

import click
import msgspec
import orjson

from cdc.audit.audit_records import TOPIC, AuditRecord
from cdc.audit.sampled_audit import ContinuousAudit
from cdc.commands.options import config_option, json_option
from cdc.config import Config, load_config
from cdc.errors import UsageError
from cdc.stop_signals import event_on
from cdc.stores.registry import is_table_kind

_SHOWN = 20
_STOP_SECONDS = 5.0


@click.command()
@click.argument("stores", nargs=-1, metavar="STORE...")
@config_option
@click.option("--topic", "topic_only", is_flag=True, help="Audit the topics instead of stores.")
@click.option("--table", "tables", multiple=True, metavar="SCHEMA.TABLE", help="Audit only this table; repeatable.")
@click.option("--repair", is_flag=True, help="Repair rows that differ, then compare them again.")
@click.option("--continuous", is_flag=True, help="Compare random samples of all stores until stopped.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=60.0,
    show_default=True,
    help="Seconds to wait for a store that lags behind.",
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
    """Compare every row of STOREs with the source, by content and version, while the pipeline runs.

    The audit reads each side once, on Spark. It reads rows that differ again until they are proven wrong or have
    changed meanwhile, so a busy source causes no false alarm. Capture and the stores' sync must be running.

    With --repair, the audit writes rows that differ to the store again, from the topic. If the topic itself is wrong,
    the audit publishes the rows again from the source. Exit code 0: equal, or repaired. Exit code 1: some rows differ
    or are parked, or the audit could not compare them.

    With --continuous, the audit compares [audit] rows_per_second random rows per second until it is stopped, without
    Spark. `tailrace run` starts this mode automatically. The latest results of every audit are on <prefix>.__audits.
    """
    if continuous:
        if stores or topic_only or tables or repair:
            raise UsageError(
                "--continuous audits all stores and repairs nothing: use it without STORE, --topic, --table and "
                "--repair."
            )
        return _run_continuously(load_config(config_path), timeout)
    from spark_jobs.audit.run import AuditOptions, exit_code, lazy_session, run_audit  # noqa: PLC0415 - see cdc.commands

    if topic_only == bool(stores):
        raise UsageError("Name the stores to audit, or use --topic.", remedy="tailrace audit search cache")
    config = load_config(config_path)
    options = AuditOptions(stores=stores, tables=tables, repair=repair, timeout_seconds=timeout)
    session, closing = lazy_session(config, stores)
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
    from spark_jobs.tasks.parked_rows import read_parked  # noqa: PLC0415 - see cdc.commands

    if not config.audit.rows_per_second:
        raise UsageError("[audit] rows_per_second is 0.", remedy="Set it to the rows per second to compare.")
    stop = event_on()
    kinds = {is_table_kind(store.kind) for store in config.stores.values()} or {False}
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
        except BaseException as error:  # the main thread raises it
            failed.append(error)
        finally:
            stop.set()  # stops the other audits too

    # Daemon threads: an audit that waits for a warehouse's batch must not delay the exit.
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
