"""What kinds have in common whose results hold the best messages since registration, whatever leaves the window."""
