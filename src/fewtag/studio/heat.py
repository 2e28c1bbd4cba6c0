"""Heat-maps of where labels are seen in a picture, by occlusion of its parts."""

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
from numpy.typing import NDArray

from fewtag.core.posterior import Classifiers
from fewtag.pictures.decode import webp
from fewtag.studio.ranking import Ranking
from fewtag.studio.values import Explanation
from fewtag.tagger.explain import glance, heat_map, hide_parts, layer

_KEPT = 8
"""The most recent pictures whose features are kept, so that their heat-maps come at once."""
_CHECK_SECONDS = 0.25
Check = Callable[[], object]
"""Called periodically while waiting for a map; an exception ends the wait."""


class Heat:
    """The places of pictures with a part hidden, computed in a thread once for all labels."""

    def __init__(self, ranking: Ranking) -> None:
        self._ranking, self._library, self._model = ranking, ranking.library, ranking.model
        self._thread, self._lock = ThreadPoolExecutor(1, "fewtag-heat"), threading.Lock()
        self._hidden_places: OrderedDict[str, Future[NDArray[np.float32]]] = OrderedDict()
        self._waiting: Counter[str] = Counter()

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def begin(self, digest: str) -> None:
        """Starts on a picture before somebody asks for its map, unless others are being computed."""
        if all(each.done() for each in list(self._hidden_places.values())):
            self._hidden(digest)

    def heat(self, digest: str, label: str, *, at_once: bool = False, check: Check = lambda: None) -> bytes:
        """A WebP overlay with alpha, at most 512 pixels; with `at_once` a quick estimate until the map is ready."""
        row = self._library.row(digest)
        facts = self._library.pictures[row]
        scale = min(1.0, 512 / max(facts.width, facts.height))
        size = max(1, round(facts.width * scale)), max(1, round(facts.height * scale))
        places = self._library.features.places(row) if at_once and not self._hidden(digest).done() else None
        if places is None:
            heat = heat_map(*self._explained(digest, label, check), size)
        else:
            scored = self._ranking.scored(label, np.array([row]))
            heat = glance(places, scored.fitted.prototype, float(scored.chances[row]), size)
        return webp(layer(heat), quick=True)

    def explain(self, digest: str, label: str) -> Explanation:
        """Which parts of a picture a label depends on."""
        return Explanation.of(*self._explained(digest, label, lambda: None))

    def _explained(self, digest: str, label: str, check: Check) -> tuple[NDArray[np.float32], float]:
        """A label's log-odds for the picture and for its copies with a part hidden, and its probability."""
        row = self._library.row(digest)
        places = self._awaited(digest, check)
        scored = self._ranking.scored(label, np.array([row]))
        logits = Classifiers.of([scored.fitted]).logits(places, self._model.strengths)[:, 0]
        return scored.slope * logits + scored.offset, float(scored.chances[row])

    def _awaited(self, digest: str, check: Check) -> NDArray[np.float32]:
        with self._lock:
            self._waiting[digest] += 1
        try:
            future = self._hidden(digest)
            while wait([future], _CHECK_SECONDS).not_done:
                check()
            return future.result()
        finally:
            with self._lock:
                self._waiting[digest] -= 1
                if not self._waiting[digest]:
                    del self._waiting[digest]

    def _hidden(self, digest: str) -> Future[NDArray[np.float32]]:
        with self._lock:
            found = self._hidden_places.pop(digest, None)
            if found is None or found.cancelled() or (found.done() and found.exception() is not None):
                for other in self._unwanted():  # those that have not started, and that nobody waits for
                    if self._hidden_places[other].cancel():
                        del self._hidden_places[other]
                read = self._ranking.indexer.square
                found = self._thread.submit(lambda: self._model.encode(hide_parts(read(digest))))
            self._hidden_places[digest] = found
            for other in self._unwanted()[: max(0, len(self._hidden_places) - _KEPT)]:
                if other != digest:
                    self._hidden_places.pop(other).cancel()
        return found

    def _unwanted(self) -> list[str]:
        """Pictures whose map nobody waits for now, the least recently viewed first."""
        return [each for each in self._hidden_places if not self._waiting[each]]
