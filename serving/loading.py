"""How a version's folder becomes a servable: which graph, in what kind of session, batched or not, warmed
up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving import warmup
from serving.batching import BatchingParameters
from serving.servable import Servable


@dataclass(frozen=True)
class LoadOptions:
    """The same for all models of a server, but for what `batching_for` gives.

    `tags`: which graph of the SavedModel. `session_config`: a tf.compat.v1.ConfigProto, or None.
    `enable_warmup`, `warmup_iterations`: whether, and how often, the recorded requests are run.
    `batching`: how requests are put together; None: each runs alone. `batching_for`: instead of it, folder of
    a version -> that version's own; what it raises fails the load. `threads`: how many versions load at
    once; 0: any number.
    """

    tags: tuple[str, ...] = ("serve",)
    session_config: Any = None
    enable_warmup: bool = True
    warmup_iterations: int = 1
    batching: BatchingParameters | None = None
    batching_for: Callable[[Path], BatchingParameters | None] | None = None
    threads: int = 0


class Loader:
    """Loads versions. Safe from any thread."""

    def __init__(self, options: LoadOptions) -> None:
        self._options = options
        self._turn: AbstractContextManager[Any] = (
            threading.BoundedSemaphore(options.threads) if options.threads > 0 else nullcontext()
        )

    def __call__(self, name: str, version: int, path: Path) -> Servable:
        """Return the servable in `path`, warmed up.

        Raises:
            ServingError: it does not load, its batching parameters cannot work, or its warm-up fails.
        """
        options = self._options
        with self._turn:
            batching = options.batching_for(path) if options.batching_for else options.batching
            servable = Servable.load(
                path, options.tags, name=name, version=version, config=options.session_config
            )
            if batching is not None:
                servable.batch(batching)
            try:
                if options.enable_warmup:
                    warmup.warm_up(servable, path, iterations=options.warmup_iterations)
            except BaseException:
                servable.close()
                raise
            return servable
