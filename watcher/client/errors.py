"""The error raised by all clients of the watcher."""


class WatcherError(Exception):
    """A client has no usable data. `code` is the API's error code ("stale", "no_metrics", ...), "unreachable" without a
    response, "malformed" if it could not be decoded, or "too_old" if the last good copy exceeds the maximum age;
    `hint` describes a fix."""

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint
