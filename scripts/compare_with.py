"""Compares the shipped `coco52` with what an earlier commit made of the same pictures and the same words.

    python scripts/compare_with.py 31a3b81 --data DIR --out results/equivalence.json

The earlier commit comes from the project's own history and runs in the same virtual environment. Both learn one
picture of each novel label and give probabilities for 500 others, through `Tagger` alone; and both score 200 episodes
of the novel labels from the same features. Words are those of the shipped table, in a file that both read.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from measure_tagger import episode_bank
from packs import Packs, add_arguments

from fewtag import Tagger
from fewtag.core.metrics import average_precision
from fewtag.files import write_atomically
from fewtag.research.bench.results import commit
from fewtag.tagger.model import load_model
from fewtag.tagger.stream import Scorer

ROOT = Path(__file__).parents[1]
SHOTS = (1, 5)

THEIR_TAGS = """
import json, sys
import numpy as np
from pathlib import Path
from fewtag import Tagger
facts = json.loads(Path(sys.argv[1]).read_text())
tagger = Tagger("coco52", words=facts["words"]).fit(facts["examples"], facts["labels"])
numbers = np.asarray(tagger.predict_proba(facts["pictures"]))
np.savez(sys.argv[2], probabilities=numbers, tags=[";".join(tags) for tags in tagger.predict(facts["pictures"])])
"""
THEIR_EPISODES = """
import json, sys
import numpy as np, torch
from pathlib import Path
from fewtag.tagger.bank import Example
from fewtag.tagger.model import load_model
facts = json.loads(Path(sys.argv[1]).read_text())
model = load_model("coco52", words=facts["words"])
method, maps = model.method, np.load(facts["maps"], mmap_mode="r")
targets, words = torch.tensor(facts["targets"]), model.words.vectors(facts["names"])
words = words if isinstance(words, torch.Tensor) else torch.from_numpy(words)
said = []
with torch.inference_mode():
    places = torch.cat([method.project(torch.from_numpy(np.array(maps[first : first + 128]))).half()
                        for first in range(0, len(maps), 128)]).float()
    for support, query in facts["draws"]:
        kept = torch.stack([Example.of(frozenset(), each).places for each in places[support]])
        prototypes = method.label_prototypes(kept, targets[support], words)
        scores = method.score(places[query], prototypes)
        said.append(model.calibration.probabilities(scores, targets[support].sum(dim=0)).numpy())
np.save(sys.argv[2], np.stack(said))
"""


class Earlier:
    """Programs on an earlier commit's package."""

    def __init__(self, name: str, folder: Path) -> None:
        self.folder = folder
        archive = subprocess.run(["git", "archive", name, "src"], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)

    def run(self, program: str, facts: dict[str, Any], ending: str) -> Any:
        """What the program saved, told these facts."""
        told, saved = self.folder / "facts.json", self.folder / f"saved{ending}"
        told.write_text(json.dumps(facts))
        environment = {**os.environ, "PYTHONPATH": str(self.folder / "src")}
        subprocess.run([sys.executable, "-c", program, str(told), str(saved)], env=environment, check=True)
        return np.load(saved)


def write_words(packs: Packs, path: Path) -> str:
    """The shipped table's vectors of all labels, base and novel, as both commits read them."""
    labels = [label for phase in ("train", "test") for label in packs.images(phase).labels]
    base = load_model("coco52").header["base_words"]
    names = sorted({*packs.names(labels), *base})
    np.savez(path, labels=np.array(names), vectors=packs.table.vectors(names))
    return str(path)


def compare_tags(packs: Packs, earlier: Earlier, words: str, pictures: int) -> dict[str, Any]:
    """Probabilities and tags through the public class."""
    images = packs.images("test")
    draw = packs.draws("test", 1, 1)[0]
    support, others = list(draw.support), [row for row in range(len(images)) if row not in set(draw.support)]
    rows = [*support, *np.random.default_rng(0).permutation(others)[:pictures].tolist()]
    folder = earlier.folder / "pictures"
    folder.mkdir()
    paths = {row: folder / f"{row:05d}.webp" for row in rows}
    for row, path in paths.items():
        path.write_bytes(images.pictures[row].read())
    names = packs.names(images.labels)
    facts = {
        "words": words,
        "examples": [str(paths[row]) for row in support],
        "labels": [[names[column] for column in np.flatnonzero(images.targets[row])] for row in support],
        "pictures": [str(paths[row]) for row in rows[len(support) :]],
    }
    theirs = earlier.run(THEIR_TAGS, facts, ".npz")
    tagger = Tagger("coco52", words=words).fit(facts["examples"], facts["labels"])
    ours = tagger.predict_proba(facts["pictures"])
    tags = [";".join(found) for found in tagger.predict(facts["pictures"])]
    apart = np.abs(ours - theirs["probabilities"])
    differing = sum(
        set(one.split(";")) != set(other.split(";")) for one, other in zip(tags, theirs["tags"], strict=True)
    )
    return {
        "pictures": len(tags),
        "labels": len(tagger.classes_),
        "greatest_difference": float(f"{apart.max():.2e}"),
        "mean_difference": float(f"{apart.mean():.2e}"),
        "pictures_with_other_tags": differing,
    }


def compare_episodes(
    packs: Packs, earlier: Earlier, words: str, phase: str, shots: int, episodes: int
) -> dict[str, Any]:
    """Macro- and micro-AP of both from the same features, in points, and the mean difference."""
    images, model = packs.images(phase), load_model("coco52", words=words)
    maps = earlier.folder / f"{phase}.npy"
    if not maps.exists():
        rows = packs.rows(phase)
        np.save(maps, rows.take(range(len(rows))).numpy())
    draws = [(list(draw.support), list(draw.query)) for draw in packs.draws(phase, shots, episodes)]
    names = packs.names(images.labels)
    facts = {"words": words, "maps": str(maps), "targets": images.targets.tolist(), "names": names, "draws": draws}
    theirs = earlier.run(THEIR_EPISODES, facts, ".npy")
    vectors, places = model.words.vectors(names), packs.places(phase, model.space)
    order = [images.labels.index(label) for label in sorted(images.labels)]
    aps: dict[str, list[tuple[float, float]]] = {"ours": [], "theirs": []}
    for (support, query), other in zip(draws, theirs, strict=True):
        bank = episode_bank(model, images, vectors, places, support)
        said = Scorer(bank, model.calibration, model.strengths).probabilities(places[query])
        for who, numbers in (("ours", said), ("theirs", other[:, order])):
            aps[who].append(average_precisions(numbers, images.targets[query][:, order]))
    means = {who: 100 * np.mean(found, axis=0) for who, found in aps.items()}
    macro, micro = np.abs(means["ours"] - means["theirs"])
    ours, before = ([round(float(value), 3) for value in means[who]] for who in ("ours", "theirs"))
    return {"macro_micro_ap": ours, "before": before, "difference_in_points": round(float(max(macro, micro)), 4)}


def average_precisions(said: np.ndarray, shown: np.ndarray) -> tuple[float, float]:
    macro = np.nanmean([average_precision(said[:, column], shown[:, column]) for column in range(shown.shape[1])])
    return float(macro), average_precision(said.ravel(), shown.ravel())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("earlier", help="a commit")
    add_arguments(parser)
    parser.add_argument("--pictures", type=int, default=500)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("results/equivalence.json"))
    arguments = parser.parse_args()
    packs = Packs(arguments.data, arguments.cache)
    found: dict[str, Any] = {
        "command": f"python scripts/compare_with.py {arguments.earlier} --data data",
        "commit": commit(),
        "earlier": arguments.earlier,
    }
    with tempfile.TemporaryDirectory() as name:
        earlier = Earlier(arguments.earlier, Path(name))
        words = write_words(packs, Path(name) / "words.npz")
        found["tags"] = compare_tags(packs, earlier, words, arguments.pictures)
        print(found["tags"], flush=True)
        for phase in ("test", "mixed"):
            for shots in SHOTS:
                compared = compare_episodes(packs, earlier, words, phase, shots, arguments.episodes)
                found[f"{phase}, {shots} examples, {arguments.episodes} episodes"] = compared
                print(phase, shots, compared, flush=True)
    write_atomically(arguments.out, json.dumps(found, indent=1).encode())


if __name__ == "__main__":
    main()
