"""The `appliance` command. Modules of commands import little; what is heavy comes when a command runs.

Exit codes: 0 done; 1 it did not come about; 2 wrong usage; 3 not found; 4 refused (a gate, a conflict);
5 no answer from the server or the database; 6 the token; 7 the job failed or was cancelled; 8 the appliance
cannot start; 130 interrupted.
"""

from appliance.cli.main import cli, main

__all__ = ["cli", "main"]
