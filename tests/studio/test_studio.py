"""The studio from beginning to end: teach, answer, take back, and a bank that follows."""

import json
import random
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from album import LABELS, answer_page, digests, say, shows

from fewtag import Tagger
from fewtag.errors import InputError, MissingError
from fewtag.pictures.prefetch import batches
from fewtag.studio import index
from fewtag.studio.log import Log
from fewtag.studio.project import FILE, backup
from fewtag.studio.ranking import Scored
from fewtag.studio.studio import Studio
from fewtag.studio.values import Answer, Overview, as_json
from fewtag.tagger.bank import Bank

Open = Callable[..., Studio]


def test_folders_are_indexed_and_failures_told(studio: Studio) -> None:
    overview = studio.overview()
    assert (overview.pictures, overview.indexed, overview.failures) == (121, 120, 1)
    assert not overview.indexing
    [failure] = studio.failures()
    assert failure.name == "broken.jpg"
    assert "cannot be decoded" in failure.reason


def test_a_label_taught_by_one_picture_ranks_the_others_at_once(studio: Studio) -> None:
    names = digests(studio)
    one = next(name for name in names if shows(name, "dog") and not shows(name, "cat"))
    row = studio.teach("dog", [names[one]])
    assert (row.examples, row.absent) == (1, 0)
    assert row.tags > 20
    found = studio.search("dog", limit=20, stacked=False).pictures
    assert found[0].digest == names[one], "what a person said comes first"
    assert sum(shows(cell.name, "dog") for cell in found) >= 18


def test_answers_are_learnt_and_a_no_is_final(studio: Studio) -> None:
    studio.define("dog")
    for _ in range(4):
        answer_page(studio, "dog")
    assert sum(shows(cell.name, "dog") for cell in studio.review("dog", "sure", 20).pictures) >= 18
    names = digests(studio)
    refused = next(cell.digest for cell in studio.search("dog").pictures if cell.tags[0].state == "model")
    studio.answer([say(refused, "dog", "no")])
    assert refused not in [cell.digest for cell in studio.search("dog", limit=1000, stacked=False).pictures]
    assert studio.tag([refused])[0].tags == ()
    assert studio.wait(300)
    path = next(path for path in studio.library.files_of[refused])
    assert "dog" not in Tagger.load(studio.folder / "bank.fewtag").predict([path.path])[0]
    assert len(names) == 120


def test_the_same_answer_again_counts_once(studio: Studio) -> None:
    studio.define("dog")
    picture = next(iter(digests(studio).values()))
    answer = say(picture, "dog", "yes")
    first = studio.answer([answer])
    again = studio.answer([answer])
    assert (first.acknowledged, again.acknowledged, again.undo) == ((answer.id,), (answer.id,), None)
    assert studio.overview().answers == 1
    with pytest.raises(InputError, match="about something else"):
        studio.answer([Answer(answer.id, picture, "dog", "no")])


@pytest.mark.parametrize(
    ("answer", "error", "sentence"),
    [
        (Answer(str(uuid.uuid4()), "0" * 32, "dog", "yes"), MissingError, "no picture"),
        (Answer(str(uuid.uuid4()), "", "heron", "yes"), MissingError, "no label 'heron'"),
        (Answer("4711", "", "dog", "yes"), InputError, "no UUID"),
        (Answer(str(uuid.uuid4()), "", "dog", "perhaps"), InputError, "yes, no or unknown"),
    ],
)
def test_of_a_group_with_a_wrong_answer_nothing_is_taken(
    studio: Studio, answer: Answer, error: type[Exception], sentence: str
) -> None:
    studio.define("dog")
    good = next(iter(digests(studio).values()))
    with pytest.raises(error, match=sentence):
        studio.answer([say(good, "dog", "yes"), answer])
    assert studio.overview().answers == 0


def test_a_page_is_one_undo_and_an_undo_can_be_undone(studio: Studio) -> None:
    studio.define("dog")
    before = [cell.p for cell in studio.search("label:dog is:unsure", stacked=False).pictures]
    page = studio.review("dog", "sure", 6).pictures
    acknowledged = studio.answer([say(cell.digest, "dog", "yes") for cell in page])
    undone = studio.undo()
    assert {(each.picture, each.was, each.now) for each in undone.undone} == {(c.digest, "yes", None) for c in page}
    assert [cell.p for cell in studio.search("label:dog is:unsure", stacked=False).pictures] == before
    redone = studio.redo()
    assert [each.now for each in redone.undone] == ["yes"] * 6
    assert studio.undo(acknowledged.acknowledged[2]).what == "6 answers about dog taken back"
    assert studio.undo().what == "the label dog taken back"
    assert studio.overview().can_undo is False
    with pytest.raises(InputError, match="nothing to undo"):
        studio.undo()


def test_the_same_undo_again_counts_once(studio: Studio) -> None:
    studio.define("dog")
    picture = next(iter(digests(studio).values()))
    given = studio.answer([say(picture, "dog", "yes")]).undo
    first, version = studio.undo(given), studio.overview().version
    again = studio.undo(given)
    assert (again.id, again.what, again.left) == (first.id, first.what, first.left)
    assert [(each.was, each.now) for each in again.undone] == [(None, None)]
    redone = studio.redo(first.id)
    assert (redone.id, studio.redo(first.id).id) == (studio.redo(first.id).id, redone.id)
    assert (studio.overview().version, studio.overview().answers) == (version + 1, 1)
    assert studio.undo(given).id != first.id


def test_a_refused_picture_is_refused_to_readers_while_its_label_is_finished_anew(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    studio.define("dog")
    studio.answer([say(next(iter(digests(studio).values())), "dog", "no")])
    studio.label("dog")
    scores, seen = studio.ranking.scores, list[bool]()
    kept, found = scores.kept["dog"], scores._one_with

    def look(bank: Bank, keys: Sequence[str], count: int) -> list[int]:
        seen.append(bool(kept.never.any()))
        return found(bank, keys, count)

    monkeypatch.setattr(scores, "_one_with", look)
    studio.set_threshold("dog", 0.4)
    assert scores.kept["dog"] is kept
    assert seen
    assert all(seen)


def test_labels_are_renamed_merged_and_forgotten_and_all_comes_back(studio: Studio) -> None:
    names = digests(studio)
    dogs = [digest for name, digest in names.items() if shows(name, "dog")]
    studio.teach("hound", dogs[:3])
    studio.teach("dog", dogs[2:5])
    with pytest.raises(InputError, match="merge the two"):
        studio.rename("hound", "dog")
    assert studio.rename("hound", "dog", merge=True).examples == 5
    assert [row.name for row in studio.labels()] == ["dog"]
    assert studio.rename("dog", " animals / dog").name == "animals/dog"
    assert studio.label("animals/dog").means == "its name"
    studio.forget("animals/dog")
    assert studio.labels() == []
    assert [studio.undo().what for _ in range(3)] == [
        "the deletion of animals/dog taken back",
        "the name animals/dog taken back",
        "the merge of hound into dog taken back",
    ]
    assert [(row.name, row.examples) for row in studio.labels()] == [("dog", 3), ("hound", 3)]
    assert studio.redo().what == "the merge of hound into dog done again"
    studio.set_threshold("dog", 0.4)
    assert studio.undo().what == "the threshold of dog taken back"


def test_a_name_that_is_refused_now_can_be_changed(studio: Studio) -> None:
    """Older projects have names with control characters."""
    with pytest.raises(InputError, match="has a control character"):
        studio.define("hot\x1b[2Jdog")
    studio._define_new("hot\x1b[2Jdog")
    studio.answer([say(next(iter(digests(studio).values())), "hot\x1b[2Jdog", "yes")])
    assert studio.rename("hot\x1b[2Jdog", "dog").examples == 1


def test_an_answer_finds_a_label_that_was_renamed_or_merged_since(studio: Studio) -> None:
    """A page that was away sends answers by the names that it knew."""
    pictures = list(digests(studio).values())
    for name in ("birds/dog", "cat", "sofa"):
        studio.define(name)
    studio.rename("birds", "animals")
    studio.rename("cat", "kitten")
    studio.rename("kitten", "sofa", merge=True)
    for number, former in enumerate(("birds/dog", "cat", "kitten")):
        studio.answer([say(pictures[number], former, "yes")])
    assert {label.name: label.examples for label in studio.labels()} == {"animals/dog": 1, "sofa": 2}
    studio.define("cat")
    studio.answer([say(pictures[5], "cat", "yes")])
    assert studio.label("cat").examples == 1, "a name that another label has by now is that one's"
    studio.forget("cat")
    with pytest.raises(MissingError, match="no label 'cat'"):
        studio.answer([say(pictures[6], "cat", "yes")])
    studio.rename("animals/dog", "hound")
    studio.undo()
    studio.answer([say(pictures[7], "hound", "yes")])
    assert studio.label("animals/dog").examples == 2, "and a name that was taken back is of the one that had it"


def test_a_review_goes_on_under_the_name_that_its_label_has_by_now(studio: Studio) -> None:
    """A page that was open while another one renamed the label, or took a new name back."""
    for name in ("dog", "hound"):
        studio.define(name)
    studio.rename("dog", "animals/dog")
    assert studio.review("dog").label == "animals/dog"
    studio.undo()
    assert studio.review("animals/dog").label == "dog"
    studio.rename("dog", "hound", merge=True)
    assert studio.review("dog").label == "hound"
    studio.forget("hound")
    with pytest.raises(MissingError, match="no label 'hound'"):
        studio.review("hound")


def test_what_lies_under_a_name_moves_with_it_and_comes_back(studio: Studio) -> None:
    for name in ("animals", "animals/cat", "water/boat", "water/sea/boat", "pets/dog"):
        studio.define(name, words=False)
    before = [row.name for row in studio.labels()]
    assert studio.rename("animals", "pets").name == "pets"
    assert studio.rename("water", "lake").name == "lake/boat"
    assert [row.name for row in studio.labels()] == ["lake/boat", "lake/sea/boat", "pets", "pets/cat", "pets/dog"]
    assert {"water/boat", "pets/cat", "lake/sea/boat"} <= studio.names_ever
    with pytest.raises(InputError, match="'pets/dog' already"):
        studio.rename("lake/boat", "pets/dog")
    studio.undo()
    studio.undo()
    assert [row.name for row in studio.labels()] == before


def test_what_lies_under_two_labels_becomes_one_when_they_do(studio: Studio) -> None:
    dogs = [digest for name, digest in digests(studio).items() if shows(name, "dog")]
    for name in ("animals", "animals/cat", "pets", "water/dog"):
        studio.define(name, words=False)
    studio.teach("animals/dog", dogs[:2])
    studio.teach("pets/dog", dogs[1:3])
    before = [row.name for row in studio.labels()]
    assert studio.rename("animals", "pets", merge=True).name == "pets"
    assert [row.name for row in studio.labels()] == ["pets", "pets/cat", "pets/dog", "water/dog"]
    assert studio.label("pets/dog").examples == 3
    assert "pets/cat" in studio.names_ever
    assert studio.rename("water", "pets", merge=True).name == "pets/dog", "a group that is no label"
    again = Log(studio.project._changes())
    assert again.fold == studio.project.fold
    studio.undo()
    studio.undo()
    assert [row.name for row in studio.labels()] == before
    assert studio.label("pets/dog").examples == 2


def test_a_name_that_is_no_word_is_refused_alone_and_learnt_from_pictures(studio: Studio) -> None:
    with pytest.raises(InputError, match="does not know the word"):
        studio.define("zzqxv flurbish")
    assert studio.overview().labels == 0
    picture = next(iter(digests(studio).values()))
    assert studio.teach("zzqxv flurbish", [picture]).means == "pictures only"
    studio.define("Rex", words=False)
    with pytest.raises(InputError, match="neither a word nor an example"):
        studio.review("Rex")


def test_a_threshold_decides_the_tags_and_goes_back(studio: Studio) -> None:
    studio.define("dog")
    before = studio.label("dog")
    assert studio.set_threshold("dog", 1.0).tags == 0
    assert studio.set_threshold("dog", 0.0).tags == 120
    studio.set_threshold("dog", None)
    assert studio.label("dog") == before
    with pytest.raises(InputError, match="from 0 to 1"):
        studio.set_threshold("dog", 2.0)


def test_an_undone_threshold_is_undone_in_the_grid_and_in_the_list_of_labels(studio: Studio) -> None:
    def shown() -> tuple[object, ...]:
        grid = studio.search(limit=1000).pictures
        return [[tag.label for tag in cell.tags] for cell in grid], studio.labels()

    studio.define("dog")
    before = shown()
    studio.set_threshold("dog", 0.0)
    moved = shown()
    assert moved != before
    studio.undo()
    assert shown() == before
    studio.redo()
    assert shown() == moved
    studio.undo()
    assert studio.labels() == before[1], "whichever is asked for first"


def test_the_bank_tags_as_the_studio_does(studio: Studio) -> None:
    studio.define("dog")
    answer_page(studio, "dog", size=20)
    studio.set_threshold("dog", 0.4)
    names = digests(studio)
    assert studio.wait(300)
    tagger = Tagger.load(studio.folder / "bank.fewtag")
    paths = [studio.library.files_of[digest][0].path for digest in names.values()]
    theirs = tagger.predict(paths)
    ours = [tuple(tag for tag in row.tags) for row in studio.tag(list(names.values()))]
    said = {c.digest for c in studio.search("is:confirmed", limit=1000, stacked=False).pictures}
    for digest, one, other in zip(names.values(), ours, theirs, strict=True):
        assert one == other or digest in said


def test_nothing_but_the_project_writes_its_bank(studio: Studio, tmp_path: Path) -> None:
    """What others would put into it is gone with the next answer."""
    studio.define("dog")
    assert studio.wait(300)
    path = studio.folder / "bank.fewtag"
    tagger = Tagger.load(path)
    with pytest.raises(InputError, match=r"made of the answers in a studio's project.*a copy of the bank"):
        tagger.save(path)
    tagger.save(tmp_path / "copy.fewtag")


@pytest.mark.slow
def test_the_same_answers_in_any_order_make_the_same_bank(open_studio: Open, drawn_album: Path) -> None:
    banks = set()
    for number in range(3):
        studio = open_studio(drawn_album, project=f"project {number}")
        names = sorted(digests(studio).items())
        wishes = [(digest, label, shows(name, label)) for name, digest in names[:25] for label in LABELS]
        random.Random(number).shuffle(wishes)
        for label in LABELS:
            studio.define(label)
        for some in batches(iter(wishes), 5):
            studio.answer([say(digest, label, "yes" if yes else "no") for digest, label, yes in some])
        assert studio.wait(300)
        banks.add((studio.folder / "bank.fewtag").read_bytes())
        assert studio.check().problems == ()
    assert len(banks) == 1


def test_the_bank_is_on_disk_soon_after_a_change(studio: Studio) -> None:
    studio.define("dog")
    until = time.monotonic() + 120
    while "dog" not in _bank_labels(studio) and time.monotonic() < until:
        time.sleep(0.02)
    assert "dog" in _bank_labels(studio)


def _bank_labels(studio: Studio) -> tuple[str, ...]:
    path = studio.folder / "bank.fewtag"
    return Tagger.load(path).classes_ if path.exists() else ()


def test_a_label_with_noes_is_scored_while_the_cache_is_empty(
    open_studio: Open, drawn_album: Path, tmp_path: Path
) -> None:
    studio = open_studio(drawn_album)
    studio.define("dog")
    studio.answer([say(next(iter(digests(studio).values())), "dog", "no")])
    assert studio.wait(300)
    studio.close()
    again = open_studio(index=False, cache=tmp_path / "empty")
    again.ranking.refresh(["dog"])
    assert len(again.ranking.scores.kept["dog"].chances) == 0
    assert again.check().pictures == len(digests(studio)), "of the project, not of the cache"


def test_a_project_is_as_it_was_when_it_is_opened_again(open_studio: Open, drawn_album: Path) -> None:
    studio = open_studio(drawn_album)
    studio.define("dog")
    answer_page(studio, "dog")
    before = studio.review("dog", "sure"), studio.labels()
    assert studio.wait(300)
    bank = (studio.folder / "bank.fewtag").read_bytes()
    studio.close()
    again = open_studio(drawn_album)
    assert again.check().problems == ()
    assert (again.folder / "bank.fewtag").read_bytes() == bank
    after = again.review("dog", "sure"), again.labels()
    assert [cell.digest for cell in before[0].pictures] == [cell.digest for cell in after[0].pictures]
    assert before[1] == after[1]


def test_an_answer_is_taken_before_its_pictures_are_in_memory(
    open_studio: Open, drawn_album: Path, tmp_path: Path
) -> None:
    studio = open_studio(drawn_album)
    known = list(digests(studio).values())
    studio.teach("dog", known[:1])
    studio.close()
    early = open_studio(index=False, cache=tmp_path / "empty")
    assert known[5] not in early.library.row_of
    early.answer([say(known[5], "dog", "no")])
    with pytest.raises(MissingError, match="no picture"):
        early.answer([say("0" * 32, "dog", "no")])
    early.close()
    again = open_studio()
    assert [each.answer for each in again.picture(known[5]).labels] == ["no"]


def test_without_cache_and_pictures_the_bank_can_still_be_made(open_studio: Open, album: Path, tmp_path: Path) -> None:
    studio = open_studio(album, cache=tmp_path / "one")
    studio.teach("dog", [digest for name, digest in digests(studio).items() if shows(name, "dog")][:3])
    assert studio.wait(300)
    bank = (studio.folder / "bank.fewtag").read_bytes()
    studio.close()
    (studio.folder / "bank.fewtag").unlink()
    album.rename(tmp_path / "unplugged")
    again = open_studio(cache=tmp_path / "two")
    assert again.wait(300)
    assert (again.folder / "bank.fewtag").read_bytes() == bank
    assert "is not there; its answers are kept" in again.overview().notice
    assert again.overview().answers == 3


def test_examples_that_the_project_has_lost_are_set_aside(open_studio: Open, drawn_album: Path) -> None:
    studio = open_studio(drawn_album)
    pictures = list(digests(studio).values())
    studio.teach("dog", pictures[:1])
    studio.wait(300)
    backup(studio.folder, studio.folder / "old.sqlite")
    studio.answer([say(pictures[1], "dog", "yes")])
    assert studio.wait(300)
    bank = (studio.folder / "bank.fewtag").read_bytes()
    studio.close()
    (studio.folder / "old.sqlite").replace(studio.folder / FILE)
    again = open_studio(drawn_album)
    assert "knew 1 examples that the project has no answers about" in again.overview().notice
    assert bank in [path.read_bytes() for path in again.folder.glob("bank.*.fewtag")]


def test_a_new_version_of_the_model_misses_no_example(open_studio: Open, drawn_album: Path) -> None:
    studio = open_studio(drawn_album)
    studio.teach("dog", list(digests(studio).values())[:2])
    assert studio.wait(300)
    studio.close()
    with closing(sqlite3.connect(studio.folder / FILE)) as project, project:
        project.execute("UPDATE example SET space = 'that of the former version'")
    again = open_studio(drawn_album)
    assert again.overview().notice == ""
    assert not list(again.folder.glob("bank.*.fewtag"))
    assert again.tagger.counts_ == {"dog": 2}


def test_an_example_that_was_taken_back_just_before_a_kill_is_not_missed(open_studio: Open, drawn_album: Path) -> None:
    studio = open_studio(drawn_album)
    studio.teach("dog", list(digests(studio).values())[:1])
    assert studio.wait(300)
    bank = (studio.folder / "bank.fewtag").read_bytes()
    studio.undo()
    studio.close()
    (studio.folder / "bank.fewtag").write_bytes(bank)  # as if it had not been written any more
    again = open_studio(drawn_album)
    assert again.overview().notice == ""
    assert not [*again.folder.glob("bank.*.fewtag")]


@pytest.mark.slow
def test_two_threads_that_answer_lose_nothing(studio: Studio) -> None:
    studio.define("dog")
    pictures = list(digests(studio).values())[:40]

    def work(some: list[str]) -> None:
        for picture in some:
            studio.answer([say(picture, "dog", "no")])
            studio.review("dog", size=4)

    threads = [threading.Thread(target=work, args=(pictures[number::2],)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert studio.review("dog").answered.no == 40


def test_scores_of_fewer_pictures_do_not_replace_those_of_more(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the thread behind has scored the pictures of a moment ago, and somebody those of now."""
    studio.define("dog")
    scores, features = studio.ranking.scores, studio.library.features
    asked = features.logits

    def slow(*arguments: object, **named: object) -> tuple[np.ndarray, np.ndarray]:
        found = asked(*arguments, **named)  # type: ignore[arg-type]
        monkeypatch.setattr(features, "logits", asked)
        scores.kept.clear()
        scores.refresh(studio.ranking.bank(), ["dog"])
        return found[0][:, :100], found[1][:, :100]

    monkeypatch.setattr(features, "logits", slow)
    scores.kept.clear()
    scores.refresh(studio.ranking.bank(), ["dog"])
    assert len(scores.kept["dog"].logits) == 120


def test_a_label_that_goes_while_a_page_is_made_is_no_fault(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    one = studio.search().pictures[0].digest
    studio.teach("dog", [one])
    refresh = studio.ranking.refresh

    def gone(labels: Sequence[str]) -> Bank:
        bank = refresh(labels)
        studio.ranking.scores.kept.clear()  # as a change by somebody else does
        return bank

    monkeypatch.setattr(studio.ranking, "refresh", gone)
    assert studio.picture(one).labels == ()
    monkeypatch.undo()
    sharpen = studio.ranking.scores.sharpen

    def sharpened(scored: Scored, rows: np.ndarray) -> None:
        studio.ranking.scores.kept.clear()
        sharpen(scored, rows)

    monkeypatch.setattr(studio.ranking.scores, "sharpen", sharpened)
    assert studio.review("dog", "sure").pictures


def test_listeners_are_told_and_one_that_fails_holds_up_nobody(studio: Studio) -> None:
    told: list[tuple[str, Overview]] = []
    heard = threading.Event()

    def fail(_event: str, _value: object) -> None:
        raise RuntimeError("no")

    def listen(event: str, value: Overview) -> None:
        told.append((event, value))
        if value.labels:
            heard.set()

    studio.listen(fail)
    end = studio.listen(listen)
    studio.define("dog")
    assert heard.wait(300)
    end()
    assert told[-1][0] == "project"


def test_values_are_json(studio: Studio) -> None:
    studio.define("dog")
    answer_page(studio, "dog")
    page = studio.search("dog is:unsure")
    picture = next(iter(digests(studio).values()))
    for value in (page, studio.review("dog"), studio.overview(), studio.labels(), studio.picture(picture)):
        assert json.loads(json.dumps(as_json(value))) == as_json(value)
    assert as_json(page)["query_means"][1]["as"] == "state"


def test_a_damaged_project_is_refused_in_one_sentence(open_studio: Open, drawn_album: Path) -> None:
    studio = open_studio(drawn_album)
    studio.teach("dog", list(digests(studio).values())[:40])
    studio.close()
    path = studio.folder / FILE
    with sqlite3.connect(path) as outside:
        outside.execute("PRAGMA journal_mode = DELETE")
    content = bytearray(path.read_bytes())
    content[4096:] = bytes(len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"damaged .*--backup"):
        open_studio(drawn_album)


def test_a_bank_that_cannot_be_written_is_told_and_written_later(studio: Studio) -> None:
    bank = studio.folder / "bank.fewtag"
    bank.unlink(missing_ok=True)
    bank.mkdir()
    studio.define("dog")
    for _ in range(2_000):
        if "cannot write" in studio.overview().notice:
            break
        time.sleep(0.05)
    assert "cannot write" in studio.overview().notice
    assert studio.label("dog").name == "dog", "the answers are safe all the same"
    bank.rmdir()
    assert studio.wait(300)
    assert studio.overview().notice == ""
    assert Tagger.load(bank).classes_ == ("dog",)


def test_no_bank_or_delivery_is_written_where_the_project_was(studio: Studio, tmp_path: Path) -> None:
    studio.define("dog")
    assert studio.wait(300)
    studio.folder.rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="was moved, deleted or replaced while it is open"):
        studio.deriver.write(studio.deriver.bank(studio.project.fold))
    for kind in ("csv", "onnx"):
        with pytest.raises(InputError, match="was moved, deleted or replaced while it is open"):
            studio.deliver(kind)
    assert not studio.folder.exists()
    (tmp_path / "elsewhere").rename(studio.folder)


def test_answers_given_while_files_are_away_are_in_the_bank(open_studio: Open, album: Path, tmp_path: Path) -> None:
    studio = open_studio(album)
    pictures = list(digests(studio).values())
    album.rename(tmp_path / "unplugged")
    studio.teach("dog", pictures[:2])
    assert studio.wait(300)
    assert Tagger.load(studio.folder / "bank.fewtag").counts_["dog"] == 2
    studio.close()
    again = open_studio()
    assert "has no answers about" not in again.overview().notice
    assert Tagger.load(again.folder / "bank.fewtag").counts_["dog"] == 2
    away = (again.folder / "bank.fewtag").read_bytes()
    (tmp_path / "unplugged").rename(album)
    again.rescan()
    for _ in range(2_000):
        if again.wait(1) and (again.folder / "bank.fewtag").read_bytes() != away:
            break
        time.sleep(0.05)
    tagger = Tagger.load(again.folder / "bank.fewtag")
    assert tagger.counts_["dog"] == 2
    assert all(example.picture for example in tagger.bank_.examples.values()), "and with their small copies, now"


def test_answers_about_one_label_leave_the_others_alone(studio: Studio) -> None:
    for label in LABELS:
        studio.define(label)
    before = {row.name: row for row in studio.labels()}
    for _ in range(3):
        answer_page(studio, "dog", size=12)
    after = {row.name: row for row in studio.labels()}
    assert after["cat"] == before["cat"]
    assert after["sofa"] == before["sofa"]
    assert after["dog"] != before["dog"]


def test_a_project_keeps_its_id_wherever_it_is_moved(open_studio: Open, drawn_album: Path, tmp_path: Path) -> None:
    first, other = open_studio(drawn_album), open_studio(drawn_album, project="elsewhere/project")
    name = first.overview().id
    assert uuid.UUID(name) != uuid.UUID(other.overview().id), "two projects of one name"
    first.close()
    first.folder.rename(tmp_path / "moved")
    assert open_studio(project="moved").overview().id == name


def test_who_waits_for_a_project_is_not_put_off(
    open_studio: Open, drawn_album: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_studio(drawn_album).close()
    monkeypatch.setattr(index, "PATIENT_SECONDS", 3600.0)
    assert open_studio(drawn_album).wait(1.0)
