"""The graph of packages has every import, finds circles, and says why an import stands inside a function."""

import ast

from benchmarks import graph

TEXTS = {
    "matching": "",
    "matching.a": "import numpy\n\nfrom typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import bolts.b\n",
    "bolts": "",
    "bolts.b": "from matching.a import X\n\n\ndef f():\n    from spouts import s\n    import json\n",
    "spouts": "",
    "spouts.s": "import ray\n\nfrom bolts import b\n",
    "topology.core.tasks.task": "import topology.core\nfrom matching import a\n",
    "topology.core": "",
}


def test_imports_are_found_wherever_they_stand_but_for_type_checkers():
    found = {(each.by, each.of, each.inside) for each in graph.imports(TEXTS)}
    assert ("bolts.b", "matching.a", False) in found, "a name of a module"
    assert ("bolts.b", "spouts.s", True) in found and ("bolts.b", "json", True) in found
    assert ("topology.core.tasks.task", "matching.a", False) in found, "a module of a package"
    assert not [each for each in found if each[:2] == ("matching.a", "bolts.b")]


def test_circle_through_an_import_inside_a_function_is_found():
    measured = graph.measure(TEXTS)
    assert measured["circles"] == [["bolts", "spouts"]]
    assert measured["edges"]["bolts", "spouts"] == measured["inner"]["bolts", "spouts"] == 1
    assert measured["inner"]["spouts", "bolts"] == 0
    straight = TEXTS | {"spouts.s": "import ray\n"}
    assert graph.measure(straight)["circles"] == []


def test_import_inside_a_function_is_for_an_extra_if_what_it_brings_is():
    inside = graph.measure(TEXTS)["inside"]
    assert inside == {"bolts": {"extra": 1, "other": 1}}, "spouts.s imports ray"
    plain = graph.measure(TEXTS | {"spouts.s": "from bolts import b\n"})
    assert plain["inside"] == {"bolts": {"ours": 1, "other": 1}}


def test_nodes_are_packages_but_for_the_framework_and_the_gateway():
    named = ("matching.topk.operator", "topology.wiring", "topology.core.tasks.task", "gateway.live.pipe")
    assert [graph.node_of(name) for name in named] == ["matching", "topology", "topology.core", "gateway.live"]


def test_imports_inside_functions_are_for_extras_but_for_these():
    """`gateway.entry` handles Ctrl-C during its import; those of `matching` keep Numba out of Spark's workers.

    Commands import what they run when they are called: their help pages come at once.
    """
    inside = graph.measure(graph.sources())["inside"]
    inside.pop("gateway.commands")
    ours = {node: counts["ours"] for node, counts in inside.items() if counts["ours"]}
    assert ours == {"gateway.entry": 1, "matching": 8}, "move the new one to the top of its file"


def test_packages_form_no_circle():
    measured = graph.measure(graph.sources())
    assert measured["edges"]["topology.core", "matching"] > 20 and measured["edges"]["baselines", "papers"] > 20
    assert measured["circles"] == []
    assert not [edge for edge in measured["edges"] if edge[1] in ("papers", "baselines") and edge[0] != "baselines"]


def test_no_public_class_name_is_there_twice():
    found: dict[str, list[str]] = {}
    for module, text in graph.sources().items():
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(module)
    assert {name: where for name, where in found.items() if len(where) > 1} == {}
    assert len(found) > 500
