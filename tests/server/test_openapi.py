"""The API's schema: what is in it stays (additive only), and the page that shows it loads nothing."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
from raw_http import ask, form
from serving import TOKEN, Running, picture, serving_bank

from fewtag.server.security import Settings

SNAPSHOT = Path(__file__).with_name("openapi.json")
"""Made anew by: python tests/server/test_openapi.py"""


def fields(schema: dict[str, Any], whole: dict[str, Any]) -> Any:
    """The names in a schema, nested; required ones end with '!'."""
    if "$ref" in schema:
        return fields(whole["components"]["schemas"][schema["$ref"].rpartition("/")[2]], whole)
    for several in ("anyOf", "oneOf"):
        if several in schema:
            found = [fields(each, whole) for each in schema[several] if each.get("type") != "null"]
            return found[0] if len(found) == 1 else found
    if "properties" in schema:
        needed = schema.get("required", ())
        return {
            name + "!" * (name in needed): fields(each, whole) for name, each in sorted(schema["properties"].items())
        }
    if schema.get("type") == "array":
        return [fields(schema.get("items", {}), whole)]
    return schema.get("enum") or schema.get("const") or schema.get("type", "any")


def facts(schema: dict[str, Any]) -> dict[str, Any]:
    """What clients rely on: addresses, parameters, fields of requests and replies."""
    found = {}
    for path, methods in sorted(schema["paths"].items()):
        for method, operation in sorted(methods.items()):
            parameters = operation.get("parameters", ())
            bodies = operation.get("requestBody", {}).get("content", {})
            replies = {code: reply.get("content", {}) for code, reply in operation["responses"].items()}
            found[f"{method.upper()} {path}"] = {
                "parameters": sorted(each["name"] + "!" * each.get("required", False) for each in parameters),
                "request": {kind: fields(each["schema"], schema) for kind, each in sorted(bodies.items())},
                "replies": {
                    code: {kind: fields(each.get("schema", {}), schema) for kind, each in content.items()}
                    for code, content in sorted(replies.items())
                    if code.startswith("2")
                },
            }
    return found


def whole_schema() -> dict[str, Any]:
    """Of a project, whose routes are those of a bank and more."""
    from fastapi import FastAPI

    from fewtag.server import routes, studio_routes

    app = FastAPI(title="fewtag", version="1")
    for router in (routes.open_routes, routes.router, studio_routes.router):
        app.include_router(router)
    return app.openapi()


def test_the_api_is_as_it_was() -> None:
    """A field may come, none may go; then the snapshot is made anew, so that it stays."""
    assert facts(whole_schema()) == json.loads(SNAPSHOT.read_text(encoding="utf-8"))


def test_a_bank_has_the_same_api_without_the_studios_part(running: Running) -> None:
    known = json.loads(SNAPSHOT.read_text(encoding="utf-8"))
    found = facts(schema_of(running))
    assert found.items() <= known.items()
    assert "GET /v1/review" in known.keys() - found.keys()


def schema_of(running: Running) -> dict[str, Any]:
    found = ask(running.settings.port, path="/openapi.json", headers={"Authorization": f"Bearer {TOKEN}"})
    return dict(json.loads(found.body))


def test_a_generated_client_can_send_the_token_and_read_every_reply(running: Running) -> None:
    schema = schema_of(running)
    assert schema["components"]["securitySchemes"][next(iter(schema["security"][0]))]["scheme"] == "bearer"
    port, bearer = running.settings.port, {"Authorization": f"Bearer {TOKEN}"}
    as_json, (headers, body) = {"Content-Type": "application/json"}, form(("a.png", picture(1, "dog")))
    for method, path, template, more, content in (
        ("GET", "/v1/labels", "/v1/labels", {}, b""),
        ("POST", "/v1/labels", "/v1/labels", as_json, b'{"name": "cow", "words": false}'),
        ("POST", "/v1/labels", "/v1/labels", as_json, b'{"name": "zzqxv"}'),
        ("POST", "/v1/tag", "/v1/tag", headers, body),
        ("POST", "/v1/labels/dog/examples", "/v1/labels/{name}/examples", headers, body),
        ("PATCH", "/v1/labels/dog", "/v1/labels/{name}", as_json, b'{"threshold": 7}'),
        ("GET", "/v1/jobs/none", "/v1/jobs/{job}", {}, b""),
    ):
        reply = ask(port, method, path, bearer | more, content)
        replies = schema["paths"][template][method.lower()]["responses"]
        declared = replies.get(str(reply.status)) or replies[f"{reply.status // 100}XX"]
        asked = declared["content"][reply.headers["content-type"]]["schema"]
        jsonschema.validate(json.loads(reply.body), asked | {"components": schema["components"]})
        assert ask(port, method, path, more, b"").status == 401


def test_only_probes_need_no_token(pets: Path) -> None:
    services = Settings(TOKEN, services=("photoprism", "kserve", "label-studio"))
    with serving_bank(pets, services) as running:
        operations = {
            (method.upper(), path): operation
            for path, methods in schema_of(running)["paths"].items()
            for method, operation in methods.items()
        }
        names = [operation["operationId"] for operation in operations.values()]
        assert len(names) == len(set(names)), "what a generated client calls its functions"
        for (method, path), operation in operations.items():
            if path == "/metrics":  # on the loopback
                continue
            refused = ask(running.settings.port, method, path.format(name="dog", job="1", model="pets")).status == 401
            assert refused == ("security" not in operation), path


def test_every_operation_says_what_it_does() -> None:
    for path, methods in whole_schema()["paths"].items():
        for method, operation in methods.items():
            assert operation.get("description"), (method, path)


def test_the_documentation_loads_nothing_and_shows_every_address(running: Running) -> None:
    page = ask(running.settings.port, path="/docs").body.decode()
    assert not re.findall(r"<(?:script|link|img|style|iframe)\b|https?://|style=", page)
    for path in ("/v1/tag", "/v1/labels/{name}/examples", "/v1/answers", "/v1/jobs/{job}"):
        assert path in page


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(facts(whole_schema()), indent=1, sort_keys=True) + "\n", encoding="utf-8")
