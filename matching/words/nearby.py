"""Words within one edit of each other: one character more, less or other, or two beside each other swapped."""


def within_one_edit(one: str, other: str) -> bool:
    """Whether two words are the same but for one edit at most. Linear."""
    short, long = (one, other) if len(one) <= len(other) else (other, one)
    same = (at for at, (a, b) in enumerate(zip(short, long, strict=False)) if a != b)
    at = next(same, len(short))
    if len(short) < len(long):
        return short[at:] == long[at + 1 :]
    swapped = short[at : at + 2] == long[at : at + 2][::-1] and short[at + 2 :] == long[at + 2 :]
    return swapped or short[at + 1 :] == long[at + 1 :]


def shortened(word: str) -> set[str]:
    """A word, and what is left of it without any one character: words within one edit have one of these in common."""
    return {word, *(word[:at] + word[at + 1 :] for at in range(len(word)))}
