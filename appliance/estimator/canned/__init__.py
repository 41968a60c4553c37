"""Canned estimators: linear models, deep networks, and the two together (wide and deep)."""
