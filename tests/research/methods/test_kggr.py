"""KGGR piece by piece against plain loops in numpy, and as a whole on a world whose structure is known."""

import math

import numpy as np
import pytest
import torch
from synthetic import CHANNELS, DIMENSIONS, draw_episodes, introduce, macro_ap, make_world, random_macro_ap, train
from torch import Tensor, nn

from fewtag.errors import InputError
from fewtag.research.methods import Base, Episode, Support, kggr
from fewtag.research.methods.kggr import (
    KGGR,
    GatedGraph,
    LabelNetwork,
    LowRankScores,
    Propagation,
    co_occurrence,
    similarity,
)

JOINT = 6
LABELS = ("a", "b", "c")
SHOWN = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 1, 1], [0, 1, 0]], dtype=torch.bool)


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def scatter(module: nn.Module, seed: int = 0) -> nn.Module:
    """With every parameter random, biases included, so that none can be left out unseen."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5, generator=generator)
    return module


def build(**options: object) -> KGGR:
    method = KGGR(5, 4, joint=JOINT, **options)
    method.prepare(Base(LABELS, random(3, 4, seed=7), random(20, 3, seed=8) > 0.3))
    scatter(method)
    return method.eval()


def make_support() -> Support:
    return Support(LABELS, random(3, 4, seed=1), random(4, 5, 2, 3, seed=2), SHOWN)


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().numpy().astype(np.float64)


def apply(layer: nn.Linear, vector: np.ndarray) -> np.ndarray:
    return array(layer.weight) @ vector + (0 if layer.bias is None else array(layer.bias))


def sigmoid(vector: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-vector))


def score_by_hand(scores: LowRankScores, place: np.ndarray, word: np.ndarray) -> float:
    joined = np.tanh(apply(scores.place, place) * apply(scores.word, word))
    return float(apply(scores.score, apply(scores.mix, joined))[0])


def step_by_hand(graph: GatedGraph, states: list[np.ndarray], edges: np.ndarray) -> list[np.ndarray]:
    """One step of one image: what a label hears from those it points to, and from those that point to it."""
    after, size = [], len(states[0])
    for label, own in enumerate(states):
        along = sum(edges[label, other] * state for other, state in enumerate(states))
        against = sum(edges[other, label] * state for other, state in enumerate(states))
        update, reset, candidate = np.split(apply(graph.heard, np.concatenate([along, against])), 3)
        gates = apply(graph.gates, own)
        update, reset = sigmoid(update + gates[:size]), sigmoid(reset + gates[size:])
        after.append((1 - update) * own + update * np.tanh(candidate + apply(graph.fresh, reset * own)))
    return after


def nodes_by_hand(network: LabelNetwork, maps: Tensor, words: Tensor, edges: np.ndarray) -> np.ndarray:
    images = []
    for image in maps:
        local = [array(image[:, row, column]) for row in range(image.shape[1]) for column in range(image.shape[2])]
        first = []
        for word in words:
            parts = [math.exp(score_by_hand(network.relevance, place, array(word))) for place in local]
            pooled = sum(part / sum(parts) * place for part, place in zip(parts, local, strict=True))
            first.append(apply(network.reduce, pooled))
        last = first
        for _ in range(network.graph.steps):
            last = step_by_hand(network.graph, last, edges)
        both = [np.concatenate(pair) for pair in zip(last, first, strict=True)]
        images.append([np.tanh(apply(network.output, vector)) for vector in both])
    return np.array(images)


def expected_bce(logits: np.ndarray, targets: np.ndarray) -> float:
    return float(-np.log(np.where(targets, sigmoid(logits), sigmoid(-logits))).mean())


@pytest.mark.parametrize("at_once", [1, 100, 2**26])
def test_low_rank_scores_equal_a_loop_over_images_labels_and_places(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kggr, "AT_ONCE", at_once)
    scores = scatter(LowRankScores(5, 4, JOINT))
    local, words = random(4, 6, 5, seed=1), random(3, 4, seed=2)
    found = scores(local, words)
    assert found.shape == (4, 3, 6)
    for image, label, place in np.ndindex(4, 3, 6):
        expected = score_by_hand(scores, array(local[image, place]), array(words[label]))
        assert found[image, label, place].item() == pytest.approx(expected, abs=1e-4)


def test_the_gradients_of_low_rank_scores_do_not_depend_on_how_many_images_are_taken_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gradients = []
    for at_once in (1, 2**26):
        monkeypatch.setattr(kggr, "AT_ONCE", at_once)
        scores = scatter(LowRankScores(5, 4, JOINT))
        scores(random(4, 6, 5, seed=1), random(3, 4, seed=2)).square().sum().backward()
        gradients.append([parameter.grad for parameter in scores.parameters()])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("mutual", [False, True])
def test_a_step_of_the_graph_equals_a_loop_over_labels(mutual: bool) -> None:
    graph = scatter(GatedGraph(JOINT, steps=1))
    states, edges = random(2, 3, JOINT, seed=3), random(3, 3, seed=4)
    edges = edges + edges.T if mutual else edges
    found = graph(states, edges, mutual=mutual)
    for image in range(2):
        expected = step_by_hand(graph, list(array(states[image])), array(edges))
        np.testing.assert_allclose(array(found[image]), np.array(expected), atol=1e-5)


def test_base_edges_are_how_probable_a_label_is_beside_another() -> None:
    # a is shown 3 times, twice with b and once with c; b 3 times, once with c; c once; d never
    targets = torch.cat([SHOWN, torch.zeros(4, 1, dtype=torch.bool)], dim=1)
    expected = [[0, 2 / 3, 1 / 3, 0], [2 / 3, 0, 1 / 3, 0], [1, 1, 0, 0], [0, 0, 0, 0]]
    torch.testing.assert_close(co_occurrence(targets), torch.tensor(expected))


def test_edges_of_new_labels_are_the_cosines_of_their_words_where_positive() -> None:
    words = torch.tensor([[2.0, 0.0], [1.0, 1.0], [0.0, -3.0]])
    half = math.sqrt(0.5)
    torch.testing.assert_close(similarity(words), torch.tensor([[0, half, 0], [half, 0, 0], [0, 0, 0]]))


def test_edges_of_new_labels_have_on_average_the_strength_of_the_base_labels_edges() -> None:
    method, base_words = build(), random(3, 4, seed=7)
    scaled = method.edge_scale * similarity(base_words)
    assert scaled.mean().item() == pytest.approx(co_occurrence(random(20, 3, seed=8) > 0.3).mean().item())


@pytest.mark.parametrize("steps", [1, 3])
def test_the_loss_is_that_of_the_base_classifiers_on_support_and_query_images(steps: int) -> None:
    method, support = build(steps=steps), make_support()
    query, targets = random(2, 5, 2, 3, seed=5), random(2, 3, seed=6) > 0
    maps, shown = torch.cat([support.maps, query]), torch.cat([SHOWN, targets]).numpy()
    nodes = nodes_by_hand(method.network, maps, support.words, array(method.base_edges))
    logits = (nodes * array(method.base_weight)).sum(axis=2) + array(method.base_bias)
    found = method.loss(Episode(support, query, targets)).item()
    assert found == pytest.approx(expected_bce(logits, shown), abs=1e-4)


def test_the_first_epoch_moves_every_new_classifier_by_the_rate_against_its_gradient() -> None:
    method, support, query = build(finetune_epochs=1, finetune_rate=0.1), make_support(), random(2, 5, 2, 3, seed=5)
    edges = array(method.edge_scale * similarity(support.words))
    nodes = nodes_by_hand(method.network, support.maps, support.words, edges)
    wrong = 0.5 - SHOWN.numpy().astype(float)  # from zero, every probability is one half
    weight = -0.1 * np.sign((wrong[:, :, None] * nodes).mean(axis=0))
    bias = -0.1 * np.sign(wrong.mean(axis=0))
    expected = (nodes_by_hand(method.network, query, support.words, edges) * weight).sum(axis=2) + bias
    np.testing.assert_allclose(array(method.adapt(support)(query)), expected, atol=1e-4)


@pytest.mark.parametrize("tune_network", [False, True])
def test_training_at_test_time_fits_the_support_and_changes_nothing_in_the_method(tune_network: bool) -> None:
    method, support = build(tune_network=tune_network, finetune_rate=0.01), make_support()
    before = {key: value.clone() for key, value in method.state_dict().items()}
    with torch.no_grad():
        logits = method.adapt(support)(support.maps)
        order = [2, 0, 1]
        turned = Support(("c", "a", "b"), support.words[order], support.maps, SHOWN[:, order])
        again = method.adapt(turned)(support.maps)
    torch.testing.assert_close(again, logits[:, order], rtol=1e-3, atol=1e-3)
    assert expected_bce(array(logits), SHOWN.numpy()) < math.log(2)
    assert all(torch.equal(value, before[key]) for key, value in method.state_dict().items())


def test_tuning_the_network_too_fits_the_support_better() -> None:
    support = make_support()
    fits = [build(tune_network=tune, finetune_rate=0.01).adapt(support)(support.maps) for tune in (False, True)]
    classifiers_alone, everything = (expected_bce(array(logits), SHOWN.numpy()) for logits in fits)
    assert everything < classifiers_alone


def test_labels_other_than_the_prepared_ones_are_refused_in_training() -> None:
    support = make_support()._replace(labels=("a", "b", "x"))
    with pytest.raises(InputError, match="prepared for 3 base labels, and the episode has 3 labels, not the same"):
        build().loss(Episode(support, support.maps, SHOWN))


def test_a_graph_without_steps_is_refused() -> None:
    with pytest.raises(InputError, match="steps = 0: labels need at least one step"):
        build(steps=0)


@pytest.mark.slow
def test_it_learns_base_labels_and_that_helps_with_new_ones() -> None:
    world = make_world(base_labels=12)
    torch.manual_seed(0)
    method, held_out = introduce(KGGR(CHANNELS, DIMENSIONS, joint=32), world.base), draw_episodes(world.validation, 8)
    untrained = macro_ap(method, held_out)
    losses = train(method, draw_episodes(world.base, 50, seed=1, queries=2), learning_rate=1e-2)
    assert np.mean(losses[-10:]) < 0.6 * np.mean(losses[:10])  # seeds 0 to 2: 0.44 at most, and gains of 19, 22, 26
    assert macro_ap(method, held_out) > max(untrained, random_macro_ap(held_out)) + 10


def test_classifiers_hear_one_another_as_in_plain_loops() -> None:
    propagation = scatter(Propagation(JOINT, steps=2))
    weight, words = random(3, JOINT, seed=3), random(3, 4, seed=4)
    alike = array(similarity(words))
    edges = np.array([[alike[a, b] / math.sqrt(alike[a].sum() * alike[b].sum()) for b in range(3)] for a in range(3)])
    states = [array(each) for each in weight]
    for _ in range(2):
        states = step_by_hand(propagation.graph, states, edges)
    own = [array(each) for each in weight]
    expected = [
        one + apply(propagation.output, np.concatenate([state, one])) for one, state in zip(own, states, strict=True)
    ]
    np.testing.assert_allclose(array(propagation(weight, words)), np.array(expected), atol=1e-5)


def test_untrained_propagation_changes_nothing_and_trained_base_classifiers_are_heard() -> None:
    support, query = make_support(), random(5, 5, 2, 3, seed=9)
    plain, hearing = build(), KGGR(5, 4, joint=JOINT, propagation=2)
    hearing.prepare(Base(LABELS, random(3, 4, seed=7), random(20, 3, seed=8) > 0.3))
    hearing.load_state_dict(hearing.state_dict() | plain.state_dict())
    before = hearing.eval().adapt(support)(query)
    torch.testing.assert_close(before, plain.adapt(support)(query))
    scatter(hearing.propagate)
    heard = hearing.adapt(support)(query)
    with torch.no_grad():
        hearing.base_weight.mul_(-1)
    assert not torch.allclose(heard, before)
    assert not torch.allclose(hearing.adapt(support)(query), heard)


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # torch's, on switching oneDNN off
def test_it_learns_in_half_precision_with_propagation_too() -> None:
    method, support = build(propagation=2), make_support()
    episode = Episode(support, random(2, 5, 2, 3, seed=5), random(2, 3, seed=6) > 0)
    # without oneDNN, whose half precision asks for instructions that not every machine has
    with torch.backends.mkldnn.flags(enabled=False), torch.autocast("cpu", torch.bfloat16):
        losses = train(method, [episode] * 20, learning_rate=1e-2)
    assert losses[-1] < 0.8 * losses[0]
