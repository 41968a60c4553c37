"""Webhooks, told to a real receiver: signed, again until they arrive, by whoever is still alive."""

import ipaddress
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from registry import Registry, addresses, database, events, outbox, webhooks
from registry.errors import DeliveryNotFound, GateRefused, InvalidInput, ModelNotFound, WebhookNotFound
from registry.webhooks import WebhookDispatcher
from tests.registry.receiver import Receiver, Server
from tests.waiting import wait_until

SECRET = "a secret of enough length"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Server()
    yield server.receiver
    server.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "FIRST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(webhooks, "LONGEST_PAUSE_SECONDS", 0.05)


@contextmanager
def dispatching(registry: Registry, *, allow_private: bool = True) -> Iterator[None]:
    dispatcher = WebhookDispatcher(registry, allow_private=allow_private)
    dispatcher.start()
    try:
        yield
    finally:
        dispatcher.stop()


def wait_for_state(registry: Registry, *states: str) -> None:
    """Wait until the deliveries, oldest first, are in these states."""
    wait_until(lambda: [delivery.state for delivery in registry.deliveries()][::-1] == list(states))


def test_receiver_that_fails_at_first_is_told_again_the_same_and_signed(
    census: Registry, receiver: Receiver
) -> None:
    receiver.statuses += [500, 503, 302, 404]
    census.add_webhook(f"{receiver.url}/hook?a=1", kinds=["label.*"], secret=SECRET, actor="ada")
    census.promote("census", 2, actor="bob", reason="better \N{LATIN SMALL LETTER U WITH DIAERESIS}")
    with dispatching(census):
        got = receiver.wait_for(lambda got: len(got) == 5)
        wait_for_state(census, "delivered")
    assert {request.path for request in got} == {"/hook?a=1"}, "a redirect is not followed"
    assert len({request.headers["Appliance-Delivery"] for request in got}) == 1
    first, last = got[0], got[-1]
    assert first.event == last.event
    assert last.headers["Appliance-Event"] == last.event["kind"] == "label.moved"
    assert last.headers["Host"] == receiver.url.removeprefix("http://")
    signature = last.headers["Appliance-Signature"]
    assert webhooks.verify(SECRET, last.body, signature)
    assert not webhooks.verify("another secret of that length", last.body, signature)
    assert not webhooks.verify(SECRET, last.body + b" ", signature)
    assert not webhooks.verify(SECRET, last.body, signature, now=2e9)
    assert not webhooks.verify(SECRET, last.body, "v1=0")
    event = last.event
    assert (event["model"], event["from_version"], event["to_version"]) == ("census", None, 2)
    assert (event["actor"], event["reason"]) == ("bob", "better \N{LATIN SMALL LETTER U WITH DIAERESIS}")
    (delivery,) = census.deliveries()
    assert (delivery.attempts, delivery.error, str(delivery.id)) == (
        5,
        "",
        last.headers["Appliance-Delivery"],
    )


def test_each_hears_of_what_it_asked_for(registry: Registry, saved_model: Path, receiver: Receiver) -> None:
    registry.create_model("census")
    registry.create_model("other")
    registry.add_webhook(f"{receiver.url}/all", actor="ada")
    registry.add_webhook(
        f"{receiver.url}/some", model="census", kinds=["version.ready", "gate.refused"], actor="ada"
    )
    removed = registry.add_webhook(f"{receiver.url}/removed", actor="ada")
    registry.publish("census", saved_model, metrics={"auc": 0.5})
    registry.publish("other", saved_model)
    registry.set_gate("census", "production", ["auc > 0.9"], actor="ada")
    with pytest.raises(GateRefused):
        registry.promote("census", 1, actor="bob")
    registry.remove_webhook(removed.id, actor="ada")
    registry.promote("other", 1, actor="bob")
    wanted = [
        *[("/all", kind) for kind in ("version.created", "version.ready") * 2],
        *[("/all", kind) for kind in ("gate.set", "gate.refused", "label.moved")],
        *[("/some", kind) for kind in ("version.ready", "gate.refused")],
    ]
    with dispatching(registry):
        got = receiver.wait_for(lambda got: len(got) == len(wanted))
        wait_until(lambda: registry.deliveries(state="pending") == [])
    assert {delivery.state for delivery in registry.deliveries()} == {"delivered", "dropped"}
    assert sorted((request.path, request.event["kind"]) for request in got) == sorted(wanted)
    (refused,) = [r.event for r in got if r.path == "/some" and r.event["kind"] == "gate.refused"]
    assert refused["gate_report"]["checks"][0]["measured"] == 0.5


def test_what_was_not_committed_is_not_told(census: Registry, receiver: Receiver, database_url: str) -> None:
    census.add_webhook(receiver.url, actor="ada")

    def fail_late(session) -> None:
        events.record(session, "census", "gate.set", actor="eve")
        raise InvalidInput("changed my mind")

    engine = database.connect(database_url)
    with pytest.raises(InvalidInput):
        database.write(engine, fail_late)
    engine.dispose()
    assert census.deliveries() == []


def test_sender_killed_while_the_receiver_has_not_answered_loses_nothing(
    census: Registry, receiver: Receiver, database_url: str, tmp_path: Path
) -> None:
    census.add_webhook(receiver.url, kinds=["label.*"], actor="ada")
    for version in (1, 2, 3):
        census.promote("census", version, actor="bob")
    receiver.hold.clear()
    command = [sys.executable, "-m", "tests.registry.webhook_sender", database_url, str(tmp_path / "models")]
    sender = subprocess.Popen(command)
    try:
        (lost,) = receiver.wait_for(lambda got: len(got) == 1)
    finally:
        sender.send_signal(signal.SIGKILL)
        sender.wait(timeout=60)
    receiver.hold.set()
    with dispatching(census):
        got = receiver.wait_for(lambda got: len(got) >= 4)
        wait_for_state(census, "delivered", "delivered", "delivered")
    assert sorted({request.event["to_version"] for request in got}) == [1, 2, 3]
    again = [request for request in got[1:] if request.body == lost.body]
    assert len(again) == 1, "the one in flight is told once more, by the same id"
    assert again[0].headers["Appliance-Delivery"] == lost.headers["Appliance-Delivery"]


def test_many_senders_tell_each_event_once_and_a_dead_receiver_keeps_nobody_waiting(
    census: Registry, receiver: Receiver, database_url: str, tmp_path: Path
) -> None:
    dead = Server()
    dead.close()
    census.add_webhook(dead.receiver.url, kinds=["label.*"], actor="ada")
    census.add_webhook(receiver.url, kinds=["label.*"], actor="ada")
    for version in (1, 2, 3, 4, 5, 4, 3, 2):
        census.promote("census", version, actor="bob")
    with (
        Registry(database_url, tmp_path / "models") as other,
        dispatching(census),
        dispatching(other),
    ):
        got = receiver.wait_for(lambda got: len(got) == 8)
        wait_until(lambda: any(delivery.error for delivery in census.deliveries(1)))
    assert len({request.headers["Appliance-Delivery"] for request in got}) == 8
    failed = next(delivery for delivery in census.deliveries(1) if delivery.error)
    assert (failed.state, failed.webhook) == ("pending", 1)
    assert "ConnectError" in failed.error


def test_failing_for_three_days_is_given_up_kept_and_told_when_asked(
    census: Registry, receiver: Receiver, database_url: str
) -> None:
    receiver.statuses += [500]
    census.add_webhook(receiver.url, kinds=["label.*"], actor="ada")
    census.promote("census", 1, actor="bob")
    engine = database.connect(database_url)
    with engine.begin() as connection:
        old = outbox.now() - timedelta(days=4)
        moment = old.replace(tzinfo=None) if engine.dialect.name == "sqlite" else old
        connection.execute(text("UPDATE registry_deliveries SET created_at = :at"), {"at": str(moment)})
    engine.dispose()
    with dispatching(census):
        wait_for_state(census, "given_up")
        (given_up,) = census.deliveries(state="given_up")
        assert given_up.error.startswith("answered 500: go away go away")
        assert len(given_up.error) < 250
        census.redeliver(given_up.id)
        wait_for_state(census, "delivered")
    assert len(receiver.got) == 2


def test_private_addresses_are_reached_only_when_allowed(census: Registry, receiver: Receiver) -> None:
    census.add_webhook(receiver.url.replace("127.0.0.1", "localhost"), kinds=["label.*"], actor="ada")
    census.promote("census", 1, actor="bob")
    with dispatching(census, allow_private=False):
        wait_until(lambda: census.deliveries()[0].error != "")
    (delivery,) = census.deliveries()
    assert "localhost is at" in delivery.error
    assert "APPLIANCE_WEBHOOK_PRIVATE_ADDRESSES=true allows" in delivery.error
    assert receiver.got == []
    with dispatching(census):
        receiver.wait_for(lambda got: len(got) == 1)


def test_receiver_that_never_answers_is_left_after_a_while(
    census: Registry, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "ATTEMPT_SECONDS", 0.3)
    receiver.hold.clear()
    census.add_webhook(receiver.url, kinds=["label.*"], actor="ada")
    census.promote("census", 1, actor="bob")
    with dispatching(census):
        wait_until(lambda: census.deliveries()[0].error != "")
        assert re.search("no answer within 0.3 s|ReadTimeout", census.deliveries()[0].error)
        receiver.hold.set()
        monkeypatch.setattr(webhooks, "ATTEMPT_SECONDS", 15.0)
        wait_for_state(census, "delivered")


def test_certificate_must_be_that_of_the_name_though_the_address_is_connected_to(
    census: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=x"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", tmp_path / "key", "-out", file]
    subprocess.run(command, check=True, capture_output=True)
    file.write_bytes(file.read_bytes() + (tmp_path / "key").read_bytes())
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    server = Server(file)
    try:
        by_name = server.receiver.url.replace("127.0.0.1", "localhost")
        census.add_webhook(f"{by_name}/name", kinds=["label.*"], actor="ada")
        census.add_webhook(f"{server.receiver.url}/address", kinds=["label.*"], actor="ada")
        census.promote("census", 1, actor="bob")
        with dispatching(census):
            server.receiver.wait_for(lambda got: len(got) == 1)
            wait_until(lambda: census.deliveries(2)[0].error != "")
    finally:
        server.close()
    assert [request.path for request in server.receiver.got] == ["/name"]
    assert "CERTIFICATE_VERIFY_FAILED" in census.deliveries(2)[0].error


@pytest.mark.parametrize(
    ("address", "by_default", "when_allowed"),
    [
        ("93.184.215.14", True, True),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", True, True),
        ("127.0.0.1", False, True),
        ("::1", False, True),
        ("10.1.2.3", False, True),
        ("100.64.0.1", False, True),
        ("fd12::1", False, True),
        ("::ffff:10.0.0.1", False, True),
        ("::ffff:93.184.215.14", True, True),
        ("64:ff9b::a00:1", False, True),
        ("2002:a00:1::", False, True),
        ("169.254.169.254", False, False),
        ("::ffff:169.254.169.254", False, False),
        ("64:ff9b::a9fe:a9fe", False, False),
        ("fd00:ec2::254", False, False),
        ("fe80::1", False, False),
        ("0.0.0.0", False, False),
        ("::", False, False),
        ("224.0.0.1", False, False),
        ("255.255.255.255", False, False),
    ],
)
def test_addresses_that_webhooks_may_reach(address: str, by_default: bool, when_allowed: bool) -> None:
    parsed = ipaddress.ip_address(address)
    assert addresses.may_reach(parsed, allow_private=False) is by_default
    assert addresses.may_reach(parsed, allow_private=True) is when_allowed


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "example.com",
            "ftp://example.com/",
            "file:///etc/passwd",
            "http://",
            "http://user@example.com/",
        ),
        *(
            "http://a:b@example.com/",
            "http://example.com/#x",
            "http://example.com:0/",
            "http://exa mple.com/",
        ),
        *("http://example.com\\@evil.com/", "http://example.com/\r\nX: y", "http://[::1", "http://e:99999/"),
        "http://example.com/" + "a" * 2000,
    ],
)
def test_urls_that_cannot_be_are_refused_with_what_can(url: str) -> None:
    with pytest.raises(InvalidInput, match="give http://host/path or https://host/path"):
        addresses.check_url(url)


def test_what_cannot_be_added_or_found_is_refused(census: Registry) -> None:
    url = "https://example.com/hook"
    with pytest.raises(ModelNotFound):
        census.add_webhook(url, model="cencus", actor="ada")
    with pytest.raises(InvalidInput, match=r"'label\.move'; the kinds of events are .*label\.moved"):
        census.add_webhook(url, kinds=["label.move"], actor="ada")
    with pytest.raises(InvalidInput, match="at least 16"):
        census.add_webhook(url, secret="short", actor="ada")
    added = census.add_webhook(url, model="census", description="chat", actor="ada")
    assert len(added.secret) >= 32
    assert added.secret not in repr(added)
    (listed,) = census.webhooks("census")
    assert (listed.url, listed.description, listed.secret) == (url, "chat", "")
    census.remove_webhook(added.id, actor="ada")
    assert census.webhooks() == []
    for ask in (lambda: census.remove_webhook(added.id, actor="ada"), lambda: census.deliveries(2**70)):
        with pytest.raises(WebhookNotFound, match="there are: none"):
            ask()
    with pytest.raises(DeliveryNotFound, match="delivery 7"):
        census.redeliver(7)


@pytest.mark.parametrize(
    "signature",
    ["", "t=", "t=1", "v1=00", "t=x,v1=00", "t=1700000000,v1=\xe9", "t=\u0661,v1=0", f"t={'9' * 5000},v1=0"],
)
def test_signature_that_is_none_is_false_and_no_error(signature: str) -> None:
    assert not webhooks.verify(SECRET, b"{}", signature, now=1_700_000_000)


def test_long_event_is_told_without_what_makes_it_long() -> None:
    event = {
        "kind": "gate.refused",
        "reason": "x" * 100_000,
        "details": {"a": "y" * 300_000},
        "gate_report": 1,
    }
    letter = outbox.Letter(1, 1, "http://example.com", SECRET, 1, event)
    body = webhooks.body_of(letter)
    assert len(body) < webhooks.MAX_BODY_BYTES
    assert b'"shortened": true' in body


def test_pauses_grow_and_end_at_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "FIRST_PAUSE_SECONDS", 1.0)
    for attempts, longest in [(1, 1), (2, 2), (5, 16), (12, 2048), (13, 3600), (10_000, 3600)]:
        assert longest / 2 <= outbox.pause_seconds(attempts) <= longest


def test_table_of_kinds_and_list_of_kinds_are_the_same() -> None:
    rows = [line.split("|")[1] for line in (events.__doc__ or "").splitlines() if line.startswith("| `")]
    told = {kind.strip(" `") for row in rows for kind in row.split(",")}
    assert told == set(events.KINDS)
