"""Health check of the container images: `python -m load_watcher.healthcheck [COMMAND OPTIONS...]` exits with 1 unless
the server of this command answers at /healthz.

Without arguments, the command is that of process 1, which is `load-watcher` in the container, or of the service if
process 1 is another program. The address follows from the options, the environment and the settings file, as in the
command itself. A command without a server, for example `simulate`, is healthy while it runs.
"""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path

import click

from load_watcher.cli.settings import NO_SOURCE, load
from load_watcher.commands import agent, extender, qrm, serve
from load_watcher.commands.lab import demo
from watcher.core.config.problems import SettingsError
from watcher.core.config.settings import Settings
from watcher.platform.http.settings import ServerSettings
from watcher.platform.net.listening import host_port
from watcher.platform.net.loopback import reachable_host
from watcher.platform.net.tls import client_context

TIMEOUT_S = 4.0
FIRST_PROCESS = Path("/proc/1/cmdline")
SERVERS: Mapping[str, click.Command] = {
    "serve": serve.serve,
    "demo": demo.demo,
    "extender": extender.extender,
    "agent": agent.agent,
    "qrm": qrm.qrm,
}


def own_url(settings: Settings) -> str:
    """Return the URL of the service with these settings, as seen from this machine."""
    scheme = "https" if settings[ServerSettings].tls_cert else "http"
    return _url(scheme, settings[ServerSettings].host, settings[ServerSettings].port)


def _url(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://{host_port(reachable_host(host), port)}"


def url_of(command: Sequence[str]) -> str | None:
    """Return the URL of a command's server; None for a command without one. Raises SettingsError and UsageError."""
    name, *arguments = command or ["serve"]
    if name not in SERVERS:
        return None
    given = SERVERS[name].make_context(name, arguments).params
    if name == "agent":
        settings, _ = agent.settings_of(given, mode=None)
        return _url("http", settings.host, settings.port)
    if name == "qrm":
        manager, _ = qrm.settings_of(given)
        return _url("http", manager.host, manager.port)
    if name == "extender":
        return own_url(extender.settings_of(given))
    return own_url(load(given, overrides=NO_SOURCE))


def running_command() -> list[str]:
    """Return the arguments of process 1 after `load-watcher`; empty if it is another program."""
    try:
        parts = FIRST_PROCESS.read_text("utf-8").split("\0")[:-1]
    except OSError:
        return []
    programs = [place for place, each in enumerate(parts) if Path(each).name == "load-watcher"]
    return parts[programs[0] + 1 :] if programs else []


def main(arguments: Sequence[str]) -> int:
    """Request /healthz once. Prints the reason of a failure."""
    # The certificate is not verified: it need not name the loopback address, and a container with an expired
    # certificate is not repaired by a restart. The request has no secret.
    https = urllib.request.HTTPSHandler(context=client_context(insecure=True))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), https)
    try:
        if (url := url_of(arguments or running_command())) is None:
            return 0
        with opener.open(f"{url}/healthz", timeout=TIMEOUT_S):
            return 0
    except HTTPException as error:
        print(f"the response is not valid HTTP: {error!r}", file=sys.stderr)
    except click.UsageError as error:
        print(error.format_message(), file=sys.stderr)
    except (SettingsError, OSError) as error:
        print(error, file=sys.stderr)
    except SystemExit:  # invalid settings of a node process, which are printed; Docker defines only 0 and 1
        pass
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
