"""Commands that serve: the HTTP API over a bank or a project, the studio in the browser, and an assistant's tools."""

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewtag.cli.terminal import AsJson, Cache, Device, ModelName, NoCache, WordSource
from fewtag.errors import InputError

if TYPE_CHECKING:
    from fewtag.server.security import Guard
    from fewtag.server.service import BankService
    from fewtag.server.uploads import Decoders
    from fewtag.studio.studio import Studio

PORT = 8766
"""The same each time: what a browser keeps for a page, it keeps by the page's port."""
FILE = "studio.sqlite"
"""By which a folder is a project."""
NEEDED = ("fastapi", "uvicorn", "python_multipart", "prometheus_client")

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
    """Other programs' protocols."""

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
    kept = _cache_folder(cache, no_cache)
    exposure = _Exposure(host, port, allow_network, tuple(allow_host or ()), token_file, read_only)
    exposure.add_services([each.value for each in service or ()], label_studio)
    if bank.is_dir():
        if no_cache:
            raise InputError(
                f"{bank} is a project, which keeps what the network made of its pictures; leave --no-cache out"
            )
        _check_project(bank)
        from fewtag.studio.studio import Studio

        def open_project(_decoders: "Decoders") -> "Studio":
            return Studio.open(bank, model=model, words=words, device=device, cache=kept)

        exposure.run(open_project, kept, as_json=as_json, what=f"{bank} is served at")
        return
    from fewtag.cli.banks import open_bank
    from fewtag.server.service import BankService

    tagger = open_bank(bank, model, words, device)

    def open_service(decoders: "Decoders") -> "BankService":
        return BankService(bank, tagger, decoders)

    exposure.run(open_service, kept, as_json=as_json, what=f"{bank} is served at")


def studio(
    project: Annotated[Path, typer.Argument(metavar="PROJECT", help="The project's folder, new or known.")] = Path(
        "fewtag-studio"
    ),
    pictures: Annotated[
        list[Path] | None, typer.Argument(metavar="PICTURES", help="Folders of pictures to add to it.")
    ] = None,
    port: Port = PORT,
    host: Host = "127.0.0.1",
    allow_network: AllowNetwork = False,
    allow_host: AllowHost = None,
    token_file: TokenFile = None,
    service: Services = None,
    label_studio: LabelStudio = "",
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Open no browser; print the address.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Check the project instead, and say what is wrong.")] = False,
    backup: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a copy of the project's answers instead.")
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
    from fewtag.studio.studio import Studio

    kept = _cache_folder(cache)
    if check or backup is not None:
        _check_project(project)
        with Studio.open(project, model=model, words=words, device=device, cache=kept, index=False) as opened:
            _look_after(opened, check=check, backup=backup, as_json=as_json)
        return
    if project.is_dir() and not (project / FILE).exists():
        _check_new(project, pictures or [])

    def open_project(_decoders: "Decoders") -> Studio:
        return Studio.open(project, pictures or (), model=model, words=words, device=device, cache=kept)

    exposure = _Exposure(host, port, allow_network, tuple(allow_host or ()), token_file, read_only=False)
    exposure.add_services([each.value for each in service or ()], label_studio)
    exposure.run(open_project, kept, as_json=as_json, what=f"{project} is open at", browser=not no_browser)


def mcp(
    project: Annotated[Path, typer.Argument(metavar="PROJECT", help="The project's folder, new or known.")],
    pictures: Annotated[
        list[Path] | None, typer.Argument(metavar="PICTURES", help="Folders of pictures to add to it.")
    ] = None,
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
    if find_spec("mcp") is None:
        raise InputError('fewtag mcp needs a package more; install it with: pip install "fewtag[mcp]"')
    if not project.is_dir() and not pictures:
        raise InputError(f"there is no project {project}; name folders of pictures, and one is made of them")
    if project.is_dir() and not (project / FILE).exists():
        _check_new(project, pictures or [])
    from fewtag.server.mcp import create_server
    from fewtag.studio.studio import Studio

    with Studio.open(project, pictures or (), model=model, words=words, device=device, cache=cache) as opened:
        create_server(opened, allow_write=allow_write).run("stdio")


def _check_project(folder: Path) -> None:
    if not (folder / FILE).exists():
        raise InputError(f"there is no project {folder}; make one with: {_command(folder)} PICTURES")


def _check_new(folder: Path, pictures: list[Path]) -> None:
    """A folder of pictures is not to become a project by a slip."""
    from fewtag.pictures.files import is_image_name

    found = [path for path in folder.iterdir() if not path.name.startswith(".")]
    if found and (not pictures or any(is_image_name(path.name) for path in found)):
        raise InputError(
            f"{folder} holds other things and is no project; name the project first: "
            f"{_command(Path('PROJECT'))} {shlex.quote(str(folder))}"
        )


def _command(project: Path) -> str:
    return f"fewtag studio {shlex.quote(str(project))}"


def _look_after(opened: "Studio", *, check: bool, backup: Path | None, as_json: bool) -> None:
    if backup is not None:
        opened.backup(backup)
        typer.echo(json.dumps({"backup": str(backup)}) if as_json else f"{backup}: a copy of {opened.folder}")
    if check:
        from fewtag.studio.values import as_json as facts_of

        found = opened.check()
        if as_json:
            typer.echo(json.dumps(facts_of(found)))
        else:
            for sentence in found.problems:
                typer.echo(sentence)
            verdict = "something is wrong" if found.problems else "all is well"
            typer.echo(
                f"{opened.folder}: {found.pictures} pictures, {found.labels} labels, {found.answers} answers; {verdict}"
            )
        if found.problems:
            raise typer.Exit(1)


class _Exposure:
    """Who may reach the server: what the command line says, and nothing else can."""

    def __init__(
        self,
        host: str,
        port: int,
        allow_network: bool,
        names: tuple[str, ...],
        token_file: Path | None,
        read_only: bool,
    ) -> None:
        from fewtag.server.security import is_loopback, read_token

        if not is_loopback(host) and not allow_network:
            raise InputError(
                f"--host {host} lets other machines reach the server; add --allow-network if they shall, "
                "on a network that you trust"
            )
        self.host, self.port, self.names, self.read_only = host, port, names, read_only
        self.token = read_token(token_file)
        self.services: tuple[str, ...] = ()
        self.label_studio = ""

    def add_services(self, names: list[str], label_studio: str) -> None:
        """Those for other programs."""
        if "label-studio" in names and not label_studio:
            raise InputError(
                "--service label-studio fetches pictures from one host; say which, "
                "such as --label-studio http://localhost:8080"
            )
        if label_studio:
            names = [*names, "label-studio"]
        self.services, self.label_studio = tuple(dict.fromkeys(names)), label_studio

    def run(
        self,
        open_service: "Callable[[Decoders], BankService | Studio]",
        cache: Path | None,
        *,
        as_json: bool,
        what: str,
        browser: bool = False,
    ) -> None:
        """Until it is interrupted."""
        from fewtag.server.app import listen, run
        from fewtag.server.security import Settings
        from fewtag.server.services import MOST_JSON

        with listen(self.host, self.port) as socket:
            port = socket.getsockname()[1]
            settings = Settings(self.token, self.host, port, self.names, self.read_only)
            if self.services:
                settings = replace(
                    settings, services=self.services, label_studio=self.label_studio, most_json=MOST_JSON
                )

            def started(guard: "Guard") -> None:
                """The first line is printed when the server answers."""
                if as_json:
                    print(json.dumps({"url": settings.url, "token": settings.token}), flush=True)
                else:
                    typer.echo(f"{what} {settings.url}/#token={settings.token}")
                    typer.echo("end it with Ctrl-C")
                if browser:
                    import threading
                    import webbrowser

                    address = f"{settings.url}/#token={guard.one_time_token()}"
                    # one in the terminal would not give the server its turn
                    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

            run(open_service, settings, socket, cache=cache, started=started)


def _cache_folder(cache: Path | None, no_cache: bool = False) -> Path | None:
    from fewtag.files import user_cache_folder

    if cache is not None and no_cache:
        raise InputError("--cache and --no-cache exclude each other; give one of them")
    return None if no_cache else (cache or user_cache_folder()).resolve()


def _check_extra(command: str) -> None:
    if any(find_spec(module) is None for module in NEEDED):
        raise InputError(
            f'fewtag {command} needs a few packages more; install them with: pip install "fewtag[{command}]"'
        )
