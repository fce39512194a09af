"""The pods of this node from its kubelet, which knows them before the API does and while the API is unreachable.

The kubelet serves them at https://NODE:10250/pods to clients with the right `get nodes/pods` (before Kubernetes 1.33:
`nodes/proxy`), and at http://NODE:10255/pods without authentication if its read-only port is enabled. A background task
requests them at an interval; a cycle uses the last response.

The kubelet has the pods as the API last sent them to it, with priority, owners and deletion; the status of a static
pod is the kubelet's own. While the API is unreachable, the container ids of restarted containers are missing, and the
usage of these pods is that of their own control group. An eviction reads the pod from the API in any case.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from agent.state.background_value import BackgroundValue
from agent.state.pod_facts import AgentPod, facts_of
from agent.state.readings import PodFacts, PodsUnknown
from watcher import __version__
from watcher.core.kubernetes.errors import KubeError
from watcher.core.kubernetes.wire import ObjectList, Versioned, key_of
from watcher.core.messages import printable
from watcher.decoding.json_text import JsonDecoder, decode_json
from watcher.platform.kube.credentials import KubeAccess
from watcher.platform.kube.refusals import missing_rule
from watcher.platform.net.failures import failure_reason
from watcher.platform.net.http_body import TOO_LARGE_HINT, AnswerTooLarge, answer_bound, read_body
from watcher.platform.net.resolver import HINT as NAMES_HINT
from watcher.platform.net.resolver import unanswered
from watcher.platform.net.session import client_session
from watcher.platform.net.tls import certificate_error, client_context, file_reason, tls_cure, tls_error

log = logging.getLogger(__name__)

MAX_BODY = 64 << 20
"""Bytes; a thousand pods take about ten megabytes."""
TIMEOUT_S = 5.0
UNTRUSTED = (
    "For a self-signed certificate, set kubelet_name to the name of the node, and kubelet_ca_file to the kubelet's "
    "file pki/kubelet.crt. Or read the pods from the API: docs/tasks/agent-running.md#pods."
)

REPLACED = (
    "The file {path} was replaced on the host after it was mounted here, and the mount keeps the old file: restart "
    "this pod."
)

_LIST = JsonDecoder(ObjectList[msgspec.Raw])  # type: ignore[type-var]  # Raw has no metadata
_POD = JsonDecoder(AgentPod)

FactsT = TypeVar("FactsT")


class KubeletError(Exception):
    """The kubelet did not return its pods. `hint` is advice for the operator. Never contains the token."""

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
) -> KubeAccess:
    """Access to the kubelet at `address` (https://10.0.0.7:10250): with the current token in `token_file`, trusting the
    certificates of `authority`, or any certificate if `insecure`. `name` is the name in its certificate if the address
    does not contain it. Raises KubeletError."""
    tls = None
    if address.startswith("https:"):
        try:
            tls = client_context(ca_file=authority, insecure=insecure)
        except (OSError, ValueError) as error:
            message = f"the certificate authority {authority} cannot be read: {file_reason(error)}"
            raise KubeletError(message) from error
    return KubeAccess(
        address.rstrip("/"),
        "the agent's settings",
        tls=tls,
        token_file=token_file,
        tls_server_name=name,
        authority=authority,
    )


class KubeletPodList(Generic[FactsT]):
    """Requests the kubelet's pods every `interval` seconds. `read` converts each pod; it raises msgspec.ValidationError
    or ValueError for a pod that cannot be read, which is then ignored."""

    def __init__(
        self,
        access: KubeAccess,
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
        self._pods = BackgroundValue("the kubelet's pods", self.request, interval=interval, failures=(KubeletError,))

    async def start(self) -> None:
        """Start requesting. Does not wait for the first response."""
        await self._pods.start()

    async def close(self) -> None:
        """Stop requesting and close the connection."""
        await self._pods.close()
        if self._session is not None:
            await self._session.close()
            self._session = None

    def listing(self, *, monotonic: float, max_age: float) -> tuple[FactsT, ...]:
        """The last response. Raises PodsUnknown if there is none, or if it is older than `max_age` seconds."""
        failure = self._pods.failure
        if self._pods.copy is None:
            raise PodsUnknown(str(failure or "the kubelet has not responded yet"))
        asked, pods = self._pods.copy
        if (age := monotonic - asked) > max_age:
            raise PodsUnknown(f"the kubelet's last list of pods is {age:.0f} s old: {failure or 'it responds slowly'}")
        return pods

    def age(self, *, monotonic: float) -> float | None:
        """Seconds since the request of the last list; None before the first response."""
        return None if self._pods.copy is None else monotonic - self._pods.copy[0]

    async def request(self) -> tuple[float, tuple[FactsT, ...]]:
        """The pods, and the monotonic time of the request. Raises KubeletError."""
        if self._session is None:
            headers = {"User-Agent": f"load-watcher/{__version__}", "Accept": "application/json"}
            self._session = client_session(tls=self._access.tls, headers=headers, trust_env=False)
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
                    allow_redirects=False,  # a redirect would send the token to another server
                    server_hostname=self._access.tls_server_name if self._access.tls else None,
                ) as response,
            ):
                if response.status != 200:
                    raise _refused(response.status, url)
                body = await read_body(response, answer_bound(MAX_BODY))
        except KubeError as error:  # from reading the token file
            raise KubeletError(str(error), hint=error.hint) from error
        except TimeoutError as error:
            silent = unanswered(urlsplit(url).hostname or "")
            message = silent or f"no response within {self._timeout:g} s"
            raise KubeletError(f"{url}: {message}", hint=silent and NAMES_HINT) from error
        except AnswerTooLarge as error:
            raise KubeletError(f"{url}: {error}", hint=TOO_LARGE_HINT) from error
        except (aiohttp.ClientError, OSError) as error:
            hint = "Check that this is the address of the node, and that pods may connect to it."
            if refused := tls_error(error):
                names = {
                    "authority": "kubelet_ca_file",
                    "client": "the kubelet's clientCAFile",
                    "address": "kubelet_name",
                }
                replaced = await asyncio.to_thread(_trust_again, self._access) if certificate_error(error) else ""
                hint = replaced or f"{tls_cure(refused, **names)} {UNTRUSTED}"
            raise KubeletError(f"{url}: {failure_reason(error, url=url)}", hint=hint) from error
        return await asyncio.to_thread(self._decoded, body, url)

    def _decoded(self, body: bytes, url: str) -> tuple[FactsT, ...]:
        """Decode the pods of a response; the facts of unchanged pods are reused."""
        try:
            listed = _LIST.decode(body)
        except msgspec.DecodeError as error:
            start = printable(body[:200].decode(errors="replace"))
            raise KubeletError(f"{url}: the response is not a list of pods ({error}): {start}") from error
        if listed.kind != "PodList":
            raise KubeletError(f"{url}: the response is a {printable(listed.kind)}, not a PodList")
        known: dict[bytes, FactsT | None] = {}
        for raw in listed.items or ():
            digest = hashlib.blake2b(raw, digest_size=16).digest()
            known[digest] = self._known[digest] if digest in self._known else self._facts(raw)
        self._known = known
        return tuple(facts for facts in known.values() if facts is not None)

    def _facts(self, raw: msgspec.Raw) -> FactsT | None:
        try:
            return self._read(raw)
        except ValueError as error:
            log.warning("ignoring the pod %s, no action is taken on it: %s", _name(raw), error)
            return None


class KubeletPods(KubeletPodList[PodFacts]):
    """The kubelet's pods as PodFacts, sorted by name."""

    def __init__(self, access: KubeAccess, **how: Any) -> None:
        super().__init__(access, lambda raw: facts_of(_POD.decode(raw)), **how)

    def listing(self, *, monotonic: float, max_age: float) -> tuple[PodFacts, ...]:
        """The last response. Raises PodsUnknown if there is none, or if it is older than `max_age` seconds."""
        return tuple(sorted(super().listing(monotonic=monotonic, max_age=max_age), key=lambda each: each.pod.key))


def _trust_again(access: KubeAccess) -> str:
    """Read the trusted certificates again for the next request, because the kubelet may have replaced its certificate.
    Returns the reason why that cannot help; "" if there is none."""
    path = access.authority
    if path is None or access.tls is None:
        return ""
    try:
        if os.stat(path).st_nlink == 0:
            return REPLACED.format(path=path)
        access.tls.load_verify_locations(cafile=path)
    except (OSError, ssl.SSLError) as error:
        return f"The certificate authority {path} cannot be read: {file_reason(error)}."
    return ""


def _name(raw: msgspec.Raw) -> str:
    try:
        return printable(key_of(decode_json(raw, type=Versioned)))
    except msgspec.DecodeError:
        return "without a name"


def _refused(status: int, url: str) -> KubeletError:
    hints = {
        401: "The kubelet rejected the token: check that its webhook token authentication is enabled.",
        403: f"{missing_rule('get', 'nodes/pods', group='')} Before Kubernetes 1.33 the right is nodes/proxy, which "
        "also allows commands in every pod: read the pods from the API instead.",
        404: "If its debugging handlers (enableDebuggingHandlers) are disabled, read the pods from the API.",
    }
    return KubeletError(f"{url} returned HTTP status {status}", hint=hints.get(status, ""))
