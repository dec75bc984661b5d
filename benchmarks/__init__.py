"""Workloads and measurements; not installed with the product. Start in `benchmarks.run`."""
