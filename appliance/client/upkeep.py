"""What the client may ask about the files of versions: are they as published, which are kept."""

from __future__ import annotations

from appliance.client.results import Removed, Retention, Verification, parse
from appliance.client.transport import Sender, segment

_API = "/api/v1"
_LONG_SECONDS = 3600.0
"""Reading all files of a model takes its time."""


class UpkeepCalls:
    """The calls of a client that are about the files of versions."""

    _transport: Sender

    def verify(self, model: str, version: int | None = None) -> list[Verification]:
        """Have the files of a version, or of all that are ready, compared with what was published."""
        path = f"{_API}/models/{segment(model)}/verification"
        found = self._transport.get(path, version=version, timeout_seconds=_LONG_SECONDS)["versions"]
        return [parse(Verification, entry) for entry in found]

    def retention(self, model: str) -> Retention:
        """Return which versions of a model `gc` keeps."""
        return parse(Retention, self._transport.get(f"{_API}/models/{segment(model)}/retention"))

    def set_retention(self, model: str, *, keep_last: int | None, keep_production: bool = True) -> Retention:
        """Say which versions of a model `gc` keeps.

        Args:
            model: the model.
            keep_last: how many of the newest ready versions; None: all.
            keep_production: whether all that ever were in production are kept.
        """
        body = {"keep_last": keep_last, "keep_production": keep_production}
        return parse(
            Retention, self._transport.send("PUT", f"{_API}/models/{segment(model)}/retention", body)
        )

    def gc(self, *, dry_run: bool = False) -> list[Removed]:
        """Delete what the retention policies let go, and remove files that nobody can use.

        Args:
            dry_run: remove nothing, and return what would be removed.
        """
        body = {"dry_run": dry_run}
        answer = self._transport.send("POST", f"{_API}/gc", body, timeout_seconds=_LONG_SECONDS)
        return [parse(Removed, entry) for entry in answer["removed"]]
