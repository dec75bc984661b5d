"""Files of updates when a run goes back behind those that have their names."""

import numpy as np
import pytest

from bolts.names import IdColumn
from bolts.sinks import FORMS, PartSink
from matching.model import Names
from tests.support.deliveries import updates
from topology.core.committing import publish_all


@pytest.fixture
def named():
    columns = IdColumn("subscription"), IdColumn("message")
    for column in columns:
        column.append(Names.of([f"{column.what} {number}" for number in range(400)]))
    return columns


@pytest.mark.parametrize("form", FORMS.values())
def test_sink_saved_again_behind_named_files_still_knows_how_far_they_go(form, named, tmp_path):
    """Part 0 was named, then its checkpoint proved damaged: the run goes back, is saved, and goes back once more."""
    first = PartSink(str(tmp_path), None, form)
    early = first.state(*named)
    first.write(updates((300, 1, 300, 0, np.nan)), named[0], named[1], 0.0)
    first.seal(*named)
    publish_all(first.sealed())
    second = PartSink(str(tmp_path), None, form, 1)
    assert second.restore(early) == 300
    third = PartSink(str(tmp_path), None, form, 2)
    assert third.restore(second.state(*named)) == 300
