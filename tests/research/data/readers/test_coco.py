import json
import tarfile

import pytest

from fewtag.errors import InputError
from fewtag.research.data.images import readable
from fewtag.research.data.readers import read_coco

CATEGORIES = [{"id": 9, "name": "boat"}, {"id": 1, "name": "person"}, {"id": 3, "name": "car"}]


@pytest.fixture
def instances(tmp_path, make):
    """instances("train", {"a.jpg": [1, -9]}): category ids, negative for a crowd."""

    def write(name, shown, categories=CATEGORIES, **more):
        boxes = [
            {"image_id": number, "category_id": abs(category), "iscrowd": int(category < 0)}
            for number, listed in enumerate(shown.values())
            for category in listed
        ]
        rows = [{"id": number, "file_name": file} for number, file in enumerate(shown)]
        for file in shown:
            make(f"{name}/{file}")
        path = tmp_path / f"instances_{name}.json"
        path.write_text(json.dumps({"images": rows, "annotations": boxes, "categories": categories} | more))
        return path

    return write


def test_several_files_make_one_data_set(instances, tmp_path):
    files = [instances("train", {"a.jpg": [1, 1, 9]}), instances("val", {"b.jpg": [3]})]
    images = read_coco(files, [tmp_path / "train", tmp_path / "val"])
    assert images.labels == ("person", "car", "boat")
    assert images.ids == ("a.jpg", "b.jpg")
    assert [images.shown(row) for row in (0, 1)] == [("person", "boat"), ("car",)]
    images.check()


def test_crowds_do_not_count_and_images_without_labels_are_left_out(instances, tmp_path):
    path = instances("train", {"a.jpg": [1, -9], "b.jpg": [-1], "c.jpg": []})
    images = read_coco([path], [tmp_path / "train"])
    assert images.ids == ("a.jpg",)
    assert images.shown(0) == ("person",)


def test_missing_images_are_counted_and_the_first_is_named(instances, tmp_path):
    path = instances("train", {"a.jpg": [1], "b.jpg": [1]})
    (tmp_path / "train" / "b.jpg").unlink()
    images = read_coco([path], [tmp_path / "train", tmp_path])
    assert images.ids == ("a.jpg", "b.jpg")
    with pytest.raises(InputError, match=r"1 of 2 images are missing, the first is b\.jpg \(looked in .*train, .*\);"):
        images.check()


def test_a_picture_missing_from_an_archive_is_left_to_the_caller(instances, tmp_path):
    path = instances("train", {"a.jpg": [1], "b.jpg": [1]})
    with tarfile.open(tmp_path / "train.tar", "w") as archive:
        archive.add(tmp_path / "train" / "a.jpg", "a.jpg")
    images, reasons = readable(read_coco([path], [tmp_path / "train.tar"]))
    assert images.ids == ("a.jpg",)
    assert "b.jpg (looked in" in reasons[0]
    assert "there is no such file" in reasons[0]


def test_annotations_without_a_folder_of_pictures_are_refused(instances):
    with pytest.raises(InputError, match="no folder of pictures was given"):
        read_coco([instances("train", {"a.jpg": [1]})], [])


def test_files_with_different_categories_are_refused(instances, tmp_path):
    files = [instances("train", {"a.jpg": [1]}), instances("val", {"b.jpg": [1]}, CATEGORIES[:2])]
    with pytest.raises(InputError, match="different categories"):
        read_coco(files, [tmp_path / "train", tmp_path / "val"])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"annotations": [{"image_id": 0, "category_id": 5}]}, "category 5, which `categories` lacks"),
        ({"annotations": [{"image_id": 7, "category_id": 1}]}, "image 7, which `images` lacks"),
        ({"annotations": [{"image_id": 0, "caption": "a dog"}]}, "without 'category_id'"),
        ({"categories": None}, "lacks one of the lists"),
    ],
)
def test_a_bad_file_is_refused(instances, tmp_path, more, message):
    with pytest.raises(InputError, match=message):
        read_coco([instances("train", {"a.jpg": [1]}, **more)], [tmp_path / "train"])


def test_what_is_no_json_is_refused(tmp_path):
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(InputError, match=r"x\.json is no JSON"):
        read_coco([tmp_path / "x.json"], [tmp_path])
