"""The gateway goes on serving without its database."""

from pathlib import Path

import psycopg

from registry import Registry
from serving.gateway import EmbeddedRuntime
from tests.serving.gateway_support import Load, Models, Running
from tests.waiting import wait_until


def test_an_unreachable_database_stops_no_prediction_and_is_reported(
    postgres_server, postgres_url, tmp_path: Path
):
    name = postgres_url.split("?")[0].rsplit("/", 1)[1]

    def accept(connections: bool) -> None:
        with psycopg.connect(postgres_server, autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS {str(connections).lower()}")
            if not connections:
                connection.execute(
                    f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
                )

    with Registry(postgres_url, tmp_path / "models") as registry:
        models = Models(registry, tmp_path)
        models.publish("census", 2)
        running = Running(registry, EmbeddedRuntime(), name="gateway")
        try:
            running.promote("census", 1)
            with Load(running, "census", expected=(1.0,)) as load:
                accept(connections=False)
                problems = wait_until(lambda: running.gateway.state()["problems"], "the loss noticed")
                assert "Cannot use the database" in problems["registry"]
                assert not running.gateway.state()["healthy"]
                load.wait_for_more()
                accept(connections=True)
                wait_until(lambda: running.gateway.state()["healthy"], "healthy again")
                load.expected = (1.0, 2.0)
                running.promote("census", 2)
            assert load.failures == []
            assert load.wrong == []
            assert running.predict("census") == (200, [2.0])
        finally:
            running.stop()


def test_a_deleted_database_file_stops_no_prediction_and_is_reported(tmp_path: Path):
    file, away = tmp_path / "registry.db", tmp_path / "away.db"
    with Registry(f"sqlite:///{file}", tmp_path / "models") as registry:
        models = Models(registry, tmp_path)
        models.publish("census", 1)
        running = Running(registry, EmbeddedRuntime(), name="gateway")
        try:
            running.promote("census", 1)
            with Load(running, "census", expected=(1.0,)) as load:
                file.rename(away)
                problems = wait_until(lambda: running.gateway.state()["problems"], "the loss noticed")
                assert "its file was deleted while it was in use" in problems["registry"]
                load.wait_for_more()
                away.rename(file)
                wait_until(lambda: running.gateway.state()["healthy"], "healthy again")
            assert load.failures == []
        finally:
            running.stop()
