"""Measures labels that are named in other languages: what is known of their names, and what that is worth.

    python scripts/measure_languages.py --data DIR --out results/languages-coco52.json

COCO's sixteen novel labels as a speaker would name them, with one example each, beside the English names, private names
and none at all. Each language is measured twice: as the product reads it, and with its names looked up as if they were
English.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from measure_tagger import PRIVATE, Bench, accuracy
from packs import Packs, packs_parser

from fewtag.core.posterior import Vectors
from fewtag.files import write_atomically
from fewtag.research.bench.results import commit
from fewtag.tagger.bank import Bank, Definition, by_names
from fewtag.tagger.model import Model, load_model

LABELS = (
    *("bicycle", "boat", "stop sign", "bird", "backpack", "frisbee", "snowboard", "surfboard", "cup", "fork", "spoon"),
    *("broccoli", "chair", "keyboard", "microwave", "vase"),
)
NAMES = json.loads(Path(__file__).with_name("languages.json").read_text(encoding="utf-8"))
"""The same in other languages, written down before any was looked up."""


class Named(Bench):
    """A phase whose labels are named as someone would name them."""

    def __init__(self, packs: Packs, model: Model, phase: str) -> None:
        super().__init__(packs, model, phase)
        self.meanings: dict[str, Definition] = {}

    def bank(self, guides: Vectors | None, support: Sequence[int], named: Sequence[int] = ()) -> Bank:
        assert guides is None, "labels are known by their names"
        return Bank().learn(self.meanings, super().bank(None, support, named).examples, afresh=False)

    def measure(self, names: Mapping[str, str], episodes: int, *, translated: bool = True) -> dict[str, Any]:
        """With one example a label; nothing stands for a name that is no known word."""
        with nullcontext() if translated else patch("fewtag.tagger.bank.english", return_value=None):
            found = by_names(names.values(), self.model)
        meanings = {label: found[name] for label, name in names.items()}
        self.meanings = {label: meanings.get(label, Definition("none", explicit=True)) for label in self.images.labels}
        metrics = accuracy(self.episodes(1, episodes, None))
        return {
            "commit": commit(),
            **{key: value for key, value in metrics.items() if "_ap" in key},
            "translated": {each.words[0]: each.words[1] for each in meanings.values() if len(each.words) > 1},
            "unknown": [names[label] for label, each in meanings.items() if each.vector is None],
        }


def main() -> None:
    parser = packs_parser(__doc__)
    parser.add_argument("--model", default="coco52", help="a shipped model's name, or a path")
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--phases", nargs="+", default=["test", "mixed"])
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    model, packs = load_model(arguments.model), Packs(arguments.data, arguments.cache)
    command = f"python scripts/measure_languages.py --data data --model {arguments.model}"
    found: dict[str, Any] = {"command": command, "model": model.name, "size": model.size}
    for phase in arguments.phases:
        bench = Named(packs, model, phase)
        spoken = {language: dict(zip(LABELS, names.split(", "), strict=True)) for language, names in NAMES.items()}
        private = [name for name in PRIVATE if name in model.words]
        spoken["private names"] = dict(zip(bench.images.labels, private, strict=False))  # as measure_tagger.py has them
        rows = [("English", dict(zip(LABELS, LABELS, strict=True)), True), ("no names", {}, True)]
        rows += [(name, names, translated) for name, names in spoken.items() for translated in (True, False)]
        for name, names, translated in rows:
            key = f"{phase}, {name}" + ("" if translated else ", not translated")
            found[key] = bench.measure(names, arguments.episodes, translated=translated)
            print(key, found[key], flush=True)
            write_atomically(arguments.out, json.dumps(found, indent=1, ensure_ascii=False).encode())


if __name__ == "__main__":
    main()
