"""Fetches the samples of other replicas at start: once, from all concurrently, within a timeout.

The name of a headless Service has the addresses of all ready replicas, possibly including this one, so every address of
a name is requested. The caller decodes the responses (transfer.py has the rules). A replica that hangs, refuses or
returns invalid data only causes a log message.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import sys
from collections.abc import Awaitable, Callable, Sequence

import aiohttp
from aiohttp import hdrs
from yarl import URL

from watcher import __version__
from watcher.core.messages import printable
from watcher.model import RestoredSamples
from watcher.platform.net.dns import addresses_of, get_from
from watcher.platform.net.failures import failure_reason
from watcher.platform.net.http_body import TOO_LARGE_HINT, AnswerBound, AnswerTooLarge, answer_bound, read_body
from watcher.platform.net.session import client_session
from watcher.replicas.transfer import TransferRejected

log = logging.getLogger(__name__)

Read = Callable[[bytes], RestoredSamples]
"""Decodes a response, in a thread; raises TransferRejected if the samples are rejected."""
Keep = Callable[[bytes], Awaitable[None]]
"""Decodes a response and keeps its samples."""
SAMPLES = AnswerBound(answer_bound().bytes, sys.maxsize)  # not JSON


class Peers:
    """Client for the replicas at `urls`, with all addresses of each name. `token` is sent with every request."""

    def __init__(self, urls: Sequence[str], *, token: str | None, tls: ssl.SSLContext) -> None:
        self._urls = [URL(url) for url in urls]
        self._headers = {
            hdrs.USER_AGENT: f"load-watcher/{__version__}",
            hdrs.ACCEPT_ENCODING: "identity",  # the samples are already compressed
            **({hdrs.AUTHORIZATION: f"Bearer {token}"} if token else {}),
        }
        self._tls = tls

    async def ask(self, read: Read, *, timeout: float) -> list[RestoredSamples]:
        """Return the samples that the replicas sent within `timeout` seconds and `read` accepted, in no particular
        order. Does not raise, neither for errors of a replica nor for unexpected errors."""
        taken: list[RestoredSamples] = []
        decoding = asyncio.Lock()  # one at a time: the samples of a response may need much of the memory

        async def keep(body: bytes) -> None:
            async with decoding:
                taken.append(await asyncio.to_thread(read, body))

        session = client_session(
            tls=self._tls,
            headers=self._headers,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        try:
            async with session, asyncio.timeout(timeout), asyncio.TaskGroup() as asking:
                for url in self._urls:
                    asking.create_task(self._ask_name(url, asking, session, keep))
        except TimeoutError:
            log.warning("not all other replicas responded within %g s; starting with the samples received", timeout)
        return taken

    async def _ask_name(
        self,
        url: URL,
        asking: asyncio.TaskGroup,
        session: aiohttp.ClientSession,
        keep: Keep,
    ) -> None:
        try:
            addresses = await addresses_of(url)
        except (OSError, UnicodeError) as error:  # UnicodeError: not a valid host name
            log.info("no replica is ready at %s: the name has no address (%s)", url.host, error)
            return
        for address in addresses:
            asking.create_task(self._ask_one(url, address, session, keep))

    async def _ask_one(self, url: URL, address: str, session: aiohttp.ClientSession, keep: Keep) -> None:
        """Ask one replica. Raises no error, which would cancel the requests to the other replicas."""
        target = url.with_host(address).joinpath("api", "v1", "samples")
        try:
            async with get_from(session, target, of=url) as response:
                if response.status != 200:
                    log.info("replica at %s has no samples yet: status %s", target.authority, response.status)
                    return
                body = await read_body(response, SAMPLES)
            await keep(body)
        except TransferRejected as error:
            log.info("samples of the replica at %s rejected: %s", target.authority, printable(str(error)))
        except AnswerTooLarge as error:
            log.warning("samples of the replica at %s rejected: %s. %s", target.authority, error, TOO_LARGE_HINT)
        except Exception as error:  # whatever a response causes costs this replica's samples only
            why = failure_reason(error, url=str(target))
            log.warning("request to the replica at %s failed: %s", target.authority, why)
        else:
            log.info("taking over the samples of the replica at %s", target.authority)
