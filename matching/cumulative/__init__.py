"""Base of cumulative kinds: results are the best messages since registration, also those that left the window."""
