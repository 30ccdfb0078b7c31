"""Free ports, and the one clear line about a port that is taken."""

from __future__ import annotations

import random
import socket

from cdc.errors import UsageError
from deploy.stack.model import HOST

# Below every system's range of outgoing ports: a client that reconnects in a loop to a stopped server could otherwise
# be given the server's own port.
FIRST, LAST = 15000, 29999


def choose_port(taken: set[int]) -> int:
    """A port that nobody listens on, and that is not in `taken`."""
    candidates = list(range(FIRST, LAST + 1))
    random.shuffle(candidates)
    for port in candidates:
        if port not in taken and is_free(port):
            return port
    raise UsageError(f"No free port between {FIRST} and {LAST} on {HOST}.", remedy="Stop what holds them.")


def is_free(port: int) -> bool:
    """Whether a server could listen on it now."""
    with socket.socket() as probe:
        probe.settimeout(1)
        if probe.connect_ex((HOST, port)) == 0:
            return False
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def check_free(name: str, port: int) -> None:
    """Raises where something else listens on the port."""
    if not is_free(port):
        raise UsageError(
            f"Port {port} for {name} is taken by another program.",
            remedy=f"Give another one with --port {name}=PORT, or stop that program.",
        )
