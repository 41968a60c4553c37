"""The client: jobs, the registry and predictions of one appliance."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from appliance.client import predictions
from appliance.client.errors import ConnectionFailed, InvalidBundle, InvalidRequest
from appliance.client.registry import API, RegistryCalls
from appliance.client.results import Event, Job, LogLine, parse
from appliance.client.transport import Sender, Transport, default_actor, segment
from appliance.client.upkeep import UpkeepCalls
from appliance.client.webhooks import WebhookCalls

log = logging.getLogger(__name__)

DEFAULT_URL = "http://127.0.0.1:8501"
_LONG_POLL_SECONDS = 10.0
"""How long the server may hold a request for news of a job."""
_UPLOAD_SECONDS = 600.0


class Client(RegistryCalls, UpkeepCalls, WebhookCalls):
    """What one may ask of an appliance, over HTTP.

    Every method raises an error of `appliance.client.errors`. A client may be shared between threads.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout_seconds: float = 60.0,
        actor: str | None = None,
    ) -> None:
        """Take where the gateway is; nothing is sent yet.

        Args:
            url: `http://host:port`; by default `APPLIANCE_URL`, or this machine's port 8501.
            token: the bearer token; by default `APPLIANCE_TOKEN`, or none.
            timeout_seconds: how long to wait for an answer.
            actor: who acts, for the history; by default user and host.
        """
        self._transport: Sender = Transport(
            url if url is not None else os.environ.get("APPLIANCE_URL") or DEFAULT_URL,
            token if token is not None else os.environ.get("APPLIANCE_TOKEN", ""),
            timeout_seconds,
            actor if actor is not None else default_actor(),
        )
        self._timeout_seconds = timeout_seconds

    @classmethod
    def over(cls, transport: Sender, *, timeout_seconds: float = 60.0) -> Self:
        """Return a client that sends through `transport`, whatever is behind it."""
        client = cls.__new__(cls)
        client._transport, client._timeout_seconds = transport, timeout_seconds
        return client

    @property
    def url(self) -> str:
        """Where the gateway is."""
        return self._transport.url

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def health(self) -> Mapping[str, Any]:
        """Return the server's word on its own health."""
        return self._transport.get(f"{API}/health")

    def serving(self) -> Mapping[str, Any]:
        """Return what is wanted of serving and what each gateway says it serves."""
        return self._transport.get(f"{API}/serving")

    # Jobs

    def submit(
        self,
        file: str | os.PathLike[str],
        *,
        model: str | None = None,
        promote: str | None = None,
        params: Mapping[str, Any] | None = None,
        run_config: Mapping[str, int] | None = None,
        function: str = "experiment",
        name: str = "",
    ) -> Job:
        """Send the folder around `file` and queue a job that runs the experiment in it.

        Args:
            file: a Python file with a function `experiment(run_config, params) -> Experiment`.
            model: the name to register the result under; None: it is not registered.
            promote: the label to move to the registered version; None: none.
            params: what the function gets; values that JSON can carry.
            run_config: fields of the RunConfig, `save_checkpoints_steps` for instance.
            function: the function's name.
            name: what people call the job; by default the model's name.

        Raises:
            InvalidBundle: there is no such file, or its folder is too large.
            InvalidRequest: an argument that no job can have.
        """
        from appliance.bundle import BundleError, make_bundle

        for argument, value in (("params", params), ("run_config", run_config)):
            if not isinstance(value, Mapping | type(None)):
                raise InvalidRequest(
                    f"Cannot submit the job: {argument} must be a mapping. Received: {value!r:.200}.",
                    "invalid_job",
                )
        try:
            bundle = make_bundle(file)
        except BundleError as error:
            raise InvalidBundle(str(error), "invalid_bundle") from error
        for path, reason in bundle.skipped:
            log.warning("Left out of the bundle: %s (%s).", path, reason)
        spec = {
            "file": bundle.entry,
            "function": function,
            "name": name,
            "params": dict(params or {}),
            "run_config": dict(run_config or {}),
            "model": model,
            "promote": promote,
            "source_revision": bundle.source_revision,
        }
        answer = self._transport.upload(f"{API}/jobs", spec, bundle.data, timeout_seconds=_UPLOAD_SECONDS)
        return parse(Job, answer)

    def jobs(self, *, state: str | None = None, limit: int | None = None) -> list[Job]:
        """Return the jobs, newest first."""
        return [
            parse(Job, entry)
            for entry in self._transport.get(f"{API}/jobs", state=state, limit=limit)["jobs"]
        ]

    def job(self, job: str | Job) -> Job:
        """Return a job as it is now."""
        return parse(Job, self._transport.get(_job_path(job)))

    def cancel(self, job: str | Job) -> Job:
        """Ask a job to stop: it writes a checkpoint and ends."""
        return parse(Job, self._transport.send("POST", _job_path(job) + "/cancel"))

    def logs(self, job: str | Job, *, follow: bool = False, after: int = 0) -> Iterator[LogLine]:
        """Yield what the job printed; with `follow` until it has ended."""
        return (parse(LogLine, line) for line in self._read(job, "logs", after, follow=follow))

    def events(self, job: str | Job, *, follow: bool = False, after: int = 0) -> Iterator[Event]:
        """Yield what happened in the job; with `follow` until it has ended."""
        return (parse(Event, event) for event in self._read(job, "events", after, follow=follow))

    def watch(
        self,
        job: str | Job,
        *,
        show: str = "auto",
        on_event: Callable[[Event], None] | None = None,
    ) -> Job:
        """Show the progress of a job until it has ended, and return it as it ended.

        Args:
            job: the job, or its id.
            show: `bar` (a progress bar), `lines` (a line an event), `none`, or `auto`: a bar on a terminal,
                else lines.
            on_event: called with each event.
        """
        from appliance.client.progress import progress_display

        name = _id_of(job)
        with progress_display(name, show) as display:
            for event in self.events(name, follow=True):
                display(event)
                if on_event is not None:
                    on_event(event)
        return self.job(name)

    def _read(self, job: str | Job, what: str, after: int, *, follow: bool) -> Iterator[Mapping[str, Any]]:
        """Yield the rows of a job's log or events, page by page."""
        unreachable_since: float | None = None
        while True:
            try:
                page = self._transport.get(
                    f"{_job_path(job)}/{what}",
                    after=after,
                    wait_seconds=_LONG_POLL_SECONDS if follow else None,
                )
            except ConnectionFailed:
                # A gateway that restarts is back within seconds; the job itself goes on without it.
                unreachable_since = unreachable_since or time.monotonic()
                if not follow or time.monotonic() - unreachable_since > self._timeout_seconds:
                    raise
                time.sleep(0.5)
                continue
            unreachable_since = None
            yield from page["rows"]
            if page["rows"]:
                after = page["rows"][-1]["number"]
            elif page["done"] or not follow:
                return

    # Predictions

    def predict(
        self,
        model: str,
        *,
        instances: Any = None,
        inputs: Any = None,
        version: int | None = None,
        label: str | None = None,
        signature_name: str | None = None,
    ) -> Any:
        """Return the model's predictions, as an array, or as a dict of arrays when there are several outputs.

        Args:
            model: the model.
            instances: rows: a list of values or of objects by input name.
            inputs: columns: one array, or arrays by input name. Exactly one of the two is given.
            version: the version's number; by default the one behind `label`.
            label: the label; by default `production`.
            signature_name: the signature; by default `serving_default`.
        """
        path = predictions.path_of(model, version, label)
        body = predictions.body_of(instances, inputs, signature_name)
        return predictions.from_json(self._transport.send("POST", path, body))


def _id_of(job: str | Job) -> str:
    return job.id if isinstance(job, Job) else job


def _job_path(job: str | Job) -> str:
    return f"{API}/jobs/{segment(_id_of(job))}"
