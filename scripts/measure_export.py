"""Measures the exported graph of `coco52`, and every way to have it in int8: accuracy, size and speed beside fp32.

    OMP_NUM_THREADS=1 python scripts/measure_export.py --data DIR

Prototypes are those of the product's own banks: they go into each graph as labels, those of all episodes at once, so
that each query picture passes each graph once. The setting of `fewtag export --int8` was chosen on the validation
labels.
"""

import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnxruntime.quantization import QuantType, quantize_dynamic
from packs import Packs, packs_parser

from fewtag import Tagger
from fewtag.files import write_atomically
from fewtag.graphs import pack_weights, quantise_products, silent, to_int8, unpack_weights
from fewtag.pictures.decode import stack
from fewtag.research.bench.results import commit, episode_metrics, mean_and_interval
from fewtag.research.data.sampling import Draw
from fewtag.tagger.export import Table, label_table, make_graph, session
from fewtag.tagger.model import Model

BATCH = 16
SHOTS = (1, 5)
METRICS = ("macro_ap", "micro_ap")
LABELS = ("prototypes", "whole", "focused", "slopes", "offsets")
"""What a graph takes of each label."""
Episode = tuple[int, Draw, Table]
"""Shots, rows, labels."""


def dynamic(graph: bytes, **options: Any) -> bytes:
    """onnxruntime's dynamic quantisation: activations in int8 too, with a scale found anew for each batch."""
    with tempfile.TemporaryDirectory() as folder, silent():
        quantize_dynamic(onnx.load_model_from_string(graph), Path(folder, "int8.onnx"), **options)
        return Path(folder, "int8.onnx").read_bytes()


def pointwise(graph: bytes) -> bytes:
    """Convolutions of 1 × 1 and matrix products; the others are few weights, and suffer most."""
    proto = onnx.load_model_from_string(graph)
    single = {tensor.name for tensor in proto.graph.initializer if list(tensor.dims[2:]) == [1, 1]}
    nodes = [
        node.name
        for node in proto.graph.node
        if node.op_type == "MatMul" or (node.op_type == "Conv" and node.input[1] in single)
    ]
    return dynamic(graph, nodes_to_quantize=nodes, weight_type=QuantType.QUInt8)


SETTINGS: dict[str, Callable[[bytes], bytes]] = {
    "fp32": lambda graph: graph,
    "int8 weights": pack_weights,
    "int8 weights, dynamic products": to_int8,
    "dynamic, products": quantise_products,
    "dynamic, 1 × 1 convolutions and products": pointwise,
    # weights of unsigned bytes: with signed ones onnxruntime's convolutions are three times slower still
    "dynamic, all": lambda graph: dynamic(graph, weight_type=QuantType.QUInt8),
}


def draw_episodes(packs: Packs, model: Model, phase: str, episodes: int) -> list[Episode]:
    """With labels as a bank of the episode's own has learnt them."""
    images, found = packs.images(phase), []
    names = packs.names(images.labels)
    for shots in SHOTS:
        for draw in packs.draws(phase, shots, episodes):
            tagger = Tagger(model)
            for name in names:
                tagger.define(name)
            shown = [[names[column] for column in np.flatnonzero(images.targets[row])] for row in draw.support]
            tagger.partial_fit([images.pictures[row] for row in draw.support], shown, complete=True)
            found.append((shots, draw, label_table(tagger)))
    return found


def measure(packs: Packs, model: Model, phase: str, episodes: int, graphs: dict[str, bytes]) -> dict[str, Any]:
    """Every setting's AP, and its cost against fp32 on the same episodes."""
    images, drawn = packs.images(phase), draw_episodes(packs, model, phase, episodes)
    names = packs.names(images.labels)
    targets = images.targets[:, [names.index(name) for name in drawn[0][2]["names"]]]
    labels = {key: np.concatenate([found[key] for _, _, found in drawn]) for key in LABELS}
    rows = sorted({row for _, draw, _ in drawn for row in draw.query})
    place = {row: number for number, row in enumerate(rows)}
    runs = {name: session(graph) for name, graph in graphs.items()}
    parts: dict[str, list[NDArray[np.float32]]] = {name: [] for name in graphs}
    for start in range(0, len(rows), BATCH):
        pixels = stack([images.pictures[row].pixels(model.size) for row in rows[start : start + BATCH]])
        for name, run in runs.items():
            parts[name].append(run(pixels, labels))
        print(f"\r{phase}: {start + len(pixels)} of {len(rows)} pictures", end="", flush=True)
    print()
    said = {name: np.concatenate(part) for name, part in parts.items()}
    return {name: summarise(drawn, targets, place, found, said["fp32"]) for name, found in said.items()}


def summarise(
    drawn: list[Episode], targets: np.ndarray, place: dict[int, int], found: np.ndarray, exact: np.ndarray
) -> dict[str, Any]:
    summary: dict[str, Any] = {"mean_difference": float(np.abs(found - exact).mean())}
    for shots in SHOTS:
        scored = []
        for number, (of, draw, _) in enumerate(drawn):
            if of == shots:
                columns = slice(number * targets.shape[1], (number + 1) * targets.shape[1])
                query, shown = [place[row] for row in draw.query], targets[list(draw.query)]
                both = (said[query, columns].astype(np.float64) for said in (found, exact))
                scored.append([episode_metrics(probabilities, shown) for probabilities in both])
        for metric in METRICS:
            mean, _ = mean_and_interval([row[metric] for row, _ in scored])
            cost, interval = mean_and_interval([fp32[metric] - row[metric] for row, fp32 in scored])
            summary[f"{shots} examples, {metric}"] = round(mean, 5)
            summary[f"{shots} examples, {metric}_cost"] = round(cost, 5)
            summary[f"{shots} examples, {metric}_cost_interval"] = round(interval, 5)
    return summary


def speeds(tagger: Tagger, graphs: dict[str, bytes], rounds: int = 5) -> dict[str, float]:
    """Pictures a second of processor time, the tagger's too, in turns; the best of the rounds."""
    model = tagger.model
    pixels = np.random.default_rng(0).integers(0, 256, (BATCH, 3, model.size, model.size), dtype=np.uint8)
    labels: Table = label_table(tagger)
    scorer = tagger.scorer()
    works: dict[str, Callable[[], object]] = {"tagger": lambda: scorer.probabilities(model.encode(pixels))}
    for name, graph in graphs.items():
        works[name] = partial(session(graph), pixels, labels)
    best = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            since = time.process_time()
            work()
            best[name] = min(best[name], time.process_time() - since)
    return {name: BATCH / seconds for name, seconds in best.items()}


def main() -> None:
    parser = packs_parser(__doc__)
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--phases", nargs="+", default=["val", "test"])
    parser.add_argument("--out", type=Path, default=Path("results/export.json"))
    arguments = parser.parse_args()
    packs, tagger = Packs(arguments.data, arguments.cache), Tagger("coco52")
    for name in packs.names(packs.images("test").labels):
        tagger.define(name)
    graph = unpack_weights(make_graph(tagger.model))
    graphs = {name: made(graph) for name, made in SETTINGS.items()}
    speed = speeds(tagger, graphs)
    found: dict[str, dict[str, Any]] = {
        name: {
            "bytes": len(content),
            "size_ratio": round(len(content) / len(graph), 4),
            "speed_ratio": round(speed[name] / speed["fp32"], 3),
        }
        for name, content in graphs.items()
    }
    for phase in arguments.phases:
        for name, summary in measure(packs, tagger.model, phase, arguments.episodes, graphs).items():
            found[name] |= {f"{phase}, {fact}": value for fact, value in summary.items()}
    facts = {
        "command": f"OMP_NUM_THREADS=1 python scripts/measure_export.py --data data --episodes {arguments.episodes}",
        "commit": commit(),
        "fp32_speed_against_the_tagger": round(speed["fp32"] / speed["tagger"], 3),
    }
    write_atomically(arguments.out, json.dumps({**facts, "settings": found}, indent=1, ensure_ascii=False).encode())
    print(json.dumps(found, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
