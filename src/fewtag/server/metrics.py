"""Prometheus metrics of one server: requests, pictures, batches, the queue."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import Scope

_SECONDS = (0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class Metrics:
    """In a registry of their own: two servers in one process do not add up."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        here = self.registry
        self._requests = Counter("fewtag_requests", "Requests answered.", ["method", "route", "status"], registry=here)
        self._seconds = Histogram(
            "fewtag_request_seconds",
            "From head of request to end of reply.",
            ["route"],
            buckets=_SECONDS,
            registry=here,
        )
        self.pictures = Counter("fewtag_pictures", "Pictures tagged, or failed.", ["outcome"], registry=here)
        self.batches = Histogram(
            "fewtag_batch_pictures", "Pictures in the network at once.", buckets=(1, 2, 4, 8, 16, 32), registry=here
        )

    def watch(self, name: str, help_text: str, value: Callable[[], float]) -> None:
        """A number that is looked up when it is asked for."""
        Gauge(name, help_text, registry=self.registry).set_function(value)

    def observe(self, scope: Scope, status: int, seconds: float) -> None:
        """Routes by their pattern, methods by the five in use: strangers cannot make up new rows."""
        route = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in {"GET", "HEAD", "POST", "PATCH", "DELETE"} else "other"
        self._requests.labels(method, route, str(status)).inc()
        if not route.endswith("/events"):  # which last as long as their page is open
            self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)
