"""Runs `tailrace recover` and kills it right after a step.

Usage: `python -m tests.harness.pipeline.killed_recovery CONFIG ACTION`
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from cdc.config import load_config
from cdc.postgres.connection import connect
from cdc.recovery.recovery import Recovery
from cdc.recovery.topic_repair import RepairableTopics
from cdc.setup.steps import Step


def main() -> None:
    config = load_config(Path(sys.argv[1]))

    def die(step: Step) -> None:
        if step.action.code == sys.argv[2]:
            os.kill(os.getpid(), signal.SIGKILL)

    with connect(config.source.conninfo()) as connection:
        Recovery(config, connection, RepairableTopics(config.kafka)).carry_out(die)


if __name__ == "__main__":
    main()
