"""Run `load-watcher serve` as a user does: a separate process with HTTP requests."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.real.parts import REPOSITORY, Server
from tests.waiting import PATIENCE_SECONDS, wait_for


@dataclass(frozen=True)
class Answer:
    """An HTTP response with a decoded body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as UTF-8."""
        return self.body.decode()

    def json(self) -> Any:
        """The body as JSON, strictly: NaN and Infinity, which Python accepts, are errors."""
        return json.loads(self.body, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class Service(Server):
    """A `load-watcher serve` (or another `verb` that serves) in its own directory with its database.

    `arguments` follow `serve`, `config` is the text of its TOML file, `env` is added to the environment of the test.
    """

    name = "load-watcher"
    verb = "serve"

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        config: str | None = None,
        env: Mapping[str, str] | None = None,
        port: int | None = None,
    ) -> None:
        super().__init__(directory, port=port)
        self._arguments = list(arguments)
        self._env = dict(env or {})
        if config is not None:
            self.config_file = directory / "settings.toml"
            self.config_file.write_text(config)
            self._arguments += ["--config", str(self.config_file)]

    def command(self) -> Sequence[str | Path]:
        listen = ["--host", "127.0.0.1", "--port", str(self.port)]
        return [sys.executable, "-m", "load_watcher", self.verb, *listen, *self._arguments]

    def environment(self) -> Mapping[str, str]:
        # The working directory is not the repository, and an installed copy must not be tested instead.
        return {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1", **self._env}

    def is_ready(self) -> bool:
        return self.get("/healthz").status == 200

    def get(
        self,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        method: str = "GET",
        timeout: float = PATIENCE_SECONDS,
    ) -> Answer:
        """Request a path, with GET unless `method` is set; redirects are not followed."""
        answer = self.session.request(
            method, f"{self.url}{path}", headers=dict(headers or {}), timeout=timeout, allow_redirects=False
        )
        return Answer(answer.status_code, answer.headers, answer.content)

    def wait_for_status(self, status: int, path: str = "/watcher", *, timeout: float = PATIENCE_SECONDS) -> Answer:
        """Request a path until the response has this status; return that response."""
        answers: list[Answer] = []

        def answered() -> int | None:
            answers.append(self.get(path))
            return status if answers[-1].status == status else None

        wait_for(answered, what=f"{path} to answer {status}", timeout=timeout)
        return answers[-1]


class ExtenderService(Service):
    """A `load-watcher extender`."""

    name = "extender"
    verb = "extender"


class TlsService(Service):
    """A service over https, with requests that use the certificates of `folder`."""

    def __init__(self, directory: Path, *arguments: str, folder: Path, **options: Any) -> None:
        super().__init__(directory, *arguments, **options)
        self.session.verify = str(folder / "ca.pem")
        self.session.cert = (str(folder / "client.pem"), str(folder / "client.key"))

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"
