"""`tailrace dashboard`: serve the web page and `/metrics`, and send alerts. Wiring only."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path

import click

from cdc.commands.options import config_option
from cdc.config import Config, load_config
from cdc.errors import UsageError
from cdc.monitoring.web.dashboard import serve


@click.command()
@config_option
@click.option("--host", help="Host to listen on, overriding [dashboard] host.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    help="Port to listen on, overriding [dashboard] port; 0 picks a free port.",
)
def dashboard(config_path: Path, host: str | None, port: int | None) -> None:
    """Serve a web page with the status of every hop of the pipeline, /metrics, /healthz, /readyz and a JSON API.

    The dashboard listens on loopback by default. To listen on another address, set [dashboard] token, and [dashboard]
    host or --host. The dashboard also sends the alerts that [alerts] configures. Ctrl-C or SIGTERM stops it.
    """
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
            f"The dashboard cannot listen on {settings.host}:{settings.port}: {error.strerror}.",
            remedy="Set [dashboard] port to another port, or to 0 for any free port; [dashboard] enabled = false turns"
            " the dashboard off.",
        ) from None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
