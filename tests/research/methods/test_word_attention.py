"""Both readings of the paper against loops over labels, images, places and heads, written from PAPER.md in numpy."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fewtag.errors import InputError
from fewtag.research.methods import METHODS, Episode, Support, create_method
from fewtag.research.methods.word_attention import ReferenceWordAttention, WordAttention

CHANNELS, DIMENSIONS, JOINT = 5, 4, 16
SHOWN = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 1, 1], [0, 1, 0]], dtype=torch.bool)
READINGS = ["word-attention", "word-attention-reference"]
both_readings = pytest.mark.parametrize("name", READINGS)


def build(name: str, **options: object) -> WordAttention:
    """With every parameter random, layer norms and biases included, so that none can be left out unseen."""
    method = create_method(name, channels=CHANNELS, dimensions=DIMENSIONS, options={"joint": JOINT} | options)
    generator = torch.Generator().manual_seed(0)
    for parameter in method.parameters():
        nn.init.normal_(parameter, std=0.4, generator=generator)
    assert isinstance(method, WordAttention)
    return method.eval()


def episode() -> Episode:
    generator = torch.Generator().manual_seed(1)
    words = torch.randn(3, DIMENSIONS, generator=generator)
    support, query = (torch.randn(count, CHANNELS, 2, 3, generator=generator) for count in (4, 5))
    targets = torch.rand(5, 3, generator=generator) < 0.5
    return Episode(Support(("a", "b", "c"), words, support, SHOWN), query, targets)


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().numpy().astype(np.float64)


def apply(layer: nn.Module, vector: np.ndarray) -> np.ndarray:
    """A linear layer or a layer norm, in double precision."""
    if isinstance(layer, nn.LayerNorm):
        scaled = (vector - vector.mean()) / math.sqrt(vector.var() + layer.eps)
        return scaled * array(layer.weight) + array(layer.bias)
    return array(layer.weight) @ vector + (0 if layer.bias is None else array(layer.bias))


def gelu(vector: np.ndarray) -> np.ndarray:
    return np.array([0.5 * number * (1 + math.erf(number / math.sqrt(2))) for number in vector])


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / math.sqrt((vector**2).sum())


def softmax(numbers: list[float]) -> list[float]:
    parts = [math.exp(number) for number in numbers]
    return [part / sum(parts) for part in parts]


def attend(method: WordAttention, word: np.ndarray, local: list[np.ndarray]) -> np.ndarray:
    """The heads, joined, over a list of places in the joint space."""
    joined = []
    for head in range(method.heads):
        part = slice(head * method.width, (head + 1) * method.width)
        query = apply(method.query, word)[part]
        scores = [float(query @ apply(method.key, place)[part]) / math.sqrt(method.width) for place in local]
        values = [apply(method.value, place)[part] for place in local]
        joined.append(sum(weight * value for weight, value in zip(softmax(scores), values, strict=True)))
    return np.concatenate(joined)


def local_places(image: Tensor) -> list[np.ndarray]:
    return [array(image[:, row, column]) for row in range(image.shape[1]) for column in range(image.shape[2])]


def pooled(image: Tensor) -> np.ndarray:
    return sum(local_places(image)) / len(local_places(image))


def paper_prototype(method: WordAttention, images: list[Tensor], word: np.ndarray) -> np.ndarray:
    local = [apply(method.visual, place) for image in images for place in local_places(image)]
    first, last = (layer for layer in method.block.modules() if isinstance(layer, nn.Linear))
    return apply(last, gelu(apply(first, attend(method, word, local))))


def reference_prototype(method: WordAttention, images: list[Tensor], word: np.ndarray) -> np.ndarray:
    assert isinstance(method, ReferenceWordAttention)
    project, widen, narrow = (layer for layer in method.block.modules() if isinstance(layer, nn.Linear))
    inner_norm, outer_norm = (layer for layer in method.block.modules() if isinstance(layer, nn.LayerNorm))
    encoded, matches = [], []
    for image in images:
        local = [apply(method.norm, apply(method.visual_local, place)) for place in local_places(image)]
        projected = apply(project, attend(method, apply(method.norm, word), local))
        changed = apply(narrow, gelu(apply(widen, apply(inner_norm, projected))))
        encoded.append(apply(outer_norm, projected + changed))
        matches.append(reference_similarity(method, apply(method.visual, pooled(image)), word))
    return sum(weight * one for weight, one in zip(softmax(matches), encoded, strict=True))


def paper_similarity(method: WordAttention, left: np.ndarray, right: np.ndarray) -> float:
    return method.scale * float(unit(left) @ unit(right))


def reference_similarity(method: WordAttention, left: np.ndarray, right: np.ndarray) -> float:
    return method.scale * (1 - math.sqrt(((unit(left) - unit(right)) ** 2).sum()))


PROTOTYPE = {"word-attention": paper_prototype, "word-attention-reference": reference_prototype}
SIMILARITY = {"word-attention": paper_similarity, "word-attention-reference": reference_similarity}


def similarities(name: str, method: WordAttention, images: Tensor, labels: list[np.ndarray]) -> np.ndarray:
    features = [apply(method.visual, pooled(image)) for image in images]
    return np.array([[SIMILARITY[name](method, feature, label) for label in labels] for feature in features])


def projected_words(method: WordAttention, support: Support) -> list[np.ndarray]:
    return [apply(method.text, array(word)) for word in support.words]


def expected_logits(name: str, method: WordAttention, support: Support, query: Tensor) -> np.ndarray:
    prototypes = []
    for label, word in enumerate(projected_words(method, support)):
        images = [image for image, shown in zip(support.maps, support.targets, strict=True) if shown[label]]
        prototypes.append(PROTOTYPE[name](method, images, word))
    return similarities(name, method, query, prototypes)


def expected_bce(logits: np.ndarray, targets: Tensor) -> float:
    likelihood = np.where(targets.numpy(), 1 / (1 + np.exp(-logits)), 1 / (1 + np.exp(logits)))
    return float(-np.log(likelihood).mean())


@both_readings
@pytest.mark.parametrize("heads", [1, 3, 6, 8, 16])
def test_scores_equal_plain_loops_over_labels_images_places_and_heads(name: str, heads: int) -> None:
    method, (support, query, _) = build(name, heads=heads), episode()
    logits = method.adapt(support)(query)
    np.testing.assert_allclose(array(logits), expected_logits(name, method, support, query), atol=2e-4)


@both_readings
@pytest.mark.parametrize("gamma", [1.0, 0.3])
def test_the_loss_is_the_alignment_of_words_plus_gamma_times_the_query_loss(name: str, gamma: float) -> None:
    method, (support, query, targets) = build(name, gamma=gamma, scale=5.0), episode()
    aligned = similarities(name, method, support.maps, projected_words(method, support))
    judged = expected_logits(name, method, support, query)
    expected = expected_bce(aligned, support.targets) + gamma * expected_bce(judged, targets)
    assert method.loss(Episode(support, query, targets)).item() == pytest.approx(expected, abs=1e-4)


@both_readings
@pytest.mark.parametrize("heads", [3, 8])
def test_relevance_is_the_scores_before_the_softmax_summed_over_heads(name: str, heads: int) -> None:
    method, (support, query, _) = build(name, heads=heads), episode()
    relevance = method.relevance(query, support.words)
    assert relevance.shape == (5, 3, 2, 3)
    reference = isinstance(method, ReferenceWordAttention)
    for image, label, row, column in np.ndindex(*relevance.shape):
        place, word = array(query[image, :, row, column]), projected_words(method, support)[label]
        local = apply(method.norm, apply(method.visual_local, place)) if reference else apply(method.visual, place)
        asked = apply(method.query, apply(method.norm, word) if reference else word)
        parts = zip(np.split(asked, heads), np.split(apply(method.key, local), heads), strict=True)
        expected = sum(float(query @ key) for query, key in parts) / math.sqrt(JOINT // heads)
        assert relevance[image, label, row, column].item() == pytest.approx(expected, abs=1e-4)


def plane(degrees: float) -> Tensor:
    return torch.tensor([[math.cos(math.radians(degrees)), math.sin(math.radians(degrees))]])


@pytest.mark.parametrize(("degrees", "probability"), [(90, 0.5), (0, 1.0), (180, 0.0)])
def test_the_papers_similarity_is_even_at_a_right_angle(degrees: float, probability: float) -> None:
    method = METHODS["word-attention"](CHANNELS, DIMENSIONS, joint=2, heads=1)
    logit = method.similarity(3 * plane(0), 0.2 * plane(degrees))
    assert logit.item() == pytest.approx(20 * math.cos(math.radians(degrees)), abs=1e-4)
    assert logit.sigmoid().item() == pytest.approx(probability, abs=1e-4)


@pytest.mark.parametrize(("degrees", "logit"), [(60, 0.0), (90, 20 * (1 - math.sqrt(2))), (180, -20.0), (0, 20.0)])
def test_the_references_similarity_is_even_at_a_cosine_of_one_half(degrees: float, logit: float) -> None:
    method = METHODS["word-attention-reference"](CHANNELS, DIMENSIONS, joint=2, heads=1)
    image = (3 * plane(0)).requires_grad_()
    found = method.similarity(image, 0.2 * plane(degrees))
    assert found.item() == pytest.approx(logit, abs=0.03 if degrees == 0 else 1e-4)
    found.sum().backward()
    assert image.grad is not None
    assert image.grad.isfinite().all()


@both_readings
@pytest.mark.parametrize("heads", range(1, 17))
def test_every_number_of_heads_the_paper_tries_fits_512(name: str, heads: int) -> None:
    with torch.device("meta"):
        method = create_method(name, channels=8, dimensions=8, options={"heads": heads})
    assert isinstance(method, WordAttention)
    assert (method.joint, method.width) == (512, 512 // heads)
    for layer in (method.query, method.key, method.value):
        assert layer.weight.shape == (heads * (512 // heads), 512)


@both_readings
@pytest.mark.parametrize("heads", [0, -1, 17])
def test_heads_that_do_not_fit_are_refused(name: str, heads: int) -> None:
    with pytest.raises(InputError, match=f"heads = {heads}: the joint space of 16 dimensions takes from 1 to 16"):
        create_method(name, channels=8, dimensions=8, options={"joint": 16, "heads": heads})


@both_readings
def test_the_defaults_are_the_papers(name: str) -> None:
    with torch.device("meta"):
        method = create_method(name, channels=8, dimensions=8)
    assert isinstance(method, WordAttention)
    assert (method.joint, method.heads, method.scale, method.gamma) == (512, 8, 20.0, 1.0)


def test_the_text_has_no_bias_in_its_projections_and_the_reference_has_them_everywhere() -> None:
    text, reference = (create_method(name, channels=8, dimensions=8, options={"joint": 16}) for name in READINGS)
    projections = ("visual", "text", "query", "key", "value")
    assert all(getattr(text, name).bias is None for name in projections)
    assert all(getattr(reference, name).bias is not None for name in (*projections, "visual_local"))


@both_readings
def test_dropout_acts_in_training_alone(name: str) -> None:
    method, (support, query, _) = build(name, dropout=0.5), episode()
    assert torch.equal(method.adapt(support)(query), method.adapt(support)(query))
    method.train()
    assert not torch.equal(method.adapt(support)(query), method.adapt(support)(query))


def test_the_reference_drops_projected_places_and_attention_weights_in_training() -> None:
    method, (support, _, _) = build("word-attention-reference", dropout=0.5), episode()
    assert isinstance(method, ReferenceWordAttention)
    seen: list[tuple[int, ...]] = []
    method.drop.register_forward_hook(lambda _, given, __: seen.append(tuple(given[0].shape)))
    method.prototypes(support, method.text(support.words))
    assert seen == [(4, 6, JOINT), (7, 8, 6)]  # images × places × joint, then pairs of label and image × heads × places


def test_the_reference_begins_as_the_authors_code_does() -> None:
    method = create_method("word-attention-reference", channels=8, dimensions=8, options={"joint": 64})
    assert isinstance(method, ReferenceWordAttention)
    widen, narrow = [layer for layer in method.block.mlp if isinstance(layer, nn.Linear)]
    for layer in (widen, narrow):
        bound = math.sqrt(6 / (64 + 128))  # Xavier's, for 64 in and 128 out, or the other way round
        assert 0.9 * bound < layer.weight.abs().max().item() <= bound
        assert 0 < layer.bias.abs().max().item() < 1e-5
    assert {layer.eps for layer in method.modules() if isinstance(layer, nn.LayerNorm)} == {1e-6}


def test_the_reference_serves_a_label_without_image_by_its_projected_word() -> None:
    name = "word-attention-reference"
    method, (support, query, _) = build(name), episode()
    hidden = support._replace(targets=SHOWN & torch.tensor([True, True, False]))
    served = method.adapt(hidden)(query)[:, 2:]
    expected = similarities(name, method, query, projected_words(method, support)[2:])
    np.testing.assert_allclose(array(served), expected, atol=2e-4)
