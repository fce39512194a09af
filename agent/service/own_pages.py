"""Requests of `load-watcher doctor` to the pages of a node agent or QoS Resource Manager on this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
from aiohttp import hdrs

from agent.service.node_settings import NodeTable
from watcher.decoding.json_text import decode_json
from watcher.platform.net.http_body import answer_bound, read_body
from watcher.platform.net.listening import host_port
from watcher.platform.net.loopback import reachable_host
from watcher.platform.net.session import client_session

ANSWER_S = 5.0


def page_url(own: NodeTable) -> str:
    """Base URL of the process with these settings."""
    return f"http://{host_port(reachable_host(own.host), own.port)}"


@asynccontextmanager
async def page_session() -> AsyncIterator[aiohttp.ClientSession]:
    """A session without proxies, whose requests end after ANSWER_S."""
    async with client_session(timeout=aiohttp.ClientTimeout(total=ANSWER_S), trust_env=False) as session:
        yield session


async def get_page(session: aiohttp.ClientSession, url: str, *, token: str | None = None) -> tuple[int, bytes]:
    """The status and the body of a page. Raises aiohttp.ClientError and OSError."""
    headers = {hdrs.AUTHORIZATION: f"Bearer {token}"} if token else {}
    async with session.get(url, allow_redirects=False, headers=headers) as response:
        return response.status, await read_body(response, answer_bound())


def decoded_page(body: bytes) -> dict[str, Any]:
    """The JSON object of a page; empty if it is not one."""
    try:
        found = decode_json(body)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}
