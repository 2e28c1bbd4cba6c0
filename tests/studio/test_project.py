"""The project file: nothing that was acknowledged is lost, counted twice, or folded in another way."""

import itertools
import shutil
import sqlite3
import time
import uuid
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewtag.errors import InputError, UnavailableError
from fewtag.studio import project as module
from fewtag.studio.log import Change, Fold, Log, Said, Verdict
from fewtag.studio.project import BUSY_SECONDS, FILE, Project

PICTURES, LABELS = ("p", "q", "r"), ("heron", "egret")
Step = tuple[object, ...]
STEPS = st.one_of(
    st.tuples(
        st.just("answers"),
        st.lists(
            st.tuples(st.sampled_from(PICTURES), st.sampled_from(LABELS), st.sampled_from(["yes", "no", "unknown"])),
            min_size=1,
            max_size=3,
        ),
    ),
    st.tuples(st.just("define"), st.sampled_from(LABELS)),
    st.tuples(st.just("forget"), st.sampled_from(LABELS)),
    st.tuples(st.just("undo")),
    st.tuples(st.just("redo")),
)


class Naive:
    """Undo and redo as two piles of what was done, played from the beginning each time."""

    def __init__(self) -> None:
        self.done: list[Step] = []
        self.undone: list[Step] = []

    def state(self) -> dict[str, dict[str, str]]:
        labels: dict[str, dict[str, str]] = {}
        for step in self.done:
            match step:
                case ("define", name):
                    labels.setdefault(str(name), {})
                case ("forget", name):
                    labels.pop(str(name), None)
                case ("answers", answers):
                    for picture, label, word in answers:  # type: ignore[attr-defined]
                        labels[label][picture] = word
        return labels


def state(fold: Fold) -> dict[str, dict[str, str]]:
    return {
        label.name: {picture: said.answer for picture, said in fold.latest[label.id].items()}
        for label in fold.labels.values()
    }


@settings(deadline=None)
@given(st.lists(STEPS, max_size=30))
def test_undo_and_redo_are_two_piles(steps: list[Step]) -> None:
    log, naive, numbers = Log(), Naive(), itertools.count(1)

    def add(kind: str, facts: dict[str, object], answers: tuple[object, ...] = (), undoes: int | None = None) -> None:
        log.add(Change(next(numbers), str(uuid.uuid4()), kind, facts, undoes, answers))  # type: ignore[arg-type]

    for step in steps:
        known = {label.name: label.id for label in log.fold.labels.values()}
        match step:
            case ("undo",) if naive.done:
                naive.undone.append(naive.done.pop())
                add("undo", {}, undoes=log.done[-1])
            case ("redo",) if naive.undone:
                naive.done.append(naive.undone.pop())
                add("undo", {}, undoes=log.undone[-1])
            case ("define", name) if name not in known:
                naive.done.append(step)
                naive.undone.clear()
                add("define", {"name": name, "like": None, "words": True})
            case ("forget", name) if name in known:
                naive.done.append(step)
                naive.undone.clear()
                add("forget", {"label": known[str(name)]})
            case ("answers", answers) if all(label in known for _, label, _ in answers):  # type: ignore[attr-defined]
                naive.done.append(step)
                naive.undone.clear()
                given = [Said(str(uuid.uuid4()), picture, known[label], word, "") for picture, label, word in answers]  # type: ignore[attr-defined]
                add("answers", {}, tuple(given))
        assert state(log.fold) == naive.state()
        assert (len(log.done), len(log.undone)) == (len(naive.done), len(naive.undone))
    assert Log(log.changes.values()).fold == log.fold, "what is read back amounts to the same"


def define(project: Project, name: str) -> int:
    return project.change("define", {"name": name, "like": None, "words": True}).n


def say(project: Project, picture: str, label: int, word: Verdict = "yes", name: str | None = None) -> str:
    name = name or str(uuid.uuid4())
    project.change("answers", {}, [Said(name, picture, label, word, "click")])
    return name


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


def test_what_was_changed_is_there_after_a_restart(project: Project) -> None:
    heron, egret = define(project, "heron"), define(project, "egret")
    say(project, "p", heron)
    say(project, "q", egret, "no")
    project.change("rename", {"label": heron, "name": "birds/heron"})
    project.undo(project.log.done[-1])
    before = project.fold
    project.close()
    again = Project(project.folder)
    assert again.fold == before
    assert state(again.fold) == {"heron": {"p": "yes"}, "egret": {"q": "no"}}
    assert not again.check()


def test_merged_labels_show_what_either_showed_and_part_again(project: Project) -> None:
    heron, egret = define(project, "heron"), define(project, "egret")
    say(project, "p", heron, "yes")
    say(project, "p", egret, "no")
    say(project, "q", heron, "no")
    merge = project.change("merge", {"label": heron, "into": egret})
    assert state(project.fold) == {"egret": {"p": "yes", "q": "no"}}
    project.undo(merge.n)
    assert state(project.fold) == {"heron": {"p": "yes", "q": "no"}, "egret": {"p": "no"}}


def test_labels_that_were_each_merged_into_the_other_are_one(project: Project) -> None:
    heron, egret = define(project, "heron"), define(project, "egret")
    undo = project.undo(project.change("merge", {"label": heron, "into": egret}).n)
    project.change("merge", {"label": egret, "into": heron})
    project.undo(undo.n)  # the "Redo" that another page still offers
    assert [label.name for label in project.fold.labels.values()] == ["egret"]
    say(project, "p", heron, "yes")
    assert project.fold.latest[egret]["p"].answer == "yes"


def test_an_answer_to_a_label_that_was_merged_counts_for_the_other(project: Project) -> None:
    heron, egret = define(project, "heron"), define(project, "egret")
    merge = project.change("merge", {"label": heron, "into": egret})
    undo = project.undo(merge.n)
    say(project, "p", heron)
    project.undo(undo.n)
    assert state(project.fold) == {"egret": {"p": "yes"}}


def test_a_label_whose_making_is_undone_is_gone_however_often_it_was_defined_anew(project: Project) -> None:
    heron = define(project, "heron")
    project.change("define", {"label": heron, "name": "heron", "like": ["bird"], "words": True})
    say(project, "p", heron)
    undo = project.undo(heron)
    assert state(project.fold) == {}
    project.undo(undo.n)
    assert (state(project.fold), project.fold.labels[heron].like) == ({"heron": {"p": "yes"}}, ("bird",))


def test_an_undo_that_would_make_two_labels_of_one_name_is_refused(project: Project) -> None:
    heron = define(project, "heron")
    forget = project.change("forget", {"label": heron})
    define(project, "heron")
    before = len(project.log.changes)
    with pytest.raises(InputError, match="two labels 'heron'"):
        project.undo(forget.n)
    assert len(project.log.changes) == before


def test_the_log_cannot_be_rewritten(project: Project) -> None:
    say(project, "p", define(project, "heron"))
    with sqlite3.connect(project.path) as outside:
        for statement in ("UPDATE answer SET answer = 'no'", "DELETE FROM answer", "DELETE FROM change"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                outside.execute(statement)


def test_an_id_is_taken_once(project: Project) -> None:
    heron = define(project, "heron")
    name = say(project, "p", heron)
    before = state(project.fold)
    with pytest.raises(InputError):
        say(project, "q", heron, name=name)
    assert state(project.fold) == before
    assert len(project.log.changes) == 2, "nothing of a refused change is left"


def test_a_second_studio_is_refused_in_one_sentence(project: Project) -> None:
    with pytest.raises(InputError, match=r"open in another studio; .* \(--backup alone works beside it\)"):
        Project(project.folder)
    project.close()
    Project(project.folder).close()


def test_a_fold_that_somebody_reads_is_not_changed_by_what_comes_later(project: Project) -> None:
    define = project.change("define", {"name": "dog", "like": None, "words": True})
    before, version = project.fold, project.log.version
    project.change("answers", {}, [Said(str(uuid.uuid4()), "a" * 32, define.n, "yes", "click")])
    project.change("rename", {"label": define.n, "name": "cat"})
    assert before.find("dog").id == project.fold.find("cat").id
    assert not before.latest[define.n]
    assert list(project.fold.latest[define.n]) == ["a" * 32]
    assert project.log.version == version + 2


def test_a_clock_that_is_set_back_changes_nothing(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    heron = define(project, "heron")
    say(project, "p", heron, "yes")
    monkeypatch.setattr(module.time, "time", lambda: 0.0)
    say(project, "p", heron, "no")
    project.close()
    assert state(Project(project.folder).fold) == {"heron": {"p": "no"}}


def test_a_full_disk_refuses_the_answer_and_loses_none(project: Project) -> None:
    heron = define(project, "heron")
    say(project, "p", heron)
    pages = project.select("PRAGMA page_count")[0][0]
    project._writer.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(UnavailableError, match="the disk is full; free some room"):
        say(project, "q" * 100_000, heron)
    held = state(project.fold)
    project._writer.execute("PRAGMA max_page_count = 1000000")
    say(project, "r", heron)
    project.close()
    assert state(Project(project.folder).fold) == {"heron": held["heron"] | {"r": "yes"}}


def test_nothing_is_taken_while_the_project_is_not_where_it_was(project: Project, tmp_path: Path) -> None:
    heron = define(project, "heron")
    project.folder.rename(tmp_path / "elsewhere")
    with pytest.raises(UnavailableError, match="was moved, deleted or replaced while it is open; put it back"):
        say(project, "p", heron)
    project._readers.clear()
    with pytest.raises(UnavailableError, match="was moved, deleted or replaced while it is open; put it back"):
        project.files()
    (tmp_path / "elsewhere").rename(project.folder)
    say(project, "q", heron)
    assert state(project.fold) == {"heron": {"q": "yes"}}


def test_nothing_is_taken_once_the_projects_file_is_deleted_and_no_other_made_in_its_place(project: Project) -> None:
    """A read made an empty one there, and from then on answers went into the deleted one."""
    heron = define(project, "heron")
    project.path.unlink()
    project._readers.clear()
    for ask in (project.files, lambda: say(project, "p", heron)):
        with pytest.raises(UnavailableError, match="was moved, deleted or replaced while it is open"):
            ask()
    assert not project.path.exists()


def test_nothing_is_taken_once_a_copy_is_in_the_place_of_the_project(project: Project, tmp_path: Path) -> None:
    heron = define(project, "heron")
    shutil.copy(project.path, tmp_path / "copy")
    (tmp_path / "copy").replace(project.path)
    with pytest.raises(UnavailableError, match="was moved, deleted or replaced while it is open; put it back, or open"):
        say(project, "p", heron)


def test_a_project_that_may_only_be_read_is_refused_in_one_sentence(project: Project) -> None:
    heron = define(project, "heron")
    project._writer.execute("PRAGMA query_only = ON")  # what a closed folder is to SQLite; root may write to any
    with pytest.raises(UnavailableError, match="may only be read; make it writable"):
        say(project, "p", heron)
    assert state(project.fold) == {"heron": {}}


def test_a_folder_where_no_project_can_be_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot make the folder"):
        Project(tmp_path / "file" / "project")


def test_a_file_that_is_no_project_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"these are somebody's notes" * 100)
    with pytest.raises(InputError, match="damaged"):
        Project(tmp_path)
    assert (tmp_path / FILE).read_bytes().startswith(b"these are")


def test_a_project_whose_damage_sqlites_message_cites_is_refused_in_one_sentence(project: Project) -> None:
    project.close()
    damaged = project.path.read_bytes().replace(b"CREATE TABLE picture", b"CR\xe8ATE TABLE picture")
    project.path.write_bytes(damaged)
    with pytest.raises(InputError, match="damaged"):
        Project(project.folder)


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE) as theirs:
        theirs.execute("CREATE TABLE theirs (x)")
        theirs.execute("PRAGMA user_version = 7")
    with pytest.raises(InputError, match="another program's"):
        Project(tmp_path)


def test_a_newer_project_is_refused(project: Project) -> None:
    project._writer.execute("PRAGMA user_version = 99")
    project.close()
    with pytest.raises(InputError, match="update fewtag"):
        Project(project.folder)


def test_a_backup_is_a_project(project: Project, tmp_path: Path) -> None:
    say(project, "p", define(project, "heron"))
    target = tmp_path / "elsewhere" / FILE
    module.backup(project.folder, target)
    with pytest.raises(InputError, match="exists"):
        module.backup(project.folder, target)
    say(project, "q", 1)
    assert state(Project(target.parent).fold) == {"heron": {"p": "yes"}}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes, list[str]]:
    """A project's file and its write-ahead log, as they lie there while it is open, and the ids of its answers."""
    project = Project(tmp_path_factory.mktemp("written"))
    heron = define(project, "heron")
    given = [say(project, f"picture {number}", heron) for number in range(12)]
    content, log = project.path.read_bytes(), Path(f"{project.path}-wal").read_bytes()
    project.close()
    return content, log, given


@settings(max_examples=20, deadline=None)
@given(share=st.floats(0, 1))
def test_a_truncated_log_leaves_the_answers_before_it(
    share: float, written: tuple[bytes, bytes, list[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As after a power cut on a disk that lies: the write-ahead log ends at any byte."""
    content, log, given = written
    folder = tmp_path_factory.mktemp("cut")
    (folder / FILE).write_bytes(content)
    (folder / f"{FILE}-wal").write_bytes(log[: int(share * len(log))])
    again = Project(folder)
    kept = [answer.id for change in again.log.changes.values() for answer in change.answers]
    assert kept == given[: len(kept)], "a beginning of what was said, in order, none twice"
    assert share < 1 or kept == given
    assert not again.check()
    if again.fold.labels:
        say(again, "one more", 1)
    again.close()


def test_readers_do_not_wait_for_a_writer(project: Project) -> None:
    heron = define(project, "heron")

    with project.writing() as connection:
        connection.execute("INSERT INTO meta VALUES ('a', 'b')")
        since = time.perf_counter()
        assert project.meta("a") is None
        assert time.perf_counter() - since < 0.9 * BUSY_SECONDS
    assert project.meta("a") == "b"
    assert heron == 1


def test_a_frozen_project_of_version_1_says_what_it_said(tmp_path: Path) -> None:
    """Made by the first version; never made anew: this is what people have on their disks."""
    frozen = Path(__file__).parents[1] / "data" / "project-1" / FILE
    shutil.copy(frozen, tmp_path / FILE)
    project = Project(tmp_path)
    picture = [f"{number:032x}" for number in range(1, 6)]
    assert state(project.fold) == {
        "birds/heron": {picture[0]: "yes", picture[1]: "no", picture[2]: "unknown", picture[4]: "yes"},
        "egret": {picture[0]: "no", picture[3]: "yes"},
    }
    heron = project.fold.find("birds/heron")
    assert (heron.threshold, heron.prior) == (0.4, 0.02)
    assert project.fold.find("egret").like == ("bird", "white")
    assert project.fold.latest[heron.id][picture[4]].source == "audit"
    assert (len(project.log.done), len(project.log.undone)) == (10, 0)
    assert project.folders() == ["/album"]
    assert [row.failure for row in project.files() if row.digest is None] == ["image bad.jpg cannot be decoded"]
    assert project.pictures()[1].taken == "2024-05-01T12:00:00"
    assert list(project.small_copies("a space", picture[:1]).values()) == [b"RIFF"]
    assert not project.check()
