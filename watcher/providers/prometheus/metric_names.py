"""Names of the series that a Prometheus has, to help to find a missing one.

The queries run over prometheus-api-client, which is synchronous and reads responses without a limit: for commands such
as doctor only, after the service's own client has reached the server.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable

import requests
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException

from watcher.platform.sources.config import ConnectionConfig
from watcher.platform.sources.connection import Credentials, SourceConnection
from watcher.platform.sources.errors import ProviderError
from watcher.platform.sources.prometheus import error_of


def similar_names(config: ConnectionConfig, words: Iterable[str]) -> tuple[str, ...]:
    """Sorted names of series that contain one of the words (letters only); empty if the server returns none. Blocks for
    up to the timeout of the configuration."""
    connection = SourceConnection(config, credentials=Credentials(config).headers, refusal=error_of)
    selector = f'{{__name__=~".*({"|".join(words)}).*"}}'
    with requests.Session() as session:
        session.trust_env = False  # otherwise requests uses proxies of the environment and ~/.netrc
        session.max_redirects = 0  # credentials are valid for one address only
        session.verify = not config.insecure_skip_verify and (
            config.ca_file or ssl.get_default_verify_paths().cafile or True
        )
        if config.client_cert:
            session.cert = (config.client_cert, config.client_key) if config.client_key else config.client_cert
        try:
            client = PrometheusConnect(
                connection.address, headers=connection.headers(), session=session, timeout=round(config.timeout) or 1
            )
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
