"""Opens the stream of a folder: settings, words, checks, and the write-ahead log, replayed."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from gateway.live.admission import Admission
from gateway.live.logged_changes import Active
from gateway.live.mapping import ColumnMapping
from gateway.live.pruning import finish
from gateway.live.vocabulary_files import empty_start
from gateway.live.write_ahead_log import ANSWER_SETTINGS, WriteAheadLog, has_begun, settings_of
from matching.errors import ConfigError
from matching.synonyms import Synonyms
from matching.window import Window
from spouts.history import start_of
from spouts.subscriptions import load_vocabulary
from topology.folder import RunFolder
from topology.settings import LiveConfig, live_config
from topology.wiring import space_of, subscription_refusal

#: Bytes of a file of synonyms at most.
_SYNONYM_BYTES = 16 * 2**20


class OpenStream(NamedTuple):
    """A stream whose folder this process has locked.

    config : LiveConfig
    admission : Admission    with the active subscriptions and admitted terms of the log
    mapping : ColumnMapping
    wal : WriteAheadLog      open to append
    earlier : dict           `run.json` of the stream that is resumed, else empty
    """

    config: LiveConfig
    admission: Admission
    mapping: ColumnMapping
    wal: WriteAheadLog
    earlier: dict[str, Any]


def open_stream(
    stack: ExitStack,
    folder: Path,
    settings: Mapping[str, Any],
    columns: Mapping[str, str],
    vocabulary: Path | None,
    attributes: Sequence[str] | None,
    stem: str,
    durable: Callable[[int], None] | None,
    active: Active | None = None,
    strict: bool = False,
    numbers: str = "plain",
    fold_accents: bool = False,
    on_read: Callable[[float], None] = lambda share: None,
    **fixed: Any,
) -> OpenStream:
    """Lock a folder and open its stream, a new one or the one that it has.

    Parameters
    ----------
    stack : ExitStack
        Unlocks the folder and closes the log.
    settings : mapping
        As `topology.settings.live_config` takes them.
    columns : mapping of str to str
        Role of a message -> named column.
    vocabulary : Path, optional
        The ETL's folder; by default the stream starts without words.
    attributes : sequence of str, optional
        Those of messages, without a vocabulary.
    stem : str
        Language of stems, without a vocabulary; "" for none.
    durable : callable, optional
        As `WriteAheadLog` takes it.
    active, strict
        As `Admission` takes them.
    numbers : str
        Form of the text of numbers in messages (`matching.attributes.NUMBER_FORMS`).
    fold_accents : bool
        Whether `cafe` is `café`, without a vocabulary.
    on_read : callable
        As `WriteAheadLog.replay` takes it.
    **fixed
        Settings that users cannot give.

    Raises
    ------
    ConfigError, InputError, CheckpointError, DeliveryError
        For invalid settings, a folder of another stream, a damaged log, or one that cannot be written.
    """
    if vocabulary is not None and attributes:
        raise ConfigError("--attribute: the stream has the attributes of its --vocabulary; leave one of them out")
    if vocabulary is not None and (stem or fold_accents):
        option = "--stem" if stem else "input.fold_accents"
        raise ConfigError(f"{option}: the stream has the words of its --vocabulary; leave one of them out")
    if has_begun(folder):
        RunFolder(folder).report()  # a later release's is refused by its name, before its words are
    start = vocabulary or empty_start(folder, attributes or (), stem, fold_accents)
    config = live_config(settings, start, folder, **fixed)
    words = load_vocabulary(start, config.most_terms)
    words.attributes = words.attributes.reading(numbers)
    mapping = ColumnMapping(columns, words.attributes)
    admission = Admission(
        words,
        space_of(config),
        Window.parse(config.window),
        refuses=subscription_refusal(config, most_terms=config.most_terms),
        max_ahead_s=config.max_ahead,
        active=active,
        strict=strict,
        objects=config.objects,
        synonyms=_synonyms_of(config.synonyms, words.form),
    )
    here = config.executor == "local"
    wal = WriteAheadLog(folder, settings_of(config, mapping.named), durable, admission.window, hands_over=here)
    stack.enter_context(wal.run.locked())
    stack.callback(wal.close)
    earlier = wal.begin()
    finish(folder)
    wal.recover(admission, on_read)
    return OpenStream(config, admission, mapping, wal, earlier)


def _synonyms_of(path: Path | None, form: Callable[[str], str] | None) -> Synonyms | None:
    """The synonyms of a file; None without one. Raises ConfigError."""
    if path is None:
        return None
    try:
        if path.stat().st_size > _SYNONYM_BYTES:
            raise ConfigError(f"{path}: has over {_SYNONYM_BYTES:,} bytes of synonyms; leave some out")
        return Synonyms(path.read_text("utf-8-sig").splitlines(), form, str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); name a file of synonyms in UTF-8") from error


def stream_config(folder: Path, live: Mapping[str, Any], out: Path) -> LiveConfig:
    """The settings of a stream that is read, as `run.json` has them in `live`."""
    live = {"objects": False} | dict(live)  # earlier releases had messages alone
    options = {name: live[name] for name in ANSWER_SETTINGS}
    options |= {"most_terms": live.get("most_terms", 0), "executor": "local"}
    return live_config(options, start_of(folder, live), out)


def reopened(folder: Path, live: Mapping[str, Any], out: Path) -> tuple[WriteAheadLog, Admission]:
    """A stream to read, whose log is to be replayed; its folder is neither locked nor written.

    `live` as `run.json` has it. Raises as `load_vocabulary`.
    """
    config = stream_config(folder, live, out)
    words = load_vocabulary(config.messages, config.most_terms)
    admission = Admission(words, space_of(config), Window.parse(config.window))
    return WriteAheadLog(folder, dict(live), None, admission.window), admission
