"""Asking other replicas for their samples: once, all at the same time, and never for longer than a start can wait.

The name of a headless Service has the addresses of all replicas that are ready, and perhaps our own; so every address
of a name is asked. What a replica answers is read by whoever asks (handover.py has the rules), and a replica that
hangs, refuses or talks nonsense costs a line in the log.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence

import aiohttp
from aiohttp import hdrs
from yarl import URL

from watcher import __version__
from watcher.model import Restored
from watcher.platform.net.dns import addresses_of, get_from
from watcher.platform.net.http_body import read_at_most
from watcher.replicas.transfer import NotTaken

log = logging.getLogger(__name__)

MAX_BODY = 256 << 20

Read = Callable[[bytes], Restored]
"""Reads an answer, in a thread; raises NotTaken where it is not for us."""


class Peers:
    """The replicas at `urls`, each name standing for all of its addresses. `token` is sent with every question."""

    def __init__(self, urls: Sequence[str], *, token: str | None, tls: ssl.SSLContext) -> None:
        self._urls = [URL(url) for url in urls]
        self._headers = {
            hdrs.USER_AGENT: f"load-watcher/{__version__}",
            hdrs.ACCEPT_ENCODING: "identity",  # samples are compressed in themselves
            **({hdrs.AUTHORIZATION: f"Bearer {token}"} if token else {}),
        }
        self._tls = tls

    async def ask(self, read: Read, *, timeout: float) -> list[Restored]:
        """What the replicas gave within `timeout` seconds and `read` took, in no order. Never raises for what a replica
        does, or for a fault of ours."""
        taken: list[Restored] = []
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls),
            headers=self._headers,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        try:
            async with session, asyncio.timeout(timeout), asyncio.TaskGroup() as asking:
                for url in self._urls:
                    asking.create_task(self._ask_name(url, asking, session, read, taken))
        except TimeoutError:
            log.warning("not all other replicas answered within %g s; going on with what there is", timeout)
        except ExceptionGroup:  # a fault of ours or of a library: no reason not to start
            log.exception("asking the other replicas failed in a way that was not foreseen")
        return taken

    async def _ask_name(
        self, url: URL, asking: asyncio.TaskGroup, session: aiohttp.ClientSession, read: Read, taken: list[Restored]
    ) -> None:
        try:
            addresses = await addresses_of(url)
        except (OSError, UnicodeError) as error:  # the latter for what can be no name at all
            log.info("no replica is ready at %s: the name has no address (%s)", url.host, error)
            return
        for address in addresses:
            asking.create_task(self._ask_one(url, address, session, read, taken))

    async def _ask_one(
        self, url: URL, address: str, session: aiohttp.ClientSession, read: Read, taken: list[Restored]
    ) -> None:
        target = url.with_host(address).joinpath("api", "v1", "samples")
        try:
            async with get_from(session, target, of=url) as response:
                if response.status != 200:
                    log.info("the replica at %s has no samples yet: it answers %s", target.authority, response.status)
                    return
                body = await _body(response)
            restored = await asyncio.to_thread(read, body)
        except NotTaken as error:
            log.info("the samples of the replica at %s are not taken: %s", target.authority, error)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            log.warning("the replica at %s cannot be asked: %s", target.authority, str(error) or type(error).__name__)
        else:
            log.info("taking over the samples of the replica at %s", target.authority)
            taken.append(restored)


async def _body(response: aiohttp.ClientResponse) -> bytes:
    body = await read_at_most(response.content, MAX_BODY)
    if body is None:
        raise NotTaken(f"they are more than {MAX_BODY >> 20} MiB")
    return body
