"""The network without fewtag: what one would write with onnxruntime and Pillow alone, in several ways.

    python benchmarks/plain.py GRAPH SPACE.npz FOLDER SIZE WAY

prints the seconds that decoding the folder's pictures and running the graph on them take.
"""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]
Space = Mapping[str, NDArray[np.float32]]
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
SHARED_BATCHES = (8, 16, 32)
OWN_CHUNKS = (4, 8)
WAYS = {f"batches of {size}, cores share them": (CORES, size) for size in SHARED_BATCHES} | {
    f"chunks of {size}, a core each": (1, size) for size in OWN_CHUNKS
}
"""Threads inside the session, and pictures in one call of it."""


def open_session(graph: str, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def over_arrays(graph: str, space: Space, pixels: Pixels, way: str) -> Callable[[], None]:
    """The graph on decoded squares, images × 3 × size × size."""
    threads, size = WAYS[way]
    session = open_session(graph, threads)
    starts = range(0, len(pixels), size)

    def call(start: int) -> None:
        session.run(["places"], {"pixels": pixels[start : start + size], **space})

    def work() -> None:
        if threads > 1:
            for start in starts:
                call(start)
        else:
            with ThreadPoolExecutor(CORES) as pool:
                list(pool.map(call, starts))

    return work


def over_files(graph: str, space: Space, paths: Sequence[Path], side: int, way: str) -> Callable[[], None]:
    """Decoding in threads, one a core, ahead of the graph or before it in the same thread."""
    threads, size = WAYS[way]
    session = open_session(graph, threads)

    def call(squares: list[Pixels]) -> None:
        session.run(["places"], {"pixels": np.stack(squares), **space})

    def work() -> None:
        with ThreadPoolExecutor(CORES) as pool:
            if threads == 1:
                chunks = [paths[first : first + size] for first in range(0, len(paths), size)]
                list(pool.map(lambda chunk: call([decode(path, side) for path in chunk]), chunks))
                return
            for squares in _batches(pool, paths, side, size):
                call(squares)

    return work


def decode(path: Path, side: int) -> Pixels:
    with Image.open(path) as image:
        image.draft("RGB", (4 * side, 4 * side))  # a JPEG of many megapixels is decoded at a fraction of its size
        square = image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(square).transpose(2, 0, 1))


def _batches(pool: ThreadPoolExecutor, paths: Sequence[Path], side: int, size: int) -> Iterator[list[Pixels]]:
    waiting = deque(pool.submit(decode, path, side) for path in paths[: 2 * size])
    following = iter(paths[2 * size :])
    while waiting:
        squares: list[Pixels] = []
        while waiting and len(squares) < size:
            squares.append(waiting.popleft().result())
            if (path := next(following, None)) is not None:
                waiting.append(pool.submit(decode, path, side))
        yield squares


def main() -> None:
    graph, space, folder, side, way = sys.argv[1:]
    arrays = dict(np.load(space))
    paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    since = time.perf_counter()
    over_files(graph, arrays, paths, int(side), way)()  # with opening the session, as `fewtag tag` counts it
    print(time.perf_counter() - since)


if __name__ == "__main__":
    main()
