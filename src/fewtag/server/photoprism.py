"""PhotoPrism's vision API: the label service that `Service.Uri` in its vision.yml names.

The request and the reply are those of `ApiRequest` and `ApiResponse` in its package internal/ai/vision.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from fewtag import __version__
from fewtag.errors import InputError
from fewtag.server.routes import Server
from fewtag.server.security import authorised
from fewtag.server.services import errors_with, from_base64, tag_all

Route = errors_with(lambda status, detail: {"code": status, "error": detail})
router = APIRouter(prefix="/photoprism", tags=["PhotoPrism"], dependencies=[Depends(authorised)], route_class=Route)


class Labels(BaseModel):
    """What PhotoPrism asks; its prompts and options are for language models and are not read."""

    id: Annotated[str, Field(max_length=100)] = ""
    images: Annotated[list[str], Field(max_length=64)] = []
    url: str = ""


@router.post("/labels")
async def labels(asked: Labels, server: Server) -> Response:
    """The labels of a picture, with confidences; of several pictures, which are views of one, each label's highest."""
    if asked.url or not asked.images:
        raise InputError("the request has no pictures in `images`; set FileScheme: data in PhotoPrism's vision.yml")
    if linked := [image for image in asked.images if not image.startswith("data:")]:
        raise InputError(
            f"the picture {linked[0][:60]!r} is a link, and nothing is fetched here; "
            "set FileScheme: data in PhotoPrism's vision.yml"
        )
    rows = await tag_all(server, [from_base64(image, f"image {at}") for at, image in enumerate(asked.images, 1)])
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
