"""The harness's processes and waits show what happened when a test fails."""

from __future__ import annotations

import sys
from signal import SIGKILL, SIGTERM

import pytest

from tests.harness.processes.process import StartProcess
from tests.harness.processes.waiting import eventually

_SLEEPER = "import time; print('ready', flush=True); time.sleep(600)"
_ECHO_SIGNAL = (
    "import signal, time; signal.signal(signal.SIGTERM, lambda *_: (print('asked'), exit(7)));"
    "print('ready', flush=True); time.sleep(600)"
)


def test_eventually_gives_the_first_true_answer() -> None:
    """A condition is evaluated until it is true, and its value is returned."""
    answers = iter([0, None, "", "now"])
    assert eventually(lambda: next(answers)) == "now"


def test_eventually_says_what_it_waited_for() -> None:
    """After the deadline the failure names the condition and its last value."""
    with pytest.raises(AssertionError, match=r"in vain for the moon; last answer: 3 are left"):
        eventually(lambda: _fail("3 are left"), 0, "the moon")


def _fail(message: str) -> bool:
    raise AssertionError(message)


def test_output_and_exit_code_are_collected(start_process: StartProcess) -> None:
    """Both outputs are complete once the process has ended."""
    process = start_process(sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); exit(3)")
    process.expect_exit(3)
    assert (process.output, process.errors) == ("out\n", "err\n")


def test_failed_expectation_shows_the_output(start_process: StartProcess) -> None:
    """A wrong exit code is reported with all output of the process."""
    process = start_process(sys.executable, "-c", "print('why it failed'); exit(1)")
    with pytest.raises(AssertionError, match=r"exit code 1 instead of 0(.|\n)*why it failed"):
        process.expect_exit(0)


def test_waiting_for_a_line_ends_when_the_process_does(start_process: StartProcess) -> None:
    """A process that dies early fails the wait at once, not at the deadline."""
    process = start_process(sys.executable, "-c", "print('something else'); exit(1)")
    with pytest.raises(AssertionError, match=r"ended with exit code 1 before(.|\n)*something else"):
        process.wait_for_line("never printed", deadline_seconds=200)


def test_kill_reaches_the_whole_group(start_process: StartProcess) -> None:
    """`kill` also ends the child processes."""
    process = start_process(
        sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_SLEEPER!r}])"
    )
    process.wait_for_line("ready")
    assert process.kill() == -SIGKILL


def test_terminate_lets_the_process_answer(start_process: StartProcess) -> None:
    """SIGTERM is delivered to a handler, and the handler's exit code is seen."""
    process = start_process(sys.executable, "-c", _ECHO_SIGNAL)
    process.wait_for_line("ready")
    process.signal(SIGTERM)
    process.expect_exit(7)
    assert "asked" in process.output


def test_a_frozen_process_says_nothing_until_thawed(start_process: StartProcess) -> None:
    """SIGSTOP stops the process; after SIGCONT it answers what arrived meanwhile."""
    process = start_process(sys.executable, "-c", _ECHO_SIGNAL)
    process.wait_for_line("ready")
    process.freeze()
    process.terminate()
    assert process.running
    process.thaw()
    process.expect_exit(7)
