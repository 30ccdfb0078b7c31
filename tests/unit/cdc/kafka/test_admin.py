"""The administration client while no broker answers."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest
from kafka.errors import KafkaError

from cdc.kafka.admin import Admin
from deploy.stack.ports import choose_port


# kafka-python leaves the sockets of its tries to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_a_failed_attempt_leaves_no_thread_and_no_socket() -> None:
    """An attempt without a broker leaves no thread or socket, since capture retries for as long as the broker is
    away.
    """

    def left() -> tuple[int, int]:
        with pytest.raises(KafkaError):
            Admin(bootstrap_servers=f"127.0.0.1:{choose_port(set())}", bootstrap_timeout_ms=100)
        gc.collect()
        return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    assert left() == left()
