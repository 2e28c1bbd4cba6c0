"""The Open Inference Protocol, version 2, over REST: what clients of KServe, Triton, Seldon and OpenVINO speak."""

import io
import math
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from PIL import Image
from pydantic import BaseModel, Field

from fewtag import __version__
from fewtag.errors import InputError, MissingError, nearest
from fewtag.server.queue import Upload
from fewtag.server.routes import Server
from fewtag.server.security import authorised
from fewtag.server.service import Served
from fewtag.server.services import errors_with, from_base64, name_of, tag_all

Route = errors_with(lambda _status, detail: {"error": detail})
open_routes = APIRouter(prefix="/v2", tags=["KServe"], route_class=Route)
router = APIRouter(prefix="/v2", tags=["KServe"], dependencies=[Depends(authorised)], route_class=Route)
INPUTS: list[dict[str, Any]] = [
    {"name": "images", "datatype": "BYTES", "shape": [-1]},
    {"name": "pixels", "datatype": "UINT8", "shape": [-1, -1, -1, 3]},
]
OUTPUTS: list[dict[str, Any]] = [
    {"name": "probabilities", "datatype": "FP32", "shape": [-1, -1]},
    {"name": "labels", "datatype": "BYTES", "shape": [-1]},
    {"name": "thresholds", "datatype": "FP32", "shape": [-1]},
]
MOST_PIXELS = 8_000_000
"""Of one `pixels` tensor: numbers in JSON are for small pictures, large ones come encoded in `images`."""


class Tensor(BaseModel):
    """A tensor of the request, nested or flat."""

    name: str
    shape: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=8)]
    datatype: str
    data: list[Any]


class Wanted(BaseModel):
    """An output by its name."""

    name: str


class Inference(BaseModel):
    """A request of the protocol; its parameters are not read."""

    id: str | None = None
    inputs: Annotated[list[Tensor], Field(min_length=1, max_length=1)]
    outputs: list[Wanted] | None = None


@open_routes.get("/health/live")
async def live() -> Response:
    """Whether the server answers. Needs no token."""
    return JSONResponse({"live": True})


@open_routes.get("/health/ready")
async def ready(server: Server) -> Response:
    """Whether it can tag yet: 200, or 503. Needs no token."""
    is_ready, _ = server.ready()
    return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)


@router.get("")
async def about() -> Response:
    """The server's name and version."""
    return JSONResponse({"name": "fewtag", "version": __version__, "extensions": []})


@router.get("/models/{model}/ready")
async def model_ready(model: str, server: Server) -> Response:
    """Whether the bank or the project can tag yet."""
    is_ready, _ = server.ready()
    return JSONResponse({"name": _known(model, server), "ready": is_ready}, 200 if is_ready else 503)


@router.get("/models/{model}")
async def about_model(model: str, server: Server) -> Response:
    """Inputs, of which a request has one, and outputs."""
    facts = {"name": _known(model, server), "platform": "onnx_onnxv1", "inputs": INPUTS, "outputs": OUTPUTS}
    return JSONResponse(facts)


@router.post("/models/{model}/infer")
async def infer(model: str, asked: Inference, server: Server) -> Response:
    """Probabilities of all labels for each picture: encoded files as `images`, or pixels as `pixels`."""
    name = _known(model, server)
    wanted = [each["name"] for each in OUTPUTS] if asked.outputs is None else [each.name for each in asked.outputs]
    if unknown := [each for each in wanted if each not in {output["name"] for output in OUTPUTS}]:
        raise InputError(f"there is no output {unknown[0]!r}; {nearest(unknown[0], _names(OUTPUTS))}")
    rows = await tag_all(server, await run_in_threadpool(_uploads, asked.inputs[0], server.settings.most_files))
    # a label may have come or gone between two batches: those that all rows have
    labels = [label for label in rows[0].scores if all(label in row.scores for row in rows)]
    scorer = server.actions.scorer()
    thresholds = dict(zip(scorer.labels, scorer.thresholds.tolist(), strict=True))
    values: dict[str, tuple[list[int], list[Any]]] = {
        "probabilities": ([len(rows), len(labels)], [row.scores[label] for row in rows for label in labels]),
        "labels": ([len(labels)], labels),
        "thresholds": ([len(labels)], [round(thresholds.get(label, 1.0), 6) for label in labels]),
    }
    kinds = {each["name"]: each["datatype"] for each in OUTPUTS}
    outputs = [
        {"name": each, "datatype": kinds[each], "shape": values[each][0], "data": values[each][1]} for each in wanted
    ]
    reply: dict[str, Any] = {"model_name": name, "outputs": outputs}
    return JSONResponse(reply if asked.id is None else reply | {"id": asked.id})


def _names(tensors: list[dict[str, Any]]) -> list[str]:
    return [each["name"] for each in tensors]


def _known(model: str, server: Served) -> str:
    name = name_of(server)
    if model != name:
        raise MissingError(f"there is no model {model[:100]!r}; this server has {name!r}")
    return name


def _uploads(tensor: Tensor, most: int) -> list[Upload]:
    """The pictures of a tensor; those of pixels as uncompressed files, so that they go the way of all others."""
    kinds = {each["name"]: each for each in INPUTS}
    if tensor.name not in kinds or tensor.datatype != kinds[tensor.name]["datatype"]:
        raise InputError(
            f"the input {tensor.name[:60]!r} of {tensor.datatype[:20]} is not taken; "
            "send `images` of BYTES (base64 of files), or `pixels` of UINT8"
        )
    if math.prod(tensor.shape if tensor.name == "images" else tensor.shape[:1]) > most:  # before any of them is made
        raise InputError(f"the request has more than {most} pictures; send at most {most} at once")
    if tensor.name == "images":
        texts = _flat(tensor.data)
        if len(texts) != int(np.prod(tensor.shape)) or not texts or not all(isinstance(each, str) for each in texts):
            raise InputError(
                f"`images` has the shape {tensor.shape} and {len(texts)} elements; send as many texts of base64"
            )
        return [from_base64(text, f"image {number}") for number, text in enumerate(texts, 1)]
    if len(tensor.shape) != 4 or tensor.shape[3] != 3 or not 0 < int(np.prod(tensor.shape)) <= 3 * MOST_PIXELS:
        raise InputError(
            f"`pixels` has the shape {tensor.shape}; send [pictures, height, width, 3], "
            f"at most {MOST_PIXELS:,} pixels, and larger ones as `images`"
        )
    try:
        pixels = np.array(_flat(tensor.data), np.int64).reshape(tensor.shape)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"the data of `pixels` do not fill {tensor.shape} ({error}); send whole numbers") from error
    if pixels.min() < 0 or pixels.max() > 255:
        raise InputError(f"`pixels` go from {pixels.min()} to {pixels.max()}; send 0 to 255")
    return [_file(each, f"image {number}") for number, each in enumerate(pixels.astype(np.uint8), 1)]


def _flat(data: list[Any]) -> list[Any]:
    """Row by row: a tensor may come nested or flat."""
    while data and isinstance(data[0], list):
        if not all(isinstance(each, list) for each in data):
            raise InputError("the data of the tensor are nested unevenly; send them flat, or as the shape says")
        data = [value for each in data for value in each]
    return data


def _file(pixels: Any, name: str) -> Upload:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "BMP")
    return Upload.of(name, content.getvalue())
