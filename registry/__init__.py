"""A SQL model registry: immutable versions, labels that move by compare-and-set, gates, rollback."""
