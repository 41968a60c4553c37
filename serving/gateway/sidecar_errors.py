"""What the gateway says when the model server behind it lets it down."""

from __future__ import annotations

from serving.errors import Code, ServingError


class SidecarUnreachable(ServingError):
    """The model server behind the gateway does not answer."""

    code = Code.UNAVAILABLE

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"The model server behind this gateway does not answer: {self.problem} "
            "Try again; the gateway keeps looking for it."
        )


class SidecarTooSlow(SidecarUnreachable):
    """The model server took too long."""

    code = Code.DEADLINE_EXCEEDED


class SidecarLost(ServingError):
    """The model server no longer has a version that it had: it has restarted."""

    code = Code.UNAVAILABLE

    def __str__(self) -> str:
        return "The model server behind this gateway has restarted and is loading its models. Try again."


def is_lost(error: str) -> bool:
    """Return whether an error text says that the version is not there (a model may say NOT_FOUND itself)."""
    return "Servable not found for request" in error
