"""`tailrace dashboard`: the page, `/metrics` and alerts. Wiring only."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path

import click

from cdc.commands.options import config_option
from cdc.config import Config, load_config
from cdc.errors import UsageError


@click.command()
@config_option
@click.option("--host", help="Instead of [dashboard] host.")
@click.option("--port", type=click.IntRange(0, 65_535), help="Instead of [dashboard] port; 0 takes a free one.")
def dashboard(config_path: Path, host: str | None, port: int | None) -> None:
    """Serve a page that shows how every hop of the pipeline does, with /metrics, /healthz, /readyz and a JSON API.

    It listens on loopback unless the config or --host says otherwise, which needs [dashboard] token. It also sends
    alerts, as [alerts] says. Ctrl-C or SIGTERM ends it.
    """
    from cdc.monitoring.web.dashboard import serve  # noqa: PLC0415 - the drivers take their time

    config = _with_address(load_config(config_path), host, port)
    with _listening(config) as listener:
        name, number = listener.getsockname()[:2]
        shown = f"[{name}]" if ":" in name else name
        click.echo(f"Dashboard: http://{shown}:{number}/")
        serve(config, listener)


def _with_address(config: Config, host: str | None, port: int | None) -> Config:
    changes = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    settings = dataclasses.replace(config.dashboard, **changes)  # type: ignore[arg-type]
    for key, what in settings.problems():
        raise UsageError(f"[dashboard] {key} {what}.")
    return dataclasses.replace(config, dashboard=settings)


def _listening(config: Config) -> socket.socket:
    settings = config.dashboard
    try:
        return socket.create_server((settings.host, settings.port), family=_family(settings.host))
    except OSError as error:
        raise UsageError(
            f"{settings.host}:{settings.port} cannot be listened on: {error.strerror}.",
            remedy="Set [dashboard] port to another one, or to 0 for any; [dashboard] enabled = false leaves it out.",
        ) from None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
