"""Jobs over HTTP: submit, list, follow, cancel."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from appliance.api.access import actor_of
from appliance.api.errors import BundleNotKept
from appliance.api.models import JobRequest, job_json, plain
from appliance.bundle import check_bundle
from appliance.trainer.job import JobFolder, JobSpec, JobState, new_job_id
from appliance.trainer.jobs import JobStore

PAGE = 1000
"""Most rows of a log or of events in one answer."""
POLL_SECONDS = 0.2
"""How often a waiting request looks for news."""

After = Annotated[int, Query(ge=0, lt=2**31, description="only rows with a greater number")]
Wait = Annotated[float, Query(ge=0, le=30, description="how long to wait for the first such row, in seconds")]


def jobs_router(jobs: JobStore, jobs_root: Path) -> APIRouter:
    """Return the routes of jobs."""
    router = APIRouter(prefix="/jobs")

    @router.post("", status_code=201)
    async def submit(request: Request) -> dict[str, Any]:
        """Queue a job: a form of `spec` (JSON) and `bundle` (tar.gz)."""
        async with request.form(max_files=1, max_fields=1, max_part_size=1 << 20) as form:
            spec, upload = form.get("spec"), form.get("bundle")
            if not isinstance(spec, str) or not isinstance(upload, UploadFile):
                raise HTTPException(
                    422, "Send a form with the field 'spec' (JSON) and the file 'bundle' (tar.gz)."
                )
            checked = _spec_of(spec, actor_of(request))
            job = await run_in_threadpool(_take_in, jobs, jobs_root, checked, upload)
        return job_json(job)

    @router.get("")
    def list_jobs(state: JobState | None = None, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Any:
        """Return jobs, newest first."""
        return {"jobs": [job_json(job) for job in jobs.list(state=state, limit=limit)]}

    @router.get("/{job}")
    def get_job(job: str) -> Any:
        """Return a job."""
        return job_json(jobs.get(job))

    @router.post("/{job}/cancel")
    def cancel(job: str) -> Any:
        """Ask a job to stop."""
        return job_json(jobs.request_cancel(job))

    @router.get("/{job}/logs")
    async def logs(job: str, after: After = 0, wait_seconds: Wait = 0.0) -> Any:
        """Return lines of the log."""
        return await _page(jobs, job, lambda: jobs.logs(job, after, PAGE), wait_seconds)

    @router.get("/{job}/events")
    async def events(job: str, after: After = 0, wait_seconds: Wait = 0.0) -> Any:
        """Return events."""
        return await _page(jobs, job, lambda: jobs.events(job, after, PAGE), wait_seconds)

    return router


def _spec_of(text: str, actor: str) -> JobSpec:
    try:
        request = JobRequest.model_validate_json(text)
    except ValidationError as error:
        raise HTTPException(422, "Cannot read the spec: " + describe_validation(error)) from error
    return JobSpec(**request.model_dump(), submitted_by=actor)


def describe_validation(error: Any) -> str:
    """Return what is wrong with a body, in one line: the place of each mistake and its reason."""
    found = error.errors()
    return "; ".join(f"{'.'.join(map(str, entry['loc'])) or 'body'}: {entry['msg']}" for entry in found) + "."


def _take_in(jobs: JobStore, jobs_root: Path, spec: JobSpec, upload: UploadFile) -> Any:
    """Store the bundle in the job's folder, then queue the job; a refused bundle leaves nothing.

    Raises:
        BundleNotKept: the folder cannot be written.
    """
    name = new_job_id(spec.name)
    folder = JobFolder(jobs_root / name)
    try:
        try:
            folder.root.mkdir(parents=True)
            with folder.bundle.open("wb") as target:
                shutil.copyfileobj(upload.file, target)
        except OSError as error:
            raise BundleNotKept(str(jobs_root), error.strerror or str(error)) from error
        check_bundle(folder.bundle, spec.file)
        return jobs.submit(spec, job=name)
    except BaseException:
        shutil.rmtree(folder.root, ignore_errors=True)
        raise


async def _page(
    jobs: JobStore, job: str, read: Callable[[], Sequence[Any]], wait_seconds: float
) -> dict[str, Any]:
    """Return rows, waiting for the first; `done` says that the job had ended before they were read."""
    deadline = time.monotonic() + wait_seconds
    while True:
        ended = (await run_in_threadpool(jobs.get, job)).ended
        rows = await run_in_threadpool(read)
        if rows or ended or time.monotonic() >= deadline:
            return {"rows": [plain(vars(row)) for row in rows], "done": ended}
        await asyncio.sleep(POLL_SECONDS)
