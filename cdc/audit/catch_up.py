"""Wait until the topics or the stores have everything up to an LSN."""

from __future__ import annotations

import time
from collections.abc import Sequence

from cdc.config import Config
from cdc.errors import TransientError
from cdc.lsn import LSN
from cdc.names import Control, control_topic
from cdc.positions.progress import Progress, read_progress
from cdc.positions.wait import wait_for

_POLL_SECONDS = 0.1


def wait_for_topics(config: Config, lsn: int, timeout_seconds: float) -> Progress:
    """Wait until capture has published everything up to the LSN, and return the first progress record that covers it.

    Raises TransientError after `timeout_seconds`.
    """
    name = control_topic(config.kafka.prefix, Control.PROGRESS)
    give_up_at = time.monotonic() + timeout_seconds
    while True:
        progress = read_progress(config.kafka.client_options(), name, timeout_seconds=10)
        if progress is not None and progress.state == "streaming" and progress.confirm_lsn >= lsn:
            return progress
        if time.monotonic() > give_up_at:
            raise TransientError(
                f"Capture has not published everything up to {LSN(lsn)} after {timeout_seconds:.0f} seconds.",
                remedy="An audit needs a running capture: tailrace capture --status shows its state.",
            )
        time.sleep(_POLL_SECONDS)


def wait_for_stores(config: Config, names: Sequence[str], lsn: int, timeout_seconds: float) -> None:
    """Wait until each of these stores has applied everything up to the LSN. Raises TransientError after the timeout.

    The stores' longest trigger interval is added to the timeout, because a store's next batch starts only after it.
    """
    if not names:
        return
    stores = [config.stores[name] for name in names]
    timeout_seconds += max(each.trigger_milliseconds for each in stores) / 1000
    waited = wait_for(config, names, LSN(lsn), timeout_seconds=timeout_seconds)
    if not waited:
        behind = [each for each in waited.stores if each.lsn < lsn]
        problem = f" ({behind[0].problem})" if behind[0].problem else ""
        raise TransientError(
            f"Store {behind[0].name} does not have everything up to {LSN(lsn)} after {timeout_seconds:.0f} seconds"
            f"{problem}: it is at {behind[0].lsn}.",
            remedy="An audit needs stores that are up to date: tailrace lag shows how far behind they are.",
        )
