"""Pages that the server shows: the studio's, by a list of its files, and the API's own documentation."""

import html
import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
    ".webp": "image/webp",
    ".png": "image/png",
}


@cache
def page_files() -> dict[str, tuple[Path, str]]:
    """The studio's files by their names, with slashes, and what they are."""
    folder = Path(str(files("fewtag"))) / "studio" / "web"
    return {
        path.relative_to(folder).as_posix(): (path, TYPES[path.suffix])
        for path in sorted(folder.rglob("*"))
        if path.suffix in TYPES and path.is_file()
    }


def documentation(schema: dict[str, Any]) -> str:
    """The API as one page of plain HTML: no script, no style, nothing to load."""
    parts = [_text("p", paragraph) for paragraph in schema["info"]["description"].split("\n\n")]
    groups: dict[str, list[str]] = {}
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            said = _operation(method.upper(), path, operation)
            groups.setdefault(operation.get("tags", ["Others"])[0], []).append(said)
    for group, operations in groups.items():
        parts += [_text("h2", group), *operations]
    parts.append(_text("h2", "Schemas"))
    for name, each in schema["components"]["schemas"].items():
        parts.append(f"<details id={json.dumps(html.escape(name))}>{_text('summary', name)}{_code(each)}</details>")
    title = f"{schema['info']['title']} {schema['info']['version']}: HTTP API"
    head = f'<!doctype html><html lang="en"><meta charset="utf-8">{_text("title", title)}'
    return head + _text("h1", title) + "\n".join(parts) + "</html>"


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    parts = [_text("summary", f"{method} {path}")]
    parts += [_text("p", paragraph) for paragraph in operation.get("description", "").split("\n\n")]
    if parameters := operation.get("parameters"):
        parts += [_text("h4", "Parameters"), _code({each["name"]: each["schema"] for each in parameters})]
    if body := operation.get("requestBody"):
        parts += [_text("h4", "Request"), _code(body["content"])]
    replies = {code: reply.get("content", {}) for code, reply in operation["responses"].items() if code != "4XX"}
    parts += [_text("h4", "Replies"), _code(replies)]
    return f"<details>{''.join(parts)}</details>"


def _text(tag: str, text: str) -> str:
    return f"<{tag}>{html.escape(text)}</{tag}>"


def _code(value: Any) -> str:
    return _text("pre", json.dumps(value, indent=2, ensure_ascii=False))
