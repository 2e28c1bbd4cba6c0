import pytest

from fewtag.errors import InputError
from fewtag.research.data.readers import read_folders


def test_a_folder_is_a_label(make, tmp_path):
    make("dog/1.jpg"), make("dog/2.png"), make("cat/1.jpg", "blue"), make("dog/deep/3.jpg"), make("dog/.hidden.jpg")
    (tmp_path / "dog" / "notes.txt").write_text("not an image")
    (tmp_path / ".git").mkdir()
    images = read_folders(tmp_path)
    assert images.ids == ("cat/1.jpg", "dog/1.jpg", "dog/2.png")
    assert images.labels == ("cat", "dog")
    assert images.targets.tolist() == [[True, False], [False, True], [False, True]]


def test_a_picture_in_several_folders_is_one_that_shows_all_their_labels(make, tmp_path):
    make("dog/1.png"), make("sofa/living-room.png"), make("sofa/2.png", "blue"), make("dog/2.png", size=(9, 6))
    images = read_folders(tmp_path)
    assert images.ids == ("dog/1.png", "dog/2.png", "sofa/2.png")
    assert [images.shown(row) for row in range(3)] == [("dog", "sofa"), ("dog",), ("sofa",)]


def test_an_empty_label_folder_is_named(make, tmp_path):
    make("dog/1.jpg")
    (tmp_path / "cat").mkdir()
    with pytest.raises(InputError, match="label 'cat' has no image"):
        read_folders(tmp_path)


def test_images_outside_a_labels_folder_are_named(make, tmp_path):
    make("dog/1.jpg"), make("stray.jpg")
    with pytest.raises(InputError, match=r"1 images lie in .* the first is 'stray\.jpg'"):
        read_folders(tmp_path)


def test_no_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no label's folder"):
        read_folders(tmp_path)
    with pytest.raises(InputError, match="gone is no folder"):
        read_folders(tmp_path / "gone")
