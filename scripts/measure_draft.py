"""Do tags change when large JPEGs are decoded at a fraction of their size?

    python scripts/measure_draft.py FOLDER

FOLDER holds large photographs, sub-folders too; of those in one sub-folder, as of a wallpaper in several sizes, the
largest counts. From each, windows of up to 20 megapixels are cut and tagged, decoded in full and as `fewtag tag`
decodes; and, to tell how little that is, in full with 3 % of the numbers one level higher, which nobody could see.
Results go to results/draft.json. The figures there come from the photographs of Debian's packages
gnome-backgrounds 43.1 and plasma-workspace-wallpapers 5.27.5.
"""

import argparse
import io
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from fewtag import Tagger
from fewtag.files import write_atomically
from fewtag.pictures.decode import DRAFT, decode, squash, squash_bytes, stack
from fewtag.pictures.files import is_image_name
from fewtag.research.bench.results import commit

WINDOWS = 12
WIDTHS = (1200, 2000, 3000, 4000, 5000)
LEAST = 1000
BATCH = 32
NUDGED = 0.03
THINGS = (
    "person dog cat car bird boat house horse chair table bottle book train bicycle cow sheep lamp sofa plate clock"
)
LABELS = f"{THINGS} tree sky mountain flower water beach bridge road leaf".split()


def photographs(folder: Path) -> list[Path]:
    """The largest of each sub-folder, or of each name where a sub-folder holds different ones."""
    largest: dict[Path, tuple[int, Path]] = {}
    for path in sorted(folder.rglob("*")):
        if not (path.is_file() and is_image_name(path.name)):
            continue
        with Image.open(path) as image:
            width, height = image.size
        if min(width, height) >= LEAST:
            # wallpapers are named by their size, 3840x2160.jpg
            theme = path.parent if path.stem[0].isdigit() else path.with_suffix("")
            largest[theme] = max(largest.get(theme, (0, path)), (width * height, path))
    return [path for _, path in largest.values()]


def windows(paths: list[Path], seed: int = 0) -> Iterator[bytes]:
    """JPEGs of several sizes cut from the photographs."""
    generator = np.random.default_rng(seed)
    for path in paths:
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        for _ in range(WINDOWS):
            width = min(image.width, int(generator.choice(WIDTHS)))
            height = min(image.height, width * 3 // 4)
            left, top = (int(generator.integers(room + 1)) for room in (image.width - width, image.height - height))
            file = io.BytesIO()
            image.crop((left, top, left + width, top + height)).save(file, "JPEG", quality=90)
            yield file.getvalue()


def tag(tagger: Tagger, jpegs: list[bytes], read: Callable[[bytes], np.ndarray]) -> tuple[np.ndarray, float]:
    """Probabilities, and the processor seconds that decoding took."""
    since = time.process_time()
    pixels = [read(jpeg) for jpeg in jpegs]
    seconds = time.process_time() - since
    batches = [stack(pixels[start : start + BATCH]) for start in range(0, len(pixels), BATCH)]
    scorer = tagger.scorer()
    return np.concatenate([scorer.probabilities(tagger.model.encode(batch)) for batch in batches]), seconds


def nudged(pixels: np.ndarray) -> np.ndarray:
    """Some of the numbers one level higher."""
    higher = np.random.default_rng(int(pixels.sum())).random(pixels.shape) < NUDGED
    return pixels + (higher & (pixels < 255))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/draft.json"))
    arguments = parser.parse_args()
    tagger = Tagger()
    for label in LABELS:
        tagger.define(label)
    size, paths = tagger.model.size, photographs(arguments.folder)
    jpegs = list(windows(paths))
    full, full_seconds = tag(tagger, jpegs, lambda jpeg: squash(decode(jpeg, "window"), size))
    noisy, _ = tag(tagger, jpegs, lambda jpeg: nudged(squash(decode(jpeg, "window"), size)))
    draft, draft_seconds = tag(tagger, jpegs, lambda jpeg: squash_bytes(jpeg, "window", size))
    thresholds = np.array([tagger.thresholds_[label] for label in tagger.classes_])
    given = full >= thresholds
    changed = given != (draft >= thresholds)
    found = {
        "photographs": len(paths),
        "pictures": len(jpegs),
        "labels": len(LABELS),
        "draft": DRAFT,
        "tags_given": int(given.sum()),
        "tags_changed": int(changed.sum()),
        "tags_changed_by_invisible_noise": int((given != (noisy >= thresholds)).sum()),
        "farthest_changed_from_its_threshold": round(float((np.abs(full - thresholds) * changed).max()), 5),
        "greatest_difference_in_probability": round(float(np.abs(full - draft).max()), 5),
        "mean_difference_in_probability": round(float(np.abs(full - draft).mean()), 6),
        "mean_difference_by_invisible_noise": round(float(np.abs(full - noisy).mean()), 6),
        "decoding_times_faster": round(full_seconds / draft_seconds, 2),
    }
    command = "python scripts/measure_draft.py FOLDER"
    write_atomically(arguments.out, json.dumps({"command": command, "commit": commit(), **found}, indent=1).encode())
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
