"""The studio's own routes, thin over `Studio`: search, pictures, review, undo, deliver, events."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse

from fewtag.errors import InputError
from fewtag.server import models
from fewtag.server.jobs import Progress
from fewtag.server.routes import CHANGES, Server, event_stream
from fewtag.studio import values
from fewtag.studio.values import as_json

router = APIRouter(prefix="/v1", tags=["Studio"])
_IMMUTABLE = {"Cache-Control": "private, max-age=31536000, immutable", "Content-Disposition": "inline"}
