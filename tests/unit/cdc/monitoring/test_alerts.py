"""An alert is sent once when a condition lasts and once when it ends, and never for a brief condition."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from cdc.config import AlertsConfig
from cdc.monitoring.alerts.alert_rules import Alert, AlertRules
from cdc.monitoring.alerts.conditions import AlertCondition
from cdc.monitoring.alerts.delivery import Delivery
from cdc.monitoring.status_record import HealthLevel
from cdc.secrets import SecretOptions, WebhookUrl
from tests.harness.network.webhook_receiver import Receiver
from tests.harness.processes.waiting import eventually

BEHIND = {"store cache": AlertCondition(where="store cache", state=HealthLevel.BEHIND, reason="It is 90 s behind.")}
DOWN = {"store cache": AlertCondition(where="store cache", state=HealthLevel.DOWN, reason="It does not answer.")}


def _alarms() -> AlertRules:
    return AlertRules(AlertsConfig(after_seconds=10, recovered_seconds=30), "shop")


def _events(alarms: AlertRules, conditions: dict[str, AlertCondition], *times: float) -> list[str]:
    return [alert.event for time in times for alert in alarms.consider(conditions, time)]


def test_an_alert_is_sent_once_and_its_recovery_once() -> None:
    """However often the condition is evaluated, one alert and one recovery are sent."""
    alarms = _alarms()
    assert _events(alarms, BEHIND, 0, 5, 9) == []
    assert _events(alarms, BEHIND, 10, 11, 500) == ["raised"]
    assert _events(alarms, {}, 501, 520) == []
    assert _events(alarms, {}, 531, 600) == ["recovered"]


def test_a_flapping_condition_sends_no_alert_and_no_recovery() -> None:
    """A condition that flaps sends neither an alert nor a recovery."""
    alarms = _alarms()
    for second in range(0, 100, 4):
        assert _events(alarms, BEHIND, second) + _events(alarms, {}, second + 2) == []
    assert _events(alarms, BEHIND, 200, 210) == ["raised"]
    for second in range(220, 400, 10):
        assert _events(alarms, {}, second) + _events(alarms, BEHIND, second + 5) == []


def test_a_condition_that_gets_worse_is_sent_again() -> None:
    """A store that lags and then is down gives two alerts and one recovery."""
    alarms = _alarms()
    assert _events(alarms, BEHIND, 0, 10) == ["raised"]
    assert _events(alarms, DOWN, 20) == ["raised"]
    assert _events(alarms, BEHIND, 30) == []
    assert _events(alarms, {}, 40, 80) == ["recovered"]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    own = Receiver()
    yield own
    own.close()


@pytest.fixture
def elsewhere() -> Iterator[Receiver]:
    own = Receiver()
    yield own
    own.close()


def test_a_webhook_gets_every_alert_in_order_though_it_refuses_at_first(receiver: Receiver) -> None:
    """A receiver that is briefly unavailable loses no alert; the id identifies a repeated one."""
    receiver.refuse_next = 1
    settings = AlertsConfig(webhook=WebhookUrl(receiver.url), headers=SecretOptions({"X-Key": "k"}))
    delivery = Delivery(settings)
    delivery.start()
    try:
        raised = Alert(event="raised", pipeline="shop", condition=DOWN["store cache"], since=1.0, at=2.0)
        delivery.deliver(raised)
        delivery.deliver(Alert(event="recovered", pipeline="shop", condition=DOWN["store cache"], since=1.0, at=9.0))
        eventually(lambda: len(receiver.messages) == 2, what="both alerts")
    finally:
        delivery.stop()
    assert [message["event"] for message in receiver.messages] == ["raised", "recovered"]
    assert receiver.messages[0]["id"] == raised.id
    assert receiver.messages[0]["state"] == "down"
    assert receiver.messages[1]["state"] == "ok"
    assert receiver.headers[0]["X-Key"] == "k"
    assert receiver.refused == 1


@pytest.mark.parametrize("status", [302, 307])
def test_a_redirect_is_not_followed_and_the_alert_is_not_taken(
    receiver: Receiver, elsewhere: Receiver, status: int
) -> None:
    """Neither the alert nor the key reaches another server, and the alert arrives once the URL is correct."""
    receiver.redirect = (status, f"{elsewhere.url}/a-secret-path")
    delivery = Delivery(
        AlertsConfig(webhook=WebhookUrl(receiver.url), headers=SecretOptions({"Authorization": "Bearer k-of-tests"}))
    )
    with capture_logs() as logs:
        delivery.start()
        try:
            delivery.post({"event": "raised"})
            eventually(lambda: [each for each in logs if each["event"] == "alert_not_delivered"], what="it was refused")
            assert receiver.messages == elsewhere.messages == []
            receiver.redirect = None
            eventually(lambda: len(receiver.messages) == 1, what="the alert")
        finally:
            delivery.stop()
    assert elsewhere.asked == []
    said = next(each["reason"] for each in logs if each["event"] == "alert_not_delivered")
    assert f"redirect ({status})" in said
    assert "127.0.0.1" in said
    assert "[alerts] webhook" in said
    assert "secret" not in said


@pytest.mark.parametrize(
    ("path", "header"), [("/hook/a-secret", "k\r\nX: of-tests-secret"), ("/ a-secret", "k"), ("/\x7fa-secret", "k")]
)
def test_a_webhook_that_cannot_be_asked_is_not_quoted(receiver: Receiver, path: str, header: str) -> None:
    """An error does not quote the refused URL or header, since both may be secrets."""
    settings = AlertsConfig(webhook=WebhookUrl(receiver.url + path), headers=SecretOptions({"X-Key": header}))
    delivery = Delivery(settings)
    with capture_logs() as logs:
        delivery.start()
        try:
            delivery.post({"event": "raised"})
            eventually(lambda: logs, what="it was refused")
        finally:
            delivery.stop()
    assert "[alerts]" in logs[0]["reason"]
    assert "secret" not in str(logs)
