"""`make bench-stores`: bootstraps against the stores' own bulk limits, syncs at saturation, and commit to visible.

One fresh local stack, one go; `tailrace` is run as a user runs it. Progress goes to standard error; the last line of
standard output is JSON. README.md beside this file says how to read it. No figure is asserted here.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from typing import Final
from urllib.parse import urlsplit

from deploy.stack import NAMES, Stack
from tests.bench.capture import QUIET_LOAD, _fresh_stack, _names, say
from tests.bench.source import POSTGRES_SETTINGS
from tests.bench.store_bootstraps import Bootstraps
from tests.bench.store_pipeline import Addresses
from tests.bench.store_source import StoreSource
from tests.bench.store_syncs import Syncs

PARTS: Final = ("bootstrap", "sustained", "latency", "saturated")
# When a row was committed is asked afterwards, of the row itself.
_SETTINGS: Final = {**POSTGRES_SETTINGS, "track_commit_timestamp": "on"}


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is stopped on the way out
    started, load = time.monotonic(), os.getloadavg()[0]
    if load > QUIET_LOAD:
        say(f"this machine is busy (load {load:.1f}): the figures will say little")
    with _fresh_stack(NAMES, _SETTINGS) as stack:
        addresses = _addresses(stack)
        figures: dict[str, object] = {}
        with StoreSource(stack.server("postgres").address, addresses.dsn) as source:
            if "bootstrap" in options.only:
                figures |= Bootstraps(stack.folder, addresses, source, options.scale).run()
            if set(PARTS[1:]) & set(options.only):
                figures |= Syncs(stack.folder, addresses, source, options.scale).run(options.only)
        figures["settings"] = {
            "scale": options.scale,
            "cpus": os.cpu_count(),
            "load_at_start": round(load, 2),
            "python": platform.python_version(),
            **{name: stack.server(name).version for name in NAMES},
            "seconds": round(time.monotonic() - started),
        }
    print(json.dumps(figures))


def _addresses(stack: Stack) -> Addresses:
    return Addresses(
        dsn=urlsplit(stack.server("postgres").address)._replace(path="/bench").geturl(),
        kafka=stack.server("kafka").address,
        elasticsearch=stack.server("elasticsearch").address,
        redis=stack.server("redis").address,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.stores", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--scale", type=float, default=1.0, help="size of everything, 1 = as documented")
    parser.add_argument("--only", type=_names(PARTS), default=list(PARTS), help=f"some of {','.join(PARTS)}")
    return parser.parse_args()


if __name__ == "__main__":
    main()
