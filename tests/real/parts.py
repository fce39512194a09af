"""Start and stop real components: Prometheus, node exporter, and others.

`scripts/real-parts` installs the programs. Without a program, its tests are skipped with the reason, or fail under
LOAD_WATCHER_REQUIRE_REAL=1. A Prometheus starts in 50 ms and ends in 5 ms, so each test can have its own.
"""

import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pytest
import requests

from tests.modules.programs import helm
from tests.real import remote_write
from tests.real.remote_write import Series
from tests.signals import sigterm_after
from tests.waiting import PATIENCE_SECONDS, wait_for

REPOSITORY = Path(__file__).resolve().parents[2]
UNPACKED = Path(os.environ.get("LOAD_WATCHER_REAL_PARTS") or REPOSITORY / ".real-parts").resolve()

# For each program: the variable that overrides its path, and its names (Debian's, then upstream's).
PROGRAMS = {
    "prometheus": ("PROMETHEUS_BIN", ("prometheus",)),
    "promtool": ("PROMTOOL_BIN", ("promtool",)),
    "victoria-metrics": ("VICTORIA_METRICS_BIN", ("victoria-metrics", "victoria-metrics-prod")),
    "node_exporter": ("NODE_EXPORTER_BIN", ("prometheus-node-exporter", "node_exporter")),
    "influxd": ("INFLUXD_BIN", ("influxd",)),
    "postgres": ("POSTGRES_BIN", ("postgres",)),
    "initdb": ("INITDB_BIN", ("initdb",)),
    "wrk": ("WRK_BIN", ("wrk",)),
    "linux.uml": ("LINUX_UML_BIN", ("linux.uml",)),
    "chromium": (
        "CHROMIUM_HEADLESS_SHELL_BIN",
        ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"),
    ),
}
# Debian has PostgreSQL's servers outside of PATH, one directory per version, and so the program that its script for
# Chromium starts.
BESIDE_PATH = ("usr/lib/chromium", "usr/lib/postgresql/*/bin")

# Below the range of the kernel's ports for outgoing connections, so that no client gets the port between its choice and
# the server's bind.
PORTS = range(20_000, 32_000)

READY_SECONDS = PATIENCE_SECONDS
STOP_SECONDS = PATIENCE_SECONDS


def find_program(program: str) -> Path:
    """The path of a program of PROGRAMS; without it the test is skipped, or fails where real parts are required."""
    variable, names = PROGRAMS[program]
    if named := os.environ.get(variable):
        return Path(named)
    for name in names:
        for directory in (*_beside_path(UNPACKED), UNPACKED / "usr" / "bin"):
            if (directory / name).exists():
                return directory / name
        if on_path := shutil.which(name):
            return Path(on_path)
        if installed := [path for path in _beside_path(Path("/")) if (path / name).exists()]:
            return installed[0] / name
    reason = f"{program} is neither in {UNPACKED} nor on PATH nor named by {variable}: run make real-parts"
    if os.environ.get("LOAD_WATCHER_REQUIRE_REAL") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def _beside_path(root: Path) -> list[Path]:
    """Directories of programs, the newest version of each first."""
    return [found for pattern in BESIDE_PATH for found in sorted(root.glob(pattern), reverse=True)]


def find_node_package(package: str) -> Path:
    """The directory of a package of npm, which node can load; without it, or node, the test is skipped or fails."""
    directory = UNPACKED / "npm" / "node_modules" / package
    if directory.exists() and shutil.which("node"):
        return directory
    reason = f"{package} is not in {UNPACKED}, or node is not on PATH: run make real-parts"
    if os.environ.get("LOAD_WATCHER_REQUIRE_REAL") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def find_wheel(package: str) -> Path:
    """The directory of a package of PyPI that `scripts/real-parts` brings; without it the test is skipped or fails."""
    return _find(f"pypi/{package}-*")


def find_helm() -> Path:
    """The program helm; without it the test is skipped, or fails where real parts are required."""
    module = helm()
    if not module.missing:
        return module.directory / "helm"
    reason = f"{module.directory / 'helm'} is missing: run scripts/go-programs helm"
    if os.environ.get("LOAD_WATCHER_REQUIRE_REAL") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def find_go_module(module: str) -> Path:
    """The source of a Go module; without it the test is skipped, or fails where real parts are required."""
    return _find(f"go/{module}@*")


def _find(pattern: str) -> Path:
    if found := list(UNPACKED.glob(pattern)):
        return max(found, key=lambda directory: directory.stat().st_mtime)  # two after an update
    reason = f"{pattern} is not in {UNPACKED}: run make real-parts"
    if os.environ.get("LOAD_WATCHER_REQUIRE_REAL") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def program_environment() -> dict[str, str]:
    """The environment with the paths of unpacked libraries for unpacked programs (wrk needs LuaJIT's; Chromium, for
    example, those of PulseAudio, which has its own directory)."""
    found = (path for each in ("*-linux-gnu*", "*-linux-gnu*/pulseaudio") for path in (UNPACKED / "usr/lib").glob(each))
    libraries = [str(path) for path in sorted(found)]
    inherited = [value] if (value := os.environ.get("LD_LIBRARY_PATH")) else []
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries + inherited)}


def run_program(program: str, *arguments: str | Path, timeout: float = 60.0) -> "subprocess.CompletedProcess[str]":
    """Run a program of PROGRAMS to its end; `stdout` has its output and errors."""
    return subprocess.run(
        [find_program(program), *arguments],
        env=program_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )


_given: set[int] = set()


def free_port() -> int:
    """An unused TCP port on 127.0.0.1 that no other test gets: each port is returned once per process, and each worker
    of pytest-xdist has its own range."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = PORTS[worker :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))]
    candidates = [port for port in own if port not in _given] or own
    # Not the global generator, which hypothesis seeds.
    for port in random.SystemRandom().sample(candidates, k=min(200, len(candidates))):
        with socket.socket() as candidate:
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
            _given.add(port)
            return port
    raise RuntimeError(f"no free port among 200 of {PORTS.start}..{PORTS.stop}")


class Server:
    """A server process with a log file, which can be stopped, killed, paused and resumed.

    A subclass defines its command and its readiness. Use it as a context manager, or call `stop()`: otherwise the
    server outlives the test run.
    """

    name = "server"

    def __init__(self, directory: Path, *, port: int | None = None) -> None:
        self.directory = directory
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port = free_port() if port is None else port
        self.process: subprocess.Popen[bytes] | None = None
        self.session = requests.Session()
        # No proxies and no ~/.netrc of the user who runs the tests.
        self.session.trust_env = False
        self._log_path = directory / f"{self.name}.log"

    def command(self) -> Sequence[str | Path]:
        """The command line; `self.port` is the port to listen on."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        """The environment of the process."""
        return program_environment()

    def is_ready(self) -> bool:
        """Whether it responds; a connection error counts as no."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        """Its URL, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process id; of the last process if it does not run."""
        assert self.process is not None, f"{self.name} was never started"
        return self.process.pid

    def is_running(self) -> bool:
        """Whether the process exists, ready or not."""
        return self.process is not None and self.process.poll() is None

    def launch(self) -> None:
        """Start the process and return at once."""
        with self._log_path.open("ab") as log, sigterm_after():
            self.process = subprocess.Popen(
                [str(part) for part in self.command()],
                cwd=self.directory,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def start(self) -> Self:
        """Start the process and wait until it is ready; if that fails, the process is ended."""
        try:
            self.launch()
            return self.wait_ready()
        except BaseException:
            self.kill()
            raise

    def wait_ready(self, timeout: float = READY_SECONDS) -> Self:
        """Wait until it responds; the test fails with the end of the log if it exits or does not respond in time."""

        def ready() -> bool:
            if not self.is_running():
                code = self.process.returncode if self.process else None
                pytest.fail(f"{self.name} ended with code {code}:\n{self.log()[-4000:]}")
            return self.is_ready()

        wait_for(ready, what=f"{self.name} at {self.url}", timeout=timeout, ignoring=(requests.RequestException,))
        return self

    def log(self) -> str:
        """Its output up to now."""
        return self._log_path.read_text(errors="replace") if self._log_path.exists() else ""

    def stop(self, timeout: float = STOP_SECONDS) -> int:
        """End it with SIGTERM and return its exit code; the test fails if it takes longer than `timeout` seconds."""
        # Idle connections; the session itself can be used again.
        self.session.close()
        if self.process is None:
            return 0
        if self.is_running():
            self.resume()
            self.process.terminate()
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            pytest.fail(f"{self.name} did not end within {timeout:g} s of SIGTERM:\n{self.log()[-4000:]}")

    def kill(self) -> None:
        """End it with SIGKILL, as a crash would."""
        self.session.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def restart(self) -> Self:
        """Start it again with the same port and data; if it still runs, end it with SIGTERM first."""
        self.stop()
        return self.start()

    def pause(self) -> None:
        """Pause it (SIGSTOP): the kernel accepts connections, which get no response, as from a hanging server.

        Waits until all its threads are stopped: on a busy machine, one of them may still answer a request.
        """
        os.kill(self.pid, signal.SIGSTOP)
        tasks = Path(f"/proc/{self.pid}/task")
        wait_for(
            lambda: all(" T " in (task / "stat").read_text() for task in tasks.iterdir()),
            what=f"{self.name} to stand still",
            ignoring=(FileNotFoundError, ProcessLookupError),  # a thread that has just ended
        )

    def resume(self) -> None:
        """Resume it (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    def cpu_seconds(self) -> float:
        """CPU time of the process, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def __enter__(self) -> Self:
        return self if self.is_running() else self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()


class PromqlServer(Server):
    """A server that accepts remote writes and answers queries as Prometheus does."""

    def write(self, series: Iterable[Series | tuple[Mapping[str, str], Any, Any]]) -> None:
        """Store series by remote write: labels, times in unix seconds, and values of each.

        Prometheus refuses samples that are older than the newest of their series, or more than an hour older than the
        newest of all: write a whole history once, then only its continuation, and nothing in the future.
        """
        for body in remote_write.requests([Series(*one) for one in series]):
            answer = self.session.post(
                f"{self.url}/api/v1/write", data=body, headers=remote_write.HEADERS, timeout=READY_SECONDS
            )
            assert answer.status_code == 204, f"remote write: {answer.status_code} {answer.text}"

    def query(self, expression: str, *, time: float | None = None) -> list[dict[str, Any]]:
        """The rows of an instant query (`data.result`)."""
        parameters = {"query": expression} if time is None else {"query": expression, "time": f"{time:.3f}"}
        answer = self.session.get(f"{self.url}/api/v1/query", params=parameters, timeout=READY_SECONDS)
        assert answer.status_code == 200, f"{expression}: {answer.status_code} {answer.text}"
        rows: list[dict[str, Any]] = answer.json()["data"]["result"]
        return rows


class Prometheus(PromqlServer):
    """A real Prometheus with its data under `directory`, on a free port of 127.0.0.1 that it keeps.

    `config` is the configuration, as a dict or as YAML; by default it scrapes nothing, and tests `write` their series.
    `tls` gives it a certificate of a CA made here (`ca_file`), `client_certificates` makes it require one of the same
    CA (`client_cert`, `client_key`), `basic_auth` is a user and a password. `flags` are added to the command line.
    """

    name = "prometheus"

    def __init__(
        self,
        directory: Path,
        *,
        config: Mapping[str, Any] | str | None = None,
        remote_write: bool = True,
        tls: bool = False,
        client_certificates: bool = False,
        basic_auth: tuple[str, str] | None = None,
        flags: Sequence[str] = (),
        port: int | None = None,
    ) -> None:
        super().__init__(directory, port=port)
        self.tls = tls or client_certificates
        self.basic_auth = basic_auth
        self.ca_file = directory / "ca.pem"
        self.client_cert = directory / "client.pem"
        self.client_key = directory / "client.key"
        self._program = find_program("prometheus")
        self._flags = list(flags)
        if remote_write:
            self._flags.append("--web.enable-remote-write-receiver")
        # A JSON document is valid YAML.
        text = config if isinstance(config, str) else json.dumps(config or {"scrape_configs": []})
        (directory / "prometheus.yml").write_text(text)
        web: dict[str, Any] = {}
        if self.tls:
            make_certificates(directory)
            web["tls_server_config"] = {"cert_file": "server.pem", "key_file": "server.key"}
        if client_certificates:
            web["tls_server_config"] |= {
                "client_ca_file": "ca.pem",
                "client_auth_type": "RequireAndVerifyClientCert",
            }
        if basic_auth is not None:
            web["basic_auth_users"] = {basic_auth[0]: hash_password(basic_auth[1])}
        if web:
            (directory / "web.yml").write_text(json.dumps(web))
            self._flags.append(f"--web.config.file={directory / 'web.yml'}")
        self.session.auth = basic_auth
        if self.tls:
            self.session.verify = str(self.ca_file)
        if client_certificates:
            self.session.cert = (str(self.client_cert), str(self.client_key))

    def command(self) -> Sequence[str | Path]:
        return [
            self._program,
            f"--config.file={self.directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.directory / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=warn",
            *self._flags,
        ]

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def is_ready(self) -> bool:
        return self.session.get(f"{self.url}/-/ready", timeout=5).ok


class VictoriaMetrics(PromqlServer):
    """A real VictoriaMetrics with its data under `directory`, on a free port of 127.0.0.1 that it keeps.

    `flags` are added to the command line; other settings are the defaults, so the newest 30 seconds of range queries
    are repeated values (-search.latencyOffset).
    """

    name = "victoria-metrics"

    def __init__(self, directory: Path, *, flags: Sequence[str] = (), port: int | None = None) -> None:
        super().__init__(directory, port=port)
        self._program = find_program("victoria-metrics")
        self._flags = list(flags)

    def command(self) -> Sequence[str | Path]:
        return [
            self._program,
            f"-storageDataPath={self.directory / 'data'}",
            f"-httpListenAddr=127.0.0.1:{self.port}",
            "-loggerLevel=WARN",
            *self._flags,
        ]

    def is_ready(self) -> bool:
        return self.session.get(f"{self.url}/health", timeout=5).ok

    def write(self, series: Iterable[Series | tuple[Mapping[str, str], Any, Any]]) -> None:
        """Store series by remote write, and make them visible to queries at once instead of a second later."""
        super().write(series)
        answer = self.session.get(f"{self.url}/internal/force_flush", timeout=READY_SECONDS)
        assert answer.ok, f"force_flush: {answer.status_code} {answer.text}"


class NodeExporter(Server):
    """A real node exporter, which reports this machine on a free port of 127.0.0.1."""

    name = "node_exporter"

    def __init__(self, directory: Path, *, flags: Sequence[str] = (), port: int | None = None) -> None:
        super().__init__(directory, port=port)
        self._program = find_program("node_exporter")
        self._flags = list(flags)

    def command(self) -> Sequence[str | Path]:
        return [self._program, f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn", *self._flags]

    def is_ready(self) -> bool:
        return self.session.get(f"{self.url}/", timeout=5).ok


class InfluxDB(Server):
    """A real InfluxDB 1.x with its data under `directory`, on a free port of 127.0.0.1 that it keeps.

    It starts with an empty `database`. `auth` is the user and password of its administrator, which requests then need;
    `tls` gives it a certificate of a CA made here (`ca_file`).
    """

    name = "influxdb"

    def __init__(
        self,
        directory: Path,
        *,
        database: str = "telegraf",
        auth: tuple[str, str] | None = None,
        tls: bool = False,
        port: int | None = None,
    ) -> None:
        super().__init__(directory, port=port)
        self.database, self.auth, self.tls = database, auth, tls
        self.ca_file = directory / "ca.pem"
        self._program = find_program("influxd")
        if tls:
            make_certificates(directory)
            self.session.verify = str(self.ca_file)
        (directory / "influxd.conf").write_text(self._config())
        self.session.auth = auth

    def _config(self) -> str:
        """TOML. Its other port, for backups, cannot be disabled."""
        protected, encrypted = ("true" if on else "false" for on in (self.auth is not None, self.tls))
        return f"""
            reporting-disabled = true
            bind-address = "127.0.0.1:{free_port()}"
            [meta]
            dir = "{self.directory}/meta"
            [data]
            dir = "{self.directory}/data"
            wal-dir = "{self.directory}/wal"
            index-version = "tsi1"
            [monitor]
            store-enabled = false
            [http]
            bind-address = "127.0.0.1:{self.port}"
            log-enabled = false
            auth-enabled = {protected}
            https-enabled = {encrypted}
            https-certificate = "{self.directory}/server.pem"
            https-private-key = "{self.directory}/server.key"
        """

    def command(self) -> Sequence[str | Path]:
        return [self._program, "-config", self.directory / "influxd.conf"]

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def is_ready(self) -> bool:
        return self.session.get(f"{self.url}/ping", timeout=5).status_code == 204

    def start(self) -> Self:
        """Start it, with its administrator and its database."""
        super().start()
        if self.auth is not None:
            user, password = self.auth
            self.query(f"CREATE USER \"{user}\" WITH PASSWORD '{password}' WITH ALL PRIVILEGES")
        self.query(f'CREATE DATABASE "{self.database}"')
        return self

    def query(self, statement: str) -> list[dict[str, Any]]:
        """The series of an InfluxQL statement, none if it is a command; times in unix milliseconds."""
        form = {"q": statement, "db": self.database, "epoch": "ms"}
        answer = self.session.post(f"{self.url}/query", data=form, timeout=READY_SECONDS)
        assert answer.status_code == 200, f"{statement}: {answer.status_code} {answer.text}"
        (result,) = answer.json()["results"]
        assert "error" not in result, f"{statement}: {result['error']}"
        series: list[dict[str, Any]] = result.get("series", [])
        return series

    def write(self, lines: Iterable[str]) -> None:
        """Store points in line protocol, with times in unix milliseconds."""
        query = {"db": self.database, "precision": "ms"}
        body = "\n".join(lines).encode()
        answer = self.session.post(f"{self.url}/write", params=query, data=body, timeout=READY_SECONDS)
        assert answer.status_code == 204, f"write: {answer.status_code} {answer.text}"


class PostgreSQL(Server):
    """A real PostgreSQL on a free port of 127.0.0.1, with a superuser whose password is made here and required.

    It refuses to run as root, which runs it as the user `nobody`: so its data are in a separate directory below /tmp,
    because only its owner may enter the directory of the test.
    """

    name = "postgres"
    user = "watcher"
    NOBODY = 65534

    def __init__(self, directory: Path, *, port: int | None = None, flags: Sequence[str] = ()) -> None:
        super().__init__(directory, port=port)
        self.password = new_secret()
        self._program, initdb = find_program("postgres"), find_program("initdb")
        self._flags = flags
        self._place = Path(tempfile.mkdtemp(prefix="load-watcher-postgres-", dir="/tmp"))
        self._data = self._place / "data"
        secret = self._place / "password"
        secret.write_text(self.password)
        if self._as and not all(parent.stat().st_mode & 0o001 for parent in self._program.parents):
            self._program, initdb = self._within_reach(self._program, initdb)
        for path in (self._place, secret):
            path.chmod(0o700)
            if self._as:
                os.chown(path, self.NOBODY, self.NOBODY)
        data = ("-D", str(self._data), "--no-sync", "-E", "UTF8", "--locale=C.UTF-8")
        made = subprocess.run(
            [str(initdb), *data, "-U", self.user, "-A", "scram-sha-256", f"--pwfile={secret}"],
            cwd=self._place,
            env=self.environment(),
            capture_output=True,
            text=True,
            **self._as,
        )
        if made.returncode:
            pytest.fail(f"initdb ended with code {made.returncode}:\n{made.stdout}{made.stderr}")

    def _within_reach(self, *programs: Path) -> Iterator[Path]:
        """Copies of unpacked programs with all unpacked files, which they find by relative paths: the user `nobody` may
        not enter a checkout below /root."""
        for part in ("lib", "share"):
            shutil.copytree(UNPACKED / "usr" / part, self._place / "usr" / part, symlinks=True)
        return (self._place / program.relative_to(UNPACKED) for program in programs)

    def environment(self) -> Mapping[str, str]:
        libraries = [str(path) for path in sorted((self._place / "usr" / "lib").glob("*-linux-gnu*"))]
        inherited = program_environment()
        return {**inherited, "LD_LIBRARY_PATH": ":".join([*libraries, inherited["LD_LIBRARY_PATH"]])}

    @property
    def _as(self) -> dict[str, Any]:
        """The user that runs it."""
        return {"user": self.NOBODY, "group": self.NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}

    def command(self) -> Sequence[str | Path]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": self._place,
            "fsync": "off",
            "jit": "off",
            "shared_buffers": "16MB",
            "autovacuum": "off",
        }
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [self._program, "-D", self._data, "-p", str(self.port), *flags, *self._flags]

    def launch(self) -> None:
        with self._log_path.open("ab") as log, sigterm_after():
            self.process = subprocess.Popen(
                [str(part) for part in self.command()],
                cwd=self._place,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                **self._as,
            )

    def url_of(self, database: str = "postgres") -> str:
        """The URL of a database, with the password."""
        return f"postgresql://{self.user}:{self.password}@127.0.0.1:{self.port}/{database}"

    @property
    def url(self) -> str:
        return f"postgresql://127.0.0.1:{self.port}"

    def is_ready(self) -> bool:
        import psycopg

        try:
            self.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def execute(self, statement: str, *parameters: Any, database: str = "postgres") -> list[tuple[Any, ...]]:
        """The rows of a statement in its own transaction."""
        # Imported here: the other parts do not need it, nor do the tests of an installation without the extra.
        import psycopg

        with psycopg.connect(self.url_of(database), autocommit=True, connect_timeout=10) as connection:
            cursor = connection.execute(statement.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def new_database(self) -> str:
        """Make an empty database; its URL."""
        name = f"db_{secrets.token_hex(6)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url_of(name)

    def stop(self, timeout: float = STOP_SECONDS) -> int:
        """End it without waiting for its clients, as SIGTERM would."""
        if self.process is not None and self.is_running():
            self.process.send_signal(signal.SIGINT)
        return super().stop(timeout)

    def kill(self) -> None:
        """End it with SIGKILL. Its child processes detect that and end; before that, no other process may use their
        data."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split() if self.is_running() else []
        super().kill()
        wait_for(
            lambda: not any(Path(f"/proc/{child}").exists() for child in children),
            what="the children of PostgreSQL to end",
            timeout=STOP_SECONDS,
        )

    def remove(self) -> None:
        """Remove its data after it was stopped."""
        shutil.rmtree(self._place, ignore_errors=True)

    def __exit__(self, *exception: object) -> None:
        try:
            super().__exit__(*exception)
        finally:
            self.remove()


def make_certificates(directory: Path) -> None:
    """ca.pem, server.pem with server.key for this machine's own address, and client.pem with client.key."""
    # Imported here: this takes longer than the start of a server, and few tests need TLS.
    import trustme

    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    server = authority.issue_cert("localhost", "127.0.0.1")
    server.cert_chain_pems[0].write_to_path(directory / "server.pem")
    server.private_key_pem.write_to_path(directory / "server.key")
    client = authority.issue_cert("load-watcher@example.org")
    client.cert_chain_pems[0].write_to_path(directory / "client.pem")
    client.private_key_pem.write_to_path(directory / "client.key")


def hash_password(password: str) -> str:
    """A bcrypt hash of the lowest cost: a test's password needs no protection, and each request checks it."""
    import bcrypt

    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(rounds=4)).decode()


def new_secret() -> str:
    """A unique password or token, so that a log or a response that contains it proves a leak."""
    return secrets.token_urlsafe(24)
