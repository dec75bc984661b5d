"""The framework: declares, runs and recovers topologies of spouts and bolts; knows no kind of subscription.

`api.component.Spout` and `Bolt` are what an application subclasses, `api.builder.TopologyBuilder` wires them, and an
executor runs the plan. Read `api/component.py` first, then `tasks/task.py` and `executors/local.py`.
"""
