"""The FastAPI application for a bank or a studio project, and its error replies."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from fewtag import __version__
from fewtag.errors import InputError, MissingError, TakenError, UnavailableError
from fewtag.server import bodies, dialects, label_studio, routes, studio_routes
from fewtag.server.idempotency import Idempotency
from fewtag.server.queue import BusyError
from fewtag.server.security import problem
from fewtag.server.service import Served

ABOUT = """Tag pictures with labels that were learnt from one example each, and teach it more.

Every request but those for pages, `/health` and `/ready` carries the token that the server printed when it started:
`Authorization: Bearer TOKEN`. Errors are `application/problem+json` with one sentence in `detail`. A change may carry
an `Idempotency-Key`: sent again within a day, it gets the first one's reply. Where the server has too much to do, it
says 503 and, in `Retry-After`, for how many seconds."""

SERVICES: dict[str, tuple[APIRouter, ...]] = {
    "label-studio": (label_studio.router,),
    "photoprism": (dialects.photoprism,),
    "kserve": (dialects.kserve_open, dialects.kserve),
}
"""Services for other programs, in their own protocols; each exists only if the command line asks for it."""


class _App(FastAPI):
    """FastAPI with a schema that says how the token is sent and that errors are problems: it has no such setting."""

    def openapi(self) -> dict[str, Any]:
        schema = super().openapi()
        schema["security"] = [{"token": []}]
        schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        replies = (each["responses"].values() for path in schema["paths"].values() for each in path.values())
        for content in (reply.get("content", {}) for some in replies for reply in some):
            if content.get("application/json") == {"schema": {"$ref": "#/components/schemas/Problem"}}:
                content["application/problem+json"] = content.pop("application/json")
        return schema


def create_app(served: Served) -> ASGIApp:
    """The application, without the guard."""
    app = _App(
        title="fewtag",
        version=__version__,
        description=ABOUT,
        docs_url=None,  # FastAPI's own page loads its code from elsewhere
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,  # the names of functions in generated clients
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        responses={
            "4XX": {"model": bodies.Problem, "description": "What was wrong, and what to do."},
            503: {"model": bodies.Problem, "description": "Not now; `Retry-After` may say for how long."},
        },
    )
    app.state.served = served
    for kind in (ClientDisconnect, InputError, BusyError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _reply)
    app.include_router(routes.open_routes)
    app.include_router(routes.router)
    if served.is_project:
        app.include_router(studio_routes.router)
    if served.settings.label_studio:
        served.fetch = label_studio.OneHost(served.settings.label_studio, served.settings.most_bytes).fetch
    for service in served.settings.services:
        for router in SERVICES[service]:
            app.include_router(router)
    return Idempotency(app)


_STATUS = {MissingError: 404, TakenError: 409, UnavailableError: 503}


def _reply(request: Request, error: Exception) -> Response:
    """The reply to any error: one sentence, with the extra fields that a service's own programs expect."""
    headers: Mapping[str, str] | None = None
    match error:
        case ClientDisconnect():  # nobody will read it
            status, said = 400, "the request ended too early; send it again"
        case InputError():
            status, said = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 400), str(error)
        case BusyError():
            status, said, headers = 503, str(error), {"Retry-After": str(error.seconds)}
        case RequestValidationError():
            status, said = 422, _misfit(error.errors())
        case HTTPException():
            status, said, headers = error.status_code, _refusal(request, error), error.headers
        case _:
            status = 500
            said = f"something went wrong in the server ({type(error).__name__}); its terminal says what"
    path = getattr(request.scope.get("route"), "path", "")
    return problem(status, said, headers, **dialects.error_fields(path, status, said))


def _misfit(errors: Sequence[Any]) -> str:
    """What is wrong with a body; if it may be of one of two kinds, by the kind that it is nearer to."""
    worst = min(errors, key=lambda each: sum(other["loc"][:2] == each["loc"][:2] for other in errors))
    if worst["type"] == "json_invalid":
        return f"the body is no JSON ({worst['ctx']['error']}); mend it"
    # without the names of the kinds
    where = ".".join(str(part) for part in worst["loc"] if part != "body" and not str(part)[:1].isupper())
    wrong = f"{worst['msg'][:1].lower()}{worst['msg'][1:]}"
    return f"{where or 'the body'} is not as it should be: {wrong}; mend it"


def _refusal(request: Request, error: HTTPException) -> str:
    """The sentence for an HTTP error; Starlette's own phrases are replaced by what to do."""
    if error.status_code == 405:
        return f"{request.method} is not for this address; /docs lists what is"
    if error.detail == "There was an error parsing the body":  # FastAPI's: it was no mere error of syntax
        return "the body cannot be read as JSON: it is nested too deeply, or no text; mend it"
    if error.detail != HTTPStatus(error.status_code).phrase:
        return error.detail
    if error.status_code == 404:
        return "there is nothing at this address; /docs lists what there is"
    return "the request was refused; /docs says what is taken"
