"""Values that no database can hold, and names of nothing: each is refused in our words, on both databases."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from registry import Registry
from registry.errors import InvalidInput, NotFound, RegistryError

TEXTS = ("a\0b", "\udcff", "x" * 1000)
NUMBERS = (-1, 2**31, 2**63, 2**70, -(2**70))
LOCAL = [timezone(timedelta(hours=hours)) for hours in (5, -5)]
MOMENTS = (datetime.min.replace(tzinfo=LOCAL[0]), datetime.max.replace(tzinfo=LOCAL[1]))

WITH_A_TEXT: dict[str, Callable[[Registry, str, Path], object]] = {
    "model": lambda r, text, _: r.model(text),
    "version": lambda r, text, _: r.version(text, 1),
    "resolve": lambda r, text, _: r.resolve("census", text),
    "promote": lambda r, text, _: r.promote(text, 1, actor="ada"),
    "promote by": lambda r, text, _: r.promote("census", 1, label="by", actor=text),
    "promote because": lambda r, text, _: r.promote("census", 1, label="reason", actor="ada", reason=text),
    "rollback": lambda r, text, _: r.rollback(text, actor="ada"),
    "label": lambda r, text, _: r.remove_label("census", text, actor="ada"),
    "history": lambda r, text, _: r.history("census", text),
    "events": lambda r, text, _: r.events(text),
    "gate": lambda r, text, _: r.check_gate("census", 1, text),
    "rule": lambda r, text, _: r.set_gate("census", "canary", [f"tag a = {text}"], "ada"),
    "approve": lambda r, text, _: r.approve("census", 1, "canary", "ada", text),
    "approvals": lambda r, text, _: r.approvals("census", 1, text),
    "models with a tag": lambda r, text, _: r.search_models(tags={text: text}),
    "versions with a tag": lambda r, text, _: r.search_versions("census", tags={text: None}),
    "versions of a job": lambda r, text, _: r.search_versions("census", job=text),
    "versions by a metric": lambda r, text, _: r.search_versions("census", order=f"metrics.{text}"),
    "tag": lambda r, text, _: r.describe_version("census", 1, tags={text: text}),
    "webhook": lambda r, text, _: r.add_webhook("http://localhost/", model=text, actor="ada"),
    "report": lambda r, text, _: r.report_serving(text, 1, {}),
    "import": lambda r, text, _: r.import_model("adult", text),
    "export": lambda r, text, place: r.export_version("census", 1, place / text),
}
WITH_A_NUMBER: dict[str, Callable[[Registry, int, Path], object]] = {
    "version": lambda r, number, _: r.version("census", number),
    "promote": lambda r, number, _: r.promote("census", number, actor="ada"),
    "rollback": lambda r, number, _: r.rollback("census", to=number, actor="ada"),
    "undo": lambda r, number, _: r.undo_promotion(number, "it fails"),
    "history": lambda r, number, _: r.history("census", version=number),
    "history before": lambda r, number, _: r.history("census", before=number),
    "events": lambda r, number, _: r.events("census", version=number, kinds=["label.*"]),
    "events before": lambda r, number, _: r.events("census", before=number),
    "retention": lambda r, number, _: r.set_retention("census", keep_last=number, actor="ada"),
    "deliveries before": lambda r, number, _: r.deliveries(before=number),
    "redeliver": lambda r, number, _: r.redeliver(number),
    "step": lambda r, number, place: r.publish("census", place, step=number),
    "metric": lambda r, number, place: r.publish("census", place, metrics={"auc": number**20}),
    "gc": lambda r, number, _: r.gc(older_than_seconds=number, dry_run=True),
}


@pytest.fixture
def one(registry: Registry, saved_model: Path) -> Registry:
    registry.create_model("census")
    registry.publish("census", saved_model)
    return registry


def refusals(calls: dict, values: tuple, registry: Registry, place: Path) -> dict[str, list[str]]:
    """Make every call with every value; only errors of the registry may come of it. Return them."""
    told: dict[str, list[str]] = {}
    for name, call in calls.items():
        for value in values:
            try:
                call(registry, value, place)
            except RegistryError as error:
                told.setdefault(name, []).append(str(error))
    return told


def test_texts_that_cannot_be_are_refused_in_our_words(one: Registry, saved_model: Path) -> None:
    told = refusals(WITH_A_TEXT, TEXTS, one, saved_model)
    assert "Cannot find model 'a\\x00b'; registered: census." in told["promote"][0]
    assert "Cannot find label '\\udcff' of model 'census'" in told["label"][1]
    assert all("File name too long" in told[name][-1] for name in ("import", "export"))
    assert "Cannot ask the database about a value that it cannot hold" in told["versions of a job"][-1]
    kept_with_a_mark = {"promote because", "approve"}
    assert WITH_A_TEXT.keys() - told.keys() == kept_with_a_mark
    assert one.approvals("census", 1, "canary")[0].comment == "a\N{REPLACEMENT CHARACTER}b"


def test_numbers_that_cannot_be_are_refused_in_our_words(one: Registry, saved_model: Path) -> None:
    told = refusals(WITH_A_NUMBER, NUMBERS, one, saved_model)
    assert all(f"Cannot find version {2**70} " in text for text in told["version"][3:4])
    for name in ("history before", "redeliver", "events before"):
        assert "and numbers and times of ordinary size" in told[name][-1], name
    assert "it cannot hold" in told["step"][2]
    assert "counts training steps from 0" in told["step"][-1]
    assert "too large" in told["metric"][-1]


def test_moments_that_cannot_be_are_refused_in_our_words(one: Registry) -> None:
    for moment in MOMENTS:
        with pytest.raises(InvalidInput, match="date value out of range"):
            one.search_versions("census", created_from=moment)
    assert one.search_versions("census", created_from=datetime.min.replace(tzinfo=UTC)).items


def test_what_the_database_refuses_leaves_it_usable(one: Registry) -> None:
    for _ in range(20):
        with pytest.raises(InvalidInput):
            one.history("census", before=2**70)
        with pytest.raises(NotFound):
            one.model("a\0b")
    assert one.version("census", 1).state == "ready"
