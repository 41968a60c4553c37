"""One served model: its versions, their states, and the thread that brings them to what is aspired.

Each model has a thread of its own, so a slow load or a missing base path of one never delays another. The
thread acts on `serving.policy.next_action`; waiting for requests to end is not an action, so a slow request
delays nothing either.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from serving import heap
from serving.errors import Code, ModelFailed, ServableNotFound, ServingError
from serving.policy import Load, Policy, State, VersionSnapshot, aspired, next_action
from serving.servable import Servable

log = logging.getLogger(__name__)

Loader = Callable[[str, int, Path], Servable]
"""(model name, version, directory) -> a loaded and warmed-up servable; raises ServingError."""


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """The state of one version; `error_code` and `error_message` when its loading failed."""

    version: int
    state: State
    error_code: Code = Code.OK
    error_message: str = ""


class InUse:
    """A loaded servable and the count of requests that use it. Entered, it gives the servable; left, it
    counts down."""

    __slots__ = ("_draining", "_lock", "_on_idle", "_servable", "_uses")

    def __init__(self, servable: Servable, on_idle: Callable[[], None]) -> None:
        self._servable = servable
        self._on_idle = on_idle
        self._lock = threading.Lock()
        self._uses = 0
        self._draining = False

    def take(self) -> bool:
        """Count one use more, or return False when the version is already being unloaded."""
        with self._lock:
            if self._draining:
                return False
            self._uses += 1
            return True

    def drain(self) -> None:
        """Let no use begin any more."""
        with self._lock:
            self._draining = True

    @property
    def idle(self) -> bool:
        """Whether no request is using it."""
        return self._uses == 0

    def close(self) -> None:
        """Free the servable; only when idle and draining."""
        self._servable.close()

    def __enter__(self) -> Servable:
        return self._servable

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._uses -= 1
            last = self._draining and self._uses == 0
        if last:
            self._on_idle()


@dataclass(slots=True)
class _Version:
    number: int
    path: Path
    state: State = State.START
    aspired: bool = True
    code: Code = Code.OK
    message: str = ""
    failures: int = 0
    retry_at: float = 0.0
    in_use: InUse | None = None

    @property
    def failed(self) -> bool:
        return self.code is not Code.OK


@dataclass(frozen=True, slots=True)
class LifecycleOptions:
    """How versions are looked for and loaded.

    `poll_wait_seconds`: time between looks at the base path; 0: only when configured; negative: never.
    `max_load_retries`, `load_retry_seconds`: tries after a first failed load, and the time between them.
    """

    poll_wait_seconds: float = 1.0
    max_load_retries: int = 5
    load_retry_seconds: float = 60.0


class Model:
    """The versions of one model name. All methods are safe from any thread."""

    def __init__(
        self, name: str, loader: Loader, options: LifecycleOptions, on_change: Callable[[], None]
    ) -> None:
        self.name = name
        self._loader = loader
        self._options = options
        self._on_change = on_change
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._versions: dict[int, _Version] = {}
        self._serving: Mapping[int, InUse] = {}
        self._latest: int | None = None
        self._base_path: Path | None = None
        self._policy: Policy | None = None
        self._poll_at = 0.0
        self._path_error = ""
        self._looked = False
        self._closing = False
        self._thread = threading.Thread(target=self._work, name=f"model-{name}", daemon=True)
        self._thread.start()

    def configure(self, base_path: Path | None, policy: Policy | None) -> None:
        """Say where versions are and which are wanted; None: unload them all."""
        with self._lock:
            self._base_path, self._policy = base_path, policy
            self._poll_at = 0.0
            self._looked = False
        self._wake.set()

    def take(self, version: int | None) -> InUse:
        """Count one use of a version, or of the highest available one, and return it.

        Raises:
            ServableNotFound: it is not available.
        """
        while True:
            serving, latest = self._serving, self._latest
            number = latest if version is None else version
            in_use = None if number is None else serving.get(number)
            if in_use is not None and in_use.take():
                return in_use
            if in_use is None or serving is self._serving:
                raise ServableNotFound(self.name, version, sorted(serving))

    def available(self) -> list[int]:
        """The versions that can be used now."""
        return sorted(self._serving)

    def statuses(self) -> list[VersionStatus]:
        """The states of all versions ever seen, newest first."""
        with self._lock:
            return [
                VersionStatus(v.number, v.state, v.code, v.message)
                for v in sorted(self._versions.values(), key=lambda v: v.number, reverse=True)
            ]

    def settled(self) -> bool:
        """Whether a version is available, or none can become so without a change from outside."""
        with self._lock:
            if self._serving or self._policy is None:
                return True
            wanted = [v for v in self._versions.values() if v.aspired]
            return self._looked and bool(wanted) and all(v.state is State.END for v in wanted)

    def failures(self) -> dict[tuple[str, int], str]:
        """The errors of the aspired versions that failed to load, by (model, version)."""
        with self._lock:
            return {
                (self.name, v.number): v.message for v in self._versions.values() if v.aspired and v.failed
            }

    def close(self) -> None:
        """Unload everything and end the thread. Requests still running are waited for."""
        with self._lock:
            self._closing = True
        self.configure(None, None)
        self._thread.join()

    def _work(self) -> None:
        while True:
            self._wake.clear()
            self._look()
            self._free_idle()
            with self._lock:
                now = time.monotonic()
                action = next_action([self._snapshot(v, now) for v in self._versions.values()])
                done = self._closing and all(
                    v.state in (State.START, State.END) for v in self._versions.values()
                )
            if action is None:
                if done:
                    return
                self._wake.wait(self._seconds_to_wait())
            elif isinstance(action, Load):
                self._load(self._versions[action.version])
            else:
                self._unload(self._versions[action.version])

    @staticmethod
    def _snapshot(version: _Version, now: float) -> VersionSnapshot:
        return VersionSnapshot(version.number, version.state, version.aspired, due=version.retry_at <= now)

    def _seconds_to_wait(self) -> float | None:
        with self._lock:
            moments = [v.retry_at for v in self._versions.values() if v.state is State.LOADING and v.aspired]
            if self._base_path is not None and self._options.poll_wait_seconds > 0:
                moments.append(self._poll_at)
        return max(min(moments) - time.monotonic(), 0.0) if moments else None

    def _look(self) -> None:
        """Look at the base path when it is time to, and note which versions are aspired."""
        with self._lock:
            base_path, policy = self._base_path, self._policy
            never = self._options.poll_wait_seconds < 0 and base_path is not None
            if never or self._poll_at > time.monotonic():
                return
            wait = self._options.poll_wait_seconds
            self._poll_at = time.monotonic() + wait if wait > 0 else float("inf")
        try:
            found = {} if base_path is None else versions_under(base_path)
        except OSError as error:
            self._note_path_error(f"{error}")
            return
        self._note_path_error("")
        with self._lock:
            if (base_path, policy) == (self._base_path, self._policy):
                self._aspire(found, set() if policy is None else aspired(policy, found))
                self._looked = True
        self._on_change()

    def _note_path_error(self, text: str) -> None:
        if text and text != self._path_error:
            log.warning("base_path_unreadable", extra={"model": self.name, "error": text})
        self._path_error = text

    def _aspire(self, found: Mapping[int, Path], wanted: set[int]) -> None:
        for number, version in self._versions.items():
            back = number in wanted and not version.aspired and version.state is State.END
            version.aspired = number in wanted
            if back:
                self._restart(version, found[number])
            elif not version.aspired and version.state in (State.START, State.LOADING):
                self._move(version, State.END)
        for number in wanted - self._versions.keys():
            self._versions[number] = _Version(number, found[number])

    def _restart(self, version: _Version, path: Path) -> None:
        version.path = path
        version.code, version.message, version.failures, version.retry_at = Code.OK, "", 0, 0.0
        self._move(version, State.START)

    def _move(self, version: _Version, state: State) -> None:
        version.state = state
        log.info("version_state", extra={"model": self.name, "version": version.number, "state": state.name})

    def _load(self, version: _Version) -> None:
        with self._lock:
            self._move(version, State.LOADING)
        self._on_change()
        started = time.monotonic()
        try:
            servable = self._loader(self.name, version.number, version.path)
        except ServingError as error:
            self._load_failed(version, error)
            return
        except Exception as error:  # noqa: BLE001  A model may raise anything; this thread has the others to look after.
            self._load_failed(version, ModelFailed(Code.UNKNOWN, f"{type(error).__name__}: {error}"))
            return
        seconds = round(time.monotonic() - started, 3)
        with self._lock:
            version.in_use = InUse(servable, self._wake.set)
            version.code, version.message = Code.OK, ""
            self._move(version, State.AVAILABLE)
            self._publish()
        log.info(
            "version_available",
            extra={"model": self.name, "version": version.number, "load_seconds": seconds},
        )
        freeze_garbage()
        self._on_change()

    def _load_failed(self, version: _Version, error: ServingError) -> None:
        with self._lock:
            version.failures += 1
            again = version.failures <= self._options.max_load_retries
            if again:
                version.retry_at = time.monotonic() + self._options.load_retry_seconds
            else:
                version.code, version.message = error.code, str(error)
                self._move(version, State.END)
        log.error(
            "version_load_failed",
            extra={"model": self.name, "version": version.number, "retry": again, "error": str(error)},
        )
        self._on_change()

    def _unload(self, version: _Version) -> None:
        with self._lock:
            assert version.in_use is not None  # It is AVAILABLE.
            self._move(version, State.UNLOADING)
            self._publish()
            version.in_use.drain()
        self._on_change()

    def _free_idle(self) -> None:
        for version in list(self._versions.values()):
            if version.state is State.UNLOADING and version.in_use is not None and version.in_use.idle:
                version.in_use.close()
                heap.give_back()
                with self._lock:
                    version.in_use = None
                    self._move(version, State.END)
                    if version.aspired:
                        self._restart(version, version.path)
                self._on_change()

    def _publish(self) -> None:
        self._serving = {
            v.number: v.in_use
            for v in self._versions.values()
            if v.state is State.AVAILABLE and v.in_use is not None
        }
        self._latest = max(self._serving, default=None)


def versions_under(base_path: Path) -> dict[int, Path]:
    """Return version number -> path for the entries of a base path whose names are numbers (int64).

    Raises:
        OSError: the base path cannot be read.
    """
    found: dict[int, Path] = {}
    for entry in base_path.iterdir():
        if entry.name.isascii() and entry.name.isdigit() and int(entry.name) < 1 << 63:
            found[int(entry.name)] = entry
    return found


def freeze_garbage() -> None:
    """Take everything alive out of the garbage collector's sight.

    A full collection otherwise walks all of TensorFlow's objects (some 300,000), which stops every thread
    for long. What a loading leaves behind is collected first; that is quick, as what was frozen before is
    not walked again.
    """
    gc.collect()
    gc.freeze()
