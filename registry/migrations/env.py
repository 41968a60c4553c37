"""Run by Alembic when the registry's tables are migrated; see `registry.database.migrate`."""

from registry.database import run_environment

run_environment()
