"""Search: what filters let through, how pages follow each other."""

import math
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import text

from registry import Registry, database, searching
from registry.errors import InvalidInput, ModelNotFound
from registry.store import MIGRATIONS, VERSION_TABLE
from registry.tables import Base


@pytest.fixture
def flights(registry: Registry, saved_model: Path) -> Registry:
    """A registry whose model `flights` has six versions that differ in everything one can search by."""
    registry.create_model("flights")
    for number, auc in enumerate([0.6, 0.8, math.nan, 0.7, 0.8, math.inf], start=1):
        registry.publish(
            "flights",
            saved_model,
            metrics={"auc": auc, "a/b:c": -number},
            tags={"team": "search" if number % 2 else "ads", **({"hot": ""} if number > 4 else {})},
            job=f"job-{number % 3}",
        )
    registry.publish("flights", saved_model, tags={"team": "ads"})
    registry.delete_version("flights", 4, actor="ada")
    registry.promote("flights", 2, actor="ada")
    registry.promote("flights", 2, label="canary", actor="ada")
    return registry


def found(registry: Registry, **filters) -> list[int]:
    return [version.version for version in registry.search_versions("flights", **filters)]


FILTERS: list[tuple[dict, list[int]]] = [
    ({}, [7, 6, 5, 3, 2, 1]),
    ({"states": ["deleted"]}, [4]),
    ({"states": ["ready", "deleted"], "order": "version"}, [1, 2, 3, 4, 5, 6, 7]),
    ({"metrics": ["auc > 0.6"]}, [6, 5, 2]),
    ({"metrics": ["auc>=0.6", "auc < 1"]}, [5, 2, 1]),
    ({"metrics": ["auc = 0.8", "a/b:c != -2"]}, [5]),
    ({"metrics": ["a/b:c <= -5e0"]}, [6, 5]),
    ({"metrics": ["loss < 1"]}, []),
    ({"tags": {"team": "ads"}}, [7, 6, 2]),
    ({"tags": {"hot": None, "team": "search"}}, [5]),
    ({"job": "job-0"}, [6, 3]),
    ({"label": "canary"}, [2]),
    ({"label": "shadow"}, []),
    ({"order": "created"}, [1, 2, 3, 5, 6, 7]),
    ({"order": "-metrics.auc"}, [6, 5, 2, 1]),
    ({"order": "metrics.a/b:c", "tags": {"team": "ads"}}, [6, 2]),
]


def test_filter_lets_through_what_meets_all_of_it(flights: Registry) -> None:
    for filters, versions in FILTERS:
        assert found(flights, **filters) == versions, filters


def test_range_of_time_is_half_open_and_taken_as_utc(flights: Registry) -> None:
    moments = {version.version: version.created_at for version in flights.search_versions("flights")}
    assert found(flights, created_from=moments[2], created_before=moments[6]) == [5, 3, 2]
    assert found(flights, created_from=moments[6].replace(tzinfo=None)) == [7, 6]
    assert found(flights, created_before=datetime.now().astimezone() - timedelta(days=1)) == []


def test_pages_together_are_the_whole_list_even_while_versions_are_published(
    flights: Registry, saved_model: Path
) -> None:
    for order in ("version", "-version", "created", "-created", "metrics.auc", "-metrics.auc"):
        whole = found(flights, order=order)
        seen: list[int] = []
        cursor, pages = "", 0
        while cursor or not pages:
            page = flights.search_versions("flights", order=order, limit=2, cursor=cursor)
            assert len(page) <= 2
            seen += [version.version for version in page]
            cursor, pages = page.next_cursor, pages + 1
            if pages == 1:
                flights.publish("flights", saved_model, metrics={"auc": 0.1})
        assert [version for version in seen if version in whole] == whole, order
        assert len(seen) == len(set(seen)), order


def test_summary_says_what_lists_need_and_reads_no_manifest(flights: Registry) -> None:
    (version,) = flights.search_versions("flights", label="production")
    assert version.labels == ("canary", "production")
    assert (version.metrics["auc"], version.job, version.tags["team"]) == (0.8, "job-2", "ads")
    assert version.uri.endswith("models/flights/2")
    wanted, order = searching.VersionFilter(), searching.Order.parse("-metrics.auc")
    statement = str(searching.versions_query("flights", wanted, order, 10, None))
    assert "manifest" not in statement
    assert "signatures" not in statement


def test_changed_tags_are_found_at_once_and_old_ones_no_more(flights: Registry) -> None:
    flights.describe_version("flights", 5, tags={"team": "maps"})
    assert found(flights, tags={"team": "maps"}) == [5]
    assert found(flights, tags={"hot": None}) == [6]
    assert flights.version("flights", 5).tags == {"team": "maps"}


REFUSED: list[tuple[dict, str]] = [
    ({"metrics": ["auc above 0.7"]}, "Cannot read the condition 'auc above 0.7'.*'auc > 0.7'"),
    ({"states": ["redy"]}, "'redy'; the states are pending, ready"),
    ({"order": "loss"}, "Cannot order by 'loss'. Order by version, created or metrics.NAME"),
    ({"limit": 0}, "1 to 1000"),
    ({"limit": 1001}, "1 to 1000"),
    ({"cursor": "%%%"}, "Pass next_cursor of a page as it came"),
    ({"cursor": "W10"}, "Pass next_cursor of a page as it came"),
]


def test_what_cannot_be_read_is_refused_with_what_can(flights: Registry) -> None:
    for arguments, message in REFUSED:
        with pytest.raises(InvalidInput, match=message):
            flights.search_versions("flights", **arguments)


def test_cursor_of_another_order_and_unknown_model_are_refused(flights: Registry) -> None:
    cursor = flights.search_versions("flights", limit=1, order="created").next_cursor
    with pytest.raises(InvalidInput, match="not one of the order '-version'"):
        flights.search_versions("flights", cursor=cursor)
    with pytest.raises(ModelNotFound):
        flights.search_versions("fligths")


def test_models_are_found_by_pattern_and_tag_page_by_page(registry: Registry) -> None:
    for name in ["ads", "flights-eu", "flights-us", "Flights-old", "flights_x"]:
        registry.create_model(name)
    registry.describe_model("flights-us", tags={"team": "maps", "tier": "1"})
    registry.describe_model("ads", tags={"team": "ads"}, description="clicks")

    def names(*arguments, **filters) -> list[str]:
        return [model.name for model in registry.search_models(*arguments, **filters)]

    assert names("flights-*") == ["flights-eu", "flights-us"]
    assert sorted(names("?????????*")) == ["Flights-old", "flights-eu", "flights-us", "flights_x"]
    assert names("flights_*") == ["flights_x"]
    assert names("[a]*") == []
    assert names(tags={"team": "maps"}) == names(tags={"tier": None}) == ["flights-us"]
    assert sorted(names()) == sorted(model.name for model in registry.models())
    page = registry.search_models(limit=3)
    rest = registry.search_models(limit=3, cursor=page.next_cursor)
    assert [model.name for model in (*page, *rest)] == names()
    assert (len(rest), rest.next_cursor) == (2, "")
    (ads,) = registry.search_models("ads")
    assert (ads.description, ads.labels, ads.newest_version) == ("clicks", {}, 0)


def test_versions_of_an_older_release_are_found_after_migration(database_url: str, tmp_path: Path) -> None:
    engine = database.connect(database_url)
    config = database._alembic_config(MIGRATIONS)
    with engine.begin() as connection:
        config.attributes.update(connection=connection, version_table=VERSION_TABLE, metadata=Base.metadata)
        command.upgrade(config, "0001")
        connection.execute(
            text("INSERT INTO registry_models VALUES ('old', '', 2, '2026-01-02 03:04:05.000000')")
        )
        connection.execute(
            text(
                "INSERT INTO registry_versions VALUES ('old', 1, 'ready', 5, '{}', '{}', :metrics, '{}', 9, "
                "'', '', '{}', :tags, '', :at, :at, :at, NULL, '', '')"
            ),
            {
                "metrics": '{"auc": 0.9, "lift": "inf", "loss": "nan"}',
                "tags": '{"team": "ads"}',
                "at": "2026-01-02 03:04:05.000000",
            },
        )
    engine.dispose()
    with Registry(database_url, tmp_path) as registry:
        (version,) = registry.search_versions("old", metrics=["auc > 0.8", "lift > 9"], tags={"team": "ads"})
        assert math.isnan(version.metrics["loss"])
        assert not registry.search_versions("old", metrics=["loss > 0"]).items
        (model,) = registry.search_models("o*")
        assert model.tags == {}
