"""A process that does one operation and is killed by SIGKILL before one of its steps.

A step is a statement to the database, its commit included, or a change to a file: whatever would leave a
trace. They are counted as they come, so a step that is added to an operation is a fault point by itself.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable

from sqlalchemy import Engine, event
from sqlalchemy.orm import configure_mappers

from registry import Registry, outbox, webhooks
from registry.database import connect
from registry.store import migrate_registry

# Otherwise done at the first query, so in each of the hundreds of processes that are forked from the one that
# has imported this.
configure_mappers()

OPERATIONS: dict[str, Callable[[Registry, str], object]] = {
    "publish": lambda registry, directory: registry.publish("census", directory),
    "promote": lambda registry, _: registry.promote("census", 2, actor="eve"),
    "rollback": lambda registry, _: registry.rollback("census", to=1, actor="eve"),
    "delete": lambda registry, _: registry.delete_version("census", 3, actor="eve"),
    "gc": lambda registry, _: registry.gc(older_than_seconds=0, recent_seconds=0),
    "deliver": lambda registry, _: deliver(registry),
}
REMOVALS = ("os.remove", "os.rmdir")
CHANGES = (*REMOVALS, "os.rename", "os.mkdir", "os.link", "os.truncate")


def deliver(registry: Registry) -> None:
    """Send the one delivery in the outbox, if it has not arrived."""
    if not registry.deliveries(state="pending"):
        return
    outbox.LEASE_SECONDS = 0.0  # So that what this process has claimed falls due with its death.
    settle, settled = registry.settle_delivery, threading.Event()

    def settle_and_tell(letter: outbox.Letter, error: str = "") -> None:
        settle(letter, error)
        settled.set()

    registry.settle_delivery = settle_and_tell
    dispatcher = webhooks.WebhookDispatcher(registry, allow_private=True)
    dispatcher.start()
    assert settled.wait(timeout=60), "nothing was sent within 60 s"
    dispatcher.stop()


def run(operation: str, database_url: str, root: str, directory: str, die_before: int) -> None:
    """Do the operation; die before its step of this number, counted from 1. With 0, live."""
    if operation == "migrate":
        _count_steps(root, die_before)
        migrate_registry(connect(database_url))
        return
    with Registry(database_url, root) as registry:
        _count_steps(root, die_before)
        OPERATIONS[operation](registry, directory)


def _count_steps(root: str, die_before: int) -> None:
    passed = 0

    def step(*_arguments: object, **_options: object) -> None:
        nonlocal passed
        passed += 1
        if passed == die_before:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(name: str, arguments: tuple[object, ...]) -> None:
        path = str(arguments[0]) if arguments else ""
        # What is removed with its folder is named relative to an open folder.
        is_ours = path.startswith(root) or (name in REMOVALS and not os.path.isabs(path))
        opened_to_write = name == "open" and len(arguments) > 1 and "w" in str(arguments[1])
        if is_ours and (name in CHANGES or opened_to_write):
            step()

    event.listen(Engine, "before_cursor_execute", step)
    event.listen(Engine, "commit", step)
    sys.addaudithook(audit)
