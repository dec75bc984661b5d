"""The exception tree of the whole project.

Bad *input* never raises past `matching.validate`: it becomes a rejected row with a reason code and a count. Bad *state*
always raises one of these. Every message says what is wrong, where, and what to do about it.
"""


class EngineError(Exception):
    """Base of every error this project raises on purpose; `exit_code` is what the command line returns."""

    exit_code = 1


class ConfigError(EngineError):
    """An option or setting that cannot be used."""

    exit_code = 2


class InUseError(ConfigError):
    """A folder that another process writes to; the same command may be right once that one has ended."""

    exit_code = 9


class TopologyError(EngineError):
    """A topology that cannot be built, or a component that failed while it ran."""

    exit_code = 3


class InputError(EngineError):
    """Input that cannot be read at all (a single bad row is rejected and counted instead).

    Parameters
    ----------
    reason_code : str
        One of the codes in `matching.reasons.REASONS`, or the name of the fault of a whole file.
    message : str
        What, where, and what to do.
    """

    exit_code = 4

    def __init__(self, reason_code: str, message: str):
        super().__init__(message)
        self.reason_code = reason_code

    def __reduce__(self):
        return type(self), (self.reason_code, str(self))


class CheckpointError(EngineError):
    """Saved state that is damaged, incomplete or of another format version."""

    exit_code = 5


class DeliveryError(EngineError):
    """Output that cannot be written or committed."""

    exit_code = 6


class OverloadError(EngineError):
    """More work than the set limits allow; the caller should slow down and try again."""

    exit_code = 7


class PackagingError(EngineError):
    """Another installed distribution shadows one of our packages."""

    exit_code = 8
