"""Aligned checkpoints: barriers through the stream, snapshots of tasks as files, a manifest that commits them.

The two classes to know are `coordinator.CheckpointCoordinator` (the driver's part) and `store.CheckpointStore` (the
files). Read `barriers.py` first, for when tasks copy their state.
"""
