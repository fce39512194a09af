"""Names of the series that a Prometheus has, to help to find a missing one.

The queries run over prometheus-api-client, which is synchronous and reads responses without a limit: for commands such
as doctor only, after the service's own client has reached the server.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Any

import requests
import requests.adapters
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException

from watcher.sources.config import ConnectionSettings
from watcher.sources.errors import ProviderError
from watcher.sources.http import TlsContext
from watcher.sources.prometheus_api import PrometheusClient


def similar_names(settings: ConnectionSettings, words: Iterable[str]) -> tuple[str, ...]:
    """Sorted names of series that contain one of the words (letters only); empty if the server returns none. Blocks for
    up to the timeout of the settings."""
    connection = PrometheusClient(settings)
    selector = f'{{__name__=~".*({"|".join(words)}).*"}}'
    with requests.Session() as session:
        session.trust_env = False  # otherwise requests uses proxies of the environment and ~/.netrc
        session.max_redirects = 0  # credentials are valid for one address only
        try:
            client = PrometheusConnect(
                connection.address, headers=connection.headers(), session=session, timeout=round(settings.timeout) or 1
            )
            # Last, because the client mounts an adapter that repeats requests for several seconds.
            session.mount(connection.address, _TlsAdapter(TlsContext(settings).current()))
            return tuple(sorted(map(str, client.all_metrics({"match[]": selector}))))
        except (
            ProviderError,
            requests.RequestException,
            PrometheusApiClientException,
            LookupError,
            TypeError,
            OSError,
        ):
            return ()


class _TlsAdapter(requests.adapters.HTTPAdapter):
    """Connects with the certificates and options of a TLS context, to which requests adds nothing."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        super().__init__()

    def init_poolmanager(self, *given: Any, **options: Any) -> None:
        super().init_poolmanager(*given, ssl_context=self._tls, **options)

    def build_connection_pool_key_attributes(self, *given: Any, **options: Any) -> Any:
        return super().build_connection_pool_key_attributes(*given, **options)[0], {}

    def cert_verify(self, *_: Any) -> None:
        """Leave the certificates as they are."""
