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
from fewtag.errors import InputError
from fewtag.files import THUMBNAILS, digest
from fewtag.studio.project import Project

if TYPE_CHECKING:
    from fewtag.studio.studio import Studio

_TABLE = (
    "CREATE TABLE IF NOT EXISTS first (project TEXT, state TEXT, path TEXT, content BLOB, PRIMARY KEY (project, path))"
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


def write(studio: "Studio") -> None:
    """Keeps what a page that begins now would be answered; nothing where a label's scores are not worked out."""
    from fewtag.studio.values import as_json

    file, project = studio.indexer.thumbnails.path, studio.project
    try:
        bank, scores = studio.ranking.bank(), studio.ranking.scores
        if not file.exists() or not all(scores.is_fresh(bank, label) for label in bank.classes):
            return
        # as a studio says that was just started
        overview = replace(studio.overview(), indexing=True, notice=project.notice)
        replies = {"project": overview, "pictures": studio.search(), "labels": {"labels": studio.labels()}}
        whose = str(project.folder), _state_of(project)
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute(_TABLE)
            for name, value in replies.items():
                content = json.dumps(as_json(value), ensure_ascii=False, separators=(",", ":")).encode()
                connection.execute("INSERT OR REPLACE INTO first VALUES (?, ?, ?, ?)", (*whose, f"/v1/{name}", content))
    except (sqlite3.Error, InputError) as error:
        _log.warning("the first page cannot be kept in %s (%s); the next start shows it later", file, error)


def _state_of(project: Project) -> str:
    """A digest of all that the replies follow from: the log's end, settings, folders, files, model, this version."""
    own = [Path(project.meta(key) or "") for key in ("model", "words")]
    stamps = [(status.st_size, status.st_mtime_ns) for path in own if path.is_file() for status in [path.stat()]]
    rows = [project.select(query) for query in _STATE]
    return digest(fewtag.__version__, str(project.folder), repr(stamps), repr(rows))
