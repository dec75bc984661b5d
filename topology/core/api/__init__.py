"""What an application uses: components, groupings, and the builder that checks them and returns a plan.

The two classes to know are `component.Bolt` (and its `Context`) and `builder.TopologyBuilder`. Read `component.py`
first, for the guarantees of the executors; then `plan.py`, for addresses.
"""
