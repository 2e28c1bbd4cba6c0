"""Inference by ONNX Runtime: from pixels to places in a model's space."""

import ctypes
import hashlib
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fewtag.core.posterior import Places, Space
from fewtag.errors import InputError, UnavailableError, first_line, nearest
from fewtag.pictures.decode import Pixels, Square
from fewtag.pictures.prefetch import usable_cores

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, SessionOptions

DEVICES = ("auto", "cpu", "cuda")
AT_ONCE = 4
"""Pictures that a core processes at once: so few that a layer's activations stay in its cache."""
INPUTS = ("pixels", "mean", "basis")
"""Inputs of a model's graph: uint8 pixels of any number of squares, and the space that features are projected to.

Some graphs have constants that depend on the size of the squares, too: the pooling of places, a transformer's
positions.
"""
OUTPUTS = ("places", "fine")
"""The places of the map, at most 8 × 8; and those that they were pooled from, if the graph returns them."""

_PRODUCT = (
    b'\x08\x08:\xfe\x01\n%\n\x04left\n\x05right\x12\x07product"\rMatMulInteger\x12\x07product*\x90\x01'
    b"\x08\x08\x08\x10\x10\x03B\x05rightJ\x80\x01"
    + 128
    * b"\x7f"
    + b"Z\x1a\n\x04left\x12\x12\n\x10\x08\x02\x12\x0c\n\x06\x12\x04rows\n\x02\x08\x08b\x1d\n\x07product\x12"
    b"\x12\n\x10\x08\x06\x12\x0c\n\x06\x12\x04rows\n\x02\x08\x10B\x04\n\x00\x10\x11"
)
"""An ONNX graph: the product of rows of 8 bytes, `left`, with 8 × 16 signed ones that are all 127."""


class Network:
    """A model's graph, loaded at its first use; any number of threads may call it.

    On a CPU each core processes a few pictures by itself: cores that shared a layer would wait for the slowest one at
    every layer, which costs most when other programs are busy.
    """

    def __init__(
        self,
        graph: Path,
        device: str = "auto",
        threads: int | None = None,
        sha256: str = "",
        constants: Mapping[str, NDArray[np.float32]] | None = None,
    ) -> None:
        if device not in DEVICES:
            raise InputError(f"there is no device {device!r}; {nearest(device, DEVICES)}")
        self.graph, self.wanted, self.sha256 = graph, device, sha256
        self.limit, self.constants = threads, dict(constants or {})
        self._lock, self._pools = threading.Lock(), dict[int, ThreadPoolExecutor]()

    def __call__(self, pixels: Pixels | Sequence[Square], space: Space) -> Places:
        """The pictures' places: images × places × space, rounded to half precision, as the cache stores them."""
        if self.device == "cuda" or len(pixels) <= 1:
            return self._run(pixels, space)
        size = max(1, min(AT_ONCE, -(-len(pixels) // self.threads)))
        chunks = [pixels[first : first + size] for first in range(0, len(pixels), size)]
        spread = map if self.threads == 1 else self._pool.map
        return np.concatenate(list(spread(lambda chunk: self._run(chunk, space), chunks)))

    @cached_property
    def threads(self) -> int:
        """The number of threads: as many as there are usable cores, unless a limit was set."""
        return self.limit or usable_cores()

    @property
    def likely_device(self) -> str:
        """The device that will probably be used, judged by what is installed, without loading the network."""
        if self.wanted != "auto":
            return self.wanted
        spec = find_spec("onnxruntime")
        folders = (spec and spec.submodule_search_locations) or ()
        return "cuda" if any(next(Path(folder).glob("capi/*providers_cuda*"), None) for folder in folders) else "cpu"

    @property
    def device(self) -> str:
        """The device that is used: cpu or cuda."""
        return "cuda" if self._session.get_providers()[0] == "CUDAExecutionProvider" else "cpu"

    def _run(self, pixels: Pixels | Sequence[Square], space: Space) -> Places:
        inputs: dict[str, NDArray[np.generic]] = dict(
            zip(INPUTS, (np.ascontiguousarray(np.stack(list(pixels))), space.mean, space.basis), strict=True)
        )
        inputs |= self.constants
        try:
            places: NDArray[np.float32] = self._session.run(OUTPUTS[:1], inputs)[0]
        except InputError:
            raise
        except Exception as error:  # onnxruntime raises many types without a common base
            raise UnavailableError(
                f"the network {self.graph.name} failed on {self.device} ({first_line(error)}); "
                "take fewer pictures at once, or another device"
            ) from error
        return places.astype(np.float16).astype(np.float32)

    @property
    def _pool(self) -> ThreadPoolExecutor:
        """This process's threads: a fork inherits none of them, and would wait for their results forever."""
        with self._lock:
            if os.getpid() not in self._pools:
                self._pools = {os.getpid(): ThreadPoolExecutor(self.threads, thread_name_prefix="fewtag-network")}
            return self._pools[os.getpid()]

    @property
    def _session(self) -> "InferenceSession":
        with self._lock:
            return self._opened

    @cached_property
    def _opened(self) -> "InferenceSession":
        import onnxruntime

        onnxruntime.disable_telemetry_events()  # in case it was imported before us
        gpu, cpu = "CUDAExecutionProvider", "CPUExecutionProvider"
        has_gpu = gpu in onnxruntime.get_available_providers()
        if self.wanted == "cuda" and not has_gpu:
            raise InputError(
                "device 'cuda' needs the package onnxruntime-gpu in place of onnxruntime, and a GPU; use cpu or auto"
            )
        providers = [gpu, cpu] if has_gpu and self.wanted != "cpu" else [cpu]
        options = _options()
        use_exact_products(options)
        try:
            content = self.graph.read_bytes()
            if self.sha256 and hashlib.sha256(content).hexdigest() != self.sha256:
                raise ValueError("it is not the one that the model was fitted with, or damaged")
            try:  # without onnxruntime's own fallback to the CPU, which prints among our output, or is silent
                session = onnxruntime.InferenceSession(content, options, providers=providers, enable_fallback=0)
            except Exception as error:
                if len(providers) == 1:
                    raise
                if self.wanted == "cuda":
                    raise _no_gpu(first_line(error)) from error
                session = onnxruntime.InferenceSession(content, options, providers=[cpu], enable_fallback=0)
            if self.wanted == "cuda" and session.get_providers()[0] != gpu:
                raise _no_gpu("it finds no GPU, or not the CUDA and cuDNN libraries of its version")
            with suppress(OSError, TypeError, AttributeError):  # glibc keeps 130 MB that loading has freed
                ctypes.CDLL(None).malloc_trim(0)
            return session
        except InputError:
            raise
        except Exception as error:
            why = first_line(error)
            raise InputError(f"the network {self.graph.name} cannot be loaded ({why}); install fewtag again") from error

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.graph, self.wanted, self.limit, self.sha256, self.constants)


def _options() -> "SessionOptions":
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # fatal: what matters is reported in one sentence
    return options


def use_exact_products(options: "SessionOptions") -> None:
    """Has onnxruntime take its slower int8 products where the fast ones overflow: on x86 processors without VNNI."""
    if _products_overflow():
        options.add_session_config_entry("session.x64quantprecision", "1")


@cache
def _products_overflow() -> bool:
    """Whether sums such as 255 × 127 + 255 × 127 are too much for this processor's products, which then say 32,767."""
    import onnxruntime

    session = onnxruntime.InferenceSession(_PRODUCT, _options(), providers=["CPUExecutionProvider"])
    found: NDArray[np.int32] = session.run(None, {"left": np.full((4, 8), 255, np.uint8)})[0]
    return bool((found != 8 * 255 * 127).any())


def _no_gpu(why: str) -> InputError:
    return InputError(f"onnxruntime-gpu cannot use device 'cuda' ({why}); install what it needs, or use cpu or auto")
