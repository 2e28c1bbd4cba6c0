"""The graph that onnxruntime runs says what the tagger says, for any number of pictures and labels."""

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from PIL import Image

from fewtag import InputError, Tagger
from fewtag.pictures.decode import squash, stack
from fewtag.tagger.export import (
    AGREEMENT,
    GRAPH,
    INT8,
    LABELS,
    NAMES,
    differences,
    export,
    graph_key,
    key_of,
    label_table,
    make_graph,
    random_pixels,
    session,
)
from fewtag.tagger.model import Model, load_model

ALBUM = Path(__file__).parents[2] / "examples" / "album"
Draw = Callable[..., Image.Image]


@pytest.fixture
def pets(model: Model, draw: Draw) -> Tagger:
    labels = ["dog", "cat", "sofa"]
    return Tagger(model).fit([draw(number, label) for number, label in enumerate(labels)], labels)


@pytest.mark.slow
def test_the_default_models_graph_agrees_on_pictures_and_is_int8_already(
    shipped: Tagger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # one random picture: batches of several are tried on a smaller model
    monkeypatch.setattr("fewtag.tagger.export.random_pixels", lambda size: islice(random_pixels(size), 1))
    pictures = sorted(ALBUM.glob("*.jpg"))[:2]
    done = export(shipped, tmp_path, pictures=pictures, int8=True)
    assert 0 < done.difference < AGREEMENT
    assert done.int8_difference == done.difference
    assert (tmp_path / INT8).read_bytes() == (tmp_path / GRAPH).read_bytes()
    labels = np.load(tmp_path / LABELS)
    pixels = stack([squash(Image.open(picture).convert("RGB"), shipped.model.size) for picture in pictures])
    found = session((tmp_path / GRAPH).read_bytes())(pixels, labels)
    np.testing.assert_allclose(found, shipped.predict_proba(pictures), atol=0.02)  # a JPEG's draft is less exact
    assert list(labels["names"]) == list(shipped.classes_)
    np.testing.assert_allclose(labels["thresholds"], list(shipped.thresholds_.values()), rtol=1e-6)
    assert int(labels["size"]) == shipped.model.size


@pytest.mark.parametrize("labels", [1, 3, 40], ids=["one label", "fewer than places", "more than places"])
def test_graph_and_tagger_agree(model: Model, draw: Draw, labels: int) -> None:
    tagger = Tagger(model).define("zebra")
    for number in range(labels - 1):
        tagger.define(f"thing {number}", vector=np.random.default_rng(number).normal(size=model.words.dimensions))
    tagger.partial_fit([draw(1, "dog")], ["zebra"])
    (found,) = differences(tagger, label_table(tagger), [session(make_graph(model))], random_pixels(model.size))
    assert 0 <= found < AGREEMENT


def test_a_picture_without_any_content_agrees_too(pets: Tagger) -> None:
    blank = np.zeros((2, 3, 32, 32), np.uint8)
    (found,) = differences(pets, label_table(pets), [session(make_graph(pets.model))], [blank])
    assert found < AGREEMENT


def test_graph_labels_and_int8_are_written_and_the_graph_is_kept(pets: Tagger, tmp_path: Path) -> None:
    first = export(pets, tmp_path, int8=True)
    assert {path.name for path in tmp_path.iterdir()} == {GRAPH, INT8, LABELS}
    assert (first.labels, first.kept, first.pictures) == (3, False, 0)
    before = (tmp_path / GRAPH).stat().st_mtime_ns
    again = export(pets.define("zebra"), tmp_path)
    assert (again.labels, again.kept, again.int8_difference) == (4, True, None)
    assert (tmp_path / GRAPH).stat().st_mtime_ns == before, "labels are data"
    assert "zebra" in np.load(tmp_path / LABELS)["names"]


def test_another_model_makes_the_graph_anew_and_drops_an_outdated_int8_graph(
    pets: Tagger, other_file: Path, tmp_path: Path
) -> None:
    export(pets, tmp_path, int8=True)
    other = Tagger(load_model(str(other_file))).define("dog")
    assert not export(other, tmp_path).kept
    assert {path.name for path in tmp_path.iterdir()} == {GRAPH, LABELS}
    assert key_of((tmp_path / GRAPH).read_bytes()) == graph_key(other.model)


def test_a_truncated_graph_is_made_anew(pets: Tagger, tmp_path: Path) -> None:
    export(pets, tmp_path)
    sound = (tmp_path / GRAPH).read_bytes()
    (tmp_path / GRAPH).write_bytes(sound[: len(sound) // 2])
    assert not export(pets, tmp_path).kept
    assert (tmp_path / GRAPH).read_bytes() == sound


@pytest.mark.parametrize("name", [LABELS, GRAPH, INT8])
def test_a_file_that_no_export_wrote_is_not_replaced_without_force(pets: Tagger, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"mine")
    with pytest.raises(InputError, match=rf"{name} exists and is not what fewtag wrote there"):
        export(pets, tmp_path, int8=True)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"mine"]
    export(pets, tmp_path, int8=True, force=True)
    export(pets, tmp_path, int8=True)


def test_names_that_a_person_changed_are_not_replaced_without_force(pets: Tagger, tmp_path: Path) -> None:
    (tmp_path / NAMES).write_text("dog\n")
    with pytest.raises(InputError, match="exists and is not what fewtag wrote there"):
        export(pets, tmp_path, fixed=True)
    export(pets, tmp_path, fixed=True, force=True)
    export(pets.define("zebra"), tmp_path, fixed=True)
    (tmp_path / NAMES).write_text("Katze\nHund\nSofa\nZebra\n")
    with pytest.raises(InputError, match="exists and is not what fewtag wrote there"):
        export(pets, tmp_path, fixed=True)
    assert (tmp_path / NAMES).read_text().startswith("Katze")


def damaged(graph: bytes, change: Callable[[onnx.ModelProto], object]) -> bytes:
    proto = onnx.load_model_from_string(graph)
    change(proto)
    return proto.SerializeToString()


def other_weights(proto: onnx.ModelProto) -> None:
    weights = next(tensor for tensor in proto.graph.initializer if tensor.name == "weights")
    weights.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weights)[::-1].copy(), "weights"))


def test_a_graph_that_disagrees_is_refused_and_nothing_is_written(pets: Tagger, tmp_path: Path) -> None:
    export(pets, tmp_path)
    before = (tmp_path / LABELS).read_bytes()
    (tmp_path / GRAPH).write_bytes(damaged((tmp_path / GRAPH).read_bytes(), other_weights))
    with pytest.raises(InputError, match=r"the ONNX graph disagrees with the tagger.*delete .*tagger\.onnx"):
        export(pets.define("zebra"), tmp_path)
    assert (tmp_path / LABELS).read_bytes() == before


def test_a_graph_that_does_not_run_is_refused_in_a_sentence(pets: Tagger, tmp_path: Path) -> None:
    export(pets, tmp_path)
    broken = damaged((tmp_path / GRAPH).read_bytes(), lambda proto: proto.graph.node.pop())
    (tmp_path / GRAPH).write_bytes(broken)
    with pytest.raises(InputError, match=r"onnxruntime cannot run the graph.*delete tagger\.onnx") as refused:
        export(pets, tmp_path)
    assert "\n" not in str(refused.value)
    with pytest.raises(InputError, match="onnxruntime cannot run the graph"):
        session(make_graph(pets.model))(np.zeros((1, 4, 32, 32), np.uint8), label_table(pets))


def test_a_file_in_place_of_the_folder_is_refused(pets: Tagger, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file; name a folder to export to"):
        export(pets, tmp_path / "file")


def test_nothing_is_exported_before_a_label_is_known(tagger: Tagger, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no label is known yet"):
        export(tagger, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_bank_with_noes_agrees_too_and_a_no_to_a_compared_picture_is_no_disagreement(
    pets: Tagger, draw: Draw, tmp_path: Path
) -> None:
    """The graph knows labels, and no single picture."""
    refused, others = draw(7, "dog"), [draw(number, "cat") for number in range(20, 24)]
    pets.partial_fit([refused, draw(8, "cat")], [[], []], absent=[["dog", "sofa"], ["dog"]], complete=True)
    pets.set_priors({"cat": 0.02})
    done = export(pets, tmp_path, pictures=[refused, *others])
    assert done.difference < AGREEMENT
    pixels = stack([squash(picture, pets.model.size) for picture in others])
    found = session((tmp_path / GRAPH).read_bytes())(pixels, np.load(tmp_path / LABELS))
    np.testing.assert_allclose(found, pets.predict_proba(others), atol=1e-3)


@pytest.mark.parametrize("wrong", ["prototypes", "whole", "focused", "slopes", "offsets"])
def test_a_difference_in_any_of_the_labels_numbers_is_found(pets: Tagger, wrong: str) -> None:
    table = dict(label_table(pets))
    table[wrong] = table[wrong] + np.float32(0.5)
    (found,) = differences(pets, table, [session(make_graph(pets.model))], random_pixels(pets.model.size))
    assert found > AGREEMENT


def test_what_is_no_graph_has_no_key() -> None:
    assert key_of(b"") is None
    assert key_of(b"something else") is None
    assert key_of(onnx.ModelProto(ir_version=10).SerializeToString()) is None


def test_a_graph_names_no_folder_of_the_machine_it_was_made_on(shipped: Tagger) -> None:
    graph = make_graph(shipped.model)
    assert key_of(graph) == graph_key(shipped.model)
    for trace in (b"site-packages", str(Path.home()).encode() + b"/", b".py"):
        assert trace not in graph


def test_labels_and_words_do_not_change_the_graph_but_network_and_space_do(model: Model, other_file: Path) -> None:
    def changed(**strengths: float) -> Model:
        return replace(model, strengths=replace(model.strengths, **strengths))

    key = graph_key(model)
    other_words = replace(model, base_prototypes=-model.base_prototypes)
    of_labels = [changed(support_focus=1.0), changed(query_local=0.1), changed(kappa=1.0, penalty=9.0), other_words]
    assert {graph_key(each) for each in of_labels} == {key}, "all that decides the labels' own numbers"
    other_space = replace(model, space=replace(model.space, basis=2 * model.space.basis))
    others = [changed(query_focus=1.0), other_space, load_model(str(other_file))]
    assert len({key, *map(graph_key, others)}) == 4
