"""This checkout of the project timed against another one: `python -m benchmarks.against OTHER_CHECKOUT`."""
