"""Each ablation, and fine-tuning at test time, against a small calculation of its own in numpy."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fewtag.errors import InputError
from fewtag.research.methods import METHODS, Episode, Support, create_method
from fewtag.research.methods.word_attention import WordAttention

CHANNELS, DIMENSIONS, JOINT, SCALE = 5, 4, 8, 20.0
LABELS = ("a", "b", "c")
SHOWN = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 1, 1], [0, 1, 0]], dtype=torch.bool)
READINGS = ["word-attention", "word-attention-reference"]
ABLATIONS = [name for name, method in METHODS.items() if issubclass(method, WordAttention) and name not in READINGS]
both_readings = pytest.mark.parametrize("name", READINGS)


def build(name: str, **options: object) -> WordAttention:
    """With every parameter random, so that none can be left out unseen."""
    method = create_method(name, channels=CHANNELS, dimensions=DIMENSIONS, options={"joint": JOINT} | options)
    generator = torch.Generator().manual_seed(0)
    for parameter in method.parameters():
        nn.init.normal_(parameter, std=0.5, generator=generator)
    assert isinstance(method, WordAttention)
    return method.eval()


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_support() -> Support:
    return Support(LABELS, random(3, DIMENSIONS, seed=1), random(4, CHANNELS, 2, 3, seed=2), SHOWN)


def query() -> Tensor:
    return random(5, CHANNELS, 2, 3, seed=3)


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().numpy().astype(np.float64)


def cosine(left: np.ndarray, right: np.ndarray) -> float:
    return float(left @ right / math.sqrt((left @ left) * (right @ right)))


def softmax(numbers: list[float]) -> list[float]:
    parts = [math.exp(number) for number in numbers]
    return [part / sum(parts) for part in parts]


def whole(method: WordAttention, image: Tensor) -> np.ndarray:
    """An image's global feature in the joint space."""
    return array(method.visual.weight) @ array(image).reshape(CHANNELS, -1).mean(axis=1)


def parts(method: WordAttention, image: Tensor) -> list[np.ndarray]:
    """An image's places in the joint space."""
    return list((array(method.visual.weight) @ array(image).reshape(CHANNELS, -1)).T)


def images_of(support: Support, label: int) -> list[Tensor]:
    return [image for image, shown in zip(support.maps, support.targets, strict=True) if shown[label]]


def weighted(scores: list[float], vectors: list[np.ndarray]) -> np.ndarray:
    return sum(weight * vector for weight, vector in zip(softmax(scores), vectors, strict=True))


def logits_of(method: WordAttention, prototypes: list[np.ndarray]) -> np.ndarray:
    return np.array([[SCALE * cosine(whole(method, image), label) for label in prototypes] for image in query()])


def projected(method: WordAttention, support: Support) -> list[np.ndarray]:
    return [array(method.text.weight) @ array(word) for word in support.words]


def assert_scores(method: WordAttention, expected: np.ndarray) -> None:
    np.testing.assert_allclose(array(method.adapt(make_support())(query())), expected, atol=3e-4)


def test_without_the_cmw_loss_only_the_query_loss_is_left_over_support_and_query_images() -> None:
    plain, ablation, support = build("word-attention"), build("no-cmw-loss"), make_support()
    targets = random(5, 3, seed=4) > 0
    logits = array(plain.adapt(support)(torch.cat([support.maps, query()])))
    shown = torch.cat([SHOWN, targets]).numpy()
    expected = np.where(shown, np.log1p(np.exp(-logits)), np.log1p(np.exp(logits))).mean()
    assert ablation.loss(Episode(support, query(), targets)).item() == pytest.approx(expected, abs=1e-4)
    assert torch.equal(ablation.adapt(support)(query()), plain.adapt(support)(query()))


def test_simple_attention_weighs_whole_images_by_their_cosine_with_the_word() -> None:
    method, support, prototypes = build("simple-attention"), make_support(), []
    for label, word in enumerate(projected(method, support)):
        images = [whole(method, image) for image in images_of(support, label)]
        prototypes.append(weighted([SCALE * cosine(word, image) for image in images], images))
    assert_scores(method, logits_of(method, prototypes))


def test_simple_local_attention_weighs_all_places_of_a_labels_images_by_their_cosine_with_the_word() -> None:
    method, support, prototypes = build("simple-local-attention"), make_support(), []
    for label, word in enumerate(projected(method, support)):
        local = [place for image in images_of(support, label) for place in parts(method, image)]
        prototypes.append(weighted([SCALE * cosine(word, place) for place in local], local))
    assert_scores(method, logits_of(method, prototypes))


def test_bilinear_pooling_weighs_all_places_of_a_labels_images_by_a_learnt_score() -> None:
    method, support, prototypes = build("bilinear-pooling"), make_support(), []
    place_map, word_map, mix, score = (array(parameter) for parameter in method.bilinear.parameters())
    for label, word in enumerate(projected(method, support)):
        local = [place for image in images_of(support, label) for place in parts(method, image)]
        scores = [float((score @ mix @ np.tanh((place_map @ place) * (word_map @ word)))[0]) for place in local]
        prototypes.append(weighted(scores, local))
    assert_scores(method, logits_of(method, prototypes))


def test_global_attention_is_the_papers_attention_over_whole_images() -> None:
    method, support, prototypes = build("global-attention", heads=2), make_support(), []
    first, last = (layer for layer in method.block.modules() if isinstance(layer, nn.Linear))
    query_map, key_map, value_map = (array(layer.weight) for layer in (method.query, method.key, method.value))
    for label, word in enumerate(projected(method, support)):
        images = [whole(method, image) for image in images_of(support, label)]
        heads = []
        for head in (slice(0, 4), slice(4, 8)):
            scores = [float((query_map @ word)[head] @ (key_map @ image)[head]) / 2 for image in images]
            heads.append(weighted(scores, [(value_map @ image)[head] for image in images]))
        joined = torch.from_numpy(np.concatenate(heads)).float()
        prototypes.append(array(last(nn.functional.gelu(first(joined)))))
    assert_scores(method, logits_of(method, prototypes))


@pytest.mark.parametrize("top", [1, 2, 6, 99])
def test_local_query_sums_the_best_places_of_a_query_image(top: int) -> None:
    method, support = build("local-query", top=top), make_support()
    prototypes = array(method.prototypes(support, method.text(support.words)))
    expected = [
        [sum(sorted((SCALE * cosine(place, label) for place in parts(method, image)), reverse=True)[:top])
         for label in prototypes]
        for image in query()
    ]  # fmt: skip
    assert_scores(method, np.array(expected))


def test_local_query_has_the_prototypes_of_the_full_model() -> None:
    plain, ablation, support = build("word-attention"), build("local-query"), make_support()
    words = plain.text(support.words)
    assert torch.equal(ablation.prototypes(support, words), plain.prototypes(support, words))


def test_a_sum_of_no_places_is_refused() -> None:
    with pytest.raises(InputError, match="top = 0: a label's score needs at least one place"):
        build("local-query", top=0)


@pytest.mark.parametrize("name", ABLATIONS)
def test_every_ablation_changes_the_scores_or_the_loss_of_the_full_model(name: str) -> None:
    plain, ablation, support = build("word-attention"), build(name), make_support()
    episode = Episode(support, query(), random(5, 3, seed=4) > 0)
    assert (plain.loss(episode) - ablation.loss(episode)).abs() > 1e-3


@pytest.mark.parametrize("name", ABLATIONS)
def test_every_ablation_has_a_heat_map(name: str) -> None:
    relevance = build(name).relevance(query(), make_support().words)
    assert relevance.shape == (5, 3, 2, 3)
    assert relevance.flatten(2).std(dim=-1).min() > 0


def tuned_by_hand(method: WordAttention, support: Support, epochs: int, rate: float) -> list[Tensor]:
    """Adam (0.9, 0.999, 1e-8) on the alignment loss, the gradients by autograd on a formula of its own."""
    names = [name for name, _ in method.named_parameters() if name.split(".")[0] in ("visual", "text")]
    state = {name: parameter.detach().double().requires_grad_() for name, parameter in method.named_parameters()}
    first, second = ({name: torch.zeros_like(state[name]) for name in names} for _ in range(2))
    images, words = support.maps.double().mean(dim=(2, 3)), support.words.double()
    for epoch in range(1, epochs + 1):
        left = images @ state["visual.weight"].T + state.get("visual.bias", 0)
        right = words @ state["text.weight"].T + state.get("text.bias", 0)
        cosines = left @ right.T / (left.norm(dim=1)[:, None] * right.norm(dim=1))
        logits = SCALE * (cosines if method.bias is False else 1 - (2 - 2 * cosines).sqrt())
        loss = nn.functional.softplus(torch.where(support.targets, -logits, logits)).mean()
        for name, gradient in zip(names, torch.autograd.grad(loss, [state[name] for name in names]), strict=True):
            first[name] = 0.9 * first[name] + 0.1 * gradient
            second[name] = 0.999 * second[name] + 0.001 * gradient**2
            step = first[name] / (1 - 0.9**epoch) / ((second[name] / (1 - 0.999**epoch)).sqrt() + 1e-8)
            state[name] = (state[name].detach() - rate * step).requires_grad_()
    return [state[name].detach().float() for name in names]


@both_readings
def test_fine_tuning_lowers_the_cmw_loss_in_copies_of_the_two_projections(name: str) -> None:
    method, support = build(name, finetune_epochs=5, finetune_rate=0.01), make_support()
    plain = build(name)
    before = {key: value.clone() for key, value in method.state_dict().items()}
    with torch.no_grad():
        found = method.adapt(support)(query())
    assert all(torch.equal(value, before[key]) for key, value in method.state_dict().items())
    projections = [*plain.visual.parameters(), *plain.text.parameters()]
    for parameter, tuned in zip(projections, tuned_by_hand(method, support, 5, 0.01), strict=True):
        parameter.data.copy_(tuned)
    torch.testing.assert_close(found, plain.adapt(support)(query()), rtol=1e-3, atol=1e-3)
    assert plain.alignment(support) < method.alignment(support)


@both_readings
def test_fine_tuning_does_not_depend_on_the_order_of_labels_or_images_and_can_be_repeated(name: str) -> None:
    method, support = build(name, finetune_epochs=5, finetune_rate=0.01), make_support()
    columns, rows = [2, 0, 1], [3, 1, 0, 2]
    turned = Support(("c", "a", "b"), support.words[columns], support.maps[rows], SHOWN[rows][:, columns])
    found = method.adapt(support)(query())
    assert torch.equal(method.adapt(support)(query()), found)
    torch.testing.assert_close(method.adapt(turned)(query()), found[:, columns], rtol=1e-3, atol=1e-3)


@both_readings
def test_training_does_not_fine_tune(name: str) -> None:
    episode = Episode(make_support(), query(), random(5, 3, seed=4) > 0)
    assert torch.equal(build(name, finetune_epochs=5).loss(episode), build(name).loss(episode))
