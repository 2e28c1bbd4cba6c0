import gzip
import io
import tarfile

import pytest

from fewtag.errors import InputError
from fewtag.research.data.readers import read_table


@pytest.fixture
def table(tmp_path, make):
    for name in ("a.jpg", "b.png", "c.webp"):
        make(name)

    def write(text, name="labels.csv"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path

    return write


def shown(images):
    return {name: images.shown(row) for row, name in enumerate(images.ids)}


@pytest.mark.parametrize("name", ["labels.csv", "labels.csv.gz", "LABELS.CSV"])
def test_a_csv_gives_paths_beside_it_and_sorted_labels(table, name):
    images = read_table(table("image,labels\na.jpg,dog;cat\n./b.png, cat \n", name))
    assert images.labels == ("cat", "dog")
    assert shown(images) == {"a.jpg": ("cat", "dog"), "b.png": ("cat",)}
    assert images.pictures[0].open().size == (8, 6)


def test_a_tsv_takes_both_separators_and_bare_ids(table):
    images = read_table(table("image\tlabels\na\tdog,cat\nc\tcow;dog\n", "labels.tsv"))
    assert shown(images) == {"a": ("cat", "dog"), "c": ("cow", "dog")}
    assert images.pictures[1].path.name == "c.webp"


def test_bare_ids_are_found_in_archives(table, tmp_path, make):
    (tmp_path / "packs").mkdir()
    data = make("x.jpg").read_bytes()
    with tarfile.open(tmp_path / "packs" / "p.tar", "w") as archive:
        member = tarfile.TarInfo("007.jpg")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    images = read_table(table("image,labels\n007,dog\n"), images=tmp_path / "packs")
    assert images.pictures[0].open().size == (8, 6)


def test_where_keeps_rows_and_may_part_duplicates(table):
    path = table("pack,image,labels\none,a.jpg,dog\ntwo,a.jpg,dog\ntwo,b.png,cat\n")
    assert read_table(path, where={"pack": ["two"]}).ids == ("a.jpg", "b.png")
    assert read_table(path).ids == ("a.jpg", "b.png")
    with pytest.raises(InputError, match="has 'tow' in column 'pack'; did you mean 'two'"):
        read_table(path, where={"pack": ["tow"]})
    with pytest.raises(InputError, match="no column 'pakc'; did you mean 'pack'"):
        read_table(path, where={"pakc": ["two"]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,labels\na.jpg,dog\n", "lacks the column 'image': its header has 'name', 'labels'"),
        ("", "its header has nothing"),
        ("image,labels\n", "has a header and no row"),
        ("image,labels\na.jpg,dog;;cat\n", "line 2 has an empty label in 'dog;;cat'"),
        ("image,labels\na.jpg,dog\nb.png,\n", "line 3 has an empty label in ''"),
        ("image,labels\n,dog\n", "line 2 names no image"),
        ("image,labels\na.jpg,dog,cat\n", "line 2 has 3 cells, the header 2"),
        ("image,labels\na.jpg\n", "line 2 has 1 cells, the header 2"),
        (
            "image,labels\na.jpg,!dog;cow\na.jpg,dog\n",
            r"says in line 3 that 'a\.jpg' shows 'dog' and in line 2 that it",
        ),
        ("image,labels,absent\na.jpg,dog,\na.jpg,cow,dog\n", "shows 'dog' and in line 3 that it does not; choose"),
        ("image,labels\na.jpg,dog\nb.png,!cat\n", r"says only what image 'b\.png' does not show"),
        ("image,labels\nzebra,dog\n", "line 2: image 'zebra' is not in"),
    ],
)
def test_a_bad_table_is_refused_with_its_line(table, text, message):
    with pytest.raises(InputError, match=message):
        read_table(table(text))


def test_lines_of_one_picture_add_up(table):
    images = read_table(table("file,class\na.jpg,dog\nb.png,cow\n./a.jpg,cat\na.jpg,!cow\n"))
    assert images.labels == ("cat", "cow", "dog"), "what is absent is no label"
    assert shown(images) == {"a.jpg": ("cat", "dog"), "b.png": ("cow",)}


def test_a_path_that_leads_nowhere_is_refused_by_check(table):
    images = read_table(table("image,labels\na.jpg,dog\ngone.jpg,dog\n"))
    with pytest.raises(InputError, match=r"1 of 2 images are missing, the first is .*gone\.jpg"):
        images.check()


def test_a_stem_of_two_pictures_is_refused(table, make):
    make("a.png", "blue")
    with pytest.raises(InputError, match="'a' could be"):
        read_table(table("image,labels\na,dog\n"))


def test_what_is_no_table_is_refused(table, tmp_path):
    with pytest.raises(InputError, match=r"ends neither in \.csv nor in \.tsv"):
        read_table(table("", "labels.xlsx"))
    with pytest.raises(InputError, match=r"cannot read the table .*gone\.csv"):
        read_table(tmp_path / "gone.csv")
    (tmp_path / "latin.csv").write_bytes("image,labels\na.jpg,Hündin\n".encode("latin-1"))
    with pytest.raises(InputError, match="not UTF-8"):
        read_table(tmp_path / "latin.csv")


def test_excels_byte_order_mark_is_no_part_of_the_header(table):
    assert read_table(table("\ufeffimage,labels\na.jpg,dog\n")).ids == ("a.jpg",)
