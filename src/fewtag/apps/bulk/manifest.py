"""What a folder of shards is about, so that a run goes on with its own and never mixes two."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewtag import __version__
from fewtag.apps.bulk.locations import is_url, local_path
from fewtag.errors import InputError

_SHOWN = {
    "fewtag": "another version of fewtag",
    "bank": "another bank",
    "source": "another SOURCE",
    "scores": "another --scores",
    "threshold": "another --threshold",
    "shard": "another --shard",
}


@dataclass(frozen=True)
class Options:
    """What decides the rows; pictures in the network at once; how often a shard may cost its worker the life."""

    scores: bool = False
    threshold: float | None = None
    batch: int = 32
    deaths: int = 3


def everywhere(location: str) -> str:
    """The same place wherever it is named from: paths in full, URLs without a last slash."""
    path = local_path(location)
    return location.rstrip("/") if path is None or is_url(path) else str(Path(path).resolve())


def describe(bank: bytes, source: str, options: Options) -> dict[str, Any]:
    """All that decides what is in the rows."""
    return {
        "fewtag": __version__,
        "bank": hashlib.sha256(bank).hexdigest(),
        "source": everywhere(source),
        "scores": options.scores,
        "threshold": options.threshold,
    }


def check_same(before: Mapping[str, Any], now: Mapping[str, Any], out: str) -> None:
    """Refuses to go on with what another command began, and says what differs."""
    differs = [key for key in _SHOWN if before.get(key) != now.get(key)]
    if not differs:
        return
    was = ", ".join(f"{_SHOWN[key]}{_values(before.get(key), now.get(key), key)}" for key in differs)
    raise InputError(f"--out {out} was begun with {was}; name another --out, or delete this one to begin anew")


def _values(before: object, now: object, key: str) -> str:
    """A digest tells a person nothing."""
    return "" if key == "bank" else f" ({_value(before)}, now {_value(now)})"


def _value(value: object) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
