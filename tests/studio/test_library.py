"""The library: folders as they change, stacks, thumbnails, and ranks that are the tagger's own."""

import io
import os
import shutil
import threading
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from unittest.mock import Mock

import numpy as np
import pytest
from album import answer_page, digests, say, shows
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image
from tiny import draw

from fewtag.cache import FILE as CACHE_FILE
from fewtag.cache import PRIVATE_FILE, Cache, content_digest
from fewtag.core.posterior import Classifiers, Strengths, prototype_classifier, unit
from fewtag.errors import InputError, MissingError
from fewtag.studio import library as module
from fewtag.studio.first_page import thumbnails
from fewtag.studio.library import Features, box_prototype, folder_prefixes, stack
from fewtag.studio.studio import Studio
from fewtag.studio.values import Answer

Open = Callable[..., Studio]
FINITE_HALVES = st.floats(-100, 100, width=16)


@settings(deadline=None)
@given(arrays(np.float16, (5, 4, 6), elements=FINITE_HALVES), st.integers(1, 3))
def test_scores_from_half_precision_are_those_of_the_posterior(places: np.ndarray, labels: int) -> None:
    strengths, generator = Strengths(), np.random.default_rng(0)
    fitted = [prototype_classifier(unit(generator.normal(size=6).astype(np.float32)), strengths) for _ in range(labels)]
    features = Features(4, 6, lambda rows: [None] * len(rows))
    wide = places.astype(np.float32)
    features.append(unit(wide.mean(axis=1)), places)
    found, exact = features.logits(fitted, strengths.query_focus)
    expected = Classifiers.of(fitted).logits(wide, strengths)
    assert exact.all()
    # places of length next to nothing point nowhere: there rounding decides
    sound = np.linalg.norm(wide, axis=-1).min(axis=1) > 1e-3
    np.testing.assert_allclose(found.T[sound], expected[sound], atol=1e-3)


def test_the_fast_ranking_is_the_taggers(studio: Studio) -> None:
    for label in ("dog", "cat"):
        studio.define(label)
        answer_page(studio, label, size=12)
    names = digests(studio)
    paths = [studio.library.files_of[digest][0].path for digest in names.values()]
    labels = studio.labels()
    scorer = studio.scorer()
    theirs = {row.image: row.scores for row in studio.tagger.tag(paths)}
    assert [round(float(value), 6) for value in scorer.thresholds] == [row.threshold for row in labels]
    assert all(row.prior != studio.model.calibration.share for row in labels), "shares are the library's own"
    with_shares = np.concatenate(
        [scorer.probabilities(studio.library.features.places(row)[None]) for row in range(120)]
    )  # type: ignore[index]
    for column, label in enumerate(scorer.labels):
        ours = studio.ranking.scores.kept[label]
        chances = np.where(ours.never, 0, ours.chances)
        np.testing.assert_allclose(chances, with_shares[:, column], atol=1e-3)
    # and at the model's own share the tagger, which decodes the files itself
    plain = studio.tagger.scorer()
    shift = plain.offsets - scorer.offsets
    for digest, path in zip(names.values(), paths, strict=True):
        row = studio.library.row_of[digest]
        for column, label in enumerate(scorer.labels):
            ours = studio.ranking.scores.kept[label]
            chance = (
                0.0
                if ours.never[row]
                else 1 / (1 + np.exp(-(ours.slope * ours.logits[row] + ours.offset + shift[column])))
            )
            assert chance == pytest.approx(theirs[path][label], abs=1e-3)


def test_past_what_memory_holds_the_best_are_looked_at_closely(open_studio: Open, drawn_album: Path) -> None:
    whole, part = open_studio(drawn_album), open_studio(drawn_album, project="other", resident=40)
    names = digests(whole)
    one = [digest for name, digest in names.items() if shows(name, "dog")][:1]
    for studio in (whole, part):
        studio.teach("dog", one)
    exact, rough = (studio.ranking.scores.kept["dog"] for studio in (whole, part))
    rows = np.array([part.library.row_of[digest] for digest in whole.library.digests])
    assert 20 <= rough.exact.sum() <= 40
    np.testing.assert_allclose(rough.logits[rows][rough.exact[rows]], exact.logits[rough.exact[rows]], atol=1e-4)
    assert np.corrcoef(rough.logits[rows], exact.logits)[0, 1] > 0.8
    found = [[cell.name for cell in studio.review("dog", "sure", 10).pictures] for studio in (whole, part)]
    assert len(set(found[0]) & set(found[1])) >= 7
    detail = part.picture(names[next(iter(names))])
    assert detail.labels[0].p == pytest.approx(whole.picture(detail.digest).labels[0].p, abs=0.15)


def test_only_the_label_that_changed_is_scored_again(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    for label in ("dog", "cat"):
        studio.define(label)
    scored: list[int] = []
    logits = Features.logits

    def count(self: Features, fitted: list[object], *rest: object) -> object:
        scored.append(len(fitted))
        return logits(self, fitted, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Features, "logits", count)
    held = threading.Event()
    monkeypatch.setattr(studio.background, "_settle", held.wait)
    answer_page(studio, "dog", size=1)
    studio.review("dog")
    held.set()
    assert scored == [1]


def test_files_that_are_moved_changed_or_gone_are_noticed(open_studio: Open, album: Path) -> None:
    studio = open_studio(album)
    names = digests(studio)
    moved, edited, gone, noted, audited, unsure = sorted(names)[:6]
    studio.teach("dog", [names[moved], names[edited], names[noted]])
    studio.answer(
        [
            Answer(str(uuid.uuid4()), names[audited], "dog", "yes", "audit"),
            Answer(str(uuid.uuid4()), names[unsure], "dog", "unknown"),
        ]
    )
    assert studio.wait(300)
    (album / "elsewhere").mkdir()
    (album / moved).rename(album / "elsewhere" / "moved.png")
    draw(900, "sofa").save(album / edited)
    (album / gone).unlink()
    for name in (noted, audited, unsure):
        picture = Image.open(album / name)
        picture.load()
        picture.save(album / name, compress_level=1)  # other bytes, the same pixels
    shutil.copy(album / "elsewhere" / "moved.png", album / "copy.png")
    studio.rescan()
    assert studio.wait(300)
    after = digests(studio)
    assert "elsewhere/moved.png" not in after, "one picture, under the first of its two names"
    assert after["copy.png"] == names[moved]
    assert gone not in after
    assert after[edited] != names[edited]
    confirmed = {cell.name for cell in studio.search("is:confirmed", stacked=False).pictures}
    assert confirmed == {"copy.png", noted, audited}, "what was said of pixels holds for them, in whichever file"
    fold = studio.project.fold
    said = fold.about(fold.find("dog").id)
    assert (after[unsure] != names[unsure], said[after[unsure]].answer) == (True, "unknown")
    assert said[after[audited]].source == "audit"
    studio.undo()
    assert studio.search("is:confirmed", stacked=False).total == 2, "an undo holds for the file that came in between"
    studio.redo()
    assert studio.project.fold == fold
    rows = [row["image"] for row in studio.deliver("csv", dry_run=True).sample]
    assert len(after) == 119
    assert rows == sorted(rows)


def test_answers_stay_with_a_picture_that_is_turned(open_studio: Open, album: Path) -> None:
    studio = open_studio(album)
    names = digests(studio)
    turned, mirrored = sorted(names)[:2]
    studio.teach("dog", [names[turned], names[mirrored]])
    assert studio.wait(300)
    for name, orientation in ((turned, 6), (mirrored, 2)):
        picture = Image.open(album / name)
        picture.getexif()[0x112] = orientation  # as photo programs turn it: by a note, not by other pixels
        picture.save(album / name, exif=picture.getexif())
    studio.rescan()
    assert studio.wait(300)
    after = digests(studio)
    assert after[turned] != names[turned]
    assert {cell.name for cell in studio.search("is:confirmed", stacked=False).pictures} == {turned}


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_later_word_about_an_edited_picture_is_the_only_one_that_is_learnt(
    open_studio: Open, album: Path, orientation: int
) -> None:
    studio = open_studio(album)
    names = digests(studio)
    edited, other, copy = sorted(names)[:3]
    shutil.copy(album / edited, album / copy)
    studio.rescan()
    assert studio.wait(300)
    studio.teach("dog", [names[edited], names[other]])
    assert studio.wait(300)
    picture = Image.open(album / edited)
    picture.getexif()[0x112] = orientation
    for name in (edited, copy):
        picture.save(album / name, exif=picture.getexif())
        studio.rescan()
        assert studio.wait(300)
    now = digests(studio)[edited]
    assert now != names[edited]
    assert studio.label("dog").examples == 2
    assert {each.digest for each in studio.review("dog").examples} == {now, names[other]}
    studio.answer([say(now, "dog", "no")])
    assert (studio.label("dog").examples, studio.label("dog").absent) == (1, 1)
    studio.answer([say(now, "dog", "unknown")])  # as an example is taken out
    assert (studio.label("dog").examples, studio.label("dog").absent) == (1, 0)
    assert [each.digest for each in studio.review("dog").examples] == [names[other]]


def test_answers_follow_a_picture_that_is_moved_and_given_tags_at_once(open_studio: Open, album: Path) -> None:
    studio = open_studio(album)
    names = digests(studio)
    moved, copied, other = sorted(names)[:3]
    studio.teach("dog", [names[moved], names[copied]])
    assert studio.wait(300)
    studio.close()
    for name in (moved, copied):
        picture = Image.open(album / name)
        picture.load()
        picture.save(album / f"moved {Path(name).name}", compress_level=1)  # other bytes, the same pixels
    (album / moved).unlink()
    draw(900, "dog").save(album / "new.png")
    (album / other).unlink()
    studio = open_studio(album)
    confirmed = {cell.name for cell in studio.search("is:confirmed", stacked=False).pictures}
    assert confirmed == {f"moved {Path(moved).name}", copied}
    assert studio.label("dog").examples == 2


def test_what_could_not_go_on_to_an_edited_file_does_at_the_next_scan(
    open_studio: Open, album: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    studio = open_studio(album)
    name, digest = min(digests(studio).items())
    studio.teach("dog", [digest])
    assert studio.wait(300)
    picture = Image.open(album / name)
    picture.load()
    picture.save(album / name, compress_level=1)  # other bytes, the same pixels
    with monkeypatch.context() as patched:
        patched.setattr(studio.project, "change", Mock(side_effect=InputError("the disk is full")))
        studio.rescan()
        assert studio.wait(300)
    assert studio.overview().notice == "the disk is full"
    studio.close()
    studio = open_studio(album)
    assert digests(studio)[name] != digest
    assert (studio.overview().answers, studio.check().answers) == (1, 1), "it is one answer still"
    assert [cell.name for cell in studio.search("is:confirmed", stacked=False).pictures] == [name]


def test_answers_go_on_to_a_file_that_could_not_be_read_while_it_was_written(open_studio: Open, album: Path) -> None:
    studio = open_studio(album)
    name, digest = min(digests(studio).items())
    studio.teach("dog", [digest])
    assert studio.wait(300)
    picture = Image.open(album / name)
    picture.load()
    (album / name).write_bytes((album / name).read_bytes()[:20])
    studio.rescan()
    assert studio.wait(300)
    assert name in {failure.name for failure in studio.failures()}
    picture.save(album / name, compress_level=1)  # other bytes, the same pixels
    studio.rescan()
    assert studio.wait(300)
    assert digests(studio)[name] != digest
    assert [cell.name for cell in studio.search("is:confirmed", stacked=False).pictures] == [name]


def test_a_label_that_is_older_than_the_first_picture_hides_none(
    open_studio: Open, drawn_album: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new").mkdir()
    studio = open_studio(tmp_path / "new")
    studio.define("dog")
    monkeypatch.setattr(studio.background, "_settle", lambda: None)  # as before it has had the time
    shutil.copy(min((drawn_album / "2023").iterdir()), tmp_path / "new")
    studio.rescan()
    assert studio.wait(300)
    assert studio.search().total == 1


def test_an_example_whose_file_is_gone_is_still_seen(open_studio: Open, album: Path) -> None:
    studio = open_studio(album)
    names = digests(studio)
    gone, other = sorted(names)[:2]
    studio.teach("dog", [names[gone], names[other]])
    assert studio.wait(300)
    (album / gone).unlink()
    studio.rescan()
    assert studio.wait(300)
    before = studio.review("dog")
    assert before.answered.yes == 1, "of the pictures that are there"
    studio.close()
    studio = open_studio(album)
    after = studio.review("dog")
    assert (after.examples, after.answered) == (before.examples, before.answered)
    assert {each.digest for each in after.examples} == {names[gone], names[other]}
    assert Image.open(io.BytesIO(studio.thumbnail(names[gone]))).size == (48, 40)
    with pytest.raises(MissingError):
        studio.thumbnail(names[gone], 1024)


def test_a_folder_that_is_gone_keeps_its_pictures_and_answers(open_studio: Open, album: Path, tmp_path: Path) -> None:
    studio = open_studio(album, cache=tmp_path / "cache")
    picture = next(iter(digests(studio).values()))
    studio.teach("dog", [picture])
    album.rename(tmp_path / "unplugged")
    studio.rescan()
    assert studio.wait(300)
    overview = studio.overview()
    assert (overview.indexed, overview.answers) == (120, 1)
    assert f"the picture folder {album} is not there" in overview.notice
    assert studio.thumbnail(picture), "from the cache"
    with pytest.raises(InputError, match="not there any more"):
        studio.thumbnail(picture, 1024)
    (tmp_path / "unplugged").rename(album)
    studio.rescan()
    assert studio.wait(300)
    assert studio.overview().notice == ""
    assert studio.thumbnail(picture, 1024)


def test_a_link_out_of_the_folder_is_not_followed(open_studio: Open, album: Path, tmp_path: Path) -> None:
    draw(901, "dog").save(tmp_path / "secret.png")
    (album / "link.png").symlink_to(tmp_path / "secret.png")
    studio = open_studio(album, cache=tmp_path / "cache")
    assert "leads out of the project's folders" in next(f.reason for f in studio.failures() if f.name == "link.png")
    # nor when a file becomes one afterwards
    name, digest = next(iter(digests(studio).items()))
    (album / name).unlink()
    (album / name).symlink_to(tmp_path / "secret.png")
    with pytest.raises(InputError, match="not there any more"):
        studio.thumbnail(digest, 1024)


def test_a_folder_that_was_renamed_leaves_nothing_behind(open_studio: Open, album: Path, tmp_path: Path) -> None:
    studio = open_studio(album)
    kept = len(digests(studio))
    studio.teach("dog", [next(iter(digests(studio).values()))])
    studio.close()
    album.rename(tmp_path / "renamed")
    studio = open_studio(tmp_path / "renamed")
    assert studio.deliver("csv", dry_run=True).rows == kept
    old = [path for path in studio.library.files if not Path(path).is_relative_to(tmp_path / "renamed")]
    assert [Path(path).name for path in old] == ["broken.jpg"], "nobody can tell whether that one moved"
    assert studio.search("is:confirmed").total == 1
    assert "is not there" in studio.overview().notice


def test_a_folder_whose_pictures_are_all_elsewhere_is_not_missed(
    open_studio: Open, album: Path, tmp_path: Path
) -> None:
    (album / "broken.jpg").unlink()
    open_studio(album).close()
    album.rename(tmp_path / "renamed")
    studio = open_studio(tmp_path / "renamed")
    assert (len(digests(studio)), studio.overview().notice) == (120, "")


@pytest.mark.parametrize("project", ["album/project", "album"])
def test_a_projects_own_deliveries_are_no_pictures_of_it(open_studio: Open, album: Path, project: str) -> None:
    studio = open_studio(album, project=project)
    kept = len(digests(studio))
    studio.define("dog")
    studio.deliver("imagefolder")
    studio.rescan()
    assert studio.wait(300)
    assert len(digests(studio)) == studio.deliver("csv", dry_run=True).rows == kept


def test_what_could_not_be_read_is_tried_again_at_the_next_start(
    open_studio: Open, album: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    draw(902, "dog").save(outside / "far.png")
    (album / "link.png").symlink_to(outside / "far.png")
    studio = open_studio(album)
    assert "link.png" in {failure.name for failure in studio.failures()}
    studio.close()
    studio = open_studio(album, outside)  # as the message says
    assert "link.png" not in {failure.name for failure in studio.failures()}


@pytest.mark.skipif(os.name != "posix", reason="rights of files are POSIX's")
def test_thumbnails_can_be_read_by_their_person_alone(open_studio: Open, album: Path, tmp_path: Path) -> None:
    open_studio(album, cache=tmp_path / "cache")
    assert {oct(path.stat().st_mode & 0o777) for path in (tmp_path / "cache").glob(f"{PRIVATE_FILE}*")} == {"0o600"}


def test_a_name_that_is_no_text_is_a_failure(open_studio: Open, album: Path) -> None:
    try:
        shutil.copy(min((album / "2023").iterdir()), os.fsdecode(os.fsencode(album) + b"/\xff.png"))
    except OSError:
        pytest.skip("this file system takes text alone")
    assert any("no UTF-8 text" in failure.reason for failure in open_studio(album).failures())


def test_thumbnails_are_ours_and_small(studio: Studio) -> None:
    picture = next(iter(digests(studio).values()))
    image = Image.open(io.BytesIO(studio.thumbnail(picture)))
    assert (image.format, image.size) == ("WEBP", (48, 40))
    heat = Image.open(io.BytesIO(studio.heat(picture, studio.define("dog").name)))
    assert (heat.format, heat.mode, heat.size) == ("WEBP", "RGBA", (48, 40))
    glance = Image.open(io.BytesIO(studio.heat(picture, "dog", at_once=True)))
    assert (glance.format, glance.mode, glance.size) == ("WEBP", "RGBA", (48, 40))
    with pytest.raises(MissingError):
        studio.thumbnail("../../etc/passwd")
    with pytest.raises(InputError, match="256 or 1024"):
        studio.thumbnail(picture, 4000)


@pytest.mark.slow
def test_damaged_thumbnails_and_features_are_made_again(open_studio: Open, album: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    studio = open_studio(album, cache=cache)
    picture = next(iter(digests(studio).values()))
    before = studio.thumbnail(picture)
    studio.close()
    for name in (PRIVATE_FILE, CACHE_FILE):
        (cache / name).write_bytes(b"rubbish" * 1000)
        for beside in cache.glob(f"{name}-*"):
            beside.unlink()
    again = open_studio(album, cache=cache)
    assert again.overview().indexed == 120
    assert again.thumbnail(picture) == before


def test_what_is_asked_before_places_are_in_memory_is_answered_as_ever(open_studio: Open, drawn_album: Path) -> None:
    def told(studio: Studio) -> list[object]:
        return [studio.labels(), studio.search("dog"), studio.review("dog").pictures, studio.search("sofa")]

    first = open_studio(drawn_album)
    first.teach("dog", [next(digest for name, digest in digests(first).items() if shows(name, "dog"))])
    before = told(first)
    first.close()
    again = open_studio(index=False)  # nothing is read ahead
    assert not again.library.features._taken
    assert told(again) == before


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 199), min_size=1, max_size=50, unique=True), max_size=12))
@example([[150], list(range(64))])
def test_whatever_is_in_memory_no_picture_has_anothers_places(asked: list[list[int]]) -> None:
    places = np.random.default_rng(0).normal(size=(200, 4, 8)).astype(np.float16)
    with closing(Features(4, 8, lambda rows: [places[row] for row in rows], resident=64)) as features:
        features.append(np.zeros((200, 8), np.float32), None)
        for rows in asked:
            features.bring(np.array(rows))
        for row in range(200):
            assert np.allclose(features.places(row), places[row], atol=1e-3), row


def test_of_old_thumbnails_no_more_go_than_new_ones_need(tmp_path: Path) -> None:
    def keep(numbers: range) -> set[int]:
        with Cache(tmp_path, 2_000_000, private=True) as cache:
            kept = thumbnails(cache, 256)
            for number in numbers:
                kept.put_bytes({content_digest(b"%d" % number): bytes(10_000)})
            assert cache.path.stat().st_size <= 2_000_000
            return {number for number in range(500) if content_digest(b"%d" % number) in kept}

    before = keep(range(300))
    assert len(before) > 170, "as many as fit"
    after = keep(range(400, 430))
    assert {*range(400, 430)} <= after
    assert len(before) - len(after) < 10


@pytest.mark.parametrize(
    ("kind", "folders", "shown"),
    [
        (PurePosixPath, ["/home/me/A"], [""]),
        (PurePosixPath, ["/home/me/A", "/home/me/B"], ["A/", "B/"]),
        (PurePosixPath, ["/home/me/A", "/mnt/A"], ["home/me/A/", "mnt/A/"]),
        (PurePosixPath, ["/home/me/A", "/"], ["A/", "/"]),
        (PurePosixPath, ["/home/me/a\\b", "/home/me/c"], ["a\\b/", "c/"]),
        (PureWindowsPath, ["C:\\Users\\me\\A", "D:\\B"], ["A/", "B/"]),
        (PureWindowsPath, ["C:\\Users\\me\\A", "D:\\A"], ["C:/Users/me/A/", "D:/A/"]),
        (PureWindowsPath, ["C:\\Users\\me\\A", "D:\\"], ["A/", "D:/"]),
    ],
)
def test_of_several_folders_a_picture_is_shown_with_its_folders_name(
    kind: type[PurePath], folders: list[str], shown: list[str]
) -> None:
    assert [folder_prefixes(folders, kind)[folder] for folder in folders] == shown


def test_bursts_and_near_duplicates_are_one_cell(open_studio: Open, tmp_path: Path) -> None:
    folder = tmp_path / "burst"
    folder.mkdir()
    for shot in range(3):
        draw(1, "dog", size=(96, 80)).save(folder / f"a{shot}.jpg", quality=95 - shot)
    draw(2, "cat", "sofa").save(folder / "b.png")
    studio = open_studio(folder)
    page = studio.search()
    assert [(cell.name, cell.stack) for cell in page.pictures] == [("a0.jpg", 3), ("b.png", 1)]
    assert len(studio.search(stacked=False).pictures) == 4
    detail = studio.picture(page.pictures[0].digest)
    assert len(detail.stack) == 2
    studio.define("dog")
    shown = [cell for offset in range(3) for cell in studio.review("dog", "unsure", offset=offset).pictures]
    assert sorted(cell.stack for cell in shown) == [1, 3]
    studio.answer([say(detail.stack[0], "dog", "yes")])
    assert [cell.name for cell in studio.review("dog", "unsure").pictures] == ["b.png"], "one answer will do"


def test_a_word_on_a_stack_is_a_word_on_each_of_its_pictures_and_one_example(burst: Studio) -> None:
    studio, names = burst, digests(burst)

    def said(word: str) -> set[str]:
        found = studio.search(f"label:dog is:{word}", stacked=False).pictures
        return {cell.name for cell in found}

    studio.define("dog")
    studio.answer([say(names["a3.jpg"], "dog", "no")])
    group = [replace(say(names["a0.jpg"], "dog", "yes"), stack=True), say(names["b.png"], "dog", "no")]
    studio.answer(group)
    assert said("confirmed") == {"a0.jpg", "a1.jpg", "a2.jpg"}
    assert said("rejected") == {"a3.jpg", "b.png"}, "what was said of one picture alone stands"
    row = studio.label("dog")
    assert (row.examples, row.absent) == (1, 2), "a burst is one example"
    studio.answer(group)
    assert studio.overview().answers == 5, "the same answers again"
    studio.undo()
    assert said("confirmed") == set()
    assert said("rejected") == {"a3.jpg"}
    assert studio.teach("hound", [names["a0.jpg"]], stacks=True).examples == 1
    assert len(studio.search("label:hound is:confirmed", stacked=False).pictures) == 4
    studio.answer([replace(say(names["a0.jpg"], "hound", "unknown"), stack=True)])
    assert studio.overview().answers == 5
    assert not studio.search("label:hound is:confirmed", stacked=False).pictures


@pytest.fixture
def burst(open_studio: Open, tmp_path: Path) -> Studio:
    """Four shots of a dog, which are one stack, and another picture."""
    folder = tmp_path / "burst"
    folder.mkdir()
    for shot in range(4):
        draw(1, "dog", size=(96, 80)).save(folder / f"a{shot}.jpg", quality=95 - shot)
    draw(2, "cat", "sofa").save(folder / "b.png")
    return open_studio(folder)


def test_a_cell_tells_of_its_whole_stack_whatever_the_query_hides(burst: Studio) -> None:
    names = digests(burst)
    burst.define("dog")
    burst.answer([say(names["a1.jpg"], "dog", "yes"), say(names["a2.jpg"], "dog", "yes")])
    (cell,) = burst.search("label:dog is:confirmed").pictures
    assert (cell.name, cell.stack) == ("a1.jpg", 4), "an answer to it holds for those that are hidden, too"
    assert burst.search("label:dog is:confirmed").members == 2
    assert [cell.stack for cell in burst.search("label:dog is:confirmed", stacked=False).pictures] == [1, 1]


def test_a_reply_tells_for_how_many_pictures_answers_hold(burst: Studio) -> None:
    names = digests(burst)
    burst.define("dog")
    burst.answer([say(names["a3.jpg"], "dog", "no")])
    group = [replace(say(names["a0.jpg"], "dog", "yes"), stack=True), say(names["b.png"], "dog", "no")]
    assert burst.answer(group).pictures == 4, "three of the stack, and the other one"
    assert burst.answer(group).pictures == 4, "the same answers again, whose reply was lost"
    assert burst.answer([replace(say(names["b.png"], "dog", "yes"), marked=True)]).pictures == 0


def test_a_stack_can_be_corrected_through_another_of_its_pictures(burst: Studio) -> None:
    names = digests(burst)
    burst.define("dog")

    def tell(name: str, word: str, source: str) -> None:
        burst.answer([replace(say(names[name], "dog", word, source), stack=True)])

    def said(word: str) -> set[str]:
        return {cell.name for cell in burst.search(f"label:dog is:{word}", stacked=False).pictures}

    tell("a2.jpg", "yes", "page")
    tell("a0.jpg", "no", "click")
    assert said("rejected") == {f"a{shot}.jpg" for shot in range(4)}
    tell("a1.jpg", "yes", "page")
    assert said("confirmed") == {f"a{shot}.jpg" for shot in range(4)}
    assert burst.label("dog").examples == 1
    burst.answer([say(names["a1.jpg"], "dog", "no")])
    tell("a3.jpg", "yes", "click")
    assert said("rejected") == {"a1.jpg"}, "what was said of one picture alone stands"
    burst.undo()
    assert burst.teach("hound", [names["a1.jpg"]], stacks=True).examples == 1
    burst.answer([replace(say(names["a3.jpg"], "hound", "no"), stack=True)])
    assert not burst.search("label:hound is:confirmed", stacked=False).pictures, "an example spoke for its stack, too"


def test_a_slow_walk_is_not_one_stack() -> None:
    turns = np.linspace(0, 1.2, 13)
    whole = np.stack([np.cos(turns), np.sin(turns)], axis=1).astype(np.float32)
    found = stack(whole, np.arange(13), np.full(13, np.nan))
    assert len(set(found.tolist())) > 3
    for row, head in enumerate(found.tolist()):
        assert whole[row] @ whole[head] >= module.ALIKE - 1e-6


def test_shots_within_seconds_need_be_less_alike() -> None:
    whole = unit(np.array([[1, 0], [1, 0.4], [0, 1]], np.float32))
    order = np.arange(3)
    assert stack(whole, order, np.array([0.0, 2.0, 4.0])).tolist() == [0, 0, 2]
    assert stack(whole, order, np.array([0.0, 60.0, 120.0])).tolist() == [0, 1, 2]


def test_a_part_of_a_picture_is_looked_for(studio: Studio) -> None:
    names = digests(studio)
    one = next(digest for name, digest in names.items() if name.endswith("001 dog.png"))
    red = np.array(draw(1, "dog"))
    rows, columns = np.nonzero((red == (255, 0, 0)).all(axis=-1))
    box = (columns.min() / 48, rows.min() / 40, columns.max() / 48, rows.max() / 40)
    found = studio.search(like=one, box=tuple(map(float, box)), limit=15, stacked=False)  # type: ignore[arg-type]
    assert sum(shows(cell.name, "dog") for cell in found.pictures) >= 13
    assert found.query_means[0].taken_as == "like"
    whole = studio.search(like=one, limit=5, stacked=False).pictures
    assert whole[0].p == pytest.approx(1, abs=1e-3)
    with pytest.raises(InputError, match="from 0 to 1"):
        studio.search(like=one, box=(0.5, 0.0, 0.2, 1.0))


def test_the_box_weighs_places_by_how_much_of_them_it_covers() -> None:
    places = np.eye(4, dtype=np.float32)
    np.testing.assert_allclose(box_prototype(places, (0.0, 0.0, 0.5, 0.5)), [1, 0, 0, 0], atol=1e-6)
    np.testing.assert_allclose(
        box_prototype(places, (0.25, 0.0, 0.75, 0.5)), np.array([1, 1, 0, 0]) / np.sqrt(2), atol=1e-6
    )
