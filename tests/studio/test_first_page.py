"""The first replies, kept from one session to the next: those of the same state, and of no other."""

import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tiny import draw

import fewtag
from fewtag.cache import PRIVATE_FILE, Cache
from fewtag.studio import first_page
from fewtag.studio.project import Project
from fewtag.studio.studio import Studio

NEVER = "0" * 32


@pytest.fixture
def place(tiny_model: Path, tmp_path: Path) -> Path:
    """A folder with an album, a project of it with a label, and the cache; the studio was closed."""
    (tmp_path / "album").mkdir()
    for number in range(6):
        draw(number, ["dog", "cat"][number % 2]).save(tmp_path / "album" / f"{number}.png")
    with Studio.open(tmp_path / "project", [tmp_path / "album"], model=str(tiny_model), cache=tmp_path / "cache") as it:
        assert it.wait(300.0)
        it.teach("dog", [it.search().pictures[0].digest])
        assert it.wait(300.0)
        it.labels()
    return tmp_path


def read(place: Path, *options: object) -> dict[str, bytes]:
    with closing(Project(place / "project")) as project:
        return first_page.read(project, place / "cache", *options)  # type: ignore[arg-type]


def reopened(place: Path, *, index: bool = False) -> Studio:
    studio = Studio.open(place / "project", cache=place / "cache", index=index)
    assert studio.wait(300.0)
    return studio


def test_pictures_labels_and_thumbnails_are_kept(place: Path) -> None:
    found = read(place)
    page, labels = (json.loads(found[f"/v1/{name}"]) for name in ("pictures", "labels"))
    assert [cell["name"] for cell in page["pictures"]] == [f"{number}.png" for number in range(6)]
    assert page["pictures"][0]["tags"][0] == {"label": "dog", "p": page["pictures"][0]["tags"][0]["p"], "state": "yes"}
    assert [(label["name"], label["examples"]) for label in labels["labels"]] == [("dog", 1)]
    with reopened(place) as studio:
        studio.labels()
        assert [cell.digest for cell in studio.search().pictures] == [cell["digest"] for cell in page["pictures"]]
        for cell in page["pictures"]:
            assert found[f"/v1/pictures/{cell['digest']}/thumbnail?size=256"] == studio.thumbnail(cell["digest"])


def answered(place: Path) -> None:
    """By a studio that was killed: it kept nothing at its end."""
    with closing(Project(place / "project")) as project:
        project.change("define", {"name": "cat", "like": None, "words": False})


def file_replaced(place: Path) -> None:
    with closing(Project(place / "project")) as project:
        project.record(files=[project.files()[-1]._replace(mtime=1)])


def file_gone(place: Path) -> None:
    with closing(Project(place / "project")) as project:
        project.record(gone=[project.files()[-1].path])


def folder_added(place: Path) -> None:
    with closing(Project(place / "project")) as project:
        project.add_folders([str(place)])


def model_changed(place: Path) -> None:
    with closing(Project(place / "project")) as project:
        project.set_meta(model="accurate")


def moved(place: Path) -> None:
    (place / "project").rename(place / "elsewhere")
    (place / "elsewhere").rename(place / "project")
    with sqlite3.connect(place / "cache" / PRIVATE_FILE) as connection:
        connection.execute("UPDATE spaces SET key = ? WHERE kind = 'first page'", (str(place / "another"),))


def cleared(place: Path) -> None:
    (place / "cache" / PRIVATE_FILE).unlink()


def rubbish(place: Path) -> None:
    cleared(place)
    (place / "cache" / PRIVATE_FILE).write_bytes(b"rubbish" * 1000)


def damaged(place: Path) -> None:
    with sqlite3.connect(place / "cache" / PRIVATE_FILE) as connection:
        connection.execute("UPDATE contents SET content = substr(content, 9)")


@pytest.mark.parametrize(
    "change",
    [
        answered,
        file_replaced,
        file_gone,
        folder_added,
        model_changed,
        moved,
        cleared,
        rubbish,
        damaged,
    ],
)
def test_of_another_state_nothing_is_told(place: Path, change: Callable[[Path], None]) -> None:
    assert read(place)
    change(place)
    assert read(place) == {}


def test_another_version_is_told_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fewtag, "__version__", "0.0.1", raising=False)
    assert read(place) == {}


def test_a_model_of_ones_own_that_was_made_anew_is_another(place: Path, tmp_path: Path) -> None:
    with closing(Project(place / "project")) as project:
        source = Path(str(project.meta("model")))
    own = tmp_path / "own.safetensors"
    own.write_bytes(source.read_bytes())
    graph = next(source.parent.glob("*.onnx"), None)
    if graph is not None:
        (tmp_path / graph.name).write_bytes(graph.read_bytes())
    with Studio.open(place / "project", model=str(own), cache=place / "cache") as studio:
        assert studio.wait(300.0)
        studio.labels()
    assert read(place)
    os.utime(own, (1, 1))
    assert read(place) == {}


def test_what_the_command_adds_or_chooses_anew_is_not_in_it(place: Path) -> None:
    with closing(Project(place / "project")) as project:
        model = project.meta("model")
    assert read(place, [str((place / "album").resolve())], model, None)
    assert read(place, [str(place)]) == {}
    assert read(place, [], "accurate") == {}
    assert read(place, [], None, "words.txt") == {}


def test_a_picture_that_is_gone_is_not_shown_after_the_next_session(place: Path) -> None:
    (place / "album" / "0.png").unlink()
    with reopened(place, index=True) as studio:
        studio.labels()
    names = [cell["name"] for cell in json.loads(read(place)["/v1/pictures"])["pictures"]]
    assert names == [f"{number}.png" for number in range(1, 6)]


def test_a_studio_with_labels_to_work_out_keeps_nothing_new(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = read(place)
    with reopened(place) as studio:
        monkeypatch.setattr(studio.ranking.scores, "is_fresh", lambda _bank, _label: False)
    assert read(place) == before
    with reopened(place) as studio:
        studio.teach("cat", [studio.search().pictures[1].digest])
        monkeypatch.setattr(studio.ranking.scores, "is_fresh", lambda _bank, _label: False)
    assert read(place) == {}


def test_of_an_undone_threshold_nothing_is_kept(place: Path) -> None:
    with reopened(place) as studio:
        before = studio.labels()
        studio.set_threshold("dog", 0.0)
        studio.undo()
    (label,) = json.loads(read(place)["/v1/labels"])["labels"]
    assert (label["threshold"], label["tags"]) == (before[0].threshold, before[0].tags)


def test_a_thumbnail_that_the_cache_has_lost_is_left_to_the_application(place: Path) -> None:
    with sqlite3.connect(place / "cache" / PRIVATE_FILE) as connection:
        connection.execute("DELETE FROM rows WHERE id = 1")
    with Cache(place / "cache", private=True) as cache:
        first_page.thumbnails(cache, 256).put_bytes({bytes.fromhex(NEVER): b"of another project"})
    found = read(place)
    assert sum("thumbnail" in path for path in found) == 5
    assert not any(NEVER in path for path in found)
