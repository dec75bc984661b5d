"""What an engine in the caller's process must tell: the oracle, told the same things by another way; random stories."""

import math
from collections import Counter

import numpy as np

import skyray
from matching.fields import Refusal
from matching.half_life import EPOCH_US, HALF_LIFE_S, SMOOTHING, DecayParameters
from matching.kinds import KINDS
from matching.model import CHANGES, MATCH
from matching.naive import Oracle
from matching.naive_rows import DecayModel, NaiveMessage
from matching.validate import build_table, subscription_row
from matching.vocabulary import Vocabulary
from matching.window import NO_FLOOR, Boundary, Window
from tests.support.growing_words import GrowingWords
from tests.support.naive_tables import batch, removals
from tests.support.vectors import unit_vector
from topology.settings import MOST_TERMS

SIDES = ("west", "south", "east", "north")
WORDS = [f"w{number}" for number in range(5)]
#: Words that no vocabulary has at the start.
LATE = [f"late{number}" for number in range(12)]
TEXTS = [" ".join(WORDS[:count]) for count in range(1, 6)]
BOX = "-20,-10,20,10"
#: A server on `BOX` with a short window, small batches and frequent checkpoints.
BUSY = (
    "--world",
    BOX,
    "--window",
    "count:60",
    "--set",
    "recovery.checkpoint_every=0.5",
    "--set",
    "stream.batch_rows=25",
)


def vocabulary_of(texts):
    empty = Vocabulary([], [], [], [], 0)
    return Vocabulary.of_counts(map(empty.count_terms, texts))


def random_subscription(rng, number):
    """One of any kind; a quarter of those that need no keywords have none, and a third of these exclude a word."""
    kind = KINDS.run[int(rng.integers(len(KINDS.run)))]
    keywords = rng.choice([*WORDS, *LATE[:4]], int(rng.integers(1, 3)), replace=False).tolist()
    row = {"subscription_id": f"s{number % 9}", "kind": kind.name, "keywords": keywords}
    if kind.place == "region":
        west, south = float(rng.integers(-20, 10)), float(rng.integers(-10, 5))
        row["region"] = [west, south, west + float(rng.integers(5, 20)), south + float(rng.integers(2, 10))]
    else:
        row |= {"lon": float(rng.integers(-20, 21)), "lat": float(rng.integers(-10, 11))}
    row |= {"k": int(rng.integers(1, 4))} if "k" in kind.fields else {}
    row |= {"alpha": float(rng.random())} if "alpha" in kind.fields else {}
    step = int(row["region"][0] if kind.place == "region" else row["lon"])
    if kind.wordless and step % 4 == 0:  # nothing more is drawn, so that all else stays what it is
        del row["keywords"]
        row |= {"not_keywords": WORDS[0]} if step % 3 == 0 else {}
    return row


def wide_subscription(kind, name, keywords):
    """A subscription that messages at 1 1 reach."""
    place = {"region": [-20, -10, 20, 10]} if kind.place == "region" else {"lon": 1, "lat": 1}
    row = {"subscription_id": name, "kind": kind.name, "keywords": keywords, **place}
    return row | {name: value for name, value in (("k", 3), ("alpha", 0.5)) if name in kind.fields}


def random_message(rng, number):
    words = rng.choice([*WORDS, *WORDS, *LATE], int(rng.integers(0, 4))).tolist()
    words[:1] = ["#" + word if number % 4 == 0 else word for word in words[:1]]
    row = {"id": f"m{number}", "text": " ".join(words) or "nothing", "time": 1_577_836_800 + number * 100}
    row |= {"lon": float(rng.integers(-20, 21)), "lat": float(rng.integers(-10, 11))}
    if rng.random() < 0.2:
        row["object_id"] = f"thing {rng.integers(4)}"
        row["op"] = "delete" if rng.random() < 0.3 else "publish"
    if rng.random() < 0.1:
        row |= {"west": row["lon"] - 3, "south": row["lat"], "east": row["lon"] + 3, "north": row["lat"]}
    return row


class Beside:
    """The oracle, told the same things by another way.

    Where times matter, messages dated later than `latest_s` (seconds since 1970) are set aside. Up to `most_terms` new
    words are admitted.
    """

    def __init__(self, window, words=None, latest_s=math.inf, most_terms=MOST_TERMS):
        self.latest_s = latest_s
        self.fading = set()  # ids of live subscriptions whose scores fade
        start = vocabulary_of(TEXTS) if words is None else words
        self.growing = GrowingWords(start, most_terms)
        self.space = skyray.Engine(TEXTS, world=BOX).space
        self.window = Window.parse(window)
        fading = DecayParameters.of(HALF_LIFE_S, SMOOTHING, start.collection_count, start.total_tokens)
        counts = {most_terms + place: count for place, count in enumerate(start.collection_count.tolist())}
        model = DecayModel(fading.log_base_per_s, SMOOTHING, counts, start.total_tokens, EPOCH_US)
        self.oracle = Oracle(self.window, self.space.max_distance, model)
        self.number = self.seq = self.batch = self.marks = self.unknown = 0
        self.names, self.live, self.added, self.removed = {}, {}, [], []
        self.ids, self.clock, self.waiting = [], NO_FLOOR, []

    def subscribe(self, row):
        """Returns why it is refused, by a reason code; None if it is accepted."""
        if not self.growing.subscription(row.get("keywords") or ()):
            return "too_many_terms"
        if not self.growing.most_terms:
            found = subscription_row(row, self.growing.vocabulary, self.space, KINDS)
            if isinstance(found, Refusal):
                return found.reason
        if row["subscription_id"] in self.live:
            self.unsubscribe(row["subscription_id"])
        self.added.append((row, self.number, self.seq + len(self.waiting)))
        self.names[self.number] = row["subscription_id"]
        self.live[row["subscription_id"]] = self.number
        if KINDS.named(row["kind"]).fades:
            self.fading.add(row["subscription_id"])
        self.number += 1
        return None

    def unsubscribe(self, name):
        self.removed.append((self.live.pop(name), self.seq + len(self.waiting)))
        self.fading.discard(name)

    def offer(self, row, mark=False):
        """A message, or a clock mark, which does not count as one."""
        times_matter = self.window.kind == "time" or self.fading
        ahead = bool(times_matter) and (row.get("time") or 0) > self.latest_s
        row = row | {"ahead": ahead, "mark": mark}
        self.waiting.append(row)
        if not row["ahead"] and row.get("op") != "delete":
            self.growing.message(row["text"])

    def publish(self, rows=(), by_seq=False):
        """What a batch tells, of rows that were offered and of these.

        With `by_seq` changes behind the last message count with the next batch, as in a run.
        """
        messages = []
        for row in rows:
            self.offer(row)
        rows, self.waiting = self.waiting, []
        self.growing.close(self.seq - self.marks)
        self.marks += sum(row["mark"] for row in rows)
        words = self.growing.vocabulary
        for row in rows:
            counts = {} if row.get("op") == "delete" or row["ahead"] else words.count_terms(row["text"])
            vector = unit_vector(words, counts)
            named = {words.id_of(word[1:]) for word in counts if word.startswith("#")}
            self.unknown += vector.unknown
            x, y = self.space.project(np.float64(row["lon"]), np.float64(row["lat"]))
            untimed = row.get("time") is None or row["ahead"]
            time_us, seq = NO_FLOOR if untimed else row["time"] * 1_000_000, self.seq + len(messages)
            west, south, east, north = (row.get(s, row["lon" if s in ("west", "east") else "lat"]) for s in SIDES)
            messages.append(
                NaiveMessage(
                    seq,
                    float(x),
                    float(y),
                    west,
                    south,
                    east,
                    north,
                    seq if self.window.kind == "count" else time_us,
                    dict(zip(vector.terms.tolist(), vector.weights.tolist(), strict=True)),
                    dict(zip(vector.terms.tolist(), vector.counts.tolist(), strict=True)),
                    time_us,
                    row.get("object_id", row["id"]),
                    int(row.get("op") == "delete"),
                    beginnings=sorted(named - {None, *vector.terms.tolist()}),
                    visible=not (row.get("op") == "delete" or row["ahead"] or row["mark"]),
                    vector=tuple(self.space.vectors(np.array([row["lon"]], float), np.array([row["lat"]], float))[0]),
                )
            )
            self.clock = max(self.clock, time_us)
            self.ids.append(row["id"])
        last = self.seq + len(messages) - 1
        boundary = Boundary(self.batch, self.seq, last, self.window.floor(last, self.clock))
        columns, extras = batch(messages)
        until = last if by_seq else last + 1
        added, self.added = _split(self.added, until)
        removed, self.removed = _split(self.removed, until)
        parsed = [subscription_row(row, words, self.space, KINDS) for row, _, _ in added]
        table = build_table(parsed, [number for _, number, _ in added], [at for _, _, at in added])
        updates = self.oracle.advance(boundary, columns, table, removals(removed), extras)
        self.seq, self.batch = last + 1, self.batch + 1
        return Counter(
            (CHANGES[one.change], self.names[one.number], self.ids[one.seq], one.as_of,
             None if one.change == MATCH else one.score)
            for one in updates
        )  # fmt: skip


def _split(changes, until):
    """Those that take effect before the message behind `until`, and the others."""
    return [one for one in changes if one[-1] <= until], [one for one in changes if one[-1] > until]
