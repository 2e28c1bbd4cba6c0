"""A split's JSON, read and checked: what `Split` is made from."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from fewtag.errors import InputError, nearest

_KEYS = ("name", "groups", "phases", "words", "aliases")
_RULES = ("labels", "must_not_show", "must_show")


@dataclass(frozen=True)
class Content:
    """A valid split file: groups are disjoint and not empty, and every name in it refers to something."""

    name: str
    groups: dict[str, list[str]]
    phases: dict[str, dict[str, list[str]]]
    words: dict[str, str]
    aliases: dict[str, str]


def load_content(name_or_path: str) -> Content:
    """Read a packaged split by name, or a file by path (something with a folder or an ending in it)."""
    folder = resources.files("fewtag.research.data") / "splits"
    packaged = {Path(file.name).stem: file for file in folder.iterdir() if file.name.endswith(".json")}
    if name_or_path in packaged:
        return parse_content(packaged[name_or_path].read_text(encoding="utf-8"), name_or_path)
    path = Path(name_or_path)
    if path.suffix != ".json" and not path.is_file():
        raise InputError(
            f"there is no split {name_or_path!r}, and no such file; {nearest(name_or_path, packaged)} "
            "or give the path of a .json file"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the split {path} ({error}); check the path") from error
    return parse_content(text, str(path))


def parse_content(text: str, source: str) -> Content:
    """Check a split's JSON; `source` is for messages."""
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise InputError(f"the split {source} is not valid JSON ({error}); mend it there") from error
    if not isinstance(raw, dict):
        raise InputError(f'the split {source} is no JSON object; it needs "name", "groups" and "phases"')
    _refuse_unknown(raw, _KEYS, f"the split {source} has an unknown key")
    name = raw.get("name")
    if not isinstance(name, str) or not name:
        raise InputError(f'the split {source} has no "name"; give it one')
    groups = _groups(raw.get("groups"), source)
    labels = [label for group in groups.values() for label in group]
    words = _names(raw.get("words", {}), "words", source)
    _refuse_unknown(words, labels, f'"words" of the split {source} has an unknown label')
    aliases = _names(raw.get("aliases", {}), "aliases", source)
    _refuse_unknown(aliases.values(), labels, f'"aliases" of the split {source} leads to an unknown label')
    clash = sorted(aliases.keys() & set(labels))
    if clash:
        raise InputError(f"the split {source} has {clash[0]!r} both as a label and as an alias; remove one")
    return Content(name, groups, _phases(raw.get("phases"), groups, source), words, aliases)


def _groups(raw: Any, source: str) -> dict[str, list[str]]:
    if not isinstance(raw, dict) or not raw:
        raise InputError(f'the split {source} has no "groups"; name at least one group of labels')
    home: dict[str, str] = {}
    for group, labels in raw.items():
        if not _is_list_of_names(labels):
            raise InputError(f"group {group!r} of the split {source} is no list of labels, or empty; list its labels")
        for label in labels:
            if label in home:
                raise InputError(
                    f"the split {source} has label {label!r} in group {home[label]!r} and again in {group!r}; "
                    "a label belongs to one group, once"
                )
            home[label] = group
    return raw


def _phases(raw: Any, groups: Mapping[str, list[str]], source: str) -> dict[str, dict[str, list[str]]]:
    if not isinstance(raw, dict) or not raw:
        raise InputError(f'the split {source} has no "phases"; name at least one')
    for phase, rule in raw.items():
        where = f"phase {phase!r} of the split {source}"
        if not isinstance(rule, dict) or "labels" not in rule:
            raise InputError(f'{where} has no "labels"; name the groups it uses')
        _refuse_unknown(rule, _RULES, f"{where} has an unknown key")
        for key, names in rule.items():
            # no group to show, or not to show, is a rule as good as none
            if not _is_list_of_names(names) and (names != [] or key == "labels"):
                raise InputError(f"{key!r} of {where} is no list of groups, or empty; name a group or remove it")
            _refuse_unknown(names, groups, f"{key!r} of {where} has an unknown group")
        if len(set(rule["labels"])) < len(rule["labels"]):
            raise InputError(f"{where} names a group of its labels twice; name it once")
        both = set(rule.get("must_not_show", [])) & {*rule["labels"], *rule.get("must_show", [])}
        if both:
            raise InputError(f"{where} forbids and wants group {min(both)!r} at once; remove one")
    return raw


def _names(raw: Any, key: str, source: str) -> dict[str, str]:
    if not isinstance(raw, dict) or not all(isinstance(value, str) and value for value in raw.values()):
        raise InputError(f'"{key}" of the split {source} does not map names to names; mend it there')
    return raw


def _is_list_of_names(raw: Any) -> bool:
    return isinstance(raw, list) and bool(raw) and all(isinstance(name, str) and name.strip() for name in raw)


def _refuse_unknown(names: Iterable[str], known: Iterable[str], what: str) -> None:
    known = list(known)
    for name in names:
        if name not in known:
            raise InputError(f"{what}, {name!r}; {nearest(name, known)}")
