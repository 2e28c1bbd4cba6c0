"""Data sets joined, and data sets without their unreadable pictures."""

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from fewtag.errors import InputError
from fewtag.pictures.files import Picture
from fewtag.research.data.images import LabelledImages, concatenate, from_shown, readable, refuse_unreadable

Make = Callable[..., Path]


def data_set(shown: dict[str, set[str]], labels: list[str]) -> LabelledImages:
    return from_shown([(name, Picture(Path(name)), set(named)) for name, named in shown.items()], labels)


def test_the_parts_images_follow_each_other_over_all_labels() -> None:
    one = data_set({"a": {"dog"}, "b": {"dog", "cat"}}, ["cat", "dog"])
    two = data_set({"c": {"sofa", "dog"}, "d": set()}, ["dog", "sofa"])
    both = concatenate([one, two])
    assert both.ids == ("a", "b", "c", "d")
    assert both.pictures == one.pictures + two.pictures
    assert both.labels == ("cat", "dog", "sofa")
    assert [set(both.shown(row)) for row in range(4)] == [{"dog"}, {"cat", "dog"}, {"dog", "sofa"}, set()]


def test_the_order_of_the_parts_does_not_change_who_shows_what() -> None:
    one, two = data_set({"a": {"dog"}}, ["dog", "cat"]), data_set({"b": {"cat"}}, ["cat"])
    assert concatenate([one, two]).digest == concatenate([two, one]).digest


def test_one_part_is_itself() -> None:
    part = data_set({"a": {"dog"}}, ["dog"])
    assert concatenate([part]) is part


def test_an_image_in_two_parts_is_refused_by_name() -> None:
    one, two = data_set({"a": {"dog"}}, ["dog"]), data_set({"b": {"dog"}, "a": {"cat"}}, ["dog", "cat"])
    with pytest.raises(InputError, match="image 'a' is listed twice"):
        concatenate([one, two])


def damaged(make: Make, tmp_path: Path) -> LabelledImages:
    """Three good pictures, one cut short, one that is text and one that is not there."""
    paths = [make(f"{name}.png", size=(60, 40)) for name in ("good", "short", "text", "fine", "gone", "last")]
    paths[1].write_bytes(paths[1].read_bytes()[:60])
    paths[2].write_text("no image")
    paths[4].unlink()
    labels = ["dog", "cat"]
    shown = [{labels[row % 2]} for row in range(6)]
    assert all(path.parent == tmp_path for path in paths)
    return from_shown([(path.name, Picture(path), named) for path, named in zip(paths, shown, strict=True)], labels)


def test_unreadable_images_are_left_out_and_each_is_told_why(make: Make, tmp_path: Path) -> None:
    images, reasons = readable(damaged(make, tmp_path))
    assert images.ids == ("good.png", "fine.png", "last.png")
    assert images.labels == ("dog", "cat")
    assert [images.shown(row) for row in range(3)] == [("dog",), ("cat",), ("cat",)]
    assert len(reasons) == 3
    for reason, (name, why) in zip(
        reasons, [("short", "trunc"), ("text", "no image"), ("gone", "no such")], strict=True
    ):
        assert f"{name}.png" in reason
        assert why in reason


def test_a_data_set_of_good_images_stays_whole(make: Make) -> None:
    paths = [make(f"{number}.jpg") for number in range(3)]
    images, reasons = readable(from_shown([(path.name, Picture(path), {"dog"}) for path in paths], ["dog"]))
    assert images.ids == ("0.jpg", "1.jpg", "2.jpg")
    assert reasons == []


def test_a_data_set_without_any_good_image_is_refused(make: Make) -> None:
    path = make("bad.png")
    path.write_text("no image")
    with pytest.raises(InputError, match="the data set is empty"):
        readable(from_shown([("bad.png", Picture(path), {"dog"})], ["dog"]))


def test_an_unreadable_picture_is_refused_by_name_before_the_work(tmp_path: Path) -> None:
    pictures = []
    for number in range(3):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.png")
        pictures.append((str(number), Picture(tmp_path / f"{number}.png"), {"dog"}))
    images = from_shown(pictures, ["dog"])
    refuse_unreadable(images)
    (tmp_path / "1.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"1\.png.*--skip-bad"):
        refuse_unreadable(images)
