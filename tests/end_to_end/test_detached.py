"""`appliance up --detach` and `appliance down`."""

from __future__ import annotations

from pathlib import Path

import psutil

from appliance.startup import holder
from tests.end_to_end.processes import is_alive
from tests.end_to_end.test_up import FREE_PORTS, run_command


def test_detached_appliance_is_up_when_the_command_returns_and_gone_after_down(tmp_path: Path) -> None:
    """The command returns with a healthy appliance, a second one is refused, and `down` leaves nothing."""
    environment = {"APPLIANCE_HOME": str(tmp_path / "home"), **FREE_PORTS}
    up = run_command("up", "--detach", environment=environment)
    try:
        assert up.returncode == 0, up.stderr
        assert "Stop it with `appliance down`." in up.stdout
        process = holder(tmp_path / "home")
        assert process is not None
        family = [psutil.Process(process), *psutil.Process(process).children(recursive=True)]
        url = up.stdout.splitlines()[0].removeprefix("The appliance is up at ").removesuffix(".")
        assert run_command("jobs", "list", environment={"APPLIANCE_URL": url}).returncode == 0

        second = run_command("up", "--detach", environment=environment)
        assert second.returncode == 8
        assert f"(process {process})" in second.stderr
        assert holder(tmp_path / "home") == process
    finally:
        down = run_command("down", environment=environment)
    assert down.returncode == 0, down.stderr
    assert down.stdout.endswith("Stopped.\n")
    assert not [each for each in family if is_alive(each)]
    again = run_command("down", environment=environment)
    assert again.stdout == f"No appliance is running on {tmp_path / 'home'}.\n"
