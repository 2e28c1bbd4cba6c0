"""The graph that onnxruntime runs says what torch says, whatever the network, for any number of pictures and labels."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fewtag.tagger.graph import Session, graph_key, key_of, make_graph
from fewtag.tagger.int8 import to_int8

from fewtag import Tagger
from fewtag.errors import InputError
from fewtag.research.features.backbone import create_backbone
from fewtag.research.methods.closed_form import ClosedForm
from fewtag.tagger.export import AGREEMENT, differences, export, label_table, picture_pixels, random_pixels
from fewtag.tagger.model import Model

ALBUM = Path(__file__).parents[2] / "examples" / "album"


def with_network(model: Model, name: str) -> Model:
    """The same words, and a space of this network's."""
    torch.manual_seed(0)
    backbone = create_backbone(name, weights="random", size=64)
    method = ClosedForm(backbone.channels, model.words.dimensions, space=16)
    method.word_map.copy_(torch.randn(method.word_map.shape))
    return replace(model, backbone=backbone, method=method.eval())


def test_the_default_model_agrees_on_pictures_and_in_int8_nearly(tmp_path: Path) -> None:
    tagger = Tagger()
    for label in ("bird", "flower", "ball", "penguin"):
        tagger.define(label)
    pictures = sorted(ALBUM.glob("*.jpg"))[:5]
    done = export(tagger, tmp_path, pictures=pictures)
    assert 0 < done.difference < AGREEMENT
    session = Session((tmp_path / "tagger.onnx").read_bytes())
    labels = np.load(tmp_path / "labels.npz")
    pixels = np.stack([tagger.pixels(picture) for picture in pictures])
    found = session(pixels, labels["prototypes"], labels["slopes"], labels["offsets"])
    np.testing.assert_allclose(found, tagger.predict_proba(pictures), atol=AGREEMENT)
    assert list(labels["names"]) == list(tagger.classes_)
    np.testing.assert_allclose(labels["thresholds"], list(tagger.thresholds_.values()), rtol=1e-6)
    small = Session(to_int8((tmp_path / "tagger.onnx").read_bytes()))
    (coarse,) = differences(tagger, label_table(tagger), [small], picture_pixels(tagger, pictures, lambda _: None))
    assert AGREEMENT < coarse < 0.1


@pytest.fixture(scope="module")
def transformer(model: Model) -> tuple[Tagger, bytes]:
    tagger = Tagger(with_network(model, "test_vit")).define("dog").define("cat")
    return tagger, make_graph(tagger.model)


def test_transformers_agree_for_any_number_of_pictures(transformer: tuple[Tagger, bytes]) -> None:
    tagger, graph = transformer
    (found,) = differences(tagger, label_table(tagger), [Session(graph)], random_pixels(tagger))
    assert 0 < found < AGREEMENT


def test_a_graph_names_no_folder_of_the_machine_it_was_made_on(transformer: tuple[Tagger, bytes]) -> None:
    tagger, graph = transformer
    assert key_of(graph) == graph_key(tagger.model)
    for trace in (b"site-packages", str(Path.home()).encode() + b"/", b".py"):
        assert trace not in graph


def test_a_graph_that_does_not_run_is_refused(transformer: tuple[Tagger, bytes]) -> None:
    tagger, graph = transformer
    labels = label_table(tagger)
    with pytest.raises(InputError, match="onnxruntime cannot run the graph"):
        Session(graph)(np.zeros((1, 3, 32, 32), np.uint8), labels["prototypes"], labels["slopes"], labels["offsets"])
    with pytest.raises(InputError, match="onnxruntime cannot run the graph"):
        Session(graph[: len(graph) // 2])


def test_what_is_no_graph_has_no_key() -> None:
    import onnx

    assert key_of(b"") is None
    assert key_of(b"something else") is None
    assert key_of(onnx.ModelProto(ir_version=10).SerializeToString()) is None


def test_labels_and_words_do_not_change_the_graph_but_network_and_space_do(model: Model) -> None:
    def changed(**strengths: float) -> Model:
        method = ClosedForm(model.backbone.channels, model.words.dimensions, space=16, **strengths)
        method.load_state_dict(model.method.state_dict())
        return replace(model, method=method)

    key = graph_key(model)
    other_words = changed()
    other_words.method.word_map.add_(1)
    assert graph_key(other_words) == graph_key(changed(support_focus=1.0)) == key
    other_space = changed()
    other_space.method.basis[0, 0] += 1
    others = [changed(query_focus=1.0), changed(query_local=0.1), other_space, with_network(model, "test_vit")]
    assert len({key, *map(graph_key, others)}) == 5


@pytest.mark.parametrize("wrong", ["prototypes", "slopes", "offsets"])
def test_a_difference_in_any_of_the_labels_numbers_is_found(model: Model, wrong: str) -> None:
    """Torch stands for onnxruntime here, and agrees with itself."""
    tagger = Tagger(model).define("dog").define("cat")

    def run(pixels: np.ndarray, *inputs: np.ndarray) -> np.ndarray:
        prototypes, slopes, offsets = map(torch.from_numpy, inputs)
        scores = model.method.score(tagger.encode_pixels(pixels), prototypes)
        return torch.sigmoid(scores * slopes + offsets).numpy()

    table = dict(label_table(tagger))
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3, 64, 64), dtype=np.uint8)
    compared = [(pixels, np.arange(2))]
    assert differences(tagger, table, [run], compared) == [pytest.approx(0, abs=1e-6)]
    table[wrong] = table[wrong] + np.float32(0.5)
    assert differences(tagger, table, [run], compared)[0] > AGREEMENT
