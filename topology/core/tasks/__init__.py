"""One parallel instance of a component, the same in every executor: links, credits, barriers, ends, statuses.

The two classes to know are `task.TaskHost`, which runs one component, and `worker.Worker`, which runs several hosts
in one process. Read `task.py` first, then `backpressure.py`.
"""
