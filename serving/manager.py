"""The models that are served: which there are, their versions and labels, and counted use of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from serving.errors import FailedPrecondition, InvalidInput, NoVersions, ServableNotFound, UnknownLabel
from serving.loading import Loader, LoadOptions
from serving.model import InUse, LifecycleOptions, Model, VersionStatus
from serving.policy import All, Latest, ModelConfig, Specific

__all__ = ["All", "InUse", "Latest", "ModelConfig", "ModelManager", "Specific", "VersionStatus"]


class ModelManager:
    """Loads, serves and unloads versions of models. All methods are safe from any thread; none but `close`
    waits.

    A new version is loaded and warmed up before the old one is taken out of service; the old one is freed
    when its last request has ended. A version that fails to load is tried again `max_load_retries` times and
    then reported by `status` with its error; what serves goes on serving.
    """

    def __init__(
        self,
        *,
        poll_wait_seconds: float = 1.0,
        max_load_retries: int = 5,
        load_retry_seconds: float = 60.0,
        loading: LoadOptions | None = None,
        labels_for_unavailable: bool = False,
    ) -> None:
        """Start empty.

        `poll_wait_seconds`: time between looks at the base paths; 0: only at each `apply`; negative: never.
        `loading`: how versions are loaded.
        `labels_for_unavailable`: a new label may name a version that is not available (yet).
        """
        self._options = LifecycleOptions(poll_wait_seconds, max_load_retries, load_retry_seconds)
        self.loading = loading or LoadOptions()
        """How versions are loaded, and whether in batches: then those who call should provide threads."""
        self._load = Loader(self.loading)
        self._labels_for_unavailable = labels_for_unavailable
        self._apply_lock = threading.Lock()
        self._changed = threading.Condition()
        self._models: Mapping[str, Model] = {}
        self._labels: Mapping[str, Mapping[str, int]] = {}
        self._configs: tuple[ModelConfig, ...] = ()

    def check(self, configs: Sequence[ModelConfig]) -> None:
        """Refuse what `apply` would refuse at this moment, and change nothing.

        Raises: as `apply`.
        """
        self._check(configs, labels_for_unavailable=self._labels_for_unavailable)

    def apply(self, configs: Sequence[ModelConfig], *, labels_for_unavailable: bool = False) -> None:
        """Serve exactly these models from now on. Returns at once; loading and unloading follow.

        All labels are replaced as well. A label may only name a version that is available at this moment;
        with `labels_for_unavailable`, here or for the manager, a label not used so far may name any.

        Raises:
            InvalidInput: a name twice, or a relative base path. Nothing changes.
            FailedPrecondition: a label for a version that is not available. Nothing changes.
        """
        with self._apply_lock:
            self._check(
                configs, labels_for_unavailable=labels_for_unavailable or self._labels_for_unavailable
            )
            models = dict(self._models)
            wanted = {config.name for config in configs}
            for name in models.keys() - wanted:
                models[name].configure(None, None)
            for config in configs:
                if config.name not in models:
                    models[config.name] = Model(config.name, self._load, self._options, self._notify)
                models[config.name].configure(Path(config.base_path), config.policy)
            self._models = models
            self._labels = {config.name: dict(config.labels) for config in configs}
            self._configs = tuple(configs)

    def use(self, name: str, version: int | None = None, label: str | None = None) -> InUse:
        """Return a loaded servable to enter at once: `with manager.use("census") as servable: ...`.

        It is counted, so it stays loaded until the block is left, even when its version is being unloaded.

        Raises:
            ServableNotFound: no such model, or the version is not available.
            UnknownLabel: the model has no such label.
        """
        if label is not None:
            labels = self._labels.get(name, {})
            if label not in labels:
                raise UnknownLabel(name, label, sorted(labels))
            version = labels[label]
        model = self._models.get(name)
        if model is None:
            raise ServableNotFound(name, version, None)
        return model.take(version)

    def status(self, name: str, version: int | None = None) -> list[VersionStatus]:
        """Return the states of all versions seen of a model, newest first, or of one version.

        Raises:
            NoVersions: none was ever seen.
        """
        model = self._models.get(name)
        statuses = [] if model is None else model.statuses()
        if version is not None:
            statuses = [status for status in statuses if status.version == version]
        if not statuses:
            raise NoVersions(name, version)
        return statuses

    def configs(self) -> tuple[ModelConfig, ...]:
        """Return what was applied last."""
        return self._configs

    def labels(self, name: str) -> Mapping[str, int]:
        """Return the labels of a model."""
        return self._labels.get(name, {})

    def available(self, name: str) -> list[int]:
        """Return the versions of a model that can be used now; empty for an unknown model."""
        model = self._models.get(name)
        return [] if model is None else model.available()

    def settled(self, names: Sequence[str]) -> bool:
        """Return whether each model has an available version, or has failed and will not be tried again."""
        return all(self._models[name].settled() for name in names if name in self._models)

    def failures(self, names: Sequence[str]) -> dict[tuple[str, int], str]:
        """Return why wanted versions failed to load, by (model, version), of the models that have none
        available."""
        failures: dict[tuple[str, int], str] = {}
        for name in names:
            if name in self._models and not self.available(name):
                failures |= self._models[name].failures()
        return failures

    def wait_for(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        """Block until the condition holds, looking at it after every change of any version; False: it took
        too long."""
        with self._changed:
            return self._changed.wait_for(condition, timeout)

    def close(self) -> None:
        """Unload everything, when the requests in flight have ended."""
        with self._apply_lock:
            for model in self._models.values():
                model.configure(None, None)
            for model in self._models.values():
                model.close()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _check(self, configs: Sequence[ModelConfig], *, labels_for_unavailable: bool) -> None:
        _check(configs)
        for config in configs:
            self._check_labels(config, labels_for_unavailable)

    def _check_labels(self, config: ModelConfig, labels_for_unavailable: bool) -> None:
        available = self.available(config.name)
        used = self._labels.get(config.name, {})
        for label, version in config.labels.items():
            unchanged_or_new = used.get(label, version) == version
            if version in available or (labels_for_unavailable and unchanged_or_new):
                continue
            raise FailedPrecondition(
                f"Request to assign label to version {version} of model {config.name}, which is not "
                f"currently available for inference. The label is '{label}'; available versions: "
                f"{', '.join(map(str, available)) or 'none'}. Load the version first, then move the label."
            )


def _check(configs: Sequence[ModelConfig]) -> None:
    names: set[str] = set()
    for config in configs:
        if config.name in names:
            raise InvalidInput(
                f"Duplicate model name in the configuration: '{config.name}'. Name each model once."
            )
        names.add(config.name)
        if not Path(config.base_path).is_absolute():
            raise InvalidInput(
                f"Expected model {config.name} to have an absolute path or URI; "
                f"got base_path()={config.base_path}"
            )
