"""Commands that serve: the HTTP API over a bank or a project, the studio in the browser, and an assistant's tools."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewtag.cli.pictures import cache_folder
from fewtag.cli.terminal import AsJson, Cache, Device, ModelName, NoCache, WordSource
from fewtag.errors import InputError, import_extra, plural

if TYPE_CHECKING:
    from fewtag.server.security import Guard, Settings
    from fewtag.server.service import BankService
    from fewtag.server.uploads import Decoders
    from fewtag.studio.studio import Studio

    First = Callable[[], Mapping[str, bytes]]

PORT = 8766
"""Fixed, since a browser stores a page's data by its port."""
NEEDED = ("fastapi", "uvicorn", "python_multipart", "prometheus_client")

ProjectFolder = Annotated[Path, typer.Argument(metavar="PROJECT", help="The project's folder, new or known.")]
Folders = Annotated[list[Path] | None, typer.Argument(metavar="PICTURES...", help="Folders of pictures to add to it.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Where to listen; 0 is any free one.")]
Host = Annotated[
    str, typer.Option(metavar="ADDRESS", help="The interface to listen on; another needs --allow-network.")
]
AllowNetwork = Annotated[
    bool,
    typer.Option("--allow-network", help="Let other machines reach it: over a network that you trust, or a proxy."),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option("--allow-host", metavar="NAME[:PORT]", help="Another name that clients call it by; repeatable."),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Take the token from a file (mode 600), or from FEWTAG_TOKEN.", show_default="a new one"
    ),
]


class Service(StrEnum):
    """Protocols of other programs."""

    LABEL_STUDIO = "label-studio"
    PHOTOPRISM = "photoprism"
    KSERVE = "kserve"


Services = Annotated[
    list[Service] | None, typer.Option("--service", help="Also speak another program's language; repeatable.")
]
LabelStudio = Annotated[
    str, typer.Option(metavar="URL", help="Where Label Studio is: the one host that pictures are fetched from.")
]


def serve(
    bank: Annotated[Path, typer.Argument(metavar="BANK|PROJECT", help="A bank, or a project's folder.")],
    port: Port = PORT,
    host: Host = "127.0.0.1",
    allow_network: AllowNetwork = False,
    allow_host: AllowHost = None,
    token_file: TokenFile = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Tag, but learn nothing.")] = False,
    service: Services = None,
    label_studio: LabelStudio = "",
    no_browser: Annotated[  # noqa: ARG001
        bool, typer.Option("--no-browser", help="Taken as by `studio`; this command never opens one.")
    ] = False,
    model: ModelName = None,
    words: WordSource = None,
    device: Device = "auto",
    cache: Cache = None,
    no_cache: NoCache = False,
    as_json: AsJson = False,
) -> None:
    """Serve a bank or a project over HTTP: tag pictures, teach labels, answer. `/docs` lists the requests.

    It listens on this machine alone, and every request carries the token that it prints. With --json the first line is
    {"url": …, "token": …}. What a client teaches is saved before it is told so; other commands may use the bank
    meanwhile.

    Example: fewtag serve pets.fewtag

    Example: fewtag serve pets.fewtag --port 0 --json --read-only

    Example: fewtag serve pets.fewtag --service label-studio --label-studio http://localhost:8080
    """
    _check_extra("serve")
    kept = cache_folder(cache, no_cache)
    settings = _settings(host, port, allow_network, allow_host, token_file, service, label_studio, read_only=read_only)
    run = partial(_run, settings, kept, f"{bank} is served at", as_json=as_json)
    if not bank.is_dir():
        from fewtag.server.service import BankService
        from fewtag.tagger.tagger import Tagger

        tagger = Tagger.load(bank, model=model, words=words, device=device)
        run(lambda: (partial(BankService, bank, tagger), None))
        return
    if no_cache:
        raise InputError(
            f"{bank} is a project, which keeps what the network made of its pictures; leave --no-cache out"
        )
    _check_project(bank)
    run(partial(_opening, bank, (), model, words, device, kept))


def studio(
    project: ProjectFolder = Path("fewtag-studio"),
    pictures: Folders = None,
    port: Port = PORT,
    host: Host = "127.0.0.1",
    allow_network: AllowNetwork = False,
    allow_host: AllowHost = None,
    token_file: TokenFile = None,
    service: Services = None,
    label_studio: LabelStudio = "",
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Open no browser; print the address.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Check the project instead, its studio closed; say what is wrong.")
    ] = False,
    backup: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a copy of the project's answers instead; a studio may be open."),
    ] = None,
    model: ModelName = None,
    words: WordSource = None,
    device: Device = "auto",
    cache: Cache = None,
    as_json: AsJson = False,
) -> None:
    """Teach, review, correct, search and deliver, in the browser, on this machine alone.

    The project's folder holds the answers (studio.sqlite) and the bank that follows from them (bank.fewtag), which
    every other command can use at any moment; pictures stay where they are.

    Example: fewtag studio holidays ~/Pictures/2024

    Example: fewtag studio holidays --backup holidays.sqlite
    """
    _check_extra("studio")
    kept = cache_folder(cache)
    if check or backup is not None:
        if pictures:
            raise InputError(f"--check and --backup look at the project alone; leave {pictures[0]} out")
        _check_project(project)
    if backup is not None:
        from fewtag.studio.project import backup as copy

        copy(project, backup)
        typer.echo(json.dumps({"backup": str(backup)}) if as_json else f"{backup}: a copy of {project}")
    if check:
        from fewtag.studio.studio import Studio

        with Studio.open(project, model=model, words=words, device=device, cache=kept, index=False) as opened:
            _check(opened, as_json=as_json)
    if check or backup is not None:
        return
    _check_new(project, pictures)
    settings = _settings(host, port, allow_network, allow_host, token_file, service, label_studio)
    opening = partial(_opening, project, pictures or (), model, words, device, kept)
    _run(settings, kept, f"{project} is open at", opening, as_json=as_json, browser=not no_browser)


def mcp(
    project: ProjectFolder,
    pictures: Folders = None,
    allow_write: Annotated[
        bool, typer.Option("--allow-write", help="Let the tool `write` write; without it, it only tells what it would.")
    ] = False,
    model: ModelName = None,
    words: WordSource = None,
    device: Device = "auto",
    cache: Cache = None,
) -> None:
    """Offer a project to an assistant, over the Model Context Protocol on standard input and output.

    An assistant's program starts it by itself. Its tools: labels, search, suggest, answer, tag, write. Nothing is sent
    to anyone but that program.

    Example: fewtag mcp holidays ~/Pictures/2024
    """
    import_extra("mcp", "fewtag mcp", "mcp")
    if not project.is_dir() and not pictures:
        raise InputError(f"there is no project {project}; name folders of pictures, and one is made of them")
    _check_new(project, pictures)
    from fewtag.server.mcp import create_server
    from fewtag.studio.studio import Studio

    with Studio.open(project, pictures or (), model=model, words=words, device=device, cache=cache) as opened:
        create_server(opened, allow_write=allow_write).run("stdio")


def _opening(
    folder: Path, pictures: Sequence[Path], model: str | None, words: str | None, device: str, cache: Path | None
) -> "tuple[Callable[[Decoders], Studio], First]":
    """Functions that open the studio and read its first page; the project itself is opened now, or refused."""
    from fewtag.studio import first_page
    from fewtag.studio.project import Project, picture_folders

    assert cache is not None
    folders = picture_folders(pictures)
    project = Project(folder)

    def opened(_decoders: "Decoders") -> "Studio":
        from fewtag.studio.studio import Studio

        return Studio.open(project, pictures, model=model, words=words, device=device, cache=cache)

    return opened, partial(first_page.read, project, cache, folders, model, words)


def _is_project(folder: Path) -> bool:
    from fewtag.studio.project import FILE

    return (folder / FILE).exists()


def _check_project(folder: Path) -> None:
    if not _is_project(folder):
        _check_new(folder, None)
        raise InputError(f"there is no project {folder}; make one with: {_command(folder)} PICTURES")


def _check_new(folder: Path, pictures: list[Path] | None) -> None:
    """Refuses to turn a folder of pictures into a project by mistake."""
    if not folder.is_dir() or _is_project(folder):
        return
    from fewtag.pictures.files import is_image_name

    found = [path for path in folder.iterdir() if not path.name.startswith(".")]
    if found and (not pictures or any(is_image_name(path.name) for path in found)):
        raise InputError(
            f"{folder} holds other things and is no project; name the project first: "
            f"{_command(Path('PROJECT'))} {shlex.quote(str(folder))}"
        )


def _command(project: Path) -> str:
    return f"fewtag studio {shlex.quote(str(project))}"


def _check(opened: "Studio", *, as_json: bool) -> None:
    from fewtag.studio.values import as_json as facts_of

    found = opened.check()
    if as_json:
        typer.echo(json.dumps(facts_of(found)))
    else:
        for sentence in found.problems:
            typer.echo(sentence)
        verdict = "something is wrong" if found.problems else "all is well"
        counts = {"picture": found.pictures, "label": found.labels, "answer": found.answers}
        told = ", ".join(plural(count, noun) for noun, count in counts.items())
        typer.echo(f"{opened.folder}: {told}; {verdict}")
    if found.problems:
        raise typer.Exit(1)


def _settings(
    host: str,
    port: int,
    allow_network: bool,
    names: list[str] | None,
    token_file: Path | None,
    services: list[Service] | None,
    label_studio: str,
    *,
    read_only: bool = False,
) -> "Settings":
    """Who may reach the server, as given on the command line and nowhere else."""
    from fewtag.server.security import Settings, is_loopback, read_token

    if not is_loopback(host) and not allow_network:
        raise InputError(
            f"--host {host} lets other machines reach the server; add --allow-network if they shall, "
            "on a network that you trust"
        )
    token, kept = read_token(token_file)
    settings = Settings(token, host, port, tuple(names or ()), read_only, keeps_token=kept)
    asked = {each.value for each in services or ()}
    if label_studio:
        from fewtag.server.label_studio import OneHost

        OneHost(label_studio, settings.most_bytes)  # refuses a wrong address before anything is served
        asked.add("label-studio")
    elif "label-studio" in asked:
        raise InputError(
            "--service label-studio fetches pictures from one host; say which, "
            "such as --label-studio http://localhost:8080"
        )
    if not asked:
        return settings
    from fewtag.server.dialects import MOST_JSON

    return replace(settings, services=tuple(sorted(asked)), label_studio=label_studio, most_json=MOST_JSON)


def _run(
    settings: "Settings",
    cache: Path | None,
    what: str,
    opening: "Callable[[], tuple[Callable[[Decoders], BankService | Studio], First | None]]",
    *,
    as_json: bool,
    browser: bool = False,
) -> None:
    """Serves until it is interrupted. `opening` refuses what it can at once, and returns how the rest is opened in the
    background and what a project's page shows until then."""
    from fewtag.server.front import Server, listen, run

    with listen(settings.host, settings.port) as socket:
        bound = replace(settings, port=socket.getsockname()[1])

        def started(guard: "Guard") -> None:
            """Prints the first line, once the server answers."""
            if as_json:
                print(json.dumps({"url": bound.url, "token": bound.token}), flush=True)
            else:
                # a token that is kept must not end up in a log
                shown = "" if bound.keeps_token else f"/#token={bound.token}"
                typer.echo(f"{what} {bound.url}{shown}")
                if bound.keeps_token:
                    how = "send it with every request" if page is None else "the page asks for it"
                    typer.echo(f"its token is the one that you keep (--token-file, FEWTAG_TOKEN); {how}")
                typer.echo("end it with Ctrl-C")
            if browser:
                import threading
                import webbrowser

                address = f"{bound.url}/#token={guard.one_time_token()}"
                # in a thread, since a browser in the terminal would block the server
                threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

        open_service, page = opening()
        run(Server(open_service, bound, page=page, cache=cache, started=started), socket)


def _check_extra(command: str) -> None:
    if any(find_spec(module) is None for module in NEEDED):
        raise InputError(
            f'fewtag {command} needs a few packages more; install them with: pip install "fewtag[{command}]"'
        )
