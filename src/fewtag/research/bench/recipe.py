"""The schema of a recipe: a run's settings, validated, and digests that identify them."""

import hashlib
import inspect
import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, model_validator

from fewtag.errors import InputError
from fewtag.research.methods import METHODS
from fewtag.research.methods.closed_form import ClosedForm


class Settings(BaseModel):
    """A table of settings: read-only, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


SOURCE_KEYS: dict[str, tuple[str, ...]] = {
    "coco": ("images",),
    "voc": ("sets", "keep_difficult"),
    "table": ("images", "where"),
    "folders": (),
}
"""The keys that a format has besides `path`, `most_a_label`, `phases` and `role`."""


class Source(Settings):
    """A source of labelled pictures. Paths are relative to --data, or else to the recipe."""

    format: Literal["coco", "voc", "table", "folders"]
    path: str | list[str]
    """coco: annotation files; voc: devkits; table: a CSV or TSV; folders: the folder of label folders."""
    images: str | list[str] | None = None
    """coco: the folders or tar archives of the pictures; table: one such place, by default the table's own folder."""
    where: dict[str, list[str]] = {}
    """table: other columns and the values to keep."""
    sets: list[str] = ["trainval"]
    """voc: the image sets to read."""
    keep_difficult: bool = False
    """voc: whether objects marked difficult count."""
    most_a_label: int | None = Field(default=None, gt=0)
    """Leaves out a picture if each of its labels is shown by so many earlier ones; by default none is left out."""
    phases: list[str] | None = None
    """The phases that this source serves; all by default."""
    role: Literal["support", "query"] | None = None
    """The side of an episode that its pictures serve with sampling "at-least"; both by default."""

    @model_validator(mode="after")
    def suit_the_format(self) -> "Source":
        """Refuses keys that the format's reader does not use."""
        own = ("path", *SOURCE_KEYS[self.format], "most_a_label", "phases", "role")
        for key, field in type(self).model_fields.items():
            # the recipe saved beside weights has every key, so another format's key at its default does not count
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
    """What a reader of the results must know about the pictures; shown above their table."""


class BackboneSettings(Settings):
    """The network that turns pixels into maps."""

    name: str = "tf_efficientnet_lite2"
    weights: str | None = None
    size: int = Field(default=224, gt=0)
    grid: int | None = Field(default=None, gt=0)
    """The most places per side: a finer map is pooled. By default maps are left as they are."""
    frozen: bool = True
    tuned: str | None = None
    """The one stage of the network that is trained, given by the prefix of its parameters' names; all by default."""


class WordSettings(Settings):
    """The labels' word vectors."""

    source: str = "glove-50"


class NameSettings(Settings):
    """A classifier's class names, on which the map from words to features is fitted besides the base labels."""

    classifier: str = "tf_efficientnet_lite2"
    """The network whose head gives each base picture's class probabilities."""
    weights: str | None = None
    size: int = Field(default=224, gt=0)
    classes: str = "imagenet-1k"
    variant: Literal["all", "clean"] = "all"
    """Whether classes that overlap a validation or novel label of the split are left out."""
    weight: float = Field(default=0.3, gt=0)
    """Weight of a class name relative to a base label's."""


class SpaceSettings(Settings):
    """The whitened space that a method's maps are projected to; without this table they are not projected."""

    size: int = Field(default=512, gt=0)
    shrinkage: float = Field(default=2.0, ge=0)


class MethodSettings(BaseModel):
    """A method by name; every other key is one of its options."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def options(self) -> dict[str, object]:
        """The options that the recipe gives."""
        return dict(self.model_extra or {})


class Training(Settings):
    """Training on episodes of base labels, stopped early by the validation labels. Defaults are the paper's."""

    episodes: int = Field(default=80_000, gt=0)
    shots: int = Field(default=1, gt=0)
    queries: int = Field(default=4, gt=0)
    episodes_per_step: int = Field(default=1, gt=0)
    learning_rate: float = Field(default=1e-3, gt=0)
    warmup: int = Field(default=4_000, ge=0)
    """Episodes over which the rate rises linearly from `warmup_from`; 10 epochs of 400."""
    warmup_from: float = Field(default=0.0, ge=0)
    validate_every: int = Field(default=50, gt=0)
    validation_episodes: int = Field(default=100, gt=0)
    patience: int = Field(default=10, ge=0)
    """Validations without improvement before training stops; 0: there are none, and all `episodes` are trained."""
    keep: Literal["best", "last"] = "best"
    """With "last" training never stops early, and the final weights are kept; validations only make the curve."""
    cycle: int = Field(default=0, ge=0)
    """Steps in which the rate falls linearly to a thousandth, repeatedly (cyclic rate); the mean of the weights at the
    cycles' ends is validated and kept (stochastic weight averaging). 0: neither."""
    backbone_share: float = Field(default=1.0, gt=0)
    """The learning rate of a backbone that is trained, as a share of `learning_rate`."""
    checkpoint_every: int = Field(default=500, gt=0)
    """Episodes between checkpoints from which a killed run resumes; each is saved at the next validation."""


class Evaluation(Settings):
    """The phases to measure, and on how many episodes."""

    sampling: Literal["per-label", "with-replacement", "at-least", "halves"] = "per-label"
    """How pictures are drawn: a fixed number for each label, all different or with replacement; until each label is
    shown that often; or from one half of the phase's pictures, with all of the other half as queries."""
    phases: list[str] = Field(default=["test"], min_length=1)
    episodes: int = Field(default=200, gt=0)
    shots: int = Field(default=1, ge=0)
    """0: labels are known by their names alone, and measured on the queries of one shot."""
    queries: int = Field(default=4, gt=0)
    supports: Literal["complete", "single"] = "complete"
    """Whether a support picture names all that it shows, or only the label that it was drawn for."""
    draws: dict[str, str] = {}
    """Saved draws by phase, relative to the recipe; without a name episodes are drawn, the same for all seeds."""


class SessionSettings(Settings):
    """Correction sessions: a simulated person answers, label by label, whether a picture shows it."""

    examples: int = Field(default=1, ge=0)
    """Random pictures of the label that a session starts with; 0: its name alone."""
    orders: list[Literal["likeliest", "unsure", "mixed"]] = Field(
        default=["likeliest", "unsure", "mixed"], min_length=1
    )
    """Which picture is asked about next; mixed: the two in turn."""
    answers: list[NonNegativeInt] = Field(default=[0, 8, 16, 32, 64], min_length=1)
    """The numbers of answers after which the label's average precision is recorded."""
    seeds: int = Field(default=5, gt=0)
    """How often the pictures are split into those that may be asked about and those that measure."""


class Recipe(Settings):
    """One run, complete: the same recipe and seed give the same rows."""

    name: str
    data: Data
    backbone: BackboneSettings = BackboneSettings()
    words: WordSettings = WordSettings()
    names: NameSettings | None = None
    space: SpaceSettings | None = None
    method: MethodSettings
    training: Training | None = None
    evaluation: Evaluation = Evaluation()
    sessions: SessionSettings | None = None
    seed: int = Field(default=0, ge=0)
    not_measured: str = ""
    """Why this run could not be measured where the recipe was written; the table then shows the reason."""

    @model_validator(mode="after")
    def fit_together(self) -> "Recipe":
        """Refuses tables that are incompatible."""
        evaluation, method = self.evaluation, METHODS.get(self.method.name)
        roles = [source.role for source in self.data.sources if source.role is not None]
        if roles and evaluation.sampling != "at-least":
            raise InputError(
                f"a source has the role {roles[0]!r}, which evaluation.sampling = {evaluation.sampling!r} does not "
                'look at; write sampling = "at-least" in [evaluation], or remove the role'
            )
        if self.backbone.frozen and self.backbone.tuned is not None:
            found = f"tuned = {self.backbone.tuned!r} of a frozen backbone"
            raise InputError(f"{found}; write frozen = false beside it, or remove it")
        if self.training is not None and self.training.backbone_share != 1.0 and self.backbone.frozen:
            raise InputError("training.backbone_share is of a backbone that learns; remove it, or set frozen = false")
        if self.training is not None and (self.space is not None or self.sessions is not None):
            table = "space" if self.space is not None else "sessions"
            raise InputError(f"[{table}] is for methods that train nothing; remove it, or [training]")
        if self.space is not None and method is not None and issubclass(method, ClosedForm):
            raise InputError(f"method {self.method.name!r} has a whitened space of its own; remove [space]")
        if evaluation.supports == "single" and evaluation.sampling != "per-label":
            raise InputError(f"supports = 'single' needs sampling = 'per-label', found {evaluation.sampling!r}")
        if evaluation.shots == 0 and evaluation.sampling == "at-least":
            raise InputError("shots = 0 needs sampling = 'per-label' or 'halves', found 'at-least'")
        if evaluation.shots == 0 and method is not None and not method.serves_words_alone:
            raise InputError(f"method {self.method.name!r} knows no label by its name alone; write shots = 1 or more")
        return self

    @property
    def effective(self) -> "Recipe":
        """The same recipe with every option of the method written out, so that no default in code can change it."""
        parameters = inspect.signature(METHODS[self.method.name]).parameters.values()
        options = {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}
        method = MethodSettings.model_validate({"name": self.method.name} | options | self.method.options)
        return self.model_copy(update={"method": method})

    @property
    def digest(self) -> str:
        """A digest of all settings, defaults included, except the note."""
        return digest_of(counted(self.effective.model_dump(mode="json", exclude={"data": {"note"}})))

    @property
    def training_settings(self) -> dict[str, Any]:
        """The settings that trained weights depend on: neither those of the evaluation, nor names."""
        kept = self.effective.model_dump(mode="json", include={"backbone", "words", "method", "training", "seed"})
        kept["training"].pop("checkpoint_every")
        sources = [
            source.model_dump(mode="json", exclude={"role"})
            for source in self.data.sources
            if source.phases is None or {"train", "val"} & set(source.phases)
        ]
        facts = {**kept, "split": self.data.split, "other_labels": self.data.other_labels, "sources": sources}
        return counted(facts)


LATER: dict[str, object] = {
    **dict.fromkeys(("names", "space", "sessions", "grid", "tuned", "most_a_label")),
    **dict.fromkeys(("propagation", "encoder_episodes", "cycle"), 0),
    **{"supports": "complete", "keep": "best", "backbone_share": 1.0},
}
"""Settings that were added after rows had been published, with the values that stand for the earlier behaviour: at
these they are left out of digests."""


def counted(settings: Any) -> Any:
    """The settings without those added later, where these stand for the earlier behaviour."""
    if isinstance(settings, dict):
        return {key: counted(value) for key, value in settings.items() if key not in LATER or value != LATER[key]}
    return [counted(value) for value in settings] if isinstance(settings, list) else settings


def digest_of(settings: object) -> str:
    """The first 12 digits of the SHA-256 of the settings as JSON."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
