"""Services for other programs, in their own protocols: PhotoPrism's vision API (the label service that `Service.Uri` in
its vision.yml names), and the Open Inference Protocol 2 over REST, which clients of KServe, Triton and OpenVINO speak.
"""

import base64
import binascii
import io
import math
from typing import Annotated, Any
from urllib.parse import unquote_to_bytes

import numpy as np
from fastapi import APIRouter, Depends, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from PIL import Image
from pydantic import BaseModel, Field

from fewtag import __version__
from fewtag.errors import InputError, MissingError, nearest
from fewtag.server.queue import Upload
from fewtag.server.routes import OPEN, Server
from fewtag.server.security import authorised
from fewtag.server.service import Served

MOST_JSON = 16_000_000
"""The most bytes of a JSON body if a service is enabled, since its pictures come in it."""


def error_fields(path: str, status: int, detail: str) -> dict[str, Any]:
    """Extra fields of problems (RFC 9457) at the addresses of a service, for the program that it is for."""
    if path.startswith(photoprism.prefix):
        return {"code": status, "error": detail}
    return {"error": detail} if path.startswith(kserve.prefix) else {}


def from_base64(text: str, name: str) -> Upload:
    """A picture from a data URL, or from bare base64."""
    head, comma, content = text.partition(",")
    if not comma:
        head, content = "base64", text
    elif not head.startswith("data:"):
        raise InputError(f"{name} is no data URL; send data:image/jpeg;base64,…")
    try:
        if not head.endswith("base64"):
            return Upload.of(name, unquote_to_bytes(content))
        return Upload.of(name, base64.b64decode("".join(content.split()), validate=True))
    except UnicodeEncodeError as error:
        raise InputError(f"{name} is no data URL: it has half a character (a lone surrogate); send it again") from error
    except (binascii.Error, ValueError) as error:
        raise InputError(f"{name} is no base64 ({error}); encode the picture's bytes by it") from error


_GUARDED = [Depends(authorised)]
photoprism = APIRouter(prefix="/photoprism", tags=["PhotoPrism"], dependencies=_GUARDED)
kserve_open = APIRouter(prefix="/v2", tags=["KServe"])
kserve = APIRouter(prefix="/v2", tags=["KServe"], dependencies=_GUARDED)
INPUTS = {"images": ("BYTES", [-1]), "pixels": ("UINT8", [-1, -1, -1, 3])}
OUTPUTS = {"probabilities": ("FP32", [-1, -1]), "labels": ("BYTES", [-1]), "thresholds": ("FP32", [-1])}
MOST_PIXELS = 8_000_000
"""The most pixels of a `pixels` tensor: numbers in JSON are for small pictures, large ones come encoded in `images`."""


class Labelling(BaseModel):
    """What PhotoPrism asks (`ApiRequest` in its package internal/ai/vision); prompts and options are not read."""

    id: Annotated[str, Field(max_length=100)] = ""
    images: Annotated[list[str], Field(max_length=64)] = []
    url: str = ""


@photoprism.post("/labels")
async def photoprism_labels(asked: Labelling, server: Server) -> Response:
    """The labels of a picture, with confidences; of several pictures, which are views of one, each label's highest."""
    if asked.url or not asked.images:
        raise InputError("the request has no pictures in `images`; set FileScheme: data in PhotoPrism's vision.yml")
    if linked := [image for image in asked.images if not image.startswith("data:")]:
        raise InputError(
            f"the picture {linked[0][:60]!r} is a link, and nothing is fetched here; "
            "set FileScheme: data in PhotoPrism's vision.yml"
        )

    def uploads() -> list[Upload]:
        return [from_base64(image, f"image {at}") for at, image in enumerate(asked.images, 1)]

    rows = await server.tag_all(await run_in_threadpool(uploads))
    found: dict[str, float] = {}
    for row in rows:
        for tag in row.tags:
            found[tag] = max(found.get(tag, 0.0), row.scores[tag])
    given = sorted(found.items(), key=lambda each: (-each[1], each[0]))
    model = {"type": "labels", "name": "fewtag", "version": __version__}
    result = {"labels": [_label(name, chance) for name, chance in given]}
    return JSONResponse({"id": asked.id, "code": 200, "model": model, "result": result})


def _label(path: str, chance: float) -> dict[str, Any]:
    *parents, name = path.split("/")
    return {"name": name, "source": "image", "confidence": chance, "categories": parents}


class Tensor(BaseModel):
    """A tensor of the request, row by row: nested or flat."""

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


@kserve_open.get("/health/live", openapi_extra=OPEN)
async def live() -> Response:
    """Whether the server answers. Needs no token."""
    return JSONResponse({"live": True})


@kserve_open.get("/health/ready", openapi_extra=OPEN)
async def kserve_ready(server: Server) -> Response:
    """Whether it can tag yet: 200, or 503. Needs no token."""
    is_ready, _ = server.ready()
    return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)


@kserve.get("")
async def about() -> Response:
    """The server's name and version."""
    return JSONResponse({"name": "fewtag", "version": __version__, "extensions": []})


@kserve.get("/models/{model}/ready")
async def model_ready(model: str, server: Server) -> Response:
    """Whether the bank or the project can tag yet."""
    is_ready, _ = server.ready()
    return JSONResponse({"name": _known(model, server), "ready": is_ready}, 200 if is_ready else 503)


@kserve.get("/models/{model}")
async def about_model(model: str, server: Server) -> Response:
    """Inputs, of which a request has one, and outputs."""
    inputs, outputs = ([_tensor(name, *facts) for name, facts in each.items()] for each in (INPUTS, OUTPUTS))
    facts = {"name": _known(model, server), "platform": "onnx_onnxv1", "inputs": inputs, "outputs": outputs}
    return JSONResponse(facts)


@kserve.post("/models/{model}/infer")
async def infer(model: str, asked: Inference, server: Server) -> Response:
    """Probabilities of all labels for each picture: encoded files as `images`, or pixels as `pixels`."""
    name = _known(model, server)
    wanted = list(OUTPUTS) if asked.outputs is None else [each.name for each in asked.outputs]
    if unknown := [each for each in wanted if each not in OUTPUTS]:
        raise InputError(f"there is no output {unknown[0]!r}; {nearest(unknown[0], OUTPUTS)}")
    rows = await server.tag_all(await run_in_threadpool(_uploads, asked.inputs[0], server.settings.most_files))
    # labels may have changed between two batches, so only those that all rows have are returned
    labels = [label for label in rows[0].scores if all(label in row.scores for row in rows)]
    scorer = await run_in_threadpool(server.actions.scorer)
    thresholds = dict(zip(scorer.labels, scorer.thresholds.tolist(), strict=True))
    values: dict[str, tuple[list[int], list[Any]]] = {
        "probabilities": ([len(rows), len(labels)], [row.scores[label] for row in rows for label in labels]),
        "labels": ([len(labels)], labels),
        "thresholds": ([len(labels)], [round(thresholds.get(label, 1.0), 6) for label in labels]),
    }
    outputs = [_tensor(each, OUTPUTS[each][0], values[each][0]) | {"data": values[each][1]} for each in wanted]
    reply: dict[str, Any] = {"model_name": name, "outputs": outputs}
    return JSONResponse(reply if asked.id is None else reply | {"id": asked.id})


def _tensor(name: str, datatype: str, shape: list[int]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape}


def _known(model: str, server: Served) -> str:
    if model != server.name:
        raise MissingError(f"there is no model {model[:100]!r}; this server has {server.name!r}")
    return model


def _uploads(tensor: Tensor, most: int) -> list[Upload]:
    """The pictures of a tensor; pixels become uncompressed files, so that they are processed like all others."""
    if tensor.name not in INPUTS or tensor.datatype != INPUTS[tensor.name][0]:
        raise InputError(
            f"the input {tensor.name[:60]!r} of {tensor.datatype[:20]} is not taken; "
            "send `images` of BYTES (base64 of files), or `pixels` of UINT8"
        )
    count = math.prod(tensor.shape)
    if (count if tensor.name == "images" else math.prod(tensor.shape[:1])) > most:  # checked before any is decoded
        raise InputError(f"the request has more than {most} pictures; send at most {most} at once")
    if tensor.name == "images":
        texts = np.array(tensor.data, object).ravel().tolist()
        if len(texts) != count or not texts or not all(isinstance(each, str) for each in texts):
            raise InputError(
                f"`images` has the shape {tensor.shape} and {len(texts)} elements; "
                "send as many texts of base64, evenly nested or flat"
            )
        return [from_base64(text, f"image {number}") for number, text in enumerate(texts, 1)]
    if len(tensor.shape) != 4 or tensor.shape[3] != 3 or not 0 < count <= 3 * MOST_PIXELS:
        raise InputError(
            f"`pixels` has the shape {tensor.shape}; send [pictures, height, width, 3], "
            f"at most {MOST_PIXELS:,} pixels, and larger ones as `images`"
        )
    try:
        # objects: of texts numpy would make an array in which each takes as much memory as the longest
        pixels = np.array(tensor.data, object).reshape(tensor.shape)
    except ValueError as error:
        raise InputError(f"the data of `pixels` do not fill {tensor.shape} ({error}); send as many") from error
    if set(map(type, pixels.ravel().tolist())) != {int}:
        raise InputError("the data of `pixels` are no whole numbers; send 0 to 255")
    if pixels.min() < 0 or pixels.max() > 255:
        raise InputError(f"`pixels` go from {pixels.min()} to {pixels.max()}; send 0 to 255")
    files = [io.BytesIO() for _ in pixels]
    for each, file in zip(pixels.astype(np.uint8), files, strict=True):
        Image.fromarray(each).save(file, "BMP")
    return [Upload.of(f"image {number}", file.getvalue()) for number, file in enumerate(files, 1)]
