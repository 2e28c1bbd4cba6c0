"""A project over the Model Context Protocol: through the SDK's own client, in this process and over standard input."""

import asyncio
import base64
import io
import json
import os
import re
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from recording import json_blocks, shows
from tiny import draw

pytest.importorskip("mcp", reason='needs: pip install "fewtag[mcp]"')

from mcp import Client, StdioServerParameters

from fewtag.server.mcp import create_server
from fewtag.studio.studio import Studio
from fewtag.studio.values import Answer, as_json

Step = Callable[..., Awaitable[Any]]


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("album")
    for number in range(12):
        draw(number, ["dog", "cat", "sofa"][number % 3]).save(folder / f"{number:02}.png")
    return folder


@pytest.fixture
def studio(album: Path, tiny_model: Path, tmp_path: Path) -> Iterator[Studio]:
    with Studio.open(tmp_path / "project", [album], model=str(tiny_model), cache=tmp_path / "cache") as opened:
        assert opened.wait(300.0)
        yield opened


def talk(server: Any, steps: Callable[[Client, Step], Awaitable[None]]) -> None:
    """`steps` with a client, and with a call that gives what a tool said."""

    async def all_of_it() -> None:
        async with Client(server) as client:

            async def call(name: str, **arguments: Any) -> Any:
                result = await client.call_tool(name, arguments)
                if result.is_error:
                    return result.content[0].text
                return json.loads(result.content[0].text) if len(result.content) == 1 else result.content

            await steps(client, call)

    asyncio.run(asyncio.wait_for(all_of_it(), 60))


def digests(page: dict[str, Any]) -> dict[str, str]:
    return {Path(each["name"]).name: each["digest"] for each in page["pictures"]}


def test_an_assistant_finds_teaches_reviews_and_tags(studio: Studio) -> None:
    async def steps(client: Client, call: Step) -> None:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names == ["labels", "search", "suggest", "answer", "tag", "write"]
        found = digests(await call("search", limit=20))
        assert len(found) == 12
        said = [{"picture": found["00.png"], "answer": "yes"}, {"picture": found["01.png"], "answer": "no"}]
        taught = await call("answer", label="hound", answers=said, new_label=True)
        assert (taught["label"]["examples"], taught["label"]["absent"]) == (1, 1)
        facts, *shown = await call("suggest", label="hound", count=3)
        assert json.loads(facts.text)["question"] == "Is there a hound?"
        assert [each.type for each in shown] == ["text", "image"] * 3
        assert Image.open(io.BytesIO(base64.b64decode(shown[1].data))).format == "WEBP"
        rows = await call("tag", pictures=[found["00.png"], found["01.png"]])
        assert rows[0]["tags"] == ["hound"]
        assert rows[1]["scores"]["hound"] == 0
        listed = await call("labels")
        assert [label["name"] for label in listed["labels"]] == ["hound"]
        assert listed["project"]["pictures"] == 12
        like = await call("search", like=found["00.png"], limit=1)
        assert like["pictures"][0]["digest"] == found["00.png"]

    talk(create_server(studio), steps)
    assert studio.label("hound").examples == 1


def test_the_conversation_of_the_documentation_is_what_happens(studio: Studio) -> None:
    """With the digests of these pictures, and the first alone of several that are found."""
    settings, *blocks = json_blocks("mcp.md")
    assert settings["mcpServers"]["fewtag"]["args"][0] == "mcp"
    first = digests(as_json(studio.search()))["00.png"]

    async def steps(_client: Client, call: Step) -> None:
        for asked, shown in zip(blocks[::2], blocks[1::2], strict=True):
            known = json.loads(re.sub("[0-9a-f]{32}", first, json.dumps([asked, shown])))
            told = await call(known[0]["tool"], **known[0]["arguments"])
            if "pictures" in told:
                told["pictures"] = told["pictures"][:1]
            assert shows(known[1], told), (told, known[1])

    talk(create_server(studio), steps)


def test_an_assistant_does_not_overrule_a_person(studio: Studio) -> None:
    first, second = (cell.digest for cell in studio.search(limit=2).pictures)
    studio.teach("dog", [first])
    studio.teach("cat", [second])
    studio.answer([Answer(str(uuid.uuid4()), first, "cat", "no")])

    async def steps(_: Client, call: Step) -> None:
        said = await call("answer", label="dog", answers=[{"picture": first, "answer": "no"}])
        assert said.endswith(f"a person said yes of {first}; ask them: the studio changes it")
        said = await call("answer", label="cat", answers=[{"picture": first, "answer": "yes"}], new_label=True)
        assert said.endswith(f"a person said no of {first}; ask them: the studio changes it")
        for word in ("yes", "no"):  # its own it may change
            assert "undo" in await call("answer", label="dog", answers=[{"picture": second, "answer": word}])

    talk(create_server(studio), steps)
    assert [row.tags for row in studio.tag([first, second])] == [("dog",), ("cat",)]


def test_an_assistant_may_correct_what_it_made_a_label_with(studio: Studio) -> None:
    picture = studio.search(limit=1).pictures[0].digest

    async def steps(_: Client, call: Step) -> None:
        for word in ("yes", "no"):
            said = await call("answer", label="hound", answers=[{"picture": picture, "answer": word}], new_label=True)
            assert "label" in said

    talk(create_server(studio), steps)
    assert (studio.label("hound").examples, studio.label("hound").absent) == (0, 1)


def test_the_id_of_an_answer_takes_it_back(studio: Studio) -> None:
    async def steps(_client: Client, call: Step) -> None:
        found = digests(await call("search"))
        await call("answer", label="dog", answers=[{"picture": found["00.png"], "answer": "yes"}], new_label=True)
        more = await call("answer", label="dog", answers=[{"picture": found["03.png"], "answer": "yes"}])
        assert studio.label("dog").examples == 2
        studio.undo(more["undo"])
        assert studio.label("dog").examples == 1

    talk(create_server(studio), steps)


def test_writing_is_a_dry_run_unless_a_person_allowed_it(studio: Studio) -> None:
    async def steps(_client: Client, call: Step) -> None:
        found = digests(await call("search"))
        await call("answer", label="dog", answers=[{"picture": found["00.png"], "answer": "yes"}], new_label=True)
        told = await call("write")
        assert (told["dry_run"], told["rows"], told["file"]) == (True, 12, None)
        beside = await call("write", format="xmp", confirmed_only=True)
        assert (beside["dry_run"], beside["changes"]) == (True, 1)
        assert "--allow-write" in await call("write", dry_run=False)

    async def allowed(_client: Client, call: Step) -> None:
        told = await call("write", dry_run=False)
        assert (studio.folder / "deliveries" / told["file"]).is_file()

    talk(create_server(studio), steps)
    assert not (studio.folder / "deliveries").exists()
    assert not list(Path(studio.overview().folders[0]).glob("*.xmp"))
    talk(create_server(studio, allow_write=True), allowed)


def test_a_search_says_that_pictures_are_still_being_looked_at(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty page of a new project would be taken for an empty library."""
    now = replace(studio.overview(), indexing=True, indexed=3)

    async def steps(_: Client, call: Step) -> None:
        assert "note" not in await call("search")
        monkeypatch.setattr(studio, "overview", lambda: now)
        assert (await call("search"))["note"].startswith("3 of 12 pictures are looked at so far")

    talk(create_server(studio), steps)


def test_what_is_refused_is_one_sentence_for_the_assistant(studio: Studio) -> None:
    async def steps(_client: Client, call: Step) -> None:
        assert "there is no label 'unicorn'" in await call("suggest", label="unicorn")
        nothing = [{"picture": 32 * "0", "answer": "yes"}]
        assert "give new_label to make it" in await call("answer", label="dog", answers=nothing)
        assert "000" in await call("answer", label="dog", answers=nothing, new_label=True)
        assert "pattern" in await call("tag", pictures=["../etc/passwd"])
        assert "there is no format" in await call("write", format="exe")

    talk(create_server(studio), steps)
    assert studio.labels() == []


@pytest.mark.slow
@pytest.mark.processes
def test_the_command_speaks_over_standard_input_and_prints_nothing_else(
    album: Path, tiny_model: Path, tmp_path: Path
) -> None:
    arguments = ["-m", "fewtag", "mcp", str(tmp_path / "project"), str(album), "--model", str(tiny_model)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [*arguments, "--cache", str(tmp_path / "cache")]

    async def steps(_client: Client, call: Step) -> None:
        assert (await call("labels"))["labels"] == []
        assert "--allow-write" in await call("write", dry_run=False)

    talk(StdioServerParameters(command=sys.executable, args=command, env=environment, cwd=str(tmp_path)), steps)


def test_a_project_that_is_not_there_is_refused(cli: Any, tmp_path: Path) -> None:
    said = cli("mcp", tmp_path / "nothing")
    assert (said.code, "name folders of pictures" in said.err) == (2, True)
