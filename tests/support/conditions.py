"""Random conditions and messages with attributes, and how many pairs kernel and oracle judge differently."""

import numpy as np

from matching.attributes import MISSING_KEY, TYPES, AttributeSchema, Categories, attribute_value, key_of
from matching.conditions import attribute_conditions, fit_attributes, parse_where
from matching.naive_conditions import where_holds

SCHEMA = AttributeSchema.parse(["price:number", "type:category", "listed:time"])
TYPES_BY_NAME = {one.name: TYPES[one.type] for one in SCHEMA.attributes}
CATEGORIES = ("house", "flat", "boat")
#: Few values, so that equal ones and neighbours meet; steps of numbers as small as a float64 has.
NUMBERS = (-1.5, -5e-324, 0.0, -0.0, 5e-324, 1.0, float(np.nextafter(1.0, 2.0)), 2, 2**53 + 1, 1e300, -1e300)
TIMES = ("1969-12-31T23:59:59.999999Z", "1970-01-01T00:00:00Z", "2020-05-01", "2020-05-01T00:00:00.000001+00:00")
DOMAINS = {"price": NUMBERS, "type": (*CATEGORIES, "never seen"), "listed": TIMES}


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
    return where


def random_values(draw):
    """A message's values as they come; a third are missing."""
    return {name: domain[draw(len(domain))] for name, domain in DOMAINS.items() if draw(3)}


def keys_of(messages, categories):
    """int64[attributes, messages], and the checked values of each message by name."""
    checked = [
        {one.name: attribute_value(one.type, message.get(one.name)) for one in SCHEMA.attributes}
        for message in messages
    ]
    keys = [
        [key_of(one.type, message[one.name], number, categories) for message in checked]
        for number, one in enumerate(SCHEMA.attributes)
    ]
    return np.array(keys, np.int64).reshape(len(SCHEMA), len(messages)), checked


def judged(wheres, messages, broken_table=lambda table: table, broken_keys=lambda keys: keys):
    """What kernel and oracle say of each pair: two bool[subscriptions, messages]."""
    categories = Categories([(), CATEGORIES, ()])
    parsed = [parse_where(where, SCHEMA) for where in wheres]
    assert not [one for one in parsed if isinstance(one, str)]
    seen = [{name: value for name, value in message.items() if value != "never seen"} for message in messages]
    keys, checked = keys_of(seen, categories)
    table = broken_table(attribute_conditions(parsed, SCHEMA, categories))
    slots = np.repeat(np.arange(len(wheres), dtype=np.int32), len(messages))
    rows = np.tile(np.arange(len(messages), dtype=np.int32), len(wheres))
    out = np.ones(slots.shape[0], np.bool_)
    fit_attributes(table, broken_keys(keys), slots, rows, out)
    oracle = [[where_holds(where, TYPES_BY_NAME, values) for values in checked] for where in wheres]
    return out.reshape(len(wheres), len(messages)), np.array(oracle)


def missing_as_zero(keys):
    """Broken on purpose."""
    return np.where(keys == MISSING_KEY, 0, keys)
