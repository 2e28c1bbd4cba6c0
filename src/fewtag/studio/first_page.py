"""The first replies to a page, cached between sessions, which it shows while the project is being opened.

When a studio is closed, it stores, beside its thumbnails, what it would reply to a page that starts now, with a digest
of the project's state. The next one replies with that until the project is open, provided that its state is the same;
otherwise nothing is shown. This needs no arrays, and imports nothing that does.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import fewtag
from fewtag.cache import Blobs, Cache, content_digest
from fewtag.errors import InputError
from fewtag.studio.project import Project

if TYPE_CHECKING:
    from fewtag.studio.studio import Studio

_STATE = (
    "SELECT n, op FROM change ORDER BY n DESC LIMIT 1",
    "SELECT key, value FROM meta ORDER BY key",
    "SELECT path FROM folder ORDER BY rowid",
    "SELECT count(*), max(rowid) FROM picture",
    # a row that is replaced gets another rowid or, if it was the last, another size, time or outcome
    "SELECT count(*), max(rowid), count(digest), sum(size), sum(mtime % 1000000007) FROM file",
)
_log = logging.getLogger(__name__)


def read(
    project: Project, cache: Path, folders: Sequence[str] = (), model: str | None = None, words: str | None = None
) -> dict[str, bytes]:
    """The stored replies by address; empty if the project has changed since, or is opened with other settings."""
    if {*folders} - {*project.folders()}:
        return {}
    if any(given not in {None, project.meta(key)} for key, given in (("model", model), ("words", words))):
        return {}
    with Cache(cache, private=True) as kept:
        key = _key(project)
        replies = json.loads(_replies(kept, project).get_bytes([key]).get(key, b"{}"))
        shown = [bytes.fromhex(cell["digest"]) for cell in replies["/v1/pictures"]["pictures"]] if replies else []
        small = thumbnails(kept, 256).get_bytes(shown)
    texts = {path: json.dumps(each, ensure_ascii=False, separators=(",", ":")) for path, each in replies.items()}
    found = {path: text.encode() for path, text in texts.items()}
    return found | {f"/v1/pictures/{picture.hex()}/thumbnail?size=256": content for picture, content in small.items()}


def write(studio: "Studio") -> None:
    """Stores what a page that starts now would be sent; nothing if the scores of a label are not up to date."""
    from fewtag.studio.values import as_json

    project, cache = studio.project, studio.indexer.private
    try:
        studio.ranking.catch_up()
        bank, scores = studio.ranking.bank(), studio.ranking.scores
        if not cache.path.exists() or not all(scores.is_fresh(bank, label) for label in bank.classes):
            return
        # with the facts of a studio that has just been started
        overview = replace(studio.overview(), indexing=True, notice=project.notice, files=1)
        replies = {"project": overview, "pictures": studio.search(), "labels": {"labels": studio.labels()}}
        content = json.dumps({f"/v1/{name}": as_json(reply) for name, reply in replies.items()})
        with cache:
            kept = _replies(cache, project)
            kept.clear()
            kept.put_bytes({_key(project): content.encode()})
    except InputError as error:
        _log.warning("the first page cannot be kept (%s); the next start shows it later", error)


def thumbnails(cache: Cache, size: int) -> Blobs:
    """WebP copies of so many pixels, by the digests of their pictures."""
    return Blobs(cache, "thumbnails", f"{size} pixels", str(size))


def _replies(cache: Cache, project: Project) -> Blobs:
    """The stored replies: one row, for the state in which the project was closed."""
    return Blobs(cache, "first page", f"of project {project.folder.name}", str(project.folder))


def _key(project: Project) -> bytes:
    """A digest of all that the replies depend on: the end of the log, settings, folders, files, model, this version."""
    own = [Path(project.meta(key) or "") for key in ("model", "words")]
    stamps = [(status.st_size, status.st_mtime_ns) for path in own if path.is_file() for status in [path.stat()]]
    rows = [project.select(query) for query in _STATE]
    return content_digest(repr((fewtag.__version__, stamps, rows)).encode())
