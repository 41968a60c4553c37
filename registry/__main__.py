"""`python -m registry migrate DATABASE_URL`: make the registry's tables, or bring them up to date."""

from __future__ import annotations

import argparse
import sys

from registry.database import connect
from registry.errors import RegistryError
from registry.store import migrate_registry


def main() -> int:
    """Run the command and return its exit code: 0, or 1 with one line that says why."""
    parser = argparse.ArgumentParser(
        prog="python -m registry", description="Look after the registry's tables."
    )
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("migrate", help="make the tables, or bring them up to date")
    command.add_argument("database_url")
    arguments = parser.parse_args()
    try:
        engine = connect(arguments.database_url)
        migrate_registry(engine)
        engine.dispose()
    except RegistryError as error:
        print(error, file=sys.stderr)
        return 1
    print("The registry's tables are up to date.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
