"""Loading of settings: the precedence of sources, the old names, and errors with key and remedy."""

import contextlib
import json
import tomllib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from watcher.agent_clients.client import client_from_settings
from watcher.agent_clients.settings import AgentsSettings, QrmsSettings
from watcher.api.settings import MetricsSettings
from watcher.core.config.problems import Problem, SettingsError
from watcher.core.config.values import Secret
from watcher.core.koordinator.collect_policy import PolicyOverride, PolicyRule
from watcher.core.review.settings import ReviewSettings
from watcher.core.windows.settings import RefreshSettings
from watcher.koordinator.settings import KoordinatorSettings
from watcher.model import METRIC_BY_KEY, Window
from watcher.platform.http.settings import ServerSettings
from watcher.platform.logs import LogSettings
from watcher.service.settings.loading import load
from watcher.service.settings.tables import KEYS
from watcher.sources.settings import ProviderSettings, QuerySettings
from watcher.store.settings import StoreSettings


@pytest.fixture
def loaded(tmp_path):
    """Load from a TOML text, flags and an environment, with an empty directory as the working directory."""

    def run(toml="", *, flags=None, assigned=None, environ=None, validators=None):
        (tmp_path / "empty").touch()
        (tmp_path / "blank").write_text(" \n")
        if toml:
            (tmp_path / "load-watcher.toml").write_text(toml)
        return load(
            flags=flags or {}, assigned=assigned, environ=environ or {}, cwd=tmp_path, part_validators=validators
        )

    return run


@pytest.fixture
def problems(loaded):
    """The problems of loading these sources."""

    def run(*given, **more):
        with pytest.raises(SettingsError) as refused:
            loaded(*given, **more)
        return refused.value.problems

    return run


# --- defaults and precedence ------------------------------------------------------------------------------------------


def test_without_settings_the_embedded_defaults_are_used(loaded):
    """The service reads this machine, listens on loopback, and stores into a file in the working directory."""
    settings = loaded()
    assert (
        settings[ProviderSettings].name,
        settings[ProviderSettings].address,
        settings[ProviderSettings].timeout,
    ) == ("host", None, 10.0)
    assert (settings[ServerSettings].host, settings[ServerSettings].port, settings[ServerSettings].protect_reads) == (
        "127.0.0.1",
        2020,
        False,
    )
    assert (
        settings[RefreshSettings].interval,
        settings[RefreshSettings].resolution,
        settings[RefreshSettings].max_staleness,
    ) == (60.0, 0, 300.0)
    assert settings[RefreshSettings].windows == (Window("5m", 300), Window("10m", 600), Window("15m", 900))
    assert (settings[StoreSettings].url, settings[StoreSettings].retention) == ("sqlite:///load-watcher.db", 86400.0)
    assert (settings[StoreSettings].on_unusable, settings[StoreSettings].max_size, settings[StoreSettings].upgrade) == (
        "fail",
        None,
        True,
    )
    assert (
        settings[ReviewSettings].mode,
        settings[ReviewSettings].carry_slots,
        settings[ReviewSettings].outage_fraction,
    ) == ("enforce", 2, 0.2)
    assert (settings[MetricsSettings].types, settings[MetricsSettings].operators) == (("CPU", "Memory"), ("AVG", "STD"))
    assert (settings[MetricsSettings].windows, settings[LogSettings].level, settings[LogSettings].format) == (
        ("15m",),
        "info",
        "text",
    )
    assert set(settings.origins.values()) == {"default"}
    assert settings.notices == ()


FILE = {"toml": '[refresh]\ninterval = "40s"'}
ENVIRONMENT = {"environ": {"LOAD_WATCHER_REFRESH_INTERVAL": "50s"}}
FLAG = {"flags": {"refresh.interval": "55s"}}
OF_IMAGE = {"LOAD_WATCHER_DEFAULT_REFRESH_INTERVAL": "35s"}


@pytest.mark.parametrize(
    ("given", "seconds", "origin"),
    [
        ({}, 60, "default"),
        (FILE, 40, "file load-watcher.toml"),
        (FILE | ENVIRONMENT, 50, "environment LOAD_WATCHER_REFRESH_INTERVAL"),
        (FILE | ENVIRONMENT | FLAG, 55, "flag --interval"),
        (FILE | FLAG, 55, "flag --interval"),
        (FILE | {"environ": {"LOAD_WATCHER_REFRESH_INTERVAL": " "}}, 40, "file load-watcher.toml"),
        ({"environ": OF_IMAGE}, 35, "environment LOAD_WATCHER_DEFAULT_REFRESH_INTERVAL"),
        (FILE | {"environ": OF_IMAGE}, 40, "file load-watcher.toml"),
        ({"environ": OF_IMAGE | ENVIRONMENT["environ"]}, 50, "environment LOAD_WATCHER_REFRESH_INTERVAL"),
        (FILE | {"flags": {"refresh.interval": None}}, 40, "file load-watcher.toml"),
    ],
)
def test_flags_take_precedence_over_environment_file_and_defaults(loaded, given, seconds, origin):
    """In this order; the origin is named. An empty variable and an unused flag do not count."""
    settings = loaded(**given)
    assert (settings[RefreshSettings].interval, settings.origins["refresh.interval"]) == (seconds, origin)


def test_defaults_of_images_are_weaker_than_the_file_also_in_tables_of_node_processes(loaded):
    environ = {"LOAD_WATCHER_DEFAULT_AGENT_METRICS_HOST": "10.0.0.1", "LOAD_WATCHER_DEFAULT_AGENT_PORT": "1"}
    assert loaded('[agent]\nmetrics_host = "::"', environ=environ).parts["agent"] == {"metrics_host": "::", "port": 1}


def test_an_unknown_default_of_an_image_is_a_problem_with_a_hint(problems):
    (problem,) = problems("", environ={"LOAD_WATCHER_DEFAULT_SERVER_HSOT": "::"})
    assert "did you mean LOAD_WATCHER_DEFAULT_SERVER_HOST?" in str(problem)


def test_an_overridden_invalid_value_is_ignored(loaded):
    """Only the effective value is read."""
    assert loaded('[server]\nport = "x"', flags={"server.port": "0"})[ServerSettings].port == 0


@pytest.mark.parametrize(
    ("given", "cure"),
    [
        ({"toml": "[refresh]\nwindows = 5"}, 'for example refresh.windows = ["5m", "10m", "15m"]'),
        (
            {"environ": {"LOAD_WATCHER_REFRESH_WINDOWS": "x"}},
            """for example LOAD_WATCHER_REFRESH_WINDOWS='["5m", "10m", "15m"]'""",
        ),
        ({"assigned": {"refresh.windows": "x"}}, """for example --set 'refresh.windows=["5m", "10m", "15m"]'"""),
        ({"assigned": {"refresh.interval": "0s"}}, "for example --set refresh.interval=1m"),
        ({"flags": {"refresh.interval": "0s"}}, "for example --interval 1m"),
        (
            {"assigned": {"agents.urls": ""}},
            "for example --set 'agents.urls=[\"http://load-watcher-agent:2023\"]', or --set 'agents.urls=[]' for none",
        ),
    ],
)
def test_the_example_in_a_problem_has_the_syntax_of_the_source(loaded, given, cure):
    with pytest.raises(SettingsError) as refused:
        loaded(**given)
    (problem,) = refused.value.problems
    assert cure == problem.cure


@pytest.mark.parametrize("key", ["agents.urls", "qrms.urls", "server.hosts"])
def test_an_empty_list_is_as_if_the_key_were_absent(loaded, key):
    """From a file and a flag: there is no conflict with a provider of this machine, and no client for it."""
    table, _, name = key.partition(".")
    for found in (loaded(f"[{table}]\n{name} = []"), loaded(assigned={key: "[]"})):
        assert client_from_settings(found, AgentsSettings) is None
        assert client_from_settings(found, QrmsSettings) is None
        assert not found[AgentsSettings].report_pods


def test_set_reaches_each_key_and_is_named_as_origin(loaded):
    """Also keys of single queries."""
    flags = {
        "provider.queries.CPU.expression": "avg(x)",
        "provider.queries.CPU.unit": "ratio",
        "review.carry_slots": "0",
    }
    settings = loaded(flags=flags)
    assert settings[ReviewSettings].carry_slots == 0
    assert settings.origins["review.carry_slots"] == "flag --set review.carry_slots"
    assert settings[ProviderSettings].queries == {"CPU": QuerySettings("avg(x)", "ratio")}


def test_the_file_may_be_named_by_flag_or_variable(tmp_path):
    """--config takes precedence over LOAD_WATCHER_CONFIG, and that over the file in the working directory."""
    for name, port in (("load-watcher.toml", 1), ("variable.toml", 2), ("flag.toml", 3)):
        (tmp_path / name).write_text(f"[server]\nport = {port}")
    environ = {"LOAD_WATCHER_CONFIG": "variable.toml"}
    assert load(flags={}, environ={}, cwd=tmp_path)[ServerSettings].port == 1
    assert load(flags={}, environ=environ, cwd=tmp_path)[ServerSettings].port == 2
    settings = load(flags={}, environ=environ, cwd=tmp_path, file=tmp_path / "flag.toml")
    assert settings[ServerSettings].port == 3
    assert settings.origins["server.port"] == f"file {tmp_path}/flag.toml"


def test_all_tables_of_the_file_are_read(loaded, tmp_path):
    """With TOML types or texts; paths are relative to the working directory."""
    (tmp_path / "token").write_text("t")
    settings = loaded(
        """
        [server]
        token_file = "token"
        protect_reads = true
        [provider]
        name = "Prometheus"
        address = "http://prometheus:9090/"
        headers = { "X-Scope-OrgID" = "team-a" }
        metrics = ["cpu", "NetworkReceive"]
        timeout = 5
        [provider.queries.CPU]
        expression = "1 - idle"
        unit = "ratio"
        smoothing = "5m"
        [refresh]
        windows = ["900s", "30m", "5m"]
        resolution = 20
        [store]
        max_size = "100MB"
        keep = ["CPU"]
        [metrics]
        windows = ["1800s"]
        """
    )
    assert settings[ServerSettings].token_file == tmp_path / "token"
    assert (settings[ProviderSettings].name, settings[ProviderSettings].address) == (
        "prometheus",
        "http://prometheus:9090",
    )
    assert settings[ProviderSettings].headers == {"X-Scope-OrgID": Secret("team-a")}
    assert settings[ProviderSettings].wanted == (METRIC_BY_KEY["CPU"], METRIC_BY_KEY["NetworkReceive"])
    assert settings[ProviderSettings].queries["CPU"] == QuerySettings("1 - idle", "ratio", smoothing=300.0)
    assert settings[RefreshSettings].windows == (Window("5m", 300), Window("15m", 900), Window("30m", 1800))
    assert (settings[StoreSettings].max_size, settings[StoreSettings].keep) == (100_000_000, ("CPU",))
    assert settings[MetricsSettings].windows == ("30m",)


def test_a_type_selects_all_its_metrics(loaded):
    """In the order of the model."""
    keys = [metric.key for metric in loaded()[ProviderSettings].wanted]
    assert keys == [
        "CPU",
        "Memory",
        "Storage",
        "NetworkTransmit",
        "NetworkReceive",
        "NetworkTransmitDrop",
        "NetworkReceiveDrop",
    ]


def test_a_short_interval_shortens_the_default_timeout(loaded):
    """The default fits into any interval and is reported; a configured timeout is not changed."""
    settings = loaded(flags={"refresh.interval": "5s", "refresh.resolution": "5s"})
    assert settings[ProviderSettings].timeout == 4.0
    assert settings.origins["provider.timeout"] == "default, 0.8 of refresh.interval"


def test_user_and_password_are_removed_from_the_address(loaded):
    """They become username and password, decoded, so that the address can be shown."""
    settings = loaded(flags={"provider.name": "prometheus", "provider.address": "https://me:p%40ss@prom:9090/x"})
    assert settings[ProviderSettings].address == "https://prom:9090/x"
    assert (settings[ProviderSettings].username, settings[ProviderSettings].password) == ("me", Secret("p@ss"))


# --- the Go load-watcher's names --------------------------------------------------------------------------------------

PROMETHEUS = {"METRICS_PROVIDER_NAME": "Prometheus"}


@pytest.mark.parametrize(
    ("environ", "key", "value"),
    [
        (PROMETHEUS, "name", "prometheus"),
        ({"METRICS_PROVIDER_NAME": "PROMETHEUS"}, "name", "prometheus"),
        ({"METRICS_PROVIDER_NAME": "host"}, "name", "host"),
        (PROMETHEUS, "address", "http://prometheus-k8s:9090"),
        (PROMETHEUS | {"METRICS_PROVIDER_ADDRESS": "http://p:1"}, "address", "http://p:1"),
        (PROMETHEUS | {"METRICS_PROVIDER_TOKEN": "t\n"}, "token", Secret("t")),
        (PROMETHEUS | {"METRICS_PROVIDER_TOKEN": ""}, "token", None),
        (PROMETHEUS | {"METRICS_PROVIDER_APP_KEY": "k"}, "app_key", Secret("k")),
        ({"INSECURE_SKIP_VERIFY": "True"}, "insecure_skip_verify", True),
        ({"INSECURE_SKIP_VERIFY": "1"}, "insecure_skip_verify", False),
        ({"INSECURE_SKIP_VERIFY": "yes"}, "insecure_skip_verify", False),
        ({"ENABLE_OPENSHIFT_AUTH": "false"}, "openshift_auth", True),
        ({"ENABLE_OPENSHIFT_AUTH": ""}, "openshift_auth", True),
        ({}, "openshift_auth", False),
        (PROMETHEUS | {"DATADOG_CLUSTER_NAME": "d"}, "cluster_name", None),
    ],
)
def test_old_names_of_the_provider(loaded, environ, key, value):
    """The Go load-watcher's variables have their old meaning, except that an unknown provider is an error."""
    assert getattr(loaded(environ=environ)[ProviderSettings], key) == value


def test_kube_config_is_a_path(loaded, tmp_path):
    """KUBE_CONFIG names a file that only the provider needs that reads it."""
    assert loaded(environ={"KUBE_CONFIG": "kube/config"})[ProviderSettings].kubeconfig == tmp_path / "kube/config"


@pytest.mark.parametrize(
    ("word", "level"),
    [("warn", "warning"), ("TRACE", "debug"), ("panic", "critical"), ("fatal", "critical"), ("Error", "error")],
)
def test_log_levels_of_logrus_are_accepted(loaded, word, level):
    """LOG_LEVEL and log.level both accept them, in any case."""
    assert loaded(environ={"LOG_LEVEL": word})[LogSettings].level == level
    assert loaded(environ={"LOAD_WATCHER_LOG_LEVEL": word})[LogSettings].level == level


def test_an_unknown_log_level_in_log_level_is_ignored_with_a_notice(loaded):
    """Other programs use the variable LOG_LEVEL too, so an unknown value keeps the default, as before."""
    settings = loaded(environ={"LOG_LEVEL": "verbose"})
    assert settings[LogSettings].level == "info"
    assert settings.notices == ('LOG_LEVEL="verbose" ignored: unknown log level',)


@pytest.mark.parametrize(
    ("variable", "reported"),
    [
        ("METRICS_PROVIDER_ADRESS", "did you mean METRICS_PROVIDER_ADDRESS?"),
        ("METRICS_PROVIDER_APPKEY", "did you mean METRICS_PROVIDER_APP_KEY?"),
        (
            "METRICS_PROVIDER_COLOUR",
            "known variables: METRICS_PROVIDER_NAME, METRICS_PROVIDER_ADDRESS, METRICS_PROVIDER_TOKEN, "
            "METRICS_PROVIDER_APP_KEY",
        ),
    ],
)
def test_a_misspelt_old_name_is_noted(loaded, variable, reported):
    """Without its value, which may be a secret. It is not an error, because other programs may use the name."""
    (notice,) = loaded(environ={variable: "s3cret"}).notices
    assert notice == f"environment {variable} ignored: unknown setting; {reported}"


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("METRICS_PROVIDER_ADRESS", " "),
        ("METRICS_PROVIDER_SERVICE_HOST", "10.0.0.1"),
        ("METRICS_PROVIDER_PORT", "tcp://10.0.0.1:80"),
        ("METRICS_PROVIDER_PORT_80_TCP_ADDR", "10.0.0.1"),
        ("OTHER_METRICS_PROVIDER_ADRESS", "x"),
    ],
)
def test_variables_of_others_are_not_noted(loaded, variable, text):
    """Empty ones, and those that Kubernetes sets for a service with the name metrics-provider."""
    assert loaded(environ={variable: text}).notices == ()


def test_the_new_name_takes_precedence_over_the_old_one(loaded):
    """LOAD_WATCHER_<SECTION>_<KEY> over the old name, and the old name over the file."""
    old, new = {"METRICS_PROVIDER_ADDRESS": "http://old"}, {"LOAD_WATCHER_PROVIDER_ADDRESS": "http://new"}
    toml = '[provider]\nname = "prometheus"\naddress = "http://file"'
    assert loaded(toml, environ=old | new)[ProviderSettings].address == "http://new"
    assert loaded(toml, environ=old)[ProviderSettings].address == "http://old"


# --- the choice of the provider ---------------------------------------------------------------------------------------


def test_outside_a_cluster_the_default_provider_is_this_host(loaded):
    """The reason is given."""
    assert loaded()[ProviderSettings].reason == "provider.name is not set; the default outside a cluster"
    assert loaded(environ=PROMETHEUS)[ProviderSettings].reason == "set by environment METRICS_PROVIDER_NAME"


IN_CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


def test_in_a_cluster_the_default_provider_is_metrics_server(loaded):
    """The reason is given; a configured name takes precedence."""
    provider = loaded(environ=IN_CLUSTER)[ProviderSettings]
    assert ("metrics-server", True) == (provider.name, "KUBERNETES_SERVICE_HOST is set" in provider.reason)
    assert loaded('[provider]\nname = "host"', environ=IN_CLUSTER)[ProviderSettings].name == "host"


@pytest.mark.parametrize("name", ["KubernetesMetricsServer", "kubernetesmetricsserver", "metrics-server"])
def test_metrics_server_has_two_names(loaded, name):
    """That of the Go load-watcher in any case, and the one of load-watcher."""
    assert loaded(environ={"METRICS_PROVIDER_NAME": name})[ProviderSettings].name == "metrics-server"


def test_settings_that_metrics_server_does_not_use_are_noted(loaded, problems):
    """It gets its address and credentials from the cluster; without a name, an address is an error."""
    environ = {"METRICS_PROVIDER_NAME": "KubernetesMetricsServer", "METRICS_PROVIDER_TOKEN": "x"}
    (notice,) = loaded(environ=environ).notices
    assert notice.startswith("provider.token is set but not used: the provider metrics-server connects to")
    (problem,) = problems(environ=IN_CLUSTER | {"METRICS_PROVIDER_ADDRESS": "http://prometheus:9090"})
    assert (problem.key, "metrics-server would be used" in problem.message) == ("provider.name", True)


def test_a_kubeconfig_must_exist_if_the_provider_reads_it(loaded, problems):
    """Only metrics-server does; KUBE_CONFIG may be set for other programs."""
    (problem,) = problems('[provider]\nname = "metrics-server"', environ={"KUBE_CONFIG": "nowhere"})
    assert (problem.key, "does not exist" in problem.message) == ("provider.kubeconfig", True)
    assert loaded('[provider]\nname = "host"', environ={"KUBE_CONFIG": "nowhere"})[ProviderSettings].name == "host"


def test_prometheus_has_a_default_address_only_by_its_old_name(problems):
    """METRICS_PROVIDER_NAME implies its old address."""
    (problem,) = problems('[provider]\nname = "prometheus"')
    assert problem.key == "provider.address"
    assert 'provider.address = "http://prometheus.monitoring:9090"' in problem.cure
    (problem,) = problems("", environ={"LOAD_WATCHER_PROVIDER_NAME": "prometheus"})
    assert "LOAD_WATCHER_PROVIDER_ADDRESS=http://prometheus.monitoring:9090" in problem.cure
    (problem,) = problems("", flags={"provider.name": "prometheus"})
    assert "--address http://prometheus.monitoring:9090" in problem.cure


def test_an_address_without_a_provider_name_is_an_error(problems, loaded):
    """Beside the explicit name host, it is ignored with a notice."""
    (problem,) = problems(flags={"provider.address": "http://prometheus:9090"})
    assert (problem.key, 'provider.address = "http://prometheus:9090"' in problem.message) == ("provider.name", True)
    settings = loaded(flags={"provider.address": "http://prometheus:9090", "provider.name": "host"})
    assert settings.notices == ("provider.address is set but not used: the provider host reads only this machine",)


# --- problems ---------------------------------------------------------------------------------------------------------

PROM = '[provider]\nname = "prometheus"\naddress = "http://p:9090"\n'
MISTAKES = [
    # types of values
    ("[server]\nport = 65536", "server.port", "a whole number from 0 to 65535; given 65536"),
    ("[server]\nport = true", "server.port", "given true"),
    ('[server]\nport = "2020"', "server.port", 'given "2020"'),
    ("[server]\nhost = 7", "server.host", "must be text; given 7"),
    ('[server]\nhost = ""', "server.host", "given empty text"),
    ('[server]\nprotect_reads = "true"', "server.protect_reads", "true or false"),
    ('[refresh]\ninterval = "-5s"', "refresh.interval", 'like "60s"'),
    ('[refresh]\ninterval = "11m"', "refresh.interval", "from 1s to 10m"),
    ("[refresh]\ninterval = 2000-01-01", "refresh.interval", "given a date or time"),
    ("[refresh]\ninterval = nan", "refresh.interval", "given nan"),
    ('[refresh]\nresolution = "1500ms"', "refresh.resolution", "whole seconds"),
    ('[refresh]\nresolution = "61s"', "refresh.resolution", "from 1s to 60s"),
    ("[refresh]\nwindows = []", "refresh.windows", "given an empty list"),
    ('[refresh]\nwindows = ["15m", "900s"]', "refresh.windows", "is listed twice"),
    ('[refresh]\nwindows = ["25h"]', "refresh.windows", "at most 24h"),
    ('[refresh]\nwindows = "15m"', "refresh.windows", 'a list of durations, like ["5m", "10m", "15m"]; given "15m"'),
    ("[refresh]\nwindows = [[1]]", "refresh.windows", "given a list"),
    ('[store]\nmax_size = "1MiB"', "store.max_size", "at least 16MiB"),
    ('[store]\nurl = "postgresql+asyncpg://u:pw@h/d"', "store.url", "with psycopg, use postgresql://"),
    ('[store]\nurl = "postgresql://u:pw@h/"', "store.url", "without a database"),
    ('[store]\nurl = "postgresql:///d"', "store.url", "without a host"),
    ('[store]\nurl = "mysql://h/d"', "store.url", 'given "mysql://h/d"'),
    ('[store]\non_unusable = "ignore"', "store.on_unusable", '"fail" or "set-aside"'),
    ('[store]\nkeep = ["cpuu"]', "store.keep", 'did you mean "CPU"?'),
    ('[metrics]\noperators = ["MEAN"]', "metrics.operators", '"AVG"'),
    ('[log]\nlevel = "verbose"', "log.level", '"debug", "info"'),
    ("[review]\noutage_fraction = 0", "review.outage_fraction", "above 0 and at most 1"),
    ('[provider]\nheaders = "x"', "provider.headers", "a table of texts"),
    ('[provider.headers]\n"X Y" = "z"', "provider.headers", '"X Y" is not a valid header name'),
    ('[provider]\naddress = "prometheus:9090"', "provider.address", 'given "prometheus:9090"'),
    ('[provider]\nname = "promethius"', "provider.name", 'unknown provider "promethius"'),
    ("[provider]\nname = 3", "provider.name", "given 3"),
    # names
    ("[server]\nprot = 1", "server.prot", "unknown setting (file load-watcher.toml)"),
    ("[sever]\nport = 1", "sever", "unknown section"),
    ("server = 3", "server", "must be a table, [server]; given a number"),
    ("[provider]\nqueries = 3", "provider.queries", "must be a table"),
    ('[provider.queries.CPUs]\nunit = "ratio"', "provider.queries.CPUs", "unknown setting"),
    ('[provider.queries.CPU]\nunti = "ratio"', "provider.queries.CPU.unti", "unknown setting"),
    # between settings
    ('[server]\ntls_cert = "/etc/hosts"', "server.tls_key", "server.tls_cert (file load-watcher.toml) needs"),
    ('[server]\ntls_key = "/etc/hosts"', "server.tls_cert", "needs server.tls_cert"),
    ('[server]\ntls_client_ca = "/etc/hosts"', "server.tls_cert", "needs server.tls_cert"),
    ("[server]\nprotect_reads = true", "server.token_file", "server.protect_reads"),
    ('[server]\ntoken_file = "nowhere"', "server.token_file", "does not exist"),
    ('[server]\ntoken_file = "/etc"', "server.token_file", "is a directory"),
    ('[provider]\nca_file = "/nowhere"', "provider.ca_file", "does not exist"),
    ('[provider]\nclient_key = "/etc/hosts"', "provider.client_cert", "needs provider.client_cert"),
    (PROM + 'token = "a"\ntoken_file = "/etc/hosts"', "provider.token", "are set; only one token"),
    (PROM + 'username = "u"', "provider.password", "needs provider.password or provider.password_file"),
    (PROM + 'password = "p"', "provider.username", "needs provider.username"),
    (PROM + 'username = "u"\npassword = "p"\npassword_file = "/etc/hosts"', "provider.password", "only one password"),
    (PROM + 'username = "u"\npassword = "p"\ntoken = "t"', "provider.token", "Authorization header"),
    (PROM + '[provider.queries.GPU]\nexpression = "x"\nunit = "ratio"', "provider.queries.GPU", "does not include GPU"),
    (
        PROM + '[provider.queries.CPU]\nexpression = "x"\nunit = "watts"',
        "provider.queries.CPU.unit",
        '"watts", which cannot be converted to percent',
    ),
    (
        PROM + '[provider.queries.CPU]\nunit = "ratio"',
        "provider.queries.CPU.expression",
        "required in [provider.queries.CPU]",
    ),
    (
        '[provider]\ntimeout = "50s"',
        "provider.timeout",
        '"50s" (file load-watcher.toml) is longer than 0.8 of refresh.interval = "1m" (default), 48s',
    ),
    (
        '[refresh]\ninterval = "10s"\nresolution = "15s"',
        "refresh.interval",
        'refresh.interval = "10s" (file load-watcher.toml) is shorter than refresh.resolution = "15s" (file ',
    ),
    (
        '[refresh]\nmax_staleness = "30s"',
        "refresh.max_staleness",
        'refresh.max_staleness = "30s" (file load-watcher.toml) is shorter than refresh.interval = "1m" (default)',
    ),
    (
        '[refresh]\nresolution = "7s"',
        "refresh.windows",
        '"5m" (default) is not a whole multiple of refresh.resolution = "7s"',
    ),
    ('[refresh]\nwindows = ["15s", "15m"]\nresolution = 15', "refresh.windows", "is less than two slots"),
    ('[refresh]\nwindows = ["61s", "15m"]', "refresh.windows", "have no common slot of 5s, 6s, 10s, 12s or 15s"),
    (
        '[store]\nretention = "5m"',
        "store.retention",
        'store.retention = "5m" (file load-watcher.toml) is shorter than the longest of refresh.windows = ',
    ),
    ('[agents]\nurls = ["http://user:word@lw:2023"]', "agents.urls", "given an address with a user"),
    ('[metrics]\nwindows = ["30m"]', "metrics.windows", '"30m" (file load-watcher.toml) is not in refresh.windows'),
    (
        "[koordinator]\npublish = true",
        "koordinator.publish",
        'the nodes of the cluster are not read (kubernetes.node_names = "auto" (default))',
    ),
    (
        '[provider]\nname = "replay"\npath = "."\n[koordinator]\npublish = true',
        "koordinator.publish",
        'the nodes of the cluster are not read (kubernetes.node_names = "auto" (default))',
    ),
    (
        '[koordinator]\naggregate_durations = ["5m", "30m"]',
        "koordinator.aggregate_durations",
        '"30m" (file load-watcher.toml) is not in refresh.windows = ["5m", "10m", "15m"]',
    ),
    (
        '[[koordinator.nodes]]\nnames = ["gpu-*"]\naggregate_durations = ["1h"]',
        "koordinator.nodes",
        '"1h" (file load-watcher.toml) is not in refresh.windows',
    ),
    (PROM + 'token = "t"\nheaders = { authorization = "x" }', "provider.headers", "Authorization header"),
    (
        PROM + 'node_label = "a\\tb"',
        "provider.node_label",
        "which is not a valid label name",
    ),
    (
        PROM + '[provider.queries.CPU]\nexpression = "x"\nunit = "ratio"\nnode_label = "a\\tb"',
        "provider.queries.CPU.node_label",
        "which is not a valid label name",
    ),
    (
        PROM + '[provider.queries.CPU]\nexpression = "x"\nunit = "ratio"\nguard = "rate(x[5m])"',
        "provider.queries.CPU.guard",
        '"rate(x[5m])", which is not a metric name or selector',
    ),
    ('[server]\ntoken_file = "/dev/null/x"', "server.token_file", "does not exist"),
    ('[server]\ntoken_file = "empty"', "server.token_file", "is empty"),
    ('[server]\ntoken_file = "blank"', "server.token_file", "is empty"),
    ('[store]\nkeep = ["NetworkReceive"]', "store.keep", "a list of metric types"),
    # TOML itself
    ("[server\nport = 1", "config", "load-watcher.toml: invalid TOML: "),
    ("\ufeff[server]\nport = 1.5", "server.port", "must be a whole number"),  # a byte order mark is ignored
    ("[server]\nport = ", "config", "(at line 2, column 8"),
    ("[server]\nport = 1\nport = 2", "config", "(at line 3"),
    ("x = " + "[" * 100_000, "config", "nested too deeply"),
]


@pytest.mark.parametrize(
    ("toml", "key", "message"), MISTAKES, ids=[f"{key}-{n}" for n, (_, key, _) in enumerate(MISTAKES)]
)
def test_an_invalid_setting_is_a_problem_of_its_key(problems, toml, key, message):
    """With the given value or both values, and a remedy."""
    found = [problem for problem in problems(toml) if problem.key == key]
    assert [message in problem.message for problem in found][:1] == [True], found
    assert all(problem.cure for problem in found)


@pytest.mark.parametrize(
    ("toml", "name"),
    [
        ("[server]\nport = 1\n[log]\n[server]\n", "[server]"),
        ("[server]\nport = 1\nport = 2", "port"),
        ("[[scheduler.a.plugins]]\nname = 'Peaks'\n[scheduler.a.plugins]\n", "[scheduler.a.plugins]"),
    ],
)
def test_the_remedy_names_a_duplicate_in_toml(problems, toml, name):
    (problem,) = problems(toml)
    assert problem.cure == f"{name} exists twice: keep one, and delete the other or move its keys"


@pytest.mark.parametrize("yaml", ["server:\n  port: 2020\n", "---\nserver: {port: 2020}\n", "# settings\n\nserver:\n"])
def test_yaml_is_recognized(problems, yaml):
    """Most other files around Kubernetes are YAML."""
    assert "looks like YAML" in problems(yaml)[0].cure
    assert "looks like YAML" not in problems("[server]\nport: 2020\n")[0].cure


@pytest.mark.parametrize(
    ("toml", "cure"),
    [
        ("[server]\nprot = 1", "did you mean server.port?"),
        ("[server]\ninterval = 1", "did you mean refresh.interval?"),
        ("[sever]\n", "did you mean [server]?"),
        ("port = 1", "did you mean server.port?"),
        ("[provider.queries.cpu]\n", "did you mean provider.queries.CPU?"),
        ("[provider.querys.CPU]\n", "did you mean provider.queries?"),
        ("[refresh]\nxyzzyxyzzy = 1", "refresh has interval, resolution, windows, "),
        ("[xyzzy]\n", "known sections: [cluster], [server], [provider]"),
        ('[provider]\nname = "promethius"', "did you mean prometheus?"),
        ('[provider]\nname = "kubernetes-metrics-server"', "did you mean metrics-server?"),
    ],
)
def test_a_misspelt_name_is_an_error_with_the_nearest_one(problems, toml, cure):
    """Otherwise with all existing ones."""
    (problem,) = problems(toml)
    assert cure in problem.cure


@pytest.mark.parametrize(
    ("variable", "cure"),
    [
        ("LOAD_WATCHER_SERVER_PROT", "did you mean LOAD_WATCHER_SERVER_PORT?"),
        ("LOAD_WATCHER_INTERVAL", "did you mean LOAD_WATCHER_REFRESH_INTERVAL?"),
        ("LOAD_WATCHER_PORT", "did you mean LOAD_WATCHER_SERVER_PORT?"),
        ("LOAD_WATCHER_PROVIDER_QUERIES_CPU_EXPRESION", "did you mean LOAD_WATCHER_PROVIDER_QUERIES_CPU_EXPRESSION?"),
        ("LOAD_WATCHER_XYZZY_PLUGH_FROTZ", "docs/reference/settings.md lists"),
    ],
)
def test_an_unknown_variable_is_an_error_with_the_nearest_one(problems, variable, cure):
    """A misspelt LOAD_WATCHER_ variable is an error like a misspelt key."""
    (problem,) = problems(environ={variable: "2021"})
    assert problem.key == variable
    assert cure in problem.cure


def test_variables_of_kubernetes_services_are_not_settings(loaded):
    """Each pod gets the service load-watcher as variables that look like settings. None of them is an error, and a
    service with the name load-watcher-server does not set server.port."""
    address = "tcp://10.96.0.7:2020"
    links = {
        "LOAD_WATCHER_SERVICE_HOST": "10.96.0.7",
        "LOAD_WATCHER_SERVICE_PORT": "2020",
        "LOAD_WATCHER_SERVICE_PORT_HTTP": "2020",
        "LOAD_WATCHER_PORT": address,
        "LOAD_WATCHER_PORT_2020_TCP": address,
        "LOAD_WATCHER_PORT_2020_TCP_PROTO": "tcp",
        "LOAD_WATCHER_PORT_2020_TCP_PORT": "2020",
        "LOAD_WATCHER_PORT_2020_TCP_ADDR": "10.96.0.7",
        "LOAD_WATCHER_SERVER_PORT": address,
        "LOAD_WATCHER_AGENT_PORT": address,
        "LOAD_WATCHER_EXTENDER_SERVICE_HOST": "10.96.0.8",
    }
    settings = loaded(environ=links)
    assert settings[ServerSettings].port == 2020
    assert settings.parts == {}


def test_variables_of_the_test_suite_are_not_settings(loaded):
    """They may be in the environment of a service that a test starts."""
    steering = {
        "LOAD_WATCHER_CACHE": "/x",
        "LOAD_WATCHER_KUBERNETES": "1.36",
        "LOAD_WATCHER_REAL_PARTS": "/x",
        "LOAD_WATCHER_REQUIRE_REAL": "1",
    }
    assert loaded(environ=steering).origins["server.port"]


def test_all_problems_are_reported_at_once(problems):
    """All sources are read completely, and each problem is reported once in a text that lists all."""
    found = problems(
        '[server]\nport = -1\nprot = 1\n[refresh]\nmax_staleness = "1s"',
        environ={"LOAD_WATCHER_LOG_FORMAT": "xml", "LOAD_WATCHER_SERVER_PROT": "1"},
        flags={"store.retention": "1m", "store.retentoin": "1m"},
    )
    assert sorted(problem.key for problem in found) == [
        "LOAD_WATCHER_SERVER_PROT",
        "log.format",
        "refresh.max_staleness",
        "server.port",
        "server.prot",
        "store.retention",
        "store.retentoin",
    ]
    text = str(SettingsError(found))
    assert text.startswith("7 problems in the settings:")
    assert all(problem.message in text and problem.cure in text for problem in found)


@pytest.mark.parametrize(
    ("toml", "key"),
    [
        ('[provider]\ntimeout = "50s"\n[refresh]\ninterval = "9x"', "refresh.interval"),
        ('[refresh]\nresolution = "7s"\nwindows = ["x"]', "refresh.windows"),
        ('[server]\ntls_cert = "/etc/hosts"\ntls_key = 5', "server.tls_key"),
        (PROM + '[provider.queries.CPU]\nexpression = 5\nunit = "ratio"', "provider.queries.CPU.expression"),
        ('[provider]\nname = "prometheus"\naddress = 5', "provider.address"),
        ('[provider]\nname = "promethius"\naddress = "http://p"', "provider.name"),
    ],
)
def test_an_invalid_value_causes_one_problem(problems, toml, key):
    """Other settings are not checked against the default in its place."""
    assert [problem.key for problem in problems(toml)] == [key]


def test_an_unreadable_file_causes_no_further_problems(problems):
    """Settings that may be in the file are not reported as missing; problems of other sources are reported."""
    found = problems("[[[", environ={"LOAD_WATCHER_PROVIDER_NAME": "prometheus", "LOAD_WATCHER_SERVER_PORT": "x"})
    assert sorted(problem.key for problem in found) == ["config", "server.port"]


@pytest.mark.parametrize(
    ("content", "message"), [(None, "No such file"), (b"\xff\xfe", "not UTF-8 at byte 0"), ("dir", "Is a directory")]
)
def test_a_named_file_must_be_readable(tmp_path, content, message):
    """If a named file cannot be read, that is an error; it does not count as missing."""
    path = tmp_path / "x.toml"
    if content == "dir":
        path.mkdir()
    elif content:
        path.write_bytes(content)
    with pytest.raises(SettingsError) as refused:
        load(flags={}, environ={}, cwd=tmp_path, file=path)
    (problem,) = refused.value.problems
    assert message in problem.message
    assert str(path) in problem.message


@pytest.mark.parametrize("address", ["http://me@prom", "http://:pw@prom", "http://me:pw@prom"])
def test_incomplete_or_duplicate_credentials_in_an_address_are_errors(problems, address):
    """A user without a password, the reverse, and an address beside provider.username."""
    flags = {"provider.name": "prometheus", "provider.address": address, "provider.username": "you"}
    assert "provider.address" in [problem.key for problem in problems(flags=flags)]


# --- other packages' tables -------------------------------------------------------------------------------------------


def test_tables_of_other_parts_reach_their_validators_unchanged(loaded, problems):
    """[scheduler.*], [agent] and [qrm] are checked by their packages."""
    toml = '[scheduler.default]\nplugins = [{ name = "Peaks" }]\n[agent]\nport = 1'
    seen = []

    def accept(table):
        seen.append(table)
        return []

    validators = {"scheduler": accept, "agent": lambda table: [Problem("agent.port", "is low", "raise it")]}
    assert [problem.key for problem in problems(toml, validators=validators)] == ["agent.port"]
    assert seen == [{"default": {"plugins": [{"name": "Peaks"}]}}]
    settings = loaded(toml, flags={"agent.port": "2"}, environ={"LOAD_WATCHER_AGENT_HOST": "::1"})
    assert settings.parts["agent"] == {"port": 2, "host": "::1"}


# --- random files -----------------------------------------------------------------------------------------------------

SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(),
    st.text(max_size=12),
    st.dates(),
    st.sampled_from(["60s", "CPU", "http://a:b@c/?d#e", "sqlite:///x", "prometheus", "/etc/hosts", "ratio"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def _toml(value):
    """Any of VALUES as TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(character):08x}" for character in value) + '"'
    return str(value).lower()


@st.composite
def documents(draw):
    """TOML documents of known and unknown keys, with any values."""
    from watcher.service.settings.tables import KEYS

    known = st.sampled_from([*sorted(KEYS), "scheduler.x", "agent.port", "provider.queries.CPU", "refresh", "x"])
    return "\n".join(f"{key} = {_toml(draw(VALUES))}" for key in draw(st.lists(known, max_size=8, unique=True)))


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.one_of(documents(), st.text(max_size=80)))
def test_any_file_gives_settings_or_problems(tmp_path, document):
    """No file raises another exception than SettingsError, and each problem names a key and a remedy."""
    (tmp_path / "junk.toml").write_text(document, encoding="utf-8", errors="replace")
    problems: tuple[Problem, ...] = ()
    try:
        load(flags={}, environ={}, cwd=tmp_path, file=tmp_path / "junk.toml")
    except SettingsError as refused:
        problems = refused.problems
    assert all(problem.key and problem.message and problem.cure for problem in problems)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.text(max_size=10), st.text(max_size=10), max_size=3))
def test_any_flag_and_variable_give_settings_or_problems(tmp_path, flags):
    """No other exception than SettingsError."""
    environ = {f"LOAD_WATCHER_{name.upper()}": text for name, text in flags.items()}
    with contextlib.suppress(SettingsError):
        load(flags={f"agent.{name}": text for name, text in flags.items()} | flags, environ=environ, cwd=tmp_path)


def test_the_generated_documents_are_toml():
    """Otherwise the tests above would only test the TOML parser."""
    assert tomllib.loads("x = " + _toml([1.5, True, "ü\n", {"a b": []}]))["x"] == [1.5, True, "ü\n", {"a b": []}]


# --- policies of some nodes -------------------------------------------------------------------------------------------

POLICIES = """
[[koordinator.nodes]]
names = ["gpu-*", "a"]
labels = { "node.kubernetes.io/pool" = "gpu" }
report_interval = "30s"
aggregate_durations = ["15m", "5m"]

[[koordinator.nodes]]
names = ["*"]
aggregate_duration = 60
"""


def test_nodes_may_have_their_own_policies(loaded):
    """In their order, from a file, from the environment as JSON, and from the output of config show."""
    first = PolicyRule(PolicyOverride(30, None, (300, 900)), ("gpu-*", "a"), (("node.kubernetes.io/pool", "gpu"),))
    expected = (first, PolicyRule(PolicyOverride(None, 60, None), ("*",)))
    found = loaded(POLICIES)[KoordinatorSettings].nodes
    assert expected == found
    written = KEYS["koordinator.nodes"].setting.kind.write(found)
    assert expected == loaded(f"[koordinator]\nnodes = {written}")[KoordinatorSettings].nodes
    given = json.dumps(tomllib.loads(POLICIES)["koordinator"]["nodes"])
    assert expected == loaded(environ={"LOAD_WATCHER_KOORDINATOR_NODES": given})[KoordinatorSettings].nodes


@pytest.mark.parametrize(
    ("rule", "reported"),
    [
        ("'gpu-*'", "must be a list of tables"),
        (
            "{ name = ['a'], report_interval = 60 }",
            "rule 1 has the unknown key 'name'; did you mean names?",
        ),
        ("{ names = 'a', report_interval = 60 }", "names of rule 1 must be a list of patterns"),
        ("{ labels = ['a'], report_interval = 60 }", "labels of rule 1 must be a table of texts"),
        ("{ report_interval = 60 }", "rule 1 selects no nodes: it has neither names nor labels"),
        ("{ names = ['a'] }", "rule 1 changes nothing"),
        ("{ names = ['a'], report_interval = 5 }", "report_interval of rule 1 must be a duration of whole seconds"),
    ],
)
def test_the_error_of_an_invalid_policy_has_the_reason(problems, rule, reported):
    (problem,) = problems(f"[koordinator]\nnodes = [{rule}]")
    assert "koordinator.nodes" == problem.key
    assert reported in problem.message
