"""Health check of the container image: `python -m load_watcher.healthcheck` exits with 1 unless the service with these
settings answers at /healthz.

The settings are those of the environment and of the settings file; options of `load-watcher serve` are unknown here.
"""

from __future__ import annotations

import os
import ssl
import sys
import urllib.request
from http.client import HTTPException
from pathlib import Path

from watcher.platform.net.loopback import LOOPBACK_OF_WILDCARD
from watcher.platform.settings.loading import load
from watcher.platform.settings.problems import SettingsError
from watcher.platform.settings.tables import Settings

TIMEOUT_S = 4.0


def own_url(settings: Settings) -> str:
    """Return the URL of the service with these settings, as seen from this machine."""
    host = LOOPBACK_OF_WILDCARD.get(settings.server.host, settings.server.host)
    scheme = "https" if settings.server.tls_cert else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.server.port}"


def main() -> int:
    """Request /healthz once. Prints the reason of a failure."""
    # The certificate is not verified: it need not name the loopback address, and a container with an expired
    # certificate is not repaired by a restart. The request has no secret.
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls))
    try:
        settings = load(flags={}, environ=os.environ, cwd=Path.cwd())
        with opener.open(f"{own_url(settings)}/healthz", timeout=TIMEOUT_S):
            return 0
    except HTTPException as error:
        print(f"the response is not valid HTTP: {error!r}", file=sys.stderr)
    except (SettingsError, OSError) as error:
        print(error, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
