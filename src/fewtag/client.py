"""A client of fewtag's HTTP API with only the standard library: the file can be copied into any project."""

import http.client
import json
import mimetypes
import secrets
import threading
import time
import uuid
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self, TypeVar
from urllib.parse import quote, urlencode, urlsplit

Picture = str | Path | bytes | tuple[str, bytes]
"""A file, its bytes, or its bytes with a name."""
Pictures = str | Path | bytes | Iterable[Picture]
"""One picture or many."""
_AT_ONCE, _BYTES_AT_ONCE = 64, 45_000_000
_CHANGE_NOTHING = frozenset({"/v1/tag", "/v1/explain", "/v1/search"})
_ENDED = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError)  # the second is raised by Windows
_LOST = (*_ENDED, http.client.IncompleteRead, http.client.CannotSendRequest)


class ApiError(Exception):
    """An error reply of the server; the message is its one sentence."""

    def __init__(self, status: int, detail: str) -> None:
        self.status, self.detail = status, detail
        super().__init__(f"{detail} ({status})")


@dataclass(frozen=True)
class Row:
    """A picture's tags, likeliest first, and every label's probability; or why it could not be read."""

    image: str
    digest: str = ""
    tags: tuple[str, ...] = ()
    scores: dict[str, float] = field(default_factory=dict)
    failure: str = ""


@dataclass(frozen=True)
class Label:
    """What a label means and its number of examples; the last three fields only in a project."""

    name: str
    means: str
    examples: int
    absent: int
    threshold: float | None
    prior: float | None
    trust: float | None
    tags: int | None = None
    waiting: int | None = None
    expected_precision: float | None = None


@dataclass(frozen=True)
class Job:
    """Work in progress on the server, or how it ended."""

    id: str
    kind: str
    state: Literal["running", "done", "failed", "cancelled"]
    done: int
    total: int
    detail: str
    result: Any


class Client:
    """A client of one server. Threads may share it: each has its own connection, until `close` or the end of a `with`.

    `patience` is for how many seconds requests to a busy server (503 with `Retry-After`) are repeated, at the intervals
    that it asks for.
    """

    def __init__(self, url: str, token: str = "", *, timeout: float = 120.0, patience: float = 60.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"{url!r} is no address of a server; give one such as http://127.0.0.1:8766")
        self.url, self._token, self._parts = url.rstrip("/"), token, parts
        self._prefix = parts.path.rstrip("/")  # for a server behind a reverse proxy
        self._timeout, self._patience = timeout, patience
        self._local, self._connections = threading.local(), weakref.WeakSet[http.client.HTTPConnection]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections of all threads; a later request opens a new one."""
        for connection in list(self._connections):
            connection.close()

    def health(self) -> bool:
        """Whether the server answers."""
        return self._says("/health", "status")

    def ready(self) -> bool:
        """Whether the server can tag yet."""
        return self._says("/ready", "ready")

    def tag(self, pictures: Pictures) -> list[Row]:
        """A row for each picture, in order; many are read and sent in several requests.

        A picture that cannot be read or is too large gets a row with its `failure`, as in `Tagger.tag`.
        """
        rows: list[Row] = []
        for some in _portions(pictures):
            sent = [each for each in some if isinstance(each[1], bytes)]
            try:
                found = iter(self._send_files("/v1/tag", sent)["rows"] if sent else ())
            except ApiError as error:
                if error.status != 413 or len(sent) > 1:
                    raise
                found = iter([{"failure": error.detail}])
            for name, data in some:
                row = next(found) if isinstance(data, bytes) else {"failure": data}
                rows.append(_known(Row, row | {"image": name}))
        return rows

    def tag_known(self, digests: Sequence[str]) -> list[Row]:
        """Rows for pictures that the server knows, by digest."""
        return [_known(Row, row) for row in self._ask("POST", "/v1/tag", {"pictures": list(digests)})["rows"]]

    def labels(self) -> list[Label]:
        return [_known(Label, label) for label in self._ask("GET", "/v1/labels")["labels"]]

    def define(self, name: str, *, like: Sequence[str] | None = None, words: bool = True) -> Label:
        """Define a label by its name, as like other words, or without words."""
        asked = {"name": name, "words": words} | ({} if like is None else {"like": list(like)})
        return _known(Label, self._ask("POST", "/v1/labels", asked))

    def teach(self, name: str, pictures: Pictures) -> Label:
        """Teach a known or new label of a bank with pictures that show it."""
        found = [self._send_files(f"{_label_path(name)}/examples", some) for some in _portions(pictures)]
        if not found:
            raise ValueError("there is no picture to learn from; give at least one")
        return _known(Label, found[-1])

    def teach_known(self, name: str, digests: Sequence[str]) -> Label:
        """Teach a label with pictures that the server knows, by digest."""
        return _known(Label, self._ask("POST", f"{_label_path(name)}/examples", {"pictures": list(digests)}))

    def rename(self, name: str, new: str, *, merge: bool = False) -> Label:
        """Rename a label; with `merge` the new name may be that of an existing label, into which it is merged."""
        return _known(Label, self._ask("PATCH", _label_path(name), {"name": new, "merge": merge}))

    def set_threshold(self, name: str, threshold: float | None) -> Label:
        """Set the probability from which a label is given; None restores the model's own threshold."""
        return _known(Label, self._ask("PATCH", _label_path(name), {"threshold": threshold}))

    def forget(self, name: str) -> None:
        self._ask("DELETE", _label_path(name))

    def answer(
        self,
        picture: str,
        label: str,
        answer: Literal["yes", "no", "unknown"],
        *,
        id: str | None = None,  # noqa: A002
    ) -> str:
        """Say whether a picture, by its digest, shows the label; returns the answer's id."""
        number = id or str(uuid.uuid4())
        asked = {"id": number, "picture": picture, "label": label, "answer": answer}
        return str(self._ask("POST", "/v1/answers", asked)["acknowledged"][0])

    def explain(self, picture: Picture, label: str) -> tuple[float, list[list[float]]]:
        """The label's probability, and how much each part of the picture supports it."""
        found = self._send_files("/v1/explain", [_named(picture, 1)], label=label)
        return found["probability"], found["heat"]

    def search(self, query: str = "", **options: Any) -> dict[str, Any]:
        """Search a project's pictures; returns the API's reply. `options` are like, box, offset, limit and stacked."""
        return self._ask("POST", "/v1/search", {"query": query, **options})

    def job(self, number: str) -> Job:
        return _known(Job, self._ask("GET", f"/v1/jobs/{quote(number, safe='')}"))

    def follow(self, number: str) -> Iterator[Job]:
        """The job at each of its steps, until it has ended; raises ConnectionError if the server ends before it."""
        path = f"{self._prefix}/v1/jobs/{quote(number, safe='')}/events"
        with closing(self._connect()) as connection:
            self._open(connection)
            connection.request("GET", path, headers=self._headers())
            response = connection.getresponse()
            if response.status != 200:
                raise _refused(response.status, response.read())
            for line in response:
                if line.startswith(b"data: "):
                    yield (job := _known(Job, json.loads(line[6:])))
                    if job.state != "running":
                        return
        raise ConnectionError(f"the server at {self.url} ended before the job {number}; start both again")

    def get(self, path: str, **query: Any) -> Any:
        """Request any other address of the API; returns JSON, or bytes."""
        return self._ask("GET", f"{path}?{urlencode(query)}" if query else path, raw=True)

    def post(self, path: str, asked: dict[str, Any]) -> Any:
        """Send any other request of the API."""
        return self._ask("POST", path, asked, raw=True)

    def _says(self, path: str, what: str) -> bool:
        """Whether a server is there and the field in its reply is true."""
        try:
            return bool(self._ask("GET", path, patience=0.0)[what])
        except (ApiError, OSError, http.client.HTTPException, KeyError, TypeError, ValueError):  # the last: a page
            return False

    def _send_files(self, path: str, files: Sequence[tuple[str, bytes | str]], **fields: str) -> Any:
        boundary = secrets.token_hex(16)
        parts: list[bytes] = []
        for name, value in fields.items():
            head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'
            parts += [head.encode(), value.encode(), b"\r\n"]
        for name, data in files:
            if isinstance(data, str):
                raise ValueError(data)
            kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
            # as browsers do; the rows get the name itself
            called = quote(Path(name).name, safe=" ()+,;=@[]{}~!#$&'^`|", errors="surrogateescape")
            head = f'--{boundary}\r\nContent-Disposition: form-data; name="files"; filename="{called}"\r\n'
            parts += [head.encode(), f"Content-Type: {kind}\r\n\r\n".encode(), data, b"\r\n"]
        parts.append(f"--{boundary}--\r\n".encode())
        return self._ask("POST", path, b"".join(parts), f"multipart/form-data; boundary={boundary}")

    def _ask(
        self,
        method: str,
        path: str,
        body: bytes | dict[str, Any] | None = None,
        kind: str = "application/json",
        *,
        patience: float | None = None,
        raw: bool = False,
    ) -> Any:
        """One request; a change carries an idempotency key, so that it is not done twice if its reply was lost.

        `raw` takes other replies than JSON, too.
        """
        content = json.dumps(body).encode() if isinstance(body, dict) else body
        headers = self._headers() | ({} if content is None else {"Content-Type": kind})
        if method != "GET" and path not in _CHANGE_NOTHING:
            headers["Idempotency-Key"] = str(uuid.uuid4())
        until = time.monotonic() + (self._patience if patience is None else patience)
        while True:
            status, reply, wait = self._request(method, path, content, headers)
            # a 503 without `Retry-After` is not a busy server, but a lasting problem
            if status != 503 or wait is None or time.monotonic() + wait > until:
                break
            time.sleep(wait)
        if status >= 400:
            raise _refused(status, reply)
        if not reply:
            return None
        if reply[:1] in b"{[":
            return json.loads(reply)
        if not raw:
            raise ConnectionError(f"no fewtag answers at {self.url}, but another program; check the address")
        return reply

    def _request(
        self, method: str, path: str, content: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes, float | None]:
        """Status, body, and how long to wait; if the connection ends before the reply, the request is repeated once.

        A reused connection does not count: the server may have closed it long ago.
        """
        repeated = False
        while True:
            connection = getattr(self._local, "connection", None) or self._connect()
            self._local.connection = connection
            fresh = connection.sock is None
            try:
                if fresh:
                    self._open(connection)
                with suppress(*(_ENDED if fresh else ())):  # refused before all of it was sent: the reply tells why
                    connection.request(method, self._prefix + path, content, headers)
                response = connection.getresponse()
                reply = response.read()
                if response.will_close:
                    connection.close()
                wait = response.headers.get("Retry-After", "")
                return response.status, reply, float(wait) if wait.isdecimal() else None  # a proxy may give a date
            except BaseException as error:
                connection.close()
                self._local.connection = None
                if repeated or not isinstance(error, _LOST):
                    raise
                repeated = fresh

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(str(self._parts.hostname), self._parts.port, timeout=self._timeout)
        self._connections.add(connection)
        return connection

    def _open(self, connection: http.client.HTTPConnection) -> None:
        try:
            connection.connect()
        except OSError as error:
            raise ConnectionError(
                f"no server answers at {self.url} ({error}); start it, or check the address"
            ) from error

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}


def _refused(status: int, reply: bytes) -> ApiError:
    try:
        detail = str(json.loads(reply)["detail"])
    except (ValueError, KeyError, TypeError):
        detail = reply[:200].decode("utf-8", "replace") or "the server gave no reason"
    return ApiError(status, detail)


def _named(picture: Picture, number: int) -> tuple[str, bytes | str]:
    """A picture's name with its bytes, or with the reason why it cannot be read."""
    if isinstance(picture, bytes):
        return f"number {number}", picture
    if isinstance(picture, tuple):
        return picture
    try:
        return str(picture), Path(picture).read_bytes()
    except (OSError, ValueError) as error:  # the second: a null character
        why = "there is no such file" if isinstance(error, FileNotFoundError) else getattr(error, "strerror", error)
        return str(picture), f"cannot read image {picture}: {why}; check the path"


def _portions(pictures: Pictures) -> Iterator[list[tuple[str, bytes | str]]]:
    """Portions of pictures that fit one request, read when it is their turn."""
    some: list[tuple[str, bytes | str]] = []
    for number, picture in enumerate([pictures] if isinstance(pictures, str | Path | bytes) else pictures, 1):
        each = _named(picture, number)
        if some and (len(some) == _AT_ONCE or sum(len(data) for _, data in some) + len(each[1]) > _BYTES_AT_ONCE):
            yield some
            some = []
        some.append(each)
    if some:
        yield some


Reply = TypeVar("Reply", Row, Label, Job)


def _known(kind: type[Reply], facts: dict[str, Any]) -> Reply:
    """A reply as a dataclass, without fields that only a newer server has."""
    known = {each.name: facts[each.name] for each in fields(kind) if each.name in facts}
    return kind(**known | ({"tags": tuple(known["tags"])} if isinstance(known.get("tags"), list) else {}))


def _label_path(name: str) -> str:
    return f"/v1/labels/{quote(name, safe='')}"
