"""Requests to the HTTP API of a running service or extender."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from watcher.core.messages import printable
from watcher.decoding.json_text import decode_json
from watcher.platform.net.failures import cluster_hint, failure_reason
from watcher.platform.net.http_body import TOO_LARGE_HINT, AnswerTooLarge, answer_bound, read_body
from watcher.platform.net.session import client_session

TIMEOUT_S = 30.0

_ALL_PATHS = "/openapi.json"  # occurs in the hint of a 404 for an unknown path


class ServiceClientError(Exception):
    """The service did not answer or refused the request; `hint` is the suggested fix, and `code` the service's code of
    the error, if it has one."""

    def __init__(self, message: str, *, hint: str = "", code: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        self.code = code


@contextmanager
def reading(url: str) -> Iterator[None]:
    """Raise ServiceClientError if the answer of `url` that is read in the block lacks a field, or if a field has an
    unexpected type."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        problem = f"the field {error} is missing" if isinstance(error, KeyError) else f"a field is invalid: {error}"
        raise ServiceClientError(
            printable(f"{url} returned JSON that is not a response of a load-watcher service: {problem}"),
            hint="check that this is the address of a load-watcher service, and that it has the version of this "
            "command (load-watcher --version)",
        ) from error


async def ask(
    url: str,
    *,
    parameters: Mapping[str, str] | Sequence[tuple[str, str]] = (),
    body: bytes | None = None,
    token: str | None = None,
    needs: str = "",
    unknown_path: str = "use a load-watcher service of the version of this command (load-watcher --version)",
) -> dict[str, Any]:
    """Send a POST with a JSON body, or a GET if `body` is None, and return the decoded response. `needs` continues the
    hint "check that load-watcher runs at this address", and `unknown_path` is the hint if the service lacks the path.
    Raises ServiceClientError, for an unknown path with the code `unknown_path`."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if body is not None:
        headers["Content-Type"] = "application/json"
    method = "GET" if body is None else "POST"
    try:
        async with (
            client_session(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session,
            session.request(
                method, url, params=parameters, data=body, headers=headers, allow_redirects=False
            ) as response,
        ):
            answer, status = await read_body(response, answer_bound()), response.status
    except AnswerTooLarge as error:
        raise ServiceClientError(f"{url}: {error}", hint=TOO_LARGE_HINT) from error
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        hint = f"check that load-watcher runs at this address{needs}"
        more = cluster_hint(url, environ=os.environ, home=Path.home())
        message = f"no response from {url}: {failure_reason(error, url=url)}"
        raise ServiceClientError(message, hint="\n".join(filter(None, (hint, more)))) from error
    try:
        document: dict[str, Any] = decode_json(answer, type=dict[str, Any])
    except msgspec.DecodeError:
        raise ServiceClientError(
            f"{url} returned status {status} and a body that is not JSON",
            hint="check that this is the address of a load-watcher service",
        ) from None
    if status != 200:
        found = document.get("error")
        problem: Mapping[str, Any] = found if isinstance(found, dict) else {}
        hint = printable(str(problem.get("hint", "")))
        if status == 404 and _ALL_PATHS in hint:
            raise ServiceClientError(f"{url} does not exist", hint=unknown_path, code="unknown_path")
        message, code = str(problem.get("message", f"status {status}")), str(problem.get("code", ""))
        raise ServiceClientError(printable(message), hint=hint, code=code)
    return document
