"""The Alembic history of the registry's tables."""
