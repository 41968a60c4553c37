"""Measurements against the budgets and the peers, with ratios. Never run as tests."""
