"""The Alembic history of the trainer's tables."""
