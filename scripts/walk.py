"""Counts the hops of a walk through the code: which modules one picture goes through, and how often it comes back.

    python scripts/walk.py            # a Markdown table for CONTRIBUTING.md
    python scripts/walk.py --json
    python scripts/walk.py --show tag # the walk itself

Only the first entry into each function counts, and consecutive entries into one module are one visit. A hop is a step
into another module, a return is a hop into a module that was visited before. Threads count too.
"""

import argparse
import inspect
import json
import runpy
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from PIL import Image

import fewtag

PACKAGE = Path(fewtag.__file__).parent


@dataclass
class Walk:
    """First entries into functions, in order, by module."""

    visits: list[str] = field(default_factory=list)
    functions: set[tuple[str, str, int]] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(str(PACKAGE)):
            return
        path = Path(frame.f_code.co_filename).relative_to(PACKAGE)
        name = frame.f_code.co_qualname
        is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED  # which modules and classes are not, when imported
        if not is_function or "lambda" in name or name.endswith(("comp>", "genexpr>")):
            return  # a loop's inside is where it stands
        if frame.f_back is not None and frame.f_back.f_code.co_name in {"<module>", "_handle_fromlist"}:
            return  # nor is what an import calls
        key = str(path), name, frame.f_code.co_firstlineno
        with self.lock:
            if key not in self.functions:
                self.functions.add(key)
                module = path.with_suffix("").as_posix()
                if not self.visits or self.visits[-1] != module:
                    self.visits.append(module)

    @property
    def facts(self) -> dict[str, int]:
        modules = len(set(self.visits))
        hops = max(0, len(self.visits) - 1)
        return {"modules": modules, "functions": len(self.functions), "hops": hops, "returns": hops - (modules - 1)}


def follow(work: Callable[[], object]) -> Walk:
    """The walk of a piece of work."""
    walk = Walk()
    threading.setprofile(walk.enter)
    sys.setprofile(walk.enter)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return walk


def command(*words: object) -> Callable[[], None]:
    """A command line, in this process."""

    def run() -> None:
        sys.argv = ["fewtag", *map(str, words)]
        try:
            runpy.run_module("fewtag", run_name="__main__")
        except SystemExit as done:
            if done.code:
                raise RuntimeError(f"{sys.argv} ended with {done.code}") from done

    return run


def use_python(pictures: list[Path]) -> None:
    """What README's first lines do."""
    fewtag.Tagger().fit(pictures[:2], [["dog"], ["cat", "sofa"]]).predict(pictures[2:])


def walks(folder: Path) -> dict[str, Walk]:
    """Of the commands and calls that most people use."""
    photos = folder / "photos"
    photos.mkdir()
    pictures = [photos / f"{number}.jpg" for number in range(4)]
    for number, path in enumerate(pictures):
        Image.linear_gradient("L").rotate(90 * number).convert("RGB").save(path)
    (folder / "examples.csv").write_text("image,labels\nphotos/0.jpg,dog\nphotos/1.jpg,cat;sofa\n")
    bank, cache = folder / "pets.fewtag", folder / "cache"
    found = {"fewtag learn": follow(command("learn", bank, folder / "examples.csv"))}
    arguments = "tag", bank, photos, "--out", folder / "tags.csv", "--cache", cache
    found["fewtag tag"] = follow(command(*arguments))
    found["Tagger().fit().predict()"] = follow(lambda: use_python(pictures))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--show", metavar="WORD", help="the walks whose name holds this, step by step")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = walks(Path(folder))
    if arguments.show:
        for name, walk in found.items():
            if arguments.show in name:
                print(name, "→", " → ".join(walk.visits))
        return
    if arguments.json:
        print(json.dumps({name: walk.facts for name, walk in found.items()}, indent=2))
        return
    print("| walk | modules | functions | hops | returns |\n|---|---|---|---|---|")
    for name, walk in found.items():
        print(f"| `{name}` | " + " | ".join(str(number) for number in walk.facts.values()) + " |")


if __name__ == "__main__":
    main()
