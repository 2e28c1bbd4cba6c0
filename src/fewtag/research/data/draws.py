"""Episodes kept in a file: a test protocol that names its pictures and its data set."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fewtag.errors import InputError
from fewtag.files import write_atomically
from fewtag.research.data.images import LabelledImages
from fewtag.research.data.sampling import Draw

_FORMAT = 1


def save_draws(
    path: Path,
    draws: Sequence[Draw],
    images: LabelledImages,
    *,
    split: str,
    phase: str,
    shots: int,
    queries: int,
    seed: int,
    sampling: str = "per-label",
) -> None:
    """Write the draws as JSON, a line each; readers see the old file or the new one, never a part."""
    header: dict[str, Any] = {
        "format": _FORMAT,
        "data": images.digest,
        "split": split,
        "phase": phase,
        "sampling": sampling,
        "shots": shots,
        "queries": queries,
        "seed": seed,
    }
    lines = [json.dumps({"support": _ids(images, draw.support), "query": _ids(images, draw.query)}) for draw in draws]
    text = json.dumps(header)[:-1] + ', "draws": [\n' + ",\n".join(lines) + "\n]}\n"
    write_atomically(path, text.encode())


def load_draws(path: Path, images: LabelledImages) -> list[Draw]:
    """Read draws of this very data set; those of another are refused."""
    content = _content(path)
    if content.get("data") != images.digest:
        raise InputError(
            f"the draws {path} are of another data set (its digest is {content.get('data')!r}, this one's "
            f"{images.digest!r}); load the data set, split and phase they were drawn from, or draw again"
        )
    return [_draw(path, number, raw, images) for number, raw in enumerate(content["draws"])]


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the draws {path}: {error.strerror}; check the path") from error
    except ValueError as error:
        raise InputError(f"the draws {path} are not valid JSON ({error}); draw again") from error
    if not isinstance(content, dict) or not isinstance(content.get("draws"), list):
        raise InputError(f'{path} is no file of draws: it has no list "draws"; check the path')
    if content.get("format") != _FORMAT:
        raise InputError(f"the draws {path} have format {content.get('format')!r}, known is {_FORMAT}; draw again")
    return content


def _ids(images: LabelledImages, rows: Sequence[int]) -> list[str]:
    return [images.ids[row] for row in rows]


def _draw(path: Path, number: int, raw: Any, images: LabelledImages) -> Draw:
    support, query = (_names(path, number, raw, key) for key in ("support", "query"))
    twice = [name for name, times in Counter(support + query).items() if times > 1]
    if twice:
        raise InputError(f"draw {number} of {path} uses image {twice[0]!r} twice; draw again")
    try:
        return Draw(support=tuple(images.rows(support)), query=tuple(images.rows(query)))
    except InputError as error:
        raise InputError(f"draw {number} of {path}: {error}") from error


def _names(path: Path, number: int, raw: Any, key: str) -> list[str]:
    names = raw.get(key) if isinstance(raw, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"draw {number} of {path} has no list of ids {key!r}; draw again")
    return names
