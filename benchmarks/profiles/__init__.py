"""Where time and memory go, and what the machine allows."""
