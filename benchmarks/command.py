"""What is behind `python -m benchmarks.NAME`: options from the parameters of a function, one JSON object, an exit code.

A parameter that is annotated with words is an option, as in `skyray bench`; one that is a tuple takes values separated
by commas. The report says whether it counts (`exact`), and is printed with where it comes from.
"""

import argparse
import json
import sys
from collections.abc import Callable
from inspect import signature
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

from benchmarks.provenance import provenance

#: Is told what is going on, a sentence at a time.
Tell = Callable[[str], None]


def main(measure: Callable[..., dict[str, Any]]) -> int:
    """Measure as the command line says, and print; 1 if the report does not count."""
    described = (sys.modules[measure.__module__].__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=described, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for each in signature(measure, eval_str=True).parameters.values():
        if get_origin(each.annotation) is Annotated:
            plain, said = get_args(each.annotation)
            option = f"--{each.name.replace('_', '-')}"
            parser.add_argument(option, type=_reader(plain), default=each.default, help=said)
    report = measure(**vars(parser.parse_args()), tell=say)
    print(json.dumps({"made_by": provenance(), **report}, indent=1))
    return 0 if report["exact"] else 1


def _reader(plain: Any) -> Callable[[str], Any]:
    """What makes a value of an option's text."""
    if get_origin(plain) is tuple:
        part = get_args(plain)[0]
        return lambda text: tuple(part(word) for word in text.split(",") if word)
    some = [each for each in get_args(plain) if each is not NoneType]
    return some[0] if some else plain


def say(sentence: str) -> None:
    """On standard error, where it is in no report's way."""
    print(sentence, file=sys.stderr, flush=True)
