"""Pods from a kubelet, over a real socket."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from agent.state.kubelet import KubeletError, KubeletPods, kubelet_access
from agent.state.readings import PodsUnknown
from tests.fakes.kubelet import FakeKubelet, pod
from tests.real.parts import make_certificates, new_secret
from tests.waiting import eventually

INTERVAL = 0.05


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def keys(source: KubeletPods, *, monotonic: float = 1000.0, max_age: float = 30.0) -> list[str]:
    return [each.pod.key for each in source.listing(monotonic=monotonic, max_age=max_age)]


def why_not(source: KubeletPods, *, monotonic: float = 1000.0) -> str:
    """The reason why there is no listing, with the hint; "" if there is one."""
    try:
        source.listing(monotonic=monotonic, max_age=30.0)
    except PodsUnknown as error:
        return str(error)
    return ""


def watching(
    kubelet: FakeKubelet, inside: Callable[[KubeletPods], Awaitable[None]], clock: Clock | None = None, **access: Any
) -> None:
    """Run `inside` with a source that reads from this kubelet."""

    async def run() -> None:
        given = kubelet_access(kubelet.url, **access)
        source = KubeletPods(given, interval=INTERVAL, monotonic=clock or Clock())
        await source.start()
        try:
            await inside(source)
        finally:
            await source.close()

    asyncio.run(run())


def test_the_listing_follows_the_responses():
    with FakeKubelet([pod("b", "2"), pod("a", "1")]) as kubelet:

        async def inside(source: KubeletPods) -> None:
            assert "has not responded yet" in why_not(source)
            await eventually(lambda: not why_not(source), what="a first answer")
            assert keys(source) == ["default/a", "default/b"]
            kubelet.pods = [pod("b", "2", metadata={"deletionTimestamp": "2026-11-21T09:00:00Z"})]
            await eventually(lambda: keys(source) == ["default/b"], what="the other pod to go")
            assert source.listing(monotonic=1000.0, max_age=30.0)[0].pod.terminating
            kubelet.pods = []
            await eventually(lambda: not keys(source), what="an empty list")

        watching(kubelet, inside)


def test_facts_of_an_unchanged_pod_are_the_same_object():
    with FakeKubelet([pod("a", "1")]) as kubelet:

        async def inside(source: KubeletPods) -> None:
            await eventually(lambda: not why_not(source), what="a first answer")
            (first,) = source.listing(monotonic=1000.0, max_age=30.0)
            kubelet.pods = [pod("a", "1"), pod("b", "2")]
            await eventually(lambda: len(keys(source)) == 2, what="the second pod")
            assert source.listing(monotonic=1000.0, max_age=30.0)[0] is first

        watching(kubelet, inside)


def test_the_current_token_of_the_file_is_sent_and_shown_nowhere(tmp_path: Path, caplog):
    secret, file = new_secret(), tmp_path / "token"
    file.write_text("old")
    with FakeKubelet([pod("a", "1")], token=secret) as kubelet:

        async def inside(source: KubeletPods) -> None:
            await eventually(lambda: "401" in why_not(source), what="a refusal")
            assert "webhook" in why_not(source)
            file.write_text(f"{secret}\n")
            await eventually(lambda: not why_not(source), what="an answer")
            kubelet.token = "another"
            clock.time += 31
            await eventually(lambda: "401" in why_not(source, monotonic=1031.0), what="a refusal")

        clock = Clock()
        watching(kubelet, inside, clock, token_file=file)
    assert secret not in caplog.text


def test_an_unreadable_token_file_is_reported(tmp_path: Path):
    with FakeKubelet() as kubelet:

        async def inside(source: KubeletPods) -> None:
            await eventually(lambda: "cannot be read from" in why_not(source), what="the reason")

        watching(kubelet, inside, token_file=tmp_path / "nowhere")
        assert kubelet.asked == 0


def test_a_kubelet_over_tls_with_its_own_authority(tmp_path: Path):
    make_certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    with FakeKubelet([pod("a", "1")], tls=context) as kubelet:

        async def trusted(source: KubeletPods) -> None:
            await eventually(lambda: not why_not(source), what="an answer")

        async def not_trusted(source: KubeletPods) -> None:
            await eventually(lambda: "certificate" in why_not(source), what="a refusal of its certificate")

        watching(kubelet, trusted, authority=tmp_path / "ca.pem")
        watching(kubelet, trusted, insecure=True)
        watching(kubelet, trusted, authority=tmp_path / "ca.pem", name="localhost")
        watching(kubelet, not_trusted)
        watching(kubelet, not_trusted, authority=tmp_path / "ca.pem", name="elsewhere.example")


def test_a_self_signed_certificate_has_the_name_of_the_node_but_not_an_address(tmp_path: Path):
    """As the kubelet writes it to pki/kubelet.crt without a signer; the file ends with its own authority."""
    authority = trustme.CA()
    certificate = authority.issue_cert("node-1")
    certificate.private_key_pem.write_to_path(tmp_path / "kubelet.key")
    file = tmp_path / "kubelet.crt"
    file.write_bytes(b"".join(each.bytes() for each in (*certificate.cert_chain_pems, authority.cert_pem)))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file, tmp_path / "kubelet.key")
    with FakeKubelet([pod("a", "1")], tls=context) as kubelet:

        async def trusted(source: KubeletPods) -> None:
            await eventually(lambda: not why_not(source), what="an answer")

        async def not_trusted(source: KubeletPods) -> None:
            await eventually(lambda: "the server certificate is not trusted" in why_not(source), what="a refusal")
            assert "kubelet_name" in why_not(source)

        watching(kubelet, trusted, authority=file, name="node-1")
        watching(kubelet, not_trusted, authority=file)
        watching(kubelet, not_trusted, name="node-1")


def test_a_replaced_certificate_is_trusted_after_its_file_is_read_again(tmp_path: Path):
    """It is self-signed, and the file is its own authority."""
    old, new = trustme.CA(), trustme.CA()
    file, key = tmp_path / "kubelet.crt", tmp_path / "kubelet.key"
    certificate = new.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(key)
    (tmp_path / "chain.pem").write_bytes(b"".join(each.bytes() for each in certificate.cert_chain_pems))
    file.write_bytes(old.cert_pem.bytes())
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "chain.pem", key)
    with FakeKubelet([pod("a", "1")], tls=context) as kubelet:

        async def replaced(source: KubeletPods) -> None:
            await eventually(lambda: "certificate is not trusted" in why_not(source), what="a refusal")
            (tmp_path / "next").write_bytes(new.cert_pem.bytes())
            (tmp_path / "next").rename(file)
            await eventually(lambda: not why_not(source), what="an answer")

        watching(kubelet, replaced, authority=file)


def test_a_mounted_certificate_that_was_replaced_on_the_host_is_reported(tmp_path: Path):
    """A mounted file keeps its old inode without a link; here, the file is open and deleted."""
    make_certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    file = tmp_path / "kubelet.crt"
    file.write_bytes(trustme.CA().cert_pem.bytes())
    with FakeKubelet([pod("a", "1")], tls=context) as kubelet, file.open("rb") as mounted:
        file.unlink()

        async def reported(source: KubeletPods) -> None:
            await eventually(lambda: "restart this pod" in why_not(source), what="the cause")

        watching(kubelet, reported, authority=Path(f"/proc/self/fd/{mounted.fileno()}"))


def test_an_unreadable_authority_is_reported(tmp_path: Path):
    with pytest.raises(KubeletError, match="cannot be read"):
        kubelet_access("https://127.0.0.1:10250", authority=tmp_path / "nowhere")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "reported"),
    [
        ((403, b"Forbidden"), '{apiGroups: [""], resources: ["nodes/pods"], verbs: ["get"]}'),
        ((404, b"404 page not found"), "debugging handlers"),
        ((500, b"boom"), "returned HTTP status 500"),
        ((302, b""), "returned HTTP status 302"),
        ((200, b""), "not a list of pods"),
        ((200, b"<html>login</html>"), "<html>login</html>"),
        ((200, b"[]"), "not a list of pods"),
        ((200, b'{"kind":"NodeList","items":[]}'), "a NodeList, not a PodList"),
        ((200, b'{"kind":"PodList","items":7}'), "not a list of pods"),
        ((200, b'{"items":[]}'), "not a list of pods"),
        ((200, b"[" * 100_000), "not a list of pods"),
        ((200, b"\xff\xfe"), "not a list of pods"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_an_invalid_list_of_pods_is_reported_and_the_source_continues(answer: tuple[int, bytes], reported: str):
    with FakeKubelet([pod("a", "1")], fault=lambda: answer) as kubelet:

        async def inside(source: KubeletPods) -> None:
            await eventually(lambda: reported in why_not(source), what=reported)
            kubelet.fault = lambda: None
            await eventually(lambda: not why_not(source), what="an answer")

        watching(kubelet, inside)


def test_the_last_response_is_valid_for_the_requested_age(caplog):
    clock = Clock()
    with FakeKubelet([pod("a", "1")]) as kubelet:

        async def inside(source: KubeletPods) -> None:
            await eventually(lambda: not why_not(source), what="an answer")
            kubelet.fault = lambda: (503, b"")
            await eventually(lambda: "503" in caplog.text, what="a warning")
            assert keys(source, monotonic=1030.0) == ["default/a"]
            assert "31 s old" in why_not(source, monotonic=1031.0)
            assert "503" in why_not(source, monotonic=1031.0)
            kubelet.fault = lambda: None
            with caplog.at_level(logging.INFO):
                await eventually(
                    lambda: "updates of the kubelet's pods resumed" in caplog.text, what="news of its being back"
                )

        watching(kubelet, inside, clock)
    assert len([each for each in caplog.records if each.levelno == logging.WARNING]) == 1


async def test_an_unreachable_kubelet_is_reported():
    with FakeKubelet() as kubelet:
        address = kubelet.url
    source = KubeletPods(kubelet_access(address), interval=INTERVAL, monotonic=Clock())
    await source.start()
    await eventually(lambda: "Connect" in why_not(source), what="the reason")
    await source.close()


async def test_a_kubelet_that_hangs_times_out():
    with FakeKubelet([pod("a", "1")]) as kubelet:

        async def run() -> None:
            kubelet.fault = slow
            source = KubeletPods(kubelet_access(kubelet.url), interval=INTERVAL, timeout=0.05, monotonic=Clock())
            await source.start()
            await eventually(lambda: "no response within" in why_not(source), what="the reason")
            await source.close()

        def slow() -> None:
            import time

            time.sleep(0.5)

        await run()


def test_an_invalid_pod_does_not_affect_others(caplog):
    bad = pod("bad", "3", spec={"containers": [{"name": "main", "resources": {"limits": {"cpu": "much"}}}]})
    worse = pod("worse", "4", spec={"priority": "high"})
    with FakeKubelet([pod("a", "1"), bad, worse, {"metadata": {"name": 7}}]) as kubelet:

        async def inside(source: KubeletPods) -> None:
            await eventually(lambda: not why_not(source), what="an answer")
            asked = kubelet.asked
            await eventually(lambda: kubelet.asked > asked + 2, what="more answers")
            assert keys(source) == ["default/a"]

        watching(kubelet, inside)
    reported = [each.getMessage() for each in caplog.records if "ignoring the pod" in each.getMessage()]
    assert len(reported) == 3, "each failure is logged once"
    assert "default/bad" in reported[0]
