"""The error for input without a usable row."""

from collections.abc import Mapping

from matching.errors import InputError
from matching.reasons import REASONS

_SHOWN_REASONS, _SHOWN_CHARACTERS = 4, 120
#: Reason -> what to try.
_REMEDIES = {
    "missing_coordinate": "name the columns of the place with --column lat=NAME and lon=NAME",
    "coordinate_out_of_range": "see whether latitude and longitude are the right way round (--column lat=NAME)",
    "not_json": "say what the input is with --format",
    "nul_byte": "say how the text is encoded with --encoding, such as utf-16",
    "bad_utf8": "say how the text is encoded with --encoding, such as latin-1",
    "bad_csv": "say what separates the columns with --delimiter",
    "bad_time": "say how times are written with --time-format, or leave --require-time out",
    "missing_time": "name the column of the time with --column time=NAME, or leave --require-time out",
    "outside_world": "give a larger --world",
    "broken_file": "fetch the file again",
}


def nothing_usable(reasons: Mapping[str, tuple[int, str, int, str, str | None]], dry_run: bool = False) -> InputError:
    """The error for input without a usable row.

    Parameters
    ----------
    reasons : mapping
        Reason code -> (number of rows; file, line, beginning and column at fault of the first), commonest first.
    dry_run : bool
        Whether this is a dry run.
    """
    if not reasons:
        return InputError("nothing_usable", "the input has no rows: nothing is written")
    parts = []
    for reason, (count, file, line, row, column) in list(reasons.items())[:_SHOWN_REASONS]:
        place = f"{file} line {line}" if line else file
        meaning = REASONS[reason] + (f": column {column}" if column else "")
        parts.append(f"{count:,} {reason} ({meaning}), first in {place}: {row[:_SHOWN_CHARACTERS]!r}")
    if more := len(reasons) - _SHOWN_REASONS:
        parts.append(f"{more} other reasons" if more > 0 else "")
    # NULs between letters are text in two bytes a letter, whose rows fail in many ways
    at_fault = ["nul_byte"] if any("\0" in row for _, _, _, row, _ in reasons.values()) else reasons
    remedies = [_REMEDIES[reason] for reason in at_fault if reason in _REMEDIES][:2]
    remedy = " and ".join(remedies) or ("correct these rows" if dry_run else "look at it with --dry-run 100")
    return InputError(
        "nothing_usable",
        f"no row of the input is usable, so nothing is written: {'; '.join(filter(None, parts))}. To mend it, {remedy}",
    )
