import pytest

from fewtag.errors import InputError
from fewtag.research.data.readers import read_voc


@pytest.fixture
def year(tmp_path, make):
    """year("VOC2007", {"trainval": {"000005": ["dog", "sofa?"]}}): a question mark marks a difficult object."""

    def write(name, sets):
        root = tmp_path / name
        for folder in ("ImageSets/Main", "Annotations", "JPEGImages"):
            (root / folder).mkdir(parents=True)
        for set_name, images in sets.items():
            (root / "ImageSets" / "Main" / f"{set_name}.txt").write_text("\n".join(images) + "\n")
            for image, things in images.items():
                objects = "".join(
                    f"<object><name>{thing.strip('?')}</name><difficult>{int(thing.endswith('?'))}</difficult></object>"
                    for thing in things
                )
                (root / "Annotations" / f"{image}.xml").write_text(f"<annotation>{objects}</annotation>")
                make(f"{name}/JPEGImages/{image}.jpg")
        return root

    return write


def test_a_devkit_of_two_years_is_one_data_set(year, tmp_path):
    year("VOC2007", {"trainval": {"000005": ["dog", "sofa?"]}, "test": {"000006": ["cat"]}})
    year("VOC2012", {"trainval": {"2008_000001": ["sofa", "dog"], "2008_000002": ["cat?"]}})
    images = read_voc([tmp_path], ("trainval", "test"))
    assert images.ids == ("000005", "000006", "2008_000001")
    assert images.labels == ("cat", "dog", "sofa")
    assert images.shown(0) == ("dog",)


def test_difficult_objects_may_be_kept(year):
    images = read_voc([year("VOC2012", {"trainval": {"1": ["cat?"], "2": ["dog", "cat?"]}})], keep_difficult=True)
    assert [images.shown(row) for row in (0, 1)] == [("cat",), ("cat", "dog")]


def test_names_that_clash_carry_their_year(year, tmp_path):
    year("VOC2007", {"trainval": {"1": ["dog"], "2": ["dog"]}})
    year("VOC2012", {"trainval": {"1": ["cat"]}})
    assert read_voc([tmp_path]).ids == ("VOC2007/1", "2", "VOC2012/1")


def test_overlapping_sets_list_an_image_once(year):
    root = year("VOC2007", {"train": {"1": ["dog"]}, "trainval": {"1": ["dog"], "2": ["cat"]}})
    assert read_voc([root], ("train", "trainval")).ids == ("1", "2")


def test_a_set_found_nowhere_is_refused(year):
    with pytest.raises(InputError, match="no year has an image set 'test'"):
        read_voc([year("VOC2012", {"trainval": {"1": ["dog"]}})], ("trainval", "test"))


def test_what_is_missing_or_broken_is_named(year, tmp_path):
    root = year("VOC2007", {"trainval": {"1": ["dog"], "2": ["cat"]}})
    (root / "JPEGImages" / "2.jpg").unlink()
    with pytest.raises(InputError, match=r"1 of 2 images are missing, the first is .*2\.jpg"):
        read_voc([root]).check()
    (root / "Annotations" / "1.xml").write_text("<annotation>")
    with pytest.raises(InputError, match=r"1\.xml is not valid XML"):
        read_voc([root])
    (root / "Annotations" / "1.xml").unlink()
    with pytest.raises(InputError, match=r"cannot read the annotation .*1\.xml"):
        read_voc([root])
    with pytest.raises(InputError, match="gone is no VOCdevkit"):
        read_voc([tmp_path / "gone"])
