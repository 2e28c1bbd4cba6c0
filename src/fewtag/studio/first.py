"""The page's first replies, cached from one session to the next: what it shows while the project is being opened.

A studio that is closed writes down what it would answer to a page that begins now, beside its thumbnails, and of which
state of the project that is so. The next one answers with it for as long as it takes to open a project of the same
state; of any other state nothing is told. No array is needed for that, and nothing is imported that makes some.
"""

import json
import logging
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import fewtag
from fewtag.files import THUMBNAILS, digest
from fewtag.studio.project import Project

if TYPE_CHECKING:
    from fewtag.studio.studio import Studio

_TABLE = (
    "CREATE TABLE IF NOT EXISTS first (project TEXT, path TEXT, state TEXT, content BLOB, PRIMARY KEY (project, path))"
)
_STATE = (
    "SELECT n, op FROM change ORDER BY n DESC LIMIT 1",
    "SELECT key, value FROM meta ORDER BY key",
    "SELECT path FROM folder ORDER BY rowid",
    "SELECT count(*), max(rowid) FROM picture",
    # a row that is replaced has another number, or, if it was the last, another size, time or outcome
    "SELECT count(*), max(rowid), count(digest), sum(size), sum(mtime % 1000000007) FROM file",
)
_log = logging.getLogger(__name__)


def read(
    project: Project, cache: Path, folders: Sequence[str] = (), model: str | None = None, words: str | None = None
) -> dict[str, bytes]:
    """Replies by the address that they answer; none where the project is not as it was, or opened with other things."""
    if {*folders} - {*project.folders()}:
        return {}
    if any(given not in {None, project.meta(key)} for key, given in (("model", model), ("words", words))):
        return {}
    try:
        with closing(sqlite3.connect(f"{(cache / THUMBNAILS).as_uri()}?mode=ro", uri=True)) as connection:
            query = "SELECT path, content FROM first WHERE project = ? AND state = ?"
            found = dict(connection.execute(query, (str(project.folder), _state_of(project))))
            shown = [cell["digest"] for cell in json.loads(found["/v1/pictures"])["pictures"]] if found else []
            query = (
                f"SELECT digest, content FROM thumbnail WHERE size = 256 AND digest IN ({','.join('?' * len(shown))})"
            )
            small = connection.execute(query, shown).fetchall()
    except (sqlite3.Error, ValueError, LookupError, TypeError):  # never kept, cleared, or damaged: made anew at the end
        return {}
    return found | {f"/v1/pictures/{picture}/thumbnail?size=256": content for picture, content in small}


def write(studio: "Studio", cache: Path) -> None:
    """Keeps what a page that begins now would be answered; nothing where a label's scores are not worked out."""
    if not studio.settled or not (cache / THUMBNAILS).exists():
        return
    project = studio.project
    # as a studio says that was just started
    overview = replace(studio.overview(), indexing=True, notice=project.notice)
    said = {"project": overview, "pictures": studio.search(), "labels": {"labels": studio.labels()}}
    from fewtag.studio.values import as_json

    state, folder = _state_of(project), str(project.folder)
    rows = [
        (folder, f"/v1/{name}", state, json.dumps(as_json(value), ensure_ascii=False, separators=(",", ":")).encode())
        for name, value in said.items()
    ]
    try:
        with closing(sqlite3.connect(cache / THUMBNAILS)) as connection, connection:
            connection.execute(_TABLE)
            connection.executemany("INSERT OR REPLACE INTO first VALUES (?, ?, ?, ?)", rows)
    except sqlite3.Error as error:
        _log.warning("the first page cannot be kept in %s (%s); the next start shows it later", cache, error)


def _state_of(project: Project) -> str:
    """A digest of all that the replies follow from: the log's end, settings, folders, files, model, this version."""
    own = [Path(project.meta(key) or "") for key in ("model", "words")]
    stamps = [(status.st_size, status.st_mtime_ns) for path in own if path.is_file() for status in [path.stat()]]
    rows = [project.select(query) for query in _STATE]
    return digest(fewtag.__version__, str(project.folder), repr(stamps), repr(rows))
