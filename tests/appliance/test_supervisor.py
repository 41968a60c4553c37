"""The supervisor: programs are restarted after growing pauses, and nothing of them is left in the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

import psutil
import pytest

from appliance.supervisor import CannotStart, Program, Supervisor, pause_before_restart
from tests.end_to_end.processes import is_alive, wait_until


def program(folder: Path, name: str, code: str) -> Program:
    return Program(name, [sys.executable, "-c", code], folder / f"{name}.log")


def pids(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def test_pauses_double_up_to_the_longest() -> None:
    assert [pause_before_restart(failures) for failures in (1, 2, 3, 7, 70)] == [0.5, 1.0, 2.0, 30.0, 30.0]


def test_dead_program_is_started_again(tmp_path: Path) -> None:
    started = tmp_path / "started"
    code = f"import os; open({str(started)!r}, 'a').write(f'{{os.getpid()}}\\n'); raise SystemExit(1)"
    supervisor = Supervisor([program(tmp_path, "gateway", code)])
    supervisor.start()
    try:

        def twice() -> bool:
            supervisor.tend()
            return len(set(pids(started))) == 2

        wait_until(twice, "the program is started a second time")
    finally:
        supervisor.stop()


def test_program_that_cannot_start_is_not_started_again(tmp_path: Path) -> None:
    """Its last line is the reason; the log of earlier runs is not."""
    (tmp_path / "gateway.log").write_text("error: something long ago\n")
    code = "import sys; print('starting'); print('error: port 1 is taken', file=sys.stderr); sys.exit(8)"
    supervisor = Supervisor([program(tmp_path, "gateway", code)])
    supervisor.start()
    try:
        with pytest.raises(CannotStart) as failed:
            wait_until(lambda: supervisor.tend() is not None, "the program has ended")
    finally:
        supervisor.stop()
    assert str(failed.value) == "port 1 is taken"
    assert (failed.value.program, failed.value.exit_code) == ("gateway", 8)


def test_program_that_ended_without_a_word_is_named() -> None:
    assert str(CannotStart("trainer", 8, "")) == "The trainer ended with exit code 8 and said nothing."


def test_stop_kills_what_does_not_listen_and_what_it_left_behind(tmp_path: Path) -> None:
    """A program that ignores SIGTERM is killed after its grace, with the children of its group."""
    started = tmp_path / "started"
    code = (
        "import os, signal, subprocess, sys\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        f"open({str(started)!r}, 'w').write(f'{{os.getpid()}}\\n{{child.pid}}\\n')\n"
        "signal.pause()\n"
    )
    supervisor = Supervisor([program(tmp_path, "trainer", code)], grace_seconds=0.2)
    supervisor.start()
    wait_until(lambda: len(pids(started)) == 2, "the program has started its child")
    family = [psutil.Process(pid) for pid in pids(started)]
    supervisor.stop()
    wait_until(lambda: not any(is_alive(process) for process in family), "both are gone")


def test_second_signal_ends_the_grace(tmp_path: Path) -> None:
    """Nobody has to wait for a program that will not listen."""
    started = tmp_path / "started"
    stubborn = (
        "import os, signal\n"
        "signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getppid(), signal.SIGUSR1))\n"
        f"open({str(started)!r}, 'w').write(str(os.getpid()))\n"
        "while True: signal.pause()\n"
    )

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        supervisor = Supervisor([program(tmp_path, "trainer", stubborn)], grace_seconds=600)
        supervisor.start()
        wait_until(lambda: bool(pids(started)), "the program runs")
        process = psutil.Process(pids(started)[0])
        supervisor.stop()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not is_alive(process)


def test_programs_end_with_their_supervisor_even_when_it_is_killed(tmp_path: Path) -> None:
    started = tmp_path / "started"
    child = f"import os, signal; open({str(started)!r}, 'w').write(str(os.getpid())); signal.pause()"
    code = (
        "import signal, sys\n"
        "from pathlib import Path\n"
        "from appliance.supervisor import Program, Supervisor\n"
        f"command = [sys.executable, '-c', {child!r}]\n"
        f"Supervisor([Program('gateway', command, Path({str(tmp_path / 'log')!r}))]).start()\n"
        "signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as parent:
        try:
            wait_until(lambda: bool(pids(started)), "the program runs")
            process = psutil.Process(pids(started)[0])
        finally:
            os.kill(parent.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(process), "the program has ended")
