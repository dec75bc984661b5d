"""Which table of kinds a run uses: the product's own, or with baselines, if the run names an engine that is one.

Baselines are engines and window indexes that exist to be compared with (`baselines.kinds`). A run that names none of
them imports none. Read on in `topology.wiring`.
"""

from collections.abc import Mapping

from matching.kind_table import Kinds


def kinds_with(
    kinds: Kinds, engines: Mapping[str, str] | None = None, window_indexes: Mapping[str, str] | None = None
) -> Kinds:
    """The table itself if it has all these engines and window indexes (name by kind), else with baselines.

    A name that neither table has is refused where it is looked up.
    """
    wanted = [(kinds.named(kind).engines, name) for kind, name in (engines or {}).items() if kind in kinds]
    wanted += [(kinds.named(kind).windows, name) for kind, name in (window_indexes or {}).items() if kind in kinds]
    if all(name in table for table, name in wanted):
        return kinds
    from baselines.kinds import with_baselines

    return with_baselines(kinds)
