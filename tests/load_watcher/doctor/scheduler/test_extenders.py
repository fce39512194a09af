"""The extender in the configuration of kube-scheduler: each problem with its remedy."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from load_watcher.doctor.listening import Exposition
from load_watcher.doctor.scheduler.configuration import check_configuration, scheduler
from load_watcher.doctor.scheduler.extenders import ConfiguredProfile, ServiceSettings
from load_watcher.doctor.scheduler.plugins import use_of
from load_watcher.doctor.scheduler.profile_metrics import DURATIONS, slow_response_bounds
from tests.load_watcher.doctor.scheduler.test_configuration import ODD
from tests.real.parts import REPOSITORY
from watcher.api.telemetry import Telemetry
from watcher.platform.checks.examination import CheckContext
from watcher.platform.checks.results import CheckResult, CheckStatus
from watcher.platform.http.settings import ServerSettings
from watcher.platform.telemetry.instruments import Timings
from watcher.service.settings.loading import load

GOOD: Mapping[str, Any] = {
    "urlPrefix": "http://load-watcher.load-watcher.svc:2020/scheduler/default",
    "prioritizeVerb": "prioritize",
    "weight": 1,
    "nodeCacheCapable": True,
    "ignorable": True,
    "httpTimeout": "200ms",
}
HTTPS = {"urlPrefix": "https://lw:2020/scheduler/default", "enableHTTPS": True, "tlsConfig": {"caFile": "/ca.crt"}}
PACKING = use_of({"TargetLoadPacking": {}})
FILTERING = use_of({"TargetLoadPacking": {}, "HighLoadFilter": {}})
GONE = "(left out)"
SERVICE = ServiceSettings({"default": ConfiguredProfile(plugins=PACKING)})


def configuration(*extenders: Any, enabled: Any = (), disabled: Any = ({"name": "*"},)) -> str:
    score = {"enabled": list(enabled), "disabled": list(disabled)}
    return yaml.safe_dump(
        {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "profiles": [{"schedulerName": "load-watcher", "plugins": {"score": score}}],
            "extenders": list(extenders),
        }
    )


def reported(changes: Mapping[str, Any], service: ServiceSettings | None = SERVICE) -> list[CheckResult]:
    extender = {key: value for key, value in {**GOOD, **changes}.items() if value != GONE}
    return list(check_configuration(configuration(extender), service))


def test_a_certificate_that_the_service_requires_is_missing() -> None:
    """server.scheduler_clients; as a file or as data, with its key."""
    profiles = {"default": ConfiguredProfile(plugins=PACKING)}
    closed = ServiceSettings(profiles, tls=True, client_ca=True, clients=("system:kube-scheduler",))
    (missing,) = reported(HTTPS, closed)
    assert (missing.status, "403" in missing.what) == (CheckStatus.FAIL, True)
    assert "certFile and keyFile" in missing.cure
    assert "system:kube-scheduler" in missing.cure
    config: dict[str, Any] = dict(HTTPS["tlsConfig"])  # type: ignore[call-overload]
    assert 1 == len(reported({**HTTPS, "tlsConfig": {**config, "certFile": "/client.crt"}}, closed))
    assert [] == reported({**HTTPS, "tlsConfig": {**config, "certFile": "/client.crt", "keyData": "a2V5"}}, closed)


def test_the_documented_certificate_is_accepted(tmp_path: Path) -> None:
    """docs/reference/security.md: both sides match."""
    text = (REPOSITORY / "docs/reference/security.md").read_text()
    (toml,), (extended,) = (re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL) for kind in ("toml", "yaml"))
    pairs = dict(re.findall(r'^(\w+) = "([^"]+)"', toml, re.MULTILINE))
    server = load(flags={}, environ={}, file=None, cwd=tmp_path)[ServerSettings]
    assert set(tomllib.loads(toml)["server"]) <= {each.name for each in fields(server)}
    assert set(pairs) == {"tls_cert", "tls_key", "tls_client_ca"}
    names = tomllib.loads(toml)["server"]["scheduler_clients"]
    profiles = {"default": ConfiguredProfile(plugins=PACKING, precise=True)}
    (extender,) = yaml.safe_load(extended)["extenders"]
    assert [] == reported(extender, ServiceSettings(profiles, tls=True, client_ca=True, clients=names))


def test_a_valid_configuration_has_no_problems() -> None:
    """The shipped one; over https; with a filter; with bind from this machine; and an extender of another project."""
    assert [] == reported({})
    assert [] == reported(HTTPS, ServiceSettings({"default": ConfiguredProfile(plugins=PACKING)}, tls=True))
    assert [] == reported({"filterVerb": "filter"}, ServiceSettings({"default": ConfiguredProfile(plugins=FILTERING)}))
    own = {"urlPrefix": "http://127.0.0.1:2020/scheduler/default", "bindVerb": "bind"}
    assert [] == reported(own, ServiceSettings({"default": ConfiguredProfile(bind=True, plugins=PACKING)}))
    assert [] == reported({"urlPrefix": "http://lw:2020//scheduler//default/"})
    assert [] == list(check_configuration(configuration(GOOD, {"urlPrefix": "http://a/b", "odd": 1}), SERVICE))


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"prioritiseVerb": "x"}, "fail", ("unknown field", "did you mean prioritizeVerb?")),
        ({"urlPrefix": "load-watcher:2020/scheduler/default"}, "fail", ("urlPrefix is not an http or https URL",)),
        ({"urlPrefix": "http://[/scheduler/default"}, "fail", ("urlPrefix is not an http or https URL",)),
        (
            {"urlPrefix": "http://a:2020/scheduler/default/prioritize"},
            "fail",
            ("load-watcher serves nothing at /prioritize", "appends the verb"),
        ),
        (
            {"urlPrefix": "http://a:2020/lw/scheduler/default"},
            "fail",
            ("load-watcher serves nothing at /lw/scheduler/default",),
        ),
        ({"urlPrefix": "http://a:2020/scheduler/"}, "fail", ("load-watcher serves nothing at",)),
        (
            {"urlPrefix": "http://a:2020/scheduler/defalt"},
            "fail",
            ("no profile [scheduler.defalt]", "404", "did you mean default?"),
        ),
        ({"urlPrefix": "https://a:2020/scheduler/default"}, "fail", ("configure http", "http:// in url")),
        ({"enableHTTPS": True}, "fail", ("plain HTTP is used, since enableHTTPS",)),
        ({**HTTPS, "tlsConfig": GONE}, "warn", ("not verified", "caFile")),
        ({**HTTPS, "tlsConfig": {"insecure": True, "caFile": "/ca"}}, "warn", ("not verified",)),
        ({"prioritizeVerb": "score"}, "fail", ('prioritizeVerb is "score"', "write prioritizeVerb: prioritize")),
        ({"preemptVerb": "preempt"}, "fail", ("remove preemptVerb",)),
        ({"prioritizeVerb": GONE}, "fail", ("no verb", "never called")),
        ({"weight": 0}, "fail", ("its weight is 0, so the scheduler will not start",)),
        ({"weight": GONE}, "fail", ("its weight is 0",)),
        ({"managedResources": [{"name": "example.com/x"}]}, "warn", ("remove managedResources",)),
        ({"filterVerb": "filter"}, "warn", ("no plug-in of [scheduler.default] filters", "remove filterVerb")),
        (
            {"filterVerb": "filter", "ignorable": False},
            "warn",
            ("no pod is scheduled while load-watcher is unavailable", "ignorable: true"),
        ),
        ({"nodeCacheCapable": GONE}, "warn", ("contains whole node objects", "nodeCacheCapable: true")),
        ({"httpTimeout": GONE}, "warn", ("waits up to 5 s (httpTimeout is not set)",)),
        ({"httpTimeout": "0s"}, "warn", ("waits up to 5 s",)),
        ({"httpTimeout": "1m0.5s"}, "warn", ("waits up to 60.5 s if",)),
        ({"httpTimeout": "10ms"}, "warn", ("the timeout is 10 ms",)),
        ({"httpTimeout": "200"}, "fail", ('"200" is not a duration', "200ms")),
        ({"httpTimeout": 200}, "fail", ('"200" is not a duration',)),
        ({"bindVerb": "bind"}, "fail", ("binding is off in [scheduler.default]", "set bind = true")),
    ],
    ids=str,
)
def test_each_problem_is_reported_with_its_remedy(
    changes: Mapping[str, Any], status: str, words: tuple[str, ...]
) -> None:
    """Other results may follow from it."""
    found = reported(changes)
    texts = [f"{each.what} fix: {each.cure}" for each in found if each.status == status]
    assert any(all(word.casefold() in text.casefold() for word in words) for text in texts), found
    assert all(each.cure for each in found)


def test_the_settings_of_the_service_are_compared_with_the_configuration() -> None:
    """A filter that is never called, a bind that is refused, and https beside http."""
    (unasked,) = reported({}, ServiceSettings({"default": ConfiguredProfile(plugins=FILTERING)}))
    assert "it has no filterVerb, so HighLoadFilter of [scheduler.default] cannot reject nodes" in unasked.what
    (refused,) = reported(
        {"bindVerb": "bind"}, ServiceSettings({"default": ConfiguredProfile(bind=True, plugins=PACKING)})
    )
    assert "from another machine are refused without a client certificate" in refused.what
    (plain,) = reported({}, ServiceSettings({"default": ConfiguredProfile(plugins=PACKING)}, tls=True))
    assert "the settings of load-watcher configure https (server.tls_cert)" in plain.what


def test_unknown_plugins_may_filter() -> None:
    """So filterVerb is not reported."""
    others = ServiceSettings(
        {"default": ConfiguredProfile(plugins=use_of({"TargetLoadPacking": {}, "AcmeFilter": {}}))}
    )
    assert [] == reported({"filterVerb": "filter"}, others)
    assert [] == reported({"filterVerb": "filter"}, ServiceSettings({"default": ConfiguredProfile()}))


@pytest.mark.parametrize(("filters", "expected"), [(True, []), (False, ["warn"])])
def test_limits_are_filtered_only_if_configured(filters: bool, expected: list[str]) -> None:
    """NodeResourceLimits scores, and filters only on request."""
    use = use_of({"NodeResourceLimits": {"filter": filters}})
    found = reported({"filterVerb": "filter"}, ServiceSettings({"default": ConfiguredProfile(plugins=use)}))
    assert expected == [each.status for each in found]


def test_two_extenders_that_bind_are_reported() -> None:
    found = list(
        check_configuration(
            configuration({**GOOD, "bindVerb": "bind"}, {"urlPrefix": "http://b", "bindVerb": "b"}), None
        )
    )
    assert any("2 extenders have a bindVerb" in each.what for each in found)


def test_a_plugin_that_scores_by_requests_with_equal_weight_is_reported() -> None:
    """Unless the extender has a higher weight or scores of 0 to 100, which are other remedies. Without the settings of
    load-watcher, its scores are unknown."""
    (found,) = check_configuration(configuration(GOOD, disabled=[{"name": "NodeResourcesFit"}]), SERVICE)
    assert found.status is CheckStatus.WARN
    assert "NodeResourcesBalancedAllocation scores by requests, against the extender's load" in found.what
    assert "precise_scores = true" in found.cure
    assert [] == list(check_configuration(configuration({**GOOD, "weight": 5}, disabled=[]), SERVICE))
    precise = ServiceSettings({"default": ConfiguredProfile(plugins=PACKING, precise=True)})
    for service in (precise, None):
        assert [] == list(check_configuration(configuration(GOOD, disabled=[]), service))


@pytest.mark.slow
@pytest.mark.parametrize("key", [*GOOD, "tlsConfig", "filterVerb", "bindVerb", "enableHTTPS"])
def test_any_value_in_the_configuration_is_checked_without_an_exception(key: str) -> None:
    """Each result has a remedy."""
    for odd in ODD:
        assert all(each.cure for each in reported({key: odd})), (key, odd)
    assert all(each.cure for odd in ODD for each in check_configuration(configuration(odd), SERVICE))


def test_a_password_in_the_address_is_not_shown() -> None:
    found = reported({"urlPrefix": "http://user:s3cret@lw:2020/scheduler/nobody", "weight": 0})
    assert found
    assert "s3cret" not in str(found)


def page(*durations: float) -> str:
    """The metrics of a running service for these requests."""
    timings = Timings(
        DURATIONS.removeprefix("load_watcher_").removesuffix("_bucket"), "…", ("profile", "verb"), (0.1, 0.2)
    )
    for seconds in durations:
        timings.observe(seconds, "default", "prioritize")
    timings.observe(9.0, "default", "filter")
    telemetry = Telemetry(version="1")
    telemetry.add(timings)
    return telemetry.exposition().decode()


@pytest.mark.parametrize(
    ("durations", "expected"),
    [
        ([0.05] * 98 + [0.3] * 2, 0.2),
        ([0.05] * 99 + [0.3], 0.0),
        ([0.15] * 100, 0.1),
        ([0.3] * 99, 0.0),
    ],
    ids=["two of a hundred", "one of a hundred", "all", "too few"],
)
def test_the_duration_of_requests_is_read_from_the_metrics_of_a_running_service(
    durations: list[float], expected: float
) -> None:
    """By verb; a share of one in a hundred needs a hundred requests."""
    assert {"default": expected} == slow_response_bounds(page(*durations))


def test_a_timeout_that_requests_exceed_is_reported() -> None:
    """By profile."""
    slow = ServiceSettings({"default": ConfiguredProfile(plugins=PACKING)}, slow={"default": 0.2, "other": 5.0})
    (found,) = reported({}, slow)
    assert "the timeout is 200 ms, but more than 1 % of the requests take longer" in found.what
    assert "more than 200 ms" in found.cure
    assert [] == reported({"httpTimeout": "250ms"}, slow)


async def test_the_check_reads_the_metrics_of_the_running_service(tmp_path: Path) -> None:
    """Another check has fetched its page."""
    (tmp_path / "k.yaml").write_text(configuration(GOOD))
    (tmp_path / "s.toml").write_text('[scheduler.default]\nplugins = [ { name = "TargetLoadPacking" } ]\n')
    settings = load(flags={}, environ={}, cwd=tmp_path, file=tmp_path / "s.toml")
    files = [tmp_path / "k.yaml"]
    examination = CheckContext(lambda: settings, environ={}, cwd=tmp_path, scheduler_files=files)
    examination.put(settings)
    (well,) = await scheduler(examination)
    assert "k.yaml: its profiles use load-watcher" in well.what
    examination.put(Exposition(page(*[0.3] * 100)))
    (slow,) = await scheduler(examination)
    assert "k.yaml: extender" in slow.what
    assert "more than 1 % of the requests take longer" in slow.what
