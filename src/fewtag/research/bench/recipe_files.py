"""Recipe files: TOML with common settings, runs and grids of runs; a file may extend or include others."""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from fewtag.errors import InputError, nearest
from fewtag.research.bench.recipe import Recipe
from fewtag.research.methods import check_method


def load_recipes(path: Path, *, changes: Sequence[str] = (), only: Sequence[str] = ()) -> list[tuple[Path, Recipe]]:
    """The runs of a recipe file, or of all files that it includes, each with its file.

    Each of `[[runs]]` overrides the file's common settings, a `grid` makes several runs of one, and `changes` override
    all selected runs.
    """
    settings = [(file, run, grid) for file, over in _files(path, {}) for run, grid in _runs(file, over)]
    known = [str(run["name"]) for _, run, _ in settings]
    for name in only:
        if name not in known:
            raise InputError(f"recipe {path} has no run {name!r}; {nearest(name, known)}")
    # applied only to selected runs, since a change such as method.heads=4 need not suit the others
    chosen = [each for each in settings if not only or each[1]["name"] in only]
    recipes = []
    for file, run, grid in chosen:
        for change in changes:
            parsed = _parse_change(change)
            if clash := grid & {key for key, _ in _leaves(parsed)}:
                raise InputError(
                    f"--set {change!r}: {run['name']!r} is one of a grid of runs, each with its own {min(clash)}; "
                    "choose some with --only, or change the grid in the recipe"
                )
            run = _merge(run, parsed)
        try:
            recipes.append((file, _validate(run, file)))
        except InputError as error:
            if not changes or len(chosen) == 1:
                raise
            raise InputError(f"{error} (of run {run['name']!r}; --only chooses others)") from error
    for (file, name), times in Counter((file, recipe.name) for file, recipe in recipes).items():
        if times > 1:
            raise InputError(
                f'recipe {file} has two runs of the name {name!r}; give each its own (of a grid: "NAME-{{shots}}")'
            )
    return recipes


def _files(path: Path, over: dict[str, Any]) -> list[tuple[Path, dict[str, Any]]]:
    """The file itself, or the files that it includes, each with the settings that override its own."""
    settings = _read(path)
    if "include" not in settings:
        return [(path, over)]
    included, more = settings.pop("include"), {"runs", "grid", "extends"} & settings.keys()
    if more or not isinstance(included, list) or not included:
        raise InputError(
            f'recipe {path}: `include` is a list of files, include = ["coco.toml"], and has settings for all their '
            "runs beside it at most, no `runs`, `grid` or `extends`"
        )
    over = _merge(settings, over)
    return [each for name in included for each in _files(path.parent / str(name), over)]


def _runs(path: Path, over: dict[str, Any]) -> list[tuple[dict[str, Any], frozenset[str]]]:
    """Each run's settings, merged with the common ones, and the keys that its grid set.

    `over` overrides both, except for a run's own network.
    """
    common = _common(path)
    runs = common.pop("runs", [{}])
    if not isinstance(runs, list) or not runs or not all(isinstance(run, dict) for run in runs):
        raise InputError(f"recipe {path}: `runs` is no list of tables; write [[runs]] before each, or leave it out")
    merged = [_merge(_merge({"name": path.stem, **common}, over), run) for run in runs]
    without = {key: value for key, value in over.items() if key != "backbone"}
    return [(_merge(each, without), grid) for run in merged for each, grid in _expand(run, path)]


def _expand(run: dict[str, Any], path: Path) -> Iterator[tuple[dict[str, Any], frozenset[str]]]:
    """The run, or the cartesian product of its grid: a run for each combination, the last key varying fastest."""
    axes = dict(_leaves(run.pop("grid", {})))
    for key, values in axes.items():
        if not key or not isinstance(values, list) or not values:
            grid = f"grid.{key}" if key else "grid"
            raise InputError(
                f"recipe {path}: `{grid}` is {values!r}; give it a list of values, such as "
                "grid.evaluation.shots = [1, 5]"
            )
    for values in product(*axes.values()):
        chosen: dict[str, Any] = {}
        for key, value in zip(axes, values, strict=True):
            for part in reversed(key.split(".")):
                value = {part: value}
            chosen = _merge(chosen, value)
        leaves = dict(_leaves(chosen))
        yield {**_merge(run, chosen), "name": _fill(str(run["name"]), leaves, path)}, frozenset(leaves)


def _leaves(settings: object, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a table by dotted key; a grid's value may itself be a table."""
    if isinstance(settings, dict):
        for key, value in settings.items():
            yield from _leaves(value, f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix, settings


def _fill(name: str, settings: dict[str, Any], path: Path) -> str:
    """A run's name with each `{shots}` or `{evaluation.shots}` replaced by the grid's value of that setting."""

    def value(field: re.Match[str]) -> str:
        named = [key for key in settings if f".{key}".endswith(f".{field[1]}")]
        if len(named) != 1:
            found = nearest(field[1], settings) if settings else "the run has no grid"
            raise InputError(f"recipe {path}: the name {name!r} names {len(named)} settings {field[0]}; {found}")
        return str(settings[named[0]])

    return re.sub(r"\{([^{}]*)\}", value, name)


def _common(path: Path) -> dict[str, Any]:
    """The file's settings, merged over the common settings of the file that it `extends`."""
    settings = _read(path)
    if "extends" not in settings:
        return settings
    extended = settings.pop("extends")
    if not isinstance(extended, str):
        raise InputError(f"recipe {path}: `extends` is {extended!r}; name one recipe file")
    below = _common(path.parent / extended)
    below.pop("runs", None)
    return _merge(below, settings)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise InputError(f"there is no recipe {path}; check the path") from error
    except OSError as error:
        raise InputError(f"cannot read the recipe {path}: {error.strerror}; check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"recipe {path} is not TOML: {error}") from error


def _parse_change(change: str) -> dict[str, Any]:
    """Parses `method.heads=4`; a value that is no TOML is taken as a string, so that names need no quotes."""
    key, equals, value = change.partition("=")
    if not equals or not key.strip():
        raise InputError(f"--set {change!r} is not of the form key=value; write for example --set method.heads=4")
    for text in (change, f"{key}={json.dumps(value)}"):
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            continue
    raise InputError(f"--set {change!r}: {key!r} is no key of TOML; write for example --set method.heads=4")


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _validate(settings: dict[str, Any], path: Path) -> Recipe:
    try:
        recipe = Recipe.model_validate(settings)
    except ValidationError as error:
        # a misspelt key causes both an unknown and a missing one; the unknown one says more
        first = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            siblings = _keys_beside(first["loc"])
            raise InputError(
                f"recipe {path}: unknown key {key!r}; {nearest(str(first['loc'][-1]), siblings)}"
            ) from error
        if first["type"] == "value_error":  # our own message
            where = f"recipe {path}: {key}" if key else f"recipe {path}"
            raise InputError(f"{where}: {first['ctx']['error']}") from error
        raise InputError(f"recipe {path}: {key}: {first['msg'].lower()}, found {first['input']!r}") from error
    check_method(recipe.method.name, recipe.method.options)
    return recipe


def _keys_beside(location: tuple[int | str, ...]) -> list[str]:
    """The known keys of the table in which an unknown key was found."""
    table: Any = Recipe
    for key in (part for part in location[:-1] if isinstance(part, str)):
        table = table.model_fields[key].annotation
        while not hasattr(table, "model_fields"):  # such as `list[Source]` or `Training | None`
            table = get_args(table)[0]
    return list(table.model_fields)
