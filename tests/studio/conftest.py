"""An album of coloured discs whose file names say what they show, and a studio on it."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from album import LABELS
from tiny import draw

from fewtag.studio import index
from fewtag.studio.studio import Studio


@pytest.fixture(scope="session")
def drawn_album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 pictures in two folders, and a file that is none; drawn once, not to be changed."""
    folder = tmp_path_factory.mktemp("drawn") / "album"
    for number in range(120):
        shown = [label for place, label in enumerate(LABELS) if number >> place & 1]
        path = folder / f"20{23 + number % 2}" / f"{number:03d} {' '.join(shown) or 'nothing'}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(number, *shown).save(path)
    (folder / "broken.jpg").write_bytes(b"no picture")
    return folder


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def album(drawn_album: Path, tmp_path: Path) -> Path:
    """One's own, to be changed."""
    return Path(shutil.copytree(drawn_album, tmp_path / "album"))


@pytest.fixture
def open_studio(
    tiny_model: Path, shared_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Studio]]:
    """open_studio(folders) opens the project tmp_path/project, indexed; all are closed in the end."""
    opened: list[Studio] = []
    monkeypatch.setattr(index, "PATIENT_SECONDS", 0.0)

    def open_it(*folders: Path, project: str = "project", **options: object) -> Studio:
        options = {"model": str(tiny_model), "cache": shared_cache, **options}
        studio = Studio.open(tmp_path / project, folders, **options)  # type: ignore[arg-type]
        opened.append(studio)
        assert studio.wait(300)
        return studio

    yield open_it
    for studio in opened:
        studio.close()


@pytest.fixture
def studio(open_studio: Callable[..., Studio], drawn_album: Path) -> Studio:
    return open_studio(drawn_album)
