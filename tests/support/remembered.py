"""What an oracle says, once for all engines that are held against it.

The oracle takes longer over a small world than most engines, and worlds are made anew for each of them. Answers are
known by the content of what was asked, whatever has been done to a world since it was made; the last few are kept.
"""

import copy
import pickle
from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import xxhash

#: Engines meet the same worlds one after the other.
_KEPT = 64


P = ParamSpec("P")
R = TypeVar("R")


def remembered(function: Callable[P, R]) -> Callable[P, R]:
    """Call a function of the content of its arguments alone once for each; every caller gets a copy of its own."""
    answers: OrderedDict[bytes, Any] = OrderedDict()

    @wraps(function)
    def asked(*arguments: P.args, **named: P.kwargs) -> R:
        key = xxhash.xxh3_128_digest(pickle.dumps((arguments, named), pickle.HIGHEST_PROTOCOL))
        if key not in answers:
            answers[key] = function(*arguments, **named)
            if len(answers) > _KEPT:
                answers.popitem(last=False)
        return _copied(answers[key])

    return asked


def _copied(answer: Any) -> Any:
    """Lists, tuples and dictionaries are made anew; what they hold at the end of them is not changed by anybody."""
    if type(answer) in (list, tuple):
        return type(answer)(_copied(part) for part in answer)
    return copy.copy(answer) if isinstance(answer, dict) else answer
