"""The pods of this node from its kubelet, which knows them before the API does and when the API cannot be reached.

The kubelet answers at https://NODE:10250/pods to who has the right to `nodes/proxy` (since Kubernetes 1.33 `nodes/pods`
is enough), and where it still has a read-only port, at http://NODE:10255/pods to everybody. It is asked again and again
by a task of its own; a cycle takes the last answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import aiohttp
import msgspec

from agent.state.background_value import Kept
from agent.state.pod_facts import Pod, facts_of
from agent.state.readings import NoPods, PodFacts
from watcher import __version__
from watcher.core.kubernetes.errors import KubeError, shown
from watcher.core.kubernetes.wire import ObjectList, Versioned, key_of
from watcher.platform.kube.credentials import Access
from watcher.platform.kube.refusals import missing_rule
from watcher.platform.net.http_body import read_at_most

log = logging.getLogger(__name__)

MAX_BODY = 64 << 20
"""A thousand pods have some ten megabytes."""
TIMEOUT_S = 5.0

_LIST = msgspec.json.Decoder(ObjectList[msgspec.Raw])  # type: ignore[type-var]  # no object yet
_POD = msgspec.json.Decoder(Pod)

FactsT = TypeVar("FactsT")


class KubeletError(Exception):
    """The kubelet did not tell its pods. `hint` says what to do. Never carries the token."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def kubelet_access(
    address: str,
    *,
    token_file: Path | None = None,
    authority: Path | None = None,
    insecure: bool = False,
    name: str | None = None,
) -> Access:
    """How the kubelet at `address` (https://10.0.0.7:10250) is asked: with the token in `token_file` as it is at the
    time, trusting `authority`, or anybody if `insecure`; `name` is what its certificate is for, where that is not in
    the address. Raises KubeletError."""
    tls = None
    if address.startswith("https:"):
        try:
            tls = ssl.create_default_context(cafile=authority)
        except (OSError, ssl.SSLError) as error:
            raise KubeletError(f"the certificate authority {authority} cannot be read: {error}") from error
        if insecure:
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
    return Access(address.rstrip("/"), "the agent's settings", tls=tls, token_file=token_file, tls_server_name=name)


class KubeletLists(Generic[FactsT]):
    """Asks the kubelet for its pods every `interval` seconds. `read` makes of each what is wanted of it; it raises
    msgspec.ValidationError or ValueError for one that cannot be read, which is left out."""

    def __init__(
        self,
        access: Access,
        read: Callable[[msgspec.Raw], FactsT],
        *,
        interval: float = 10.0,
        timeout: float = TIMEOUT_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access = access
        self._read = read
        self._timeout = timeout
        self._monotonic = monotonic
        self._known: Mapping[bytes, FactsT | None] = {}
        self._session: aiohttp.ClientSession | None = None
        self._pods = Kept("the kubelet's pods", self._list, interval=interval, failures=(KubeletError,))

    async def start(self) -> None:
        """Begin to ask. Does not wait for the answer."""
        await self._pods.start()

    async def close(self) -> None:
        """Stop asking."""
        await self._pods.close()
        if self._session is not None:
            await self._session.close()
            self._session = None

    def listing(self, *, monotonic: float, max_age: float) -> tuple[FactsT, ...]:
        """The last answer. Raises NoPods where there is none, or it is older than `max_age` seconds."""
        failure = self._pods.failure
        if self._pods.copy is None:
            raise NoPods(f"it is not known which pods there are: {failure or 'the kubelet has not answered yet'}")
        asked, pods = self._pods.copy
        if (age := monotonic - asked) > max_age:
            raise NoPods(f"the kubelet's last list of pods is {age:.0f} s old: {failure or 'it is slow'}")
        return pods

    # --- in the background -------------------------------------------------------------------------------------------

    async def _list(self) -> tuple[float, tuple[FactsT, ...]]:
        """The pods, and the monotonic time at which they were asked for. Raises KubeletError."""
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self._access.tls if self._access.tls is not None else True)
            headers = {"User-Agent": f"load-watcher/{__version__}", "Accept": "application/json"}
            self._session = aiohttp.ClientSession(connector=connector, headers=headers, trust_env=False)
        asked = self._monotonic()
        return asked, await self._ask(self._session)

    async def _ask(self, session: aiohttp.ClientSession) -> tuple[FactsT, ...]:
        url = f"{self._access.server}/pods"
        try:
            async with (
                asyncio.timeout(self._timeout),
                session.get(
                    url,
                    headers=await self._access.headers(),
                    allow_redirects=False,  # it would carry the token to wherever it leads
                    server_hostname=self._access.tls_server_name if self._access.tls else None,
                ) as response,
            ):
                if response.status != 200:
                    raise _refused(response.status, url)
                body = await read_at_most(response.content, MAX_BODY)
        except KubeError as error:  # of the token
            raise KubeletError(str(error), hint=error.hint) from error
        except TimeoutError as error:
            raise KubeletError(f"{url}: no answer within {self._timeout:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            hint = "Is this the node's own address, and the certificate of the kubelet signed by that authority?"
            raise KubeletError(f"{url}: {shown(str(error)) or type(error).__name__}", hint=hint) from error
        if body is None:
            raise KubeletError(f"{url}: the answer is larger than {MAX_BODY >> 20} MiB")
        return await asyncio.to_thread(self._understood, body, url)

    def _understood(self, body: bytes, url: str) -> tuple[FactsT, ...]:
        """The pods in an answer; of those that have not changed since the last one the facts are taken over."""
        try:
            listed = _LIST.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            start = shown(body[:200].decode(errors="replace"))
            raise KubeletError(f"{url}: this is no list of pods ({error}): {start}") from error
        if listed.kind != "PodList":
            raise KubeletError(f"{url}: this is a {shown(listed.kind)}, not a PodList")
        known: dict[bytes, FactsT | None] = {}
        for raw in listed.items or ():
            digest = hashlib.blake2b(raw, digest_size=16).digest()
            known[digest] = self._known[digest] if digest in self._known else self._facts(raw)
        self._known = known
        return tuple(facts for facts in known.values() if facts is not None)

    def _facts(self, raw: msgspec.Raw) -> FactsT | None:
        try:
            return self._read(raw)
        except (msgspec.ValidationError, ValueError) as error:
            log.warning("the pod %s is left out, and nothing is done to it: %s", _name(raw), error)
            return None


class KubeletPods(KubeletLists[PodFacts]):
    """The same, of what the agent wants of pods, by their names."""

    def __init__(self, access: Access, **how: Any) -> None:
        super().__init__(access, lambda raw: facts_of(_POD.decode(raw)), **how)

    def listing(self, *, monotonic: float, max_age: float) -> tuple[PodFacts, ...]:
        """The last answer. Raises NoPods where there is none, or it is older than `max_age` seconds."""
        return tuple(sorted(super().listing(monotonic=monotonic, max_age=max_age), key=lambda each: each.pod.key))


def _name(raw: msgspec.Raw) -> str:
    try:
        return shown(key_of(msgspec.json.decode(raw, type=Versioned)))
    except msgspec.ValidationError:
        return "without a name"


def _refused(status: int, url: str) -> KubeletError:
    hints = {
        401: "It does not know the token: is webhook authentication of tokens on in its configuration?",
        403: f"{missing_rule('get', 'nodes/proxy', group='')} From Kubernetes 1.33 on nodes/pods is enough.",
        404: "Are its debugging handlers off (enableDebuggingHandlers)? Then take the pods from the API.",
    }
    return KubeletError(f"{url} answers {status}", hint=hints.get(status, ""))
