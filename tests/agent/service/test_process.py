"""The agent as a process: on a node of files, with a kubelet, and policies in a directory."""

import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from agent.cgroups.paths import Driver
from load_watcher.main import main
from tests.agent.policy.writing import a_rule, an_object, node_qos, text_of, write
from tests.doctor import Reported, doctor
from tests.fakes.cgroups import FakeCgroups
from tests.fakes.kubelet import FakeKubelet
from tests.fakes.proc import FakeProc
from tests.real.parts import REPOSITORY, free_port
from tests.service import Service
from tests.waiting import PATIENCE_SECONDS, wait_for
from watcher.agent_clients.client import AgentClient
from watcher.agent_clients.discovery import AgentDiscovery, NamedEndpoints
from watcher.agent_clients.settings import AgentsSettings
from watcher.agent_clients.usage import AgentPods
from watcher.sources.base import PodFetch
from watcher.sources.errors import ProviderError

pytestmark = pytest.mark.slow

UID = "0000000a-0000-4000-8000-000000000000"
CONTAINER = f"{10:064x}"
CPUS = 2
BEST_EFFORT = {"matchExpressions": [{"scopeName": "QOSClass", "operator": "In", "values": ["BestEffort"]}]}
POD = {
    "metadata": {
        "name": "web",
        "namespace": "shop",
        "uid": UID,
        "ownerReferences": [{"kind": "ReplicaSet", "name": "web", "controller": True}],
    },
    "spec": {"nodeName": "node-1", "containers": [{"name": "main"}]},
    "status": {
        "phase": "Running",
        "qosClass": "BestEffort",
        "containerStatuses": [{"name": "main", "containerID": f"containerd://{CONTAINER}", "state": {"running": {}}}],
    },
}


class AgentProcess(Service):
    """`load-watcher agent`."""

    name = "agent"
    verb = "agent"


class Machine:
    """A node with two CPUs: other programs use `beside` cores, and one pod uses up to 1.5 of the remaining cores within
    its quota."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.beside = 0.4
        self.proc = FakeProc(root / "proc")
        self.cgroups = FakeCgroups(root / "cgroup", "v2", Driver.SYSTEMD)
        self.path = self.cgroups.container_path(UID, CONTAINER)
        for path in (self.cgroups.pod_path(UID), self.path):
            self.cgroups.add(path, memory=10**9)
        self.policies = root / "policies"
        self.policies.mkdir()
        self.put(a_rule(metricRule={"name": "cpu_total_usage", "value": "1500"}))
        self._passed = self._busy = self._used = 0.0

    def put(self, *rules: dict[str, Any]) -> None:
        """Write the policies of the machine."""
        action = an_object(
            "AvoidanceAction", "throttle", throttle={"cpuThrottle": {"stepCPURatio": 20}}, coolDownSeconds=1
        )
        allowed = an_object("PodQOS", "be", allowedActions=["throttle"], scopeSelector=BEST_EFFORT)
        write(self.policies, all=text_of(*((node_qos(*rules), action, allowed) if rules else ())))

    def settings(self, **more: object) -> list[str]:
        """The settings as flags."""
        places = {"proc": self.proc.root, "cgroup": self.cgroups.root, "policies": self.policies}
        times = {"interval": "1s", "settle": "0s", "effect": "1s"}
        given = {**places, **times, "state_file": self.root / "agent.db", "node": "node-1", **more}
        return [text for key, value in given.items() for text in ("--set", f"agent.{key}={value}")]

    def quota(self) -> str:
        # Unlike the kernel's, a plain file is empty for a moment while the agent writes it.
        found = wait_for(lambda: self.cgroups.read(self.path, "cpu.max").split(), what="a quota")
        return found[0]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Advance the counters of the kernel in the background."""
        ending = threading.Event()

        def count() -> None:
            last = time.monotonic()
            while not ending.wait(0.02):
                now = time.monotonic()
                self._count(now - last)
                last = now

        thread = threading.Thread(target=count)
        thread.start()
        try:
            yield
        finally:
            ending.set()
            thread.join()

    def _count(self, seconds: float) -> None:
        quota = self.quota()
        pod = min(1.5, CPUS - self.beside, CPUS if quota == "max" else int(quota) / 100_000)
        self._passed += seconds
        self._used += pod * seconds
        self._busy += (pod + self.beside) * seconds
        # Of equal length and written with one call: the agent never reads an incomplete file.
        all_ticks, busy = int(self._passed * 100 * CPUS), int(self._busy * 100)
        lines = [f"cpu  {busy:012} 0 0 {all_ticks - busy:012} 0 0 0 0 0 0"]
        each, idle = busy // CPUS, (all_ticks - busy) // CPUS
        lines += [f"cpu{n} {each:012} 0 0 {idle:012} 0 0 0 0 0 0" for n in range(CPUS)]
        put_over(self.proc.path("stat"), "\n".join([*lines, ""]))
        text = f"usage_usec {int(self._used * 1e6):015}\nuser_usec 1\nsystem_usec 2\nnr_periods 0\nnr_throttled 0\n"
        for path in (self.cgroups.pod_path(UID), self.path):
            (directory,) = self.cgroups.directories(path)
            put_over(directory / "cpu.stat", text)


def put_over(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        if os.fstat(descriptor).st_size != len(text):
            os.truncate(descriptor, len(text))
        os.pwrite(descriptor, text.encode(), 0)
    finally:
        os.close(descriptor)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    with machine.running():
        yield machine


@pytest.fixture
def kubelet() -> Iterator[FakeKubelet]:
    with FakeKubelet([POD]) as kubelet:
        yield kubelet


@contextmanager
def agent(machine: Machine, kubelet: FakeKubelet, *arguments: str, **more: object) -> Iterator[AgentProcess]:
    with AgentProcess(machine.root, *arguments, *machine.settings(kubelet=kubelet.url, **more)) as process:
        yield process


def run(machine: Machine, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "load_watcher", "agent", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(command, cwd=machine.root, env=environment, capture_output=True, text=True, timeout=120)


def check(machine: Machine, *arguments: str) -> Result:
    """Run a command that ends before the agent starts, in this process."""
    with contextlib.chdir(machine.root):
        return CliRunner().invoke(main, ["agent", *arguments], prog_name="load-watcher")


def cycle_of(process: AgentProcess, *, token: str = "") -> int:
    """The number of the last cycle; not read from /healthz, which has none if cycles are late."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return int(process.get("/explain", headers=headers).json()["cycle"])


def throttled(machine: Machine) -> bool:
    return machine.quota() != "max"


def test_pods_are_throttled_to_just_below_the_watermark_and_restored(machine: Machine, kubelet: FakeKubelet):
    with agent(machine, kubelet, "--enforce", on_exit="restore") as process:
        wait_for(lambda: throttled(machine), what="the pod to be throttled")
        explained = process.get("/explain").json()
        assert explained["node"] == "node-1"
        wait_for(lambda: process.get("/audit?kind=throttle").json()["deeds"], what="the audit to have it")
        metrics = process.get("/metrics").text
        assert 'load_watcher_agent_rule_watermark{metric="cpu_total_usage",rule="cpu.high"} 1500.0' in metrics
        assert "load_watcher_agent_quotas_held 1.0" in metrics
        # 1.5 cores of watermark less 0.4 of others: the pod may have 1.1, and a step of a fifth takes 0.3. If the
        # counter of the pod was late here, the agent reads that it uses more, and takes the rest in a second step.
        few = {str(quota) for quota in range(40_000, 140_001)}
        wait_for(lambda: machine.quota() in few, what="the pod to have what is left for it")
        assert process.stop() == 0
    assert not throttled(machine)


def test_preview_is_the_default_and_changes_nothing(machine: Machine, kubelet: FakeKubelet):
    with agent(machine, kubelet) as process:

        def would() -> list[str]:
            return [each["text"] for each in process.get("/explain").json()["results"]]

        wait_for(
            lambda: any("would set the CPU quota of shop/web" in text for text in would()),
            what="a decision to throttle",
        )
        assert not throttled(machine)
        assert process.get("/audit").json() == {"deeds": []}


def test_changes_are_known_and_restored_after_kill_9(machine: Machine, kubelet: FakeKubelet):
    with agent(machine, kubelet, "--enforce") as process:
        wait_for(lambda: throttled(machine), what="the pod to be throttled")
        process.kill()
    assert throttled(machine)
    restored = run(machine, "restore", *machine.settings())
    assert restored.returncode == 0, restored.stderr
    assert "shop/web, container main" in restored.stdout
    assert not throttled(machine)
    again = run(machine, "restore", *machine.settings())
    assert again.stdout == "no recorded values: nothing to restore\n"


def test_restore_leaves_unusable_files_unchanged(machine: Machine):
    """A file of another program, or a damaged one whose quotas are not restored: both are failures."""
    file = machine.root / "other.db"
    file.write_text("content of another program\n")
    result = run(machine, "restore", "--missing-ok", "--state-file", str(file))
    assert result.returncode == 1
    assert f"the audit file {file} cannot be used: it is not a SQLite database" in result.stderr
    assert "specify the agent's file with --state-file" in result.stderr
    assert [each.name for each in machine.root.glob("other*")] == ["other.db"]
    assert file.read_text() == "content of another program\n"


def test_restore_with_an_empty_file_fails(machine: Machine):
    """A power failure leaves such a file; the exit code 0 would let the agent be uninstalled with lowered quotas."""
    file = machine.root / "empty.db"
    file.touch()
    result = run(machine, "restore", "--missing-ok", "--state-file", str(file))
    assert (1, "") == (result.returncode, result.stdout)
    assert f"the audit file {file} cannot be used: it is empty" in result.stderr
    assert [file] == list(machine.root.glob("empty*"))


def test_a_restarted_agent_continues_after_a_kill(machine: Machine, kubelet: FakeKubelet):
    with agent(machine, kubelet, "--enforce") as process:
        wait_for(lambda: throttled(machine), what="the pod to be throttled")
        process.kill()
        machine.put()
        process.start()
        wait_for(lambda: not throttled(machine), what="the quota to be back: no policy wants it any more")


def test_once_prints_sentences(machine: Machine):
    done = run(machine, "--once", *machine.settings())
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"cpu.high: cpu_total_usage is \d+.*, above the watermark 1500: triggered, action throttle", done.stdout
    )
    assert "neither a kubelet nor a Kubernetes API is configured" in done.stdout


@pytest.mark.parametrize("arguments", [["--once"], ["--check", "policies"]], ids=" ".join)
def test_once_leaves_no_file(machine: Machine, arguments: list[str]):
    """No file in the working directory and at agent.state_file; with -o json, it prints the same as JSON."""
    before = sorted(machine.root.rglob("*.db*"))
    state = f"agent.state_file={machine.root / 'agent.db'}"
    named = machine.settings()
    place = named.index(state)
    for settings in (named, named[: place - 1] + named[place + 1 :]):
        done = check(machine, *arguments, *settings, "-o", "json")
        assert done.exit_code == 0, done.stderr
        assert "policies" in json.loads(done.stdout)
        assert before == sorted(machine.root.rglob("*.db*"))


def test_once_runs_cycles_until_each_rule_has_decided(machine: Machine):
    """For a rule that needs three samples, the first cycle would not show the result."""
    machine.put(a_rule(metricRule={"name": "cpu_total_usage", "value": "100"}, avoidanceThreshold=3))

    def reported() -> re.Match[str] | None:  # again, if the counters that are written here were late
        done = run(machine, "--once", *machine.settings())
        return re.search(
            r"^cpu.high: cpu_total_usage is \d+.*, above the watermark 100: triggered", done.stdout, re.MULTILINE
        )

    wait_for(reported, what="the third sample")


def test_once_waits_for_the_pods_and_names_the_selected_ones(machine: Machine, kubelet: FakeKubelet):
    machine.put(a_rule(metricRule={"name": "cpu_total_usage", "value": "1500"}))

    def reported() -> bool:  # again, if the counters that are written here were late: then it is to less than 1.2 cores
        done = run(machine, "--once", *machine.settings(kubelet=kubelet.url))
        return "throttle shop/web, container main, from no quota to 1." in done.stdout

    wait_for(reported, what="how far it would be throttled")
    assert not throttled(machine)


def test_policies_are_checked(machine: Machine):
    """A rule on a metric without actions is valid: it keeps new pods away."""
    machine.put(a_rule(metricRule={"name": "cpu_load_15_min", "value": "4"}))
    assert "3 policies, no problems found" in check(machine, "--check", str(machine.policies)).stdout
    write(machine.policies, all=text_of(node_qos(a_rule(actionName="throtle"))))
    wrong = check(machine, "--check", str(machine.policies))
    assert wrong.exit_code == 2
    assert "throtle" in wrong.stderr
    machine.put(a_rule(metricRule={"name": "p99", "value": "4"}))
    query = ("--set", "agent.queries.p99.expression=up", "--set", "agent.prometheus=http://127.0.0.1:9")
    assert "3 policies" in check(machine, "--check", str(machine.policies), *query).stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "agent.intervall=1"], "did you mean agent.interval?"),
        (["--set", "agent.mode=enforc"], 'did you mean "enforce"?'),
        (["--set", "agent.host=0.0.0.0"], "set agent.token_file, or agent.host to 127.0.0.1"),
        (["--set", "agent.control=here"], "must have the form NAMESPACE/NAME"),
        ([], "pass a directory with --policies DIR"),
    ],
)
def test_a_failed_start_has_a_reason(machine: Machine, arguments: list[str], words: str):
    refused = check(machine, *arguments)
    assert refused.exit_code in (1, 2)
    assert isinstance(refused.exception, SystemExit)
    assert words in refused.stderr


def test_a_used_port_is_reported_with_a_hint(machine: Machine):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        refused = run(machine, *machine.settings(port=port))
    assert refused.returncode == 1
    assert (
        f"cannot listen on 127.0.0.1:{port}: Address already in use\n  stop the program that uses the port"
        in refused.stderr
    )


def test_a_watcher_gets_the_usage_of_pods(machine: Machine, kubelet: FakeKubelet):
    """With the request of the watcher and the agent's token."""
    token = machine.root / "token"
    token.write_text("secret\n")

    async def asked(address: str) -> PodFetch:
        places = AgentDiscovery(NamedEndpoints([address], key="agents.urls"))
        agents = AgentPods(AgentClient(places, AgentsSettings(token_file=token, timeout=PATIENCE_SECONDS)))
        try:
            return await agents.fetch(time.time())
        finally:
            await agents.close()

    with agent(machine, kubelet, token_file=token) as process:
        fetch = wait_for(lambda: asyncio.run(asked(process.url)), what="a cycle", ignoring=(ProviderError,))
        assert (fetch.usage.pods, fetch.usage.nodes) == ((("shop", "web"),), ("node-1",))
        wait_for(
            lambda: asyncio.run(asked(process.url)).usage.cores[0] > 0.5,
            what="its cores to be measured",
            ignoring=(ProviderError,),
        )
        assert abs(fetch.usage.time[0] - time.time()) < PATIENCE_SECONDS


def test_pods_need_the_token_but_metrics_do_not(machine: Machine, kubelet: FakeKubelet):
    token = machine.root / "token"
    token.write_text("secret\n")
    other = free_port()
    more = {"token_file": token, "metrics_host": "127.0.0.1", "metrics_port": other}
    with agent(machine, kubelet, **more) as process:
        assert process.get("/explain").status == 401
        assert process.get("/audit").status == 401
        assert process.get("/pods").status == 401
        assert process.get("/explain", headers={"Authorization": "Bearer secret"}).status == 200
        assert process.get("/metrics").status == 200
        assert process.session.get(f"http://127.0.0.1:{other}/healthz", timeout=PATIENCE_SECONDS).status_code == 200
        elsewhere = f"http://127.0.0.1:{other}/explain"
        assert process.session.get(elsewhere, timeout=PATIENCE_SECONDS).status_code == 401
        let = process.session.get(elsewhere, headers={"Authorization": "Bearer secret"}, timeout=PATIENCE_SECONDS)
        assert let.json()["node"] == "node-1"


def test_without_a_token_other_hosts_get_only_metrics(machine: Machine, kubelet: FakeKubelet):
    other = free_port()
    with agent(machine, kubelet, metrics_host="::", metrics_port=other) as process:
        for host in ("127.0.0.1", "[::1]"):
            statuses = {
                path: process.session.get(f"http://{host}:{other}{path}", timeout=PATIENCE_SECONDS).status_code
                for path in ("/healthz", "/metrics", "/explain", "/audit")
            }
            assert statuses == {"/healthz": 200, "/metrics": 200, "/explain": 404, "/audit": 404}


def test_missing_windows_and_queries_are_reported_and_delay_no_cycle(machine: Machine, kubelet: FakeKubelet):
    nobody = f"http://127.0.0.1:{free_port()}"
    expression = ("--set", "agent.queries.p99.expression=up")
    with agent(machine, kubelet, *expression, watcher=nobody, prometheus=nobody) as process:

        def missing() -> dict[str, str]:
            found: dict[str, str] = process.get("/explain").json()["missing"]
            return found

        wait_for(lambda: "p99" in missing() and "window_cpu_avg_5m" in missing(), what="both metrics to be missing")
        wait_for(lambda: process.get("/explain").json()["plan"]["rules"][0]["sample"], what="the rest to be seen")


def test_invalid_filters(machine: Machine, kubelet: FakeKubelet):
    with agent(machine, kubelet) as process:
        wrong = {
            "since=soon": "use unix seconds, a date like 2026-01-31T12:00:00Z, or a duration before now like -1h",
            "limit=many": "limit and before_id must be whole numbers",
            "colour=red": "valid parameters: before_id, kind, ",
            "kind=throtle": "valid values: throttle, reclaim, hold, evict, restore, scheduling",
            "outcome=well": "valid values: begun, done, ",
            "pod=web": "?pod=NAMESPACE/NAME",
        }
        for query, hint in wrong.items():
            answer = process.get(f"/audit?{query}")
            assert (answer.status, answer.json()["error"]["code"]) == (400, "bad_request"), query
            assert hint in answer.json()["error"]["hint"]
        for query in ("since=-10m&until=now", "since=2026-11-22T03:10:00Z", "until=1795314776.75", "pod=shop/web"):
            assert process.get(f"/audit?{query}").status == 200, query


def test_two_agents_do_not_undo_each_others_work(machine: Machine, kubelet: FakeKubelet):
    with agent(machine, kubelet):
        second = run(machine, *machine.settings(kubelet=kubelet.url, port=0))
        assert second.returncode == 1
        assert "agent.db" in second.stderr


def test_of_two_agents_with_separate_files_only_one_acts_at_a_time(machine: Machine, kubelet: FakeKubelet):
    machine.beside = 1.7  # above the watermark for any quota: both always want to throttle
    with agent(machine, kubelet, "--enforce", on_exit="restore") as first:
        wait_for(lambda: throttled(machine), what="the pod to be throttled")
        elsewhere = machine.root / "other"
        elsewhere.mkdir()
        given = machine.settings(kubelet=kubelet.url, state_file=elsewhere / "agent.db")
        with AgentProcess(elsewhere, "--enforce", *given) as second:
            assert "another enforcing load-watcher agent holds the lock on the control groups" in second.log()
            wait_for(lambda: cycle_of(second) > 3, what="cycles of the second")
            assert second.get("/audit").json() == {"deeds": []}
            assert first.stop() == 0
            wait_for(lambda: second.get("/audit?kind=throttle").json()["deeds"], what="the second to act")


def test_the_doctor_reads_a_running_agent(machine: Machine, kubelet: FakeKubelet, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(machine.root)
    token = machine.root / "token"
    token.write_text("secret\n")
    with agent(machine, kubelet, token_file=token) as process:
        wait_for(lambda: cycle_of(process, token="secret") > 2, what="some cycles")
        machine.put(a_rule(metricRule={"name": "cpu_load_15_min", "value": "4"}))
        port = {"port": process.port, "kubelet": kubelet.url}

        def reported(**more: object) -> Reported:
            return doctor("--only", "agent", *machine.settings(**{**port, **more}))

        found = reported(token_file=token)
        found.one("agent", "ok", f"an agent runs at http://127.0.0.1:{process.port}: node node-1", "preview")
        found.one("agent", "ok", "the policies are valid", "active rules: 1")
        reported().one("agent", "fail", "requires its token for reading", "agent.token_file")
        reported(token_file=token, mode="enforce").one("agent", "warn", "although these settings enable enforce")
        write(machine.policies, all="kind: NodeQOS\n")
        authorised = {"Authorization": "Bearer secret"}
        wait_for(
            lambda: process.get("/explain", headers=authorised).json()["policies"]["problems"], what="it to be seen"
        )
        reported(token_file=token).one(
            "agent", "fail", "the previous policies remain in effect", "load-watcher agent --check"
        )
    reported(token_file=token, port=kubelet.url.rpartition(":")[2]).one("agent", "fail", "is not a load-watcher agent")
