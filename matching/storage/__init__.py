"""Flat arrays and what keeps them in order: slots, pools, columns by slot. Start in `matching.storage.slots`."""
