"""What a client says where it has no answer."""


class WatcherError(Exception):
    """The watcher could not answer. `code` is the API's ("stale", "no_metrics", ...), "unreachable" where no answer
    came at all, "too_old" where the last good copy is older than asked for; `hint` says what to do."""

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint
