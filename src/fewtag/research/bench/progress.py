"""How long work tells of itself, without knowing who listens."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class Reporter(Protocol):
    """Told of the work as it goes on; the command line draws bars of it."""

    def start(self, task: str, total: int) -> None: ...

    def advance(self, count: int = 1, **facts: float) -> None: ...


class Silent:
    """Says nothing."""

    def start(self, task: str, total: int) -> None: ...

    def advance(self, count: int = 1, **facts: float) -> None: ...
