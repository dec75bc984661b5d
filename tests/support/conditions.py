"""Random conditions and messages with attributes, and how many pairs kernel and oracle judge differently."""

import numpy as np

from matching import filter_programs, filters
from matching.attributes import MISSING_KEY, TYPES, AttributeSchema, attribute_value, key_of, list_keys
from matching.conditions import parse_where
from matching.fields import Refusal
from matching.filter_programs import compile_filter, joined_programs
from matching.filters import filters_of
from matching.model import NO_KEYS, MessageBatch
from matching.naive_filters import holds, instructions_of
from matching.naive_rows import messages_of
from tests.support.naive_conditions import where_holds

SCHEMA = AttributeSchema.parse(["price:number", "tags:categories", "type:category", "listed:time"])
TYPES_BY_NAME = {one.name: TYPES[one.type] for one in SCHEMA.attributes}
CATEGORIES = ("house", "flat", "boat")
#: Few values, so that equal ones and neighbours meet; steps of numbers as small as a float64 has.
NUMBERS = (-1.5, -5e-324, 0.0, -0.0, 5e-324, 1.0, float(np.nextafter(1.0, 2.0)), 2, 2**53 + 1, 1e300, -1e300)
TIMES = ("1969-12-31T23:59:59.999999Z", "1970-01-01T00:00:00Z", "2020-05-01", "2020-05-01T00:00:00.000001+00:00")
DOMAINS = {"price": NUMBERS, "type": (*CATEGORIES, "never seen"), "listed": TIMES}
TAGS = ("garden", "sea", "balcony", "lift", 7, True)


def random_where(draw):
    """A condition object over one to three attributes; `draw(n)` gives a whole number below n."""
    where = {}
    for name, domain in DOMAINS.items():
        if where and draw(2):
            continue
        some = [domain[draw(len(domain))] for _ in range(1 + draw(3))]
        form = draw(4)
        if form == 0:
            where[name] = some[0]
        elif form == 1:
            where[name] = some
        else:
            wanted = {}
            if form == 2 and name != "type":
                wanted = {("lt", "lte", "gt", "gte")[draw(4)]: one for one in some}
            if draw(3) == 0:
                wanted["exists"] = bool(draw(2))
            if draw(2) or not wanted:
                wanted["not"] = some if draw(2) else some[0]
            where[name] = wanted
    if draw(2):
        where["tags"] = random_tags(draw)
    return where


def random_tags(draw):
    """A condition on a list of categories."""
    some = [TAGS[draw(len(TAGS))] for _ in range(1 + draw(3))]
    form = draw(4)
    if form < 2:
        return some if form else some[0]
    wanted = {("any", "all", "none", "not")[draw(4)]: some}
    if draw(3) == 0:
        wanted |= {("any", "all", "none")[draw(3)]: TAGS[draw(len(TAGS))]}
    return wanted | ({"exists": bool(draw(2))} if draw(4) == 0 else {})


def random_values(draw):
    """A message's values as they come; a third are missing."""
    values = {name: domain[draw(len(domain))] for name, domain in DOMAINS.items() if draw(3)}
    tags = [TAGS[draw(len(TAGS))] for _ in range(draw(5))]
    return values | ({"tags": tags} if draw(4) else {"tags": TAGS[draw(len(TAGS))]} if draw(2) else {})


def keys_of(messages):
    """int64[messages, columns], and the checked values of each message by name."""
    checked = [
        {one.name: attribute_value(one.type, message.get(one.name)) for one in SCHEMA.attributes}
        for message in messages
    ]
    columns = [
        list_keys([message[one.name] for message in checked])
        if one.name == "tags"
        else np.array([key_of(message[one.name]) for message in checked], np.int64).reshape(-1, 1)
        for one in SCHEMA.attributes
    ]
    return np.concatenate(columns, axis=1), checked


def batch_of(terms, keys=NO_KEYS, lon=None, lat=None):
    """A batch of messages with these terms and keys, at 0, 0 unless places are given."""
    n = len(terms)
    offsets = np.cumsum([0, *map(len, terms)])
    flat = np.array([term for one in terms for term in sorted(one)], np.int32)
    lon, lat = (np.zeros(n) if column is None else np.array(column, np.float64) for column in (lon, lat))
    seq = np.arange(n)
    return MessageBatch(
        seq, lon, lat, lon, lat, lon, lat, seq, offsets, flat, np.ones(flat.size, np.float32), keys=keys
    )


def passing(programs, batch):
    """Which messages pass which programs: bool[programs, messages]."""
    n = len(programs)
    slots = np.repeat(np.arange(n, dtype=np.int32), len(batch))
    rows = np.tile(np.arange(len(batch), dtype=np.int32), n)
    return filters.passing(filters_of(*joined_programs(programs)), slots, rows, batch).reshape(n, len(batch))


def passing_plain(programs, batch):
    """The same by the oracle of programs."""
    messages = list(messages_of(batch))
    rows = [instructions_of(np.frombuffer(program, np.int64).tolist()) for program in programs]
    return np.array(
        [[all(holds(one, m.west, m.south, m.carried, m.keys, m.order) for one in r) for m in messages] for r in rows]
    ).reshape(len(programs), len(messages))


def judged(wheres, messages, broken=lambda program: program, broken_keys=lambda keys: keys):
    """What kernel and oracle say of each pair: two bool[subscriptions, messages]."""
    parsed = [parse_where(where, SCHEMA) for where in wheres]
    assert not [one for one in parsed if isinstance(one, Refusal)]
    seen = [{name: value for name, value in message.items() if value != "never seen"} for message in messages]
    keys, checked = keys_of(seen)
    programs = [broken(compile_filter(one)) for one in parsed]
    batch = batch_of([[] for _ in messages], broken_keys(keys))
    oracle = np.array([[where_holds(where, TYPES_BY_NAME, values) for values in checked] for where in wheres])
    kernel = passing(programs, batch)
    assert (kernel == passing_plain(programs, batch)).all(), "kernel and oracle read a program differently"
    return kernel, oracle


def edited(program, operation, edit):
    """A program of which the words of all instructions of an operation are edited: broken on purpose."""
    made = [
        one._replace(words=edit(one.words)) if one.operation == operation else one
        for one in filter_programs.instructions_of(program)
    ]
    return filter_programs.program_of(made)


def missing_as_zero(keys):
    """Broken on purpose."""
    return np.where(keys == MISSING_KEY, 0, keys)
