"""Fuzzing: files mutated from real ones must end in success or one InputError. No traceback, no hang, no wrong number.

    python tests/support/fuzz.py --count 10000
    python tests/support/fuzz.py --case 4711        # one of them again, in this process, with its traceback

Each case is decided by the seed and its number. Worker processes try them, so that a crash or a hang is seen.
"""

import argparse
import gzip
import io
import json
import multiprocessing
import multiprocessing.connection
import shutil
import sys
import tarfile
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.parquet
from PIL import Image
from sidecars import sidecars
from tiny import draw, write_tiny_model

from fewtag.cache import FILE, Cache, content_digest
from fewtag.core.posterior import Fitted
from fewtag.errors import InputError
from fewtag.interop.carried import read_embedded
from fewtag.interop.datasets import read_set
from fewtag.interop.keywords import Tags
from fewtag.interop.xmp import Packet, Wanted, rewrite
from fewtag.pictures.files import Picture, encoded_bytes
from fewtag.tagger.bank_file import read_header
from fewtag.tagger.model import Model, load_model
from fewtag.tagger.stream import Tagged
from fewtag.tagger.tagger import Tagger
from fewtag.tagging.examples import read_examples
from fewtag.tagging.sources import Shard, open_source
from fewtag.tagging.tables import MANIFEST, Parts
from fewtag.words.vectors import load_words

SECONDS = 60.0
"""Of one case, on a busy machine."""
MOST_MEMORY = 6 * 2**30
WORDS = "dog 0.5 1 -2\ncat 1.5 0.25 3\nsofa 0 1 0\n"
TABLE = "image,labels,absent\na.png,dog;!cat,sofa\nsub/b.png,sofa,\n"
ROWS = [Tagged("a.png", ("dog",), {"dog": 0.75, "cat": 0.25}), Tagged("b.png", failure="no picture")]
SHARD = Shard(0, "digest", 2)
DIGESTS = [content_digest(bytes([number])) for number in range(4)]
COCO = {"images": [{"id": 1, "file_name": "a.png"}], "categories": [{"id": 1, "name": "dog"}]}
COCO |= {"annotations": [{"image_id": 1, "category_id": 1}]}
TASK = {"data": {"image": "/data/local-files/?d=a.png"}}
CHOSEN = [{"result": [{"type": "choices", "value": {"choices": ["dog", "cat"]}}]}]
DATA_SETS = [
    ("json", json.dumps(COCO)),
    ("json", json.dumps([TASK | {"annotations": CHOSEN}])),
    (
        "json",
        json.dumps({"classes": ["dog"], "labels": {"a.png": [{"label": "dog", "confidence": 0.5}], "b.png": "cat"}}),
    ),
    (
        "jsonl",
        '{"file_name": "a.png", "labels": ["dog"], "scores": {"dog": 0.5}}\n{"image": "b.png", "tags": ["cat"]}\n',
    ),
]
BOX = {"category": "1", "conf": 0.9, "bbox": [0.1, 0.2, 0.5, 0.6]}
DETECTIONS = {"info": {"format_version": "1.6"}, "images": [{"file": "a.png", "detections": [BOX]}]}
WANTED = Wanted((("dog",), ("birds", "heron")), frozenset({("dog",), ("birds", "heron")}))
CONTENT = np.arange(4 * 32, dtype=np.float32).reshape(4, 32)


class Seed(NamedTuple):
    """A real file, by the name that it has to have."""

    kind: str
    name: str
    content: bytes


@dataclass
class Laboratory:
    """Where the mutated files go, and what the sound ones say."""

    folder: Path
    model: Model
    bank: dict[str, Any]
    header: dict[str, Any]


def facts(tagger: Tagger) -> dict[str, Any]:
    """All that a bank decides."""
    bank = tagger.bank_
    return {
        "classifiers": {label: _bytes(bank.classifier(tagger.model, label)) for label in bank.classes},
        "thresholds": dict(tagger.thresholds_),
        "priors": dict(tagger.priors_),
        "definitions": {label: (each.kind, each.words, each.explicit) for label, each in bank.definitions.items()},
        "examples": {
            key: (
                each.annotation,
                each.features.codes.tobytes(),
                each.features.scales.tobytes(),
                each.name,
                each.picture,
            )
            for key, each in bank.examples.items()
        },
    }


def _bytes(fitted: Fitted) -> tuple[bytes, ...]:
    return tuple(np.asarray(part, np.float32).tobytes() for part in fitted)


def make_seeds(folder: Path, also: Path | None = None) -> list[Seed]:
    """Small real files of every kind that fewtag reads; `also` is a folder of more pictures."""
    model = write_tiny_model(folder)
    seeds = [Seed("picture", name, content) for name, content in _pictures()]
    seeds += [Seed("picture", path.name, path.read_bytes()) for path in sorted(also.iterdir())] if also else []
    pictures, shown = [draw(0, "dog"), draw(1, "cat")], [["dog"], ["cat", "sofa"]]
    tagger = Tagger(str(model)).fit(pictures, shown, absent=[["cat"], []], complete=True)
    tagger.define("puppy", like=["dog"]).define("private", words=False).set_thresholds({"dog": 0.25})
    tagger.set_priors({"cat": 0.125})
    tagger.save(folder / "pets.fewtag")
    seeds += [Seed("bank", "pets.fewtag", (folder / "pets.fewtag").read_bytes())] * 6
    seeds += [Seed("model", "tiny.safetensors", model.read_bytes())] * 2
    seeds.append(Seed("network", "tiny.onnx", (folder / "tiny.onnx").read_bytes()))
    seeds += _tables()
    seeds += _words()
    seeds += _sources(folder)
    seeds += _parts(folder)
    with Cache(folder / "cache") as cache:
        cache.arrays("places", "tiny", "key", (32,), "float32").put_many(DIGESTS, CONTENT)
    for ending, content in DATA_SETS:
        seeds.append(Seed("data set" if ending == "json" else "table", f"set.{ending}", content.encode()))
    written = [rewrite(each.content, each.program, WANTED, Tags()) for each in list(sidecars())[::7]]
    seeds += [Seed("sidecar", "a.jpg.xmp", content) for content in written if content]
    # the last connection has moved the write-ahead log into the file
    return [*seeds, *[Seed("cache", FILE, (folder / "cache" / FILE).read_bytes())] * 3]


def _pictures() -> Iterator[tuple[str, bytes]]:
    image = draw(0, "dog", "cat", size=(96, 80))
    exif = Image.Exif()
    exif[0x0112] = 6
    versions: list[tuple[str, Image.Image, dict[str, Any]]] = [
        ("a.jpg", image, {"exif": exif}),
        ("progressive.jpg", image, {"progressive": True, "quality": 30}),
        ("cmyk.jpg", image.convert("CMYK"), {}),
        ("a.png", image, {}),
        ("alpha.png", image.convert("RGBA"), {}),
        ("palette.png", image.convert("P"), {"transparency": 0}),
        ("deep.png", Image.fromarray(np.arange(4096, dtype=np.uint16).reshape(64, 64)), {}),
        ("a.webp", image, {"exif": exif}),
        ("lossless.webp", image, {"lossless": True}),
        ("a.gif", image.convert("P"), {"save_all": True, "append_images": [image.rotate(90).convert("P")]}),
        ("a.bmp", image, {}),
        ("a.tif", image, {"compression": "tiff_deflate"}),
        ("jpeg.tif", image, {"compression": "jpeg"}),
        ("float.tif", Image.fromarray(np.linspace(0, 1, 4096, dtype=np.float32).reshape(64, 64)), {}),
        ("a.avif", image, {"quality": 40, "speed": 10}),
        ("a.mpo", image, {"save_all": True, "append_images": [image]}),
    ]
    for name, version, options in versions:
        buffer = io.BytesIO()
        ending = name.rpartition(".")[2]
        kind = {"jpg": "JPEG", "tif": "TIFF"}.get(ending, ending.upper())
        version.save(buffer, format=kind, **options)
        yield name, buffer.getvalue()


def _tables() -> list[Seed]:
    return [
        Seed("table", "labels.csv", TABLE.encode()),
        Seed("table", "labels.csv", b"\xef\xbb\xbf" + TABLE.replace(",", "\t").encode()),
        Seed("table", "labels.csv", TABLE.encode("utf-16")),
        Seed("table", "labels.tsv", TABLE.replace(",", "\t").replace(";", ",").encode()),
        Seed("table", "labels.csv.gz", gzip.compress(TABLE.encode(), mtime=0)),
        Seed("record", "tags.csv.run.json", json.dumps({"source": ["photos"], "table": "0"}).encode()),
    ]


def _words() -> list[Seed]:
    words, vectors = ["dog", "cat", "sofa"], np.array([[0.5, 1, -2], [1.5, 0.25, 3], [0, 1, 0]], np.float32)
    binary = b"3 3\n" + b"".join(
        word.encode() + b" " + row.tobytes() + b"\n" for word, row in zip(words, vectors, strict=True)
    )
    buffer = io.BytesIO()
    np.savez(buffer, words=np.array(words), vectors=vectors)
    return [
        Seed("words", "words.txt", WORDS.encode()),
        Seed("words", "words.vec", b"3 3\n" + WORDS.encode()),
        Seed("words", "words.txt.gz", gzip.compress(WORDS.encode(), mtime=0)),
        Seed("words", "words.bin", binary),
        Seed("words", "words.npz", buffer.getvalue()),
    ]


def _sources(folder: Path) -> list[Seed]:
    picture = io.BytesIO()
    draw(0, "dog").save(picture, format="PNG")
    table, archive = io.BytesIO(), io.BytesIO()
    columns = {"bytes": [picture.getvalue()] * 3, "image": ["a.png", "b.png", None]}
    pyarrow.parquet.write_table(pyarrow.table(columns), table)
    with tarfile.open(fileobj=archive, mode="w") as packed:
        for name in ("a.png", "sub/b.png"):
            member = tarfile.TarInfo(name)
            member.size = len(picture.getvalue())
            packed.addfile(member, io.BytesIO(picture.getvalue()))
    (folder / "a.png").write_bytes(picture.getvalue())
    return [
        Seed("source", "list.parquet", table.getvalue()),
        Seed("source", "photos.tar", archive.getvalue()),
        Seed("source", "list.txt", f"# mine\na.png\n{folder}/a.png\nsub/b.png\n".encode()),
        Seed("source", "detections.json", json.dumps(DETECTIONS).encode()),
    ]


def _parts(folder: Path) -> list[Seed]:
    seeds = []
    for ending in ("jsonl", "parquet"):
        parts = Parts(str(folder / ending), "jsonl" if ending == "jsonl" else "parquet")
        parts.begin({"shard": 2})
        parts.write(SHARD, ROWS, ["dog", "cat"])
        seeds.append(Seed(f"{ending} part", parts.name(0), (folder / ending / parts.name(0)).read_bytes()))
    manifest = (folder / "jsonl" / MANIFEST).read_bytes()
    return [*seeds, *seeds, Seed("jsonl part", MANIFEST, manifest)]


def mutate(content: bytes, generator: np.random.Generator, others: Sequence[bytes]) -> bytes:
    """One to four changes, half of them where headers are."""
    data = bytearray(content)
    for _ in range(int(generator.integers(1, 5))):
        if not data:
            break
        place = int(generator.integers(0, min(len(data), 600) if generator.random() < 0.5 else len(data)))
        length = int(generator.integers(1, 1 + min(len(data) - place, int(generator.choice([2, 16, 300])))))
        other = others[int(generator.integers(len(others)))]
        match int(generator.integers(8)):
            case 0:
                data[place] ^= 1 << int(generator.integers(8))
            case 1:
                data[place : place + length] = generator.bytes(length)
            case 2:
                del data[place:]
            case 3:
                del data[place : place + length]
            case 4:
                data[place:place] = data[place : place + length] * int(generator.integers(1, 4))
            case 5:
                data[place : place + length] = bytes([int(generator.choice([0, 0x7F, 0x80, 0xFF]))]) * length
            case 6:
                start = int(generator.integers(len(other)))
                data[place : place + length] = other[start : start + length]
            case _:
                numbers = (b"-1", b"0", b"99999999999999999999", b"1e999", b"nan", b'"', b"{", b"\n", b"\x00", b";")
                data[place : place + 1] = numbers[int(generator.integers(len(numbers)))]
    return bytes(data)


def try_picture(path: Path, _: Laboratory) -> None:
    square = Picture(path).pixels(32)
    assert square.shape == (3, 32, 32)
    read_embedded(path).tags(path.name)


def try_bank(path: Path, laboratory: Laboratory) -> None:
    try:
        header = read_header(path)
    except InputError:
        pass
    else:
        assert header == laboratory.header, "a damaged header was believed"
    tagger = Tagger.load(path, model=laboratory.model)
    assert facts(tagger) == laboratory.bank, "a damaged bank was believed"


def try_model(path: Path, laboratory: Laboratory) -> None:
    shutil.copy(laboratory.folder / "tiny.onnx", path.with_name("tiny.onnx"))
    model = load_model(str(path))
    assert model.fingerprint == laboratory.model.fingerprint, "a damaged model was believed"
    assert model.calibration == laboratory.model.calibration, "a damaged model was believed"


def try_network(path: Path, laboratory: Laboratory) -> None:
    shutil.copy(laboratory.folder / "tiny.safetensors", path.with_name("tiny.safetensors"))
    places = load_model(str(path.with_name("tiny.safetensors"))).encode(np.full((1, 3, 32, 32), 100, np.uint8))
    expected = laboratory.model.encode(np.full((1, 3, 32, 32), 100, np.uint8))
    assert np.array_equal(places, expected), "a damaged network was believed"


def try_table(path: Path, _: Laboratory) -> None:
    assert all((each.labels or each.absent) and not each.labels & each.absent for each in read_examples([path]))


def try_record(path: Path, laboratory: Laboratory) -> None:
    table = path.with_name("tags.csv")
    table.write_text(TABLE)
    try_table(table, laboratory)


def try_words(path: Path, _: Laboratory) -> None:
    words = load_words(str(path))
    assert np.isfinite(words.vector("dog")).all()


def try_source(path: Path, _: Laboratory) -> None:
    for shard in open_source([str(path)]).shards(2):
        for item in shard.items(2):
            if not isinstance(item.image, InputError):
                try:
                    encoded_bytes(item.image, item.name)
                except InputError:
                    continue


def try_part(path: Path, _: Laboratory) -> None:
    ending = "jsonl" if path.suffix in {".jsonl", ".json"} else "parquet"
    parts = Parts(str(path.parent), "jsonl" if ending == "jsonl" else "parquet")
    if path.name != MANIFEST:
        parts.begin({"shard": 2})
    if parts.manifest() is None or 0 not in parts.finished([SHARD]):
        return
    if ending == "jsonl":
        assert list(parts.rows([0])) == ROWS, "a damaged part was believed"
    assert all(row.failure for row in parts.failures([0]))


def try_cache(path: Path, _: Laboratory) -> None:
    with Cache(path.parent) as cache:
        space = cache.arrays("places", "tiny", "key", (32,), "float32")
        for _ in range(2):
            for row, expected in zip(space.get_many(DIGESTS), CONTENT, strict=True):
                assert row is None or np.array_equal(row, expected), "a damaged row was believed"
            space.put_many(DIGESTS, CONTENT)


def try_sidecar(path: Path, _: Laboratory) -> None:
    packet = Packet(path.read_bytes(), path.name)
    after = rewrite(packet.data, path.name, WANTED, Tags())
    kept = set(Packet(after, path.name).tags().every) if after else set()
    assert set(packet.tags().every) <= kept, "a person's tag is lost"


def try_data_set(path: Path, _: Laboratory) -> None:
    assert all(each.labels for each in read_set(path))


TRIES: dict[str, Callable[[Path, Laboratory], None]] = {
    "picture": try_picture,
    "bank": try_bank,
    "model": try_model,
    "network": try_network,
    "table": try_table,
    "record": try_record,
    "sidecar": try_sidecar,
    "data set": try_data_set,
    "words": try_words,
    "source": try_source,
    "jsonl part": try_part,
    "parquet part": try_part,
    "cache": try_cache,
}


def make_laboratory(folder: Path) -> Laboratory:
    model = load_model(str(folder / "tiny.safetensors"))
    tagger = Tagger.load(folder / "pets.fewtag", model=model)
    return Laboratory(folder, model, facts(tagger), read_header(folder / "pets.fewtag"))


def try_case(number: int, seed: int, seeds: Sequence[Seed], laboratory: Laboratory) -> str:
    """How it ended: "read" or "refused"; anything else is raised."""
    generator = np.random.default_rng([seed, number])
    chosen = seeds[number % len(seeds)]
    content = mutate(chosen.content, generator, [each.content for each in seeds])
    with tempfile.TemporaryDirectory(dir=laboratory.folder) as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder, chosen.name)
        path.write_bytes(content)
        try:
            TRIES[chosen.kind](path, laboratory)
        except InputError as refused:
            if not str(refused):
                raise AssertionError("a refusal says why") from refused
            return "refused"
    return "read"


def work(
    numbers: Sequence[int],
    seed: int,
    seeds: Sequence[Seed],
    folder: Path,
    answers: multiprocessing.connection.Connection,
) -> None:
    """Tells of each case that it begins, and how it ended."""
    import logging

    logging.disable(logging.WARNING)
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    laboratory = make_laboratory(folder)
    for number in numbers:
        answers.send((number, "begun"))
        try:
            answers.send((number, try_case(number, seed, seeds, laboratory)))
        except BaseException:  # whatever it is, it should have been an InputError
            answers.send((number, traceback.format_exc()))
    answers.send((-1, "done"))


def fuzz(
    numbers: Sequence[int], seed: int = 0, workers: int = 2, also: Path | None = None
) -> tuple[Counter[str], dict[int, str]]:
    """How many of each kind were read and refused, and what went wrong by case."""
    outcomes, wrong = Counter[str](), dict[int, str]()
    with tempfile.TemporaryDirectory() as folder:
        seeds = make_seeds(Path(folder), also)
        shares = [list(numbers[first::workers]) for first in range(workers)]
        running = [_Worker(share, seed, seeds, Path(folder)) for share in shares if share]
        while running:
            multiprocessing.connection.wait([each.answers for each in running], timeout=1)
            for each in running:
                each.listen(outcomes, wrong)
            running = [each for each in running if each.left]
    return outcomes, wrong


class _Worker:
    """A process and its cases; started again after a crash or a hang."""

    def __init__(self, numbers: list[int], seed: int, seeds: Sequence[Seed], folder: Path) -> None:
        self.left, self._seed, self._seeds, self._folder = numbers, seed, seeds, folder
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.answers, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=work, args=(self.left, self._seed, self._seeds, self._folder, theirs))
        self._process.start()
        theirs.close()
        self._heard = time.monotonic() + 60  # importing takes its time

    def listen(self, outcomes: Counter[str], wrong: dict[int, str]) -> None:
        try:
            while self.answers.poll():
                number, said = self.answers.recv()
                self._heard = time.monotonic()
                if number < 0:
                    self._process.join()
                    self.left = []
                    return
                if said == "begun":
                    continue
                self.left.remove(number)
                kind = self._seeds[number % len(self._seeds)].kind
                outcomes[f"{kind} {said if said in ('read', 'refused') else 'WRONG'}"] += 1
                if said not in ("read", "refused"):
                    wrong[number] = said
        except EOFError:
            self._process.join()
            self._give_up(f"the process died with {self._process.exitcode}", outcomes, wrong)
            return
        if time.monotonic() - self._heard > SECONDS:
            self._process.kill()
            self._process.join()
            self._give_up(f"no answer for {SECONDS} seconds", outcomes, wrong)

    def _give_up(self, why: str, outcomes: Counter[str], wrong: dict[int, str]) -> None:
        """On the case that it was busy with."""
        number = self.left.pop(0)
        wrong[number] = why
        outcomes[f"{self._seeds[number % len(self._seeds)].kind} WRONG"] += 1
        if self.left:
            self._start()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--also", type=Path, help="a folder of more pictures to mutate")
    parser.add_argument("--case", type=int, help="only this one, in this process")
    given = parser.parse_args()
    if given.case is not None:
        with tempfile.TemporaryDirectory() as folder:
            seeds = make_seeds(Path(folder), given.also)
            print(seeds[given.case % len(seeds)][:2])
            print(try_case(given.case, given.seed, seeds, make_laboratory(Path(folder))))
        return 0
    since = time.monotonic()
    outcomes, wrong = fuzz(range(given.count), given.seed, given.workers, given.also)
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:6d}  {outcome}")
    for number, said in sorted(wrong.items())[:20]:
        print(f"\ncase {number}: {said.strip()}")
    print(f"\n{given.count} files in {time.monotonic() - since:.0f} s, {len(wrong)} of them went wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
