"""What to run, as data: a TOML file of common settings and of runs that change some of them."""

import hashlib
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fewtag.errors import InputError, nearest
from fewtag.methods import check_method


class Settings(BaseModel):
    """A table of a recipe: read-only, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


SOURCE_KEYS: dict[str, tuple[str, ...]] = {
    "coco": ("images",),
    "voc": ("sets", "keep_difficult"),
    "table": ("images", "where"),
    "folders": (),
}
"""The keys that a format has beside `path`, `phases` and `role`."""


class Source(Settings):
    """Where labelled pictures are. Paths are relative to --data, or else to the recipe."""

    format: Literal["coco", "voc", "table", "folders"]
    path: str | list[str]
    """coco: annotation files; voc: devkits; table: a CSV or TSV; folders: the folder of label folders."""
    images: str | list[str] | None = None
    """coco: the folders or tar archives of the pictures; table: one such place, its own folder unless said."""
    where: dict[str, list[str]] = {}
    """table: other columns and the values to keep."""
    sets: list[str] = ["trainval"]
    """voc: the image sets to read."""
    keep_difficult: bool = False
    """voc: whether objects marked difficult count."""
    phases: list[str] | None = None
    """The phases this source serves; all unless said."""
    role: Literal["support", "query"] | None = None
    """The side of an episode that its pictures serve when measured with "at-least"; both unless said."""

    @model_validator(mode="after")
    def suit_the_format(self) -> "Source":
        """Refuses what the format's reader would not look at."""
        own = ("path", *SOURCE_KEYS[self.format], "phases", "role")
        for key, field in type(self).model_fields.items():
            # the recipe saved beside weights gives every key, so a foreign one at its default is none
            if key not in ("format", *own) and getattr(self, key) != field.default:
                raise InputError(f"format {self.format!r} takes no {key!r}; its keys are {', '.join(own)}")
        for key in ("path", "images"):
            several = getattr(self, key)
            if several == []:
                raise InputError(f"{key!r} is an empty list; name a path in it")
            if self.format in ("table", "folders") and isinstance(several, list) and len(several) > 1:
                found = f"takes one {key!r}, found {len(several)}"
                raise InputError(f"format {self.format!r} {found}; write one [[data.sources]] for each")
        if self.format == "coco" and self.images is None:
            raise InputError("format 'coco' has no 'images'; name the folders or tar archives of the pictures")
        return self


class Data(Settings):
    """A data set, and how its labels are split."""

    name: str
    split: str
    """coco, voc or laso, or the path of a split file."""
    sources: list[Source] = Field(min_length=1)
    other_labels: Literal["refuse", "ignore"] = "refuse"
    """What to do with labels that the split does not know."""
    note: str = ""
    """What a reader of the results must know of the pictures; shown above their table."""


class BackboneSettings(Settings):
    """The network that turns pixels into maps."""

    name: str = "tf_efficientnet_lite2"
    weights: str | None = None
    size: int = Field(default=224, gt=0)
    frozen: bool = True


class WordSettings(Settings):
    """The labels' word vectors."""

    source: str = "glove-50"


class MethodSettings(BaseModel):
    """A method by name; every further key is one of its options."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def options(self) -> dict[str, object]:
        return dict(self.model_extra or {})


class Training(Settings):
    """Episodes of base labels, stopped early by the validation labels. The defaults are the paper's."""

    episodes: int = Field(default=80_000, gt=0)
    shots: int = Field(default=1, gt=0)
    queries: int = Field(default=4, gt=0)
    episodes_per_step: int = Field(default=1, gt=0)
    learning_rate: float = Field(default=1e-3, gt=0)
    warmup: int = Field(default=4_000, ge=0)
    """Episodes over which the rate climbs in a line from `warmup_from`; 10 epochs of 400."""
    warmup_from: float = Field(default=0.0, ge=0)
    validate_every: int = Field(default=50, gt=0)
    validation_episodes: int = Field(default=100, gt=0)
    patience: int = Field(default=10, ge=0)
    """Validations without a gain before training stops; 0: none are made, all `episodes` count."""
    checkpoint_every: int = Field(default=500, gt=0)
    """Episodes between the states that a killed run goes on from; saved at the next validation."""


class Evaluation(Settings):
    """Which phases to measure on how many episodes."""

    sampling: Literal["per-label", "at-least"] = "per-label"
    """Whether pictures are drawn for each label as many as said, or until each label is shown so often."""
    phases: list[str] = Field(default=["test"], min_length=1)
    episodes: int = Field(default=200, gt=0)
    shots: int = Field(default=1, gt=0)
    queries: int = Field(default=4, gt=0)
    draws: dict[str, str] = {}
    """Saved draws by phase, relative to the recipe; drawn from the seed where none are named, or an empty name."""


class Recipe(Settings):
    """One run, complete: the same recipe and seed give the same rows."""

    name: str
    data: Data
    backbone: BackboneSettings = BackboneSettings()
    words: WordSettings = WordSettings()
    method: MethodSettings
    training: Training | None = None
    evaluation: Evaluation = Evaluation()
    seed: int = 0
    not_measured: str = ""
    """Why this run cannot be measured where the recipe was written; the table then shows the reason instead."""

    @model_validator(mode="after")
    def need_roles(self) -> "Recipe":
        """Refuses sides of an episode that the sampling would not look at."""
        roles = [source.role for source in self.data.sources if source.role is not None]
        if roles and self.evaluation.sampling == "per-label":
            raise InputError(
                f"a source has the role {roles[0]!r}, which evaluation.sampling = 'per-label' does not look at; "
                'write sampling = "at-least" in [evaluation], or remove the role'
            )
        return self

    @property
    def digest(self) -> str:
        """Names the recipe by what it says; settings left at their defaults and the note do not count."""
        said = self.model_dump(exclude_defaults=True, exclude={"data": {"note"}})
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:12]


def load_recipes(path: Path, *, changes: Sequence[str] = (), only: Sequence[str] = ()) -> list[tuple[Path, Recipe]]:
    """The runs of a recipe file, or of all files it includes, each with its file.

    `[[runs]]` each override the file's common settings, `changes` override all runs that are chosen.
    """
    settings = [(file, run) for file in _files(path) for run in _runs(file)]
    known = [str(run["name"]) for _, run in settings]
    for name in only:
        if name not in known:
            raise InputError(f"recipe {path} has no run {name!r}; {nearest(name, known)}")
    # a change such as method.heads=4 need not suit the runs that are left out
    chosen = [(file, run) for file, run in settings if not only or run["name"] in only]
    for change in changes:
        chosen = [(file, _merge(run, _parse_change(change))) for file, run in chosen]
    recipes = [(file, _validate(run, file)) for file, run in chosen]
    names = [(file, recipe.name) for file, recipe in recipes]
    for file, name in names:
        if names.count((file, name)) > 1:
            raise InputError(f"recipe {file} has two runs of the name {name!r}; give each its own")
    return recipes


def _files(path: Path) -> list[Path]:
    """The file itself, or those it consists of."""
    settings = _read(path)
    if "include" not in settings:
        return [path]
    included = settings["include"]
    if len(settings) > 1 or not isinstance(included, list) or not included:
        raise InputError(f'recipe {path}: `include` stands alone, as a list of files: include = ["coco.toml"]')
    return [file for name in included for file in _files(path.parent / str(name))]


def _runs(path: Path) -> list[dict[str, Any]]:
    """Each run's settings, the common ones filled in."""
    common = _common(path)
    runs = common.pop("runs", [{}])
    if not isinstance(runs, list) or not runs or not all(isinstance(run, dict) for run in runs):
        raise InputError(f"recipe {path}: `runs` is no list of tables; write [[runs]] before each, or leave it out")
    return [_merge({"name": path.stem, **common}, run) for run in runs]


def _common(path: Path) -> dict[str, Any]:
    """What the file says, over the common settings of the file that it `extends`."""
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
    """`method.heads=4`; a value that is no TOML is taken as a string, so that names need no quotes."""
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
        # a misspelt key is both unknown and missing; its misspelling says more
        first = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            siblings = _keys_beside(first["loc"])
            raise InputError(
                f"recipe {path}: unknown key {key!r}; {nearest(str(first['loc'][-1]), siblings)}"
            ) from error
        if first["type"] == "value_error":  # our own sentence
            where = f"recipe {path}: {key}" if key else f"recipe {path}"
            raise InputError(f"{where}: {first['ctx']['error']}") from error
        raise InputError(f"recipe {path}: {key}: {first['msg'].lower()}, found {first['input']!r}") from error
    check_method(recipe.method.name, recipe.method.options)
    return recipe


def _keys_beside(location: tuple[int | str, ...]) -> list[str]:
    """The keys that the table has in which an unknown one was found."""
    tables: dict[str, type[BaseModel]] = {
        "data": Data,
        "sources": Source,
        "backbone": BackboneSettings,
        "words": WordSettings,
        "training": Training,
        "evaluation": Evaluation,
    }
    named = [part for part in location[:-1] if part in tables]
    return list((tables[str(named[-1])] if named else Recipe).model_fields)
