"""PLA: the alignment against all permutations, the decoder against plain NumPy, learning in a world that is known."""

import itertools
import math

import numpy as np
import pytest
import torch
from synthetic import CHANNELS, DIMENSIONS, draw_episodes, introduce, macro_ap, make_world, random_macro_ap, train
from torch import Tensor

from fewtag.errors import InputError
from fewtag.research.methods.base import Base, Episode, Support
from fewtag.research.methods.linear import Head
from fewtag.research.methods.pla import (
    NONE,
    PLA,
    Decoder,
    View,
    WordPLA,
    align,
    alignment_loss,
    best_logits,
    sort_by_length,
)

both = pytest.mark.parametrize("kind", [PLA, WordPLA])


def small(kind: type[PLA], *, finetune_epochs: int = 20, **options: float) -> PLA:
    torch.manual_seed(0)
    sizes = {"joint": 32, "embedding": 16, "finetune_epochs": finetune_epochs}
    return kind(CHANNELS, DIMENSIONS, finetune_rate=1e-2, **sizes, **options)  # type: ignore[arg-type]


def brute_force(logits: Tensor, shown: Tensor) -> list[int]:
    """The best of all orders of one image's true labels in which no right first prediction is moved."""
    log_probabilities = logits.double().log_softmax(dim=-1)
    true, steps, stop = shown.nonzero().flatten().tolist(), len(logits), logits.shape[1] - 1
    predicted = logits.argmax(dim=-1).tolist()
    kept: dict[int, int] = {}
    for step in range(min(len(true), steps)):
        if predicted[step] in true and predicted[step] not in kept.values():
            kept[step] = predicted[step]
    orders = [
        order
        for order in itertools.permutations(true, min(len(true), steps))
        if all(order[step] == label for step, label in kept.items())
    ]
    best = max(orders, key=lambda order: sum(float(log_probabilities[step, at]) for step, at in enumerate(order)))
    return ([*best, stop] + [NONE] * steps)[:steps]


@pytest.mark.parametrize("steps", [7, 5, 3])  # with 3 not all of five labels have a step
def test_the_alignment_is_the_best_of_all_permutations_that_keep_right_predictions(steps: int) -> None:
    generator = torch.Generator().manual_seed(steps)
    logits = 2 * torch.randn(60, steps, 8, generator=generator)
    targets = torch.rand(60, 7, generator=generator) < 0.4
    targets[targets.sum(dim=1) > 5] = False  # few enough for all permutations; and images that show nothing
    assert {0, 1, 2, 3, 4, 5} == set(targets.sum(dim=1).tolist())
    assert align(logits, targets).tolist() == [brute_force(*image) for image in zip(logits, targets, strict=True)]


def test_the_loss_by_hand() -> None:
    # step 1 emits label 0, which is right and stays, although to give step 1 label 1 and step 2 label 0 would cost less
    kept = [[0.5, 0.49, 0.01], [0.9, 0.05, 0.05], [0.1, 0.2, 0.7]]
    # label 1 alone is true: step 1 emits something else but is the only one before the stop; step 3 has no target
    missed = [[0.6, 0.3, 0.1], [0.1, 0.5, 0.4], [0.8, 0.1, 0.1]]
    targets = torch.tensor([[True, True], [False, True]])
    logits = torch.tensor([kept, missed]).log() + 3  # what is added to all scores changes nothing
    expected = -(math.log(0.5) + math.log(0.05) + math.log(0.7) + math.log(0.3) + math.log(0.4)) / 5
    assert align(logits, targets).tolist() == [[0, 1, 2], [1, 2, NONE]]
    assert alignment_loss(logits, targets).item() == pytest.approx(expected, rel=1e-6)


def test_a_score_is_the_logit_of_the_highest_probability_until_the_stop_token() -> None:
    probabilities = torch.tensor(
        [
            [[0.5, 0.2, 0.3], [0.1, 0.6, 0.3], [0.2, 0.1, 0.7], [0.8, 0.1, 0.1]],  # stops at the third step
            [[0.3, 0.2, 0.5], [0.9, 0.05, 0.05], [0.9, 0.05, 0.05], [0.9, 0.05, 0.05]],  # stops at once
        ]
    )
    found = best_logits(probabilities.log()).sigmoid()
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.6], [0.3, 0.2]]))


def test_scores_of_certainty_are_exact_and_never_tie() -> None:
    logits = torch.tensor([[[60.0, 3.0, 1.0]], [[61.0, 3.0, 1.0]], [[-90.0, 3.0, 1.0]]])
    found = best_logits(logits)
    others = [[(3, 1), (60, 1)], [(3, 1), (61, 1)], [(3, 1), (-90, 1)]]
    for image, label in itertools.product(range(3), range(2)):
        rest = math.log(sum(math.exp(score) for score in others[image][label]))
        assert found[image, label].item() == pytest.approx(logits[image, 0, label].item() - rest, abs=1e-4)
    assert found[1, 0] > found[0, 0]


def test_the_decoder_is_an_lstm_with_additive_attention_that_hears_itself() -> None:
    torch.manual_seed(0)
    decoder, generator = Decoder(4, 3), torch.Generator().manual_seed(1)
    torch.nn.init.normal_(decoder.start)
    torch.nn.init.normal_(decoder.stop)
    local, keys = (torch.randn(1, 5, 4, generator=generator) for _ in range(2))
    embeddings, weight, bias = (torch.randn(*size, generator=generator) for size in ((2, 3), (3, 4), (3,)))
    found = decoder(View(local, keys), embeddings, Head(weight, bias), [1] * 4)[0]

    at = {name: value.detach().double().numpy() for name, value in decoder.named_parameters()}
    places, key = local[0].double().numpy(), keys[0].double().numpy()
    tokens = np.vstack([embeddings.numpy(), at["stop"]])
    hidden, cell = (
        at[f"{part}.weight"] @ places.mean(0) + at[f"{part}.bias"] for part in ("first_hidden", "first_cell")
    )
    emitted, expected = at["start"], []
    for _ in range(4):
        scores = np.maximum(key + at["query.weight"] @ hidden, 0) @ at["relevance.weight"][0]
        attended = np.exp(scores) / np.exp(scores).sum() @ places
        seen = attended / (1 + np.exp(-(at["gate.weight"] @ hidden + at["gate.bias"])))
        inner = at["lstm.weight_ih"] @ np.concatenate([emitted, seen]) + at["lstm.bias_ih"]
        let_in, keep, new, out = np.split(inner + at["lstm.weight_hh"] @ hidden + at["lstm.bias_hh"], 4)
        cell = cell / (1 + np.exp(-keep)) + np.tanh(new) / (1 + np.exp(-let_in))
        hidden = np.tanh(cell) / (1 + np.exp(-out))
        expected.append(weight.numpy() @ hidden + bias.numpy())
        emitted = tokens[expected[-1].argmax()]
    np.testing.assert_allclose(found.detach().numpy(), expected, atol=1e-5)


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double).requires_grad_()


def test_steps_after_the_stop_teach_nothing_so_images_need_not_take_them() -> None:
    torch.manual_seed(0)
    targets = torch.tensor([[1, 0, 0], [1, 1, 1], [0, 0, 0], [0, 1, 1], [0, 0, 1]], dtype=torch.bool)
    decoder, labels = Decoder(4, 3).double(), (random(3, 3, seed=1), Head(random(4, 4, seed=2), random(4, seed=3)))
    view = View(random(5, 6, 4, seed=4), random(5, 6, 4, seed=5))
    order, running = sort_by_length(targets, 10)
    assert order.tolist() == [1, 3, 0, 4, 2]
    assert running == [5, 4, 2, 1]
    assert sort_by_length(targets, 3)[1] == [5, 4, 2]
    all_steps = alignment_loss(decoder(view, *labels, [5] * 4), targets)
    fewer = alignment_loss(decoder(view.take(order), *labels, running), targets[order])
    learnt = [*decoder.parameters(), labels[0], *labels[1], *view]
    torch.testing.assert_close(torch.autograd.grad(fewer, learnt), torch.autograd.grad(all_steps, learnt))


@both
def test_what_is_learnt_from_base_labels_serves_new_ones(kind: type[PLA]) -> None:
    world = make_world(base_labels=8, validation_labels=6, noise=0.1)
    episodes = draw_episodes(world.validation, 3)
    method = introduce(small(kind, dropout=0.1), world.base)
    losses = train(method, draw_episodes(world.base, 60), learning_rate=1e-2)
    assert np.mean(losses[-10:]) < np.mean(losses[:10]) / 2
    found = macro_ap(method, episodes)
    assert found > random_macro_ap(episodes) + 10
    assert found > macro_ap(introduce(small(kind), world.base), episodes), "as good without the base labels"


def an_episode(labels: int = 4) -> Episode:
    return draw_episodes(make_world(base_labels=2, validation_labels=labels).validation, 1)[0]


def told(kind: type[PLA], episode: Episode, **options: float) -> PLA:
    method, support = small(kind, **options), episode.support
    method.prepare(Base(support.labels, support.words, support.targets))
    return method.eval()


@both
def test_tuning_learns_the_support(kind: type[PLA]) -> None:
    support = an_episode().support
    method = told(kind, an_episode(), finetune_epochs=100)
    assert macro_ap(method, [Episode(support, support.maps, support.targets)]) > 95


@pytest.mark.parametrize("tune_decoder", [True, False])
def test_tuning_changes_a_copy_of_the_decoder_or_nothing_of_it(tune_decoder: bool) -> None:
    episode = an_episode()
    method, support = told(PLA, episode, tune_decoder=tune_decoder), episode.support
    method.loss(episode).backward()  # gradients that are there must not leak into the tuning
    before = [parameter.grad.clone() for parameter in method.parameters() if parameter.grad is not None]
    tuned = method.tune(method.view(method.encode(support.maps)), support.words, support.targets)
    pairs = zip(method.decoder.parameters(), tuned.func.parameters(), strict=True)
    assert [torch.equal(old, new) for old, new in pairs] == [not tune_decoder] * len(list(method.decoder.parameters()))
    assert all(part.any() for part in tuned.keywords["output"]), "the fresh output layer learns either way"
    after = [parameter.grad for parameter in method.parameters() if parameter.grad is not None]
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_pictures_get_as_many_steps_as_the_supports_fullest_image_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its labels and the stop token; what would be emitted later is no score."""
    given: list[int] = []

    def count(logits: Tensor) -> Tensor:
        given.append(logits.shape[1])
        return best_logits(logits)

    monkeypatch.setattr("fewtag.research.methods.pla.best_logits", count)
    episode = an_episode()
    method, fullest = told(PLA, episode), int(episode.support.targets.sum(dim=1).max())
    method.adapt(episode.support)(episode.maps)
    method.steps = 2
    method.adapt(episode.support)(episode.maps)
    assert given == [fullest + 1, 2]


@both
def test_words_matter_where_they_are_the_embeddings(kind: type[PLA]) -> None:
    episode = an_episode()
    method = told(kind, episode)
    other = episode.support._replace(words=-episode.support.words)
    same = torch.equal(method.adapt(episode.support)(episode.maps), method.adapt(other)(episode.maps))
    assert same is (kind is PLA)


def test_the_order_of_labels_has_no_say_even_where_all_score_the_same() -> None:
    episode = an_episode()
    method, support, order = told(PLA, episode), episode.support, [2, 0, 3, 1]
    turned = Support(
        tuple(support.labels[label] for label in order), support.words[order], support.maps, support.targets[:, order]
    )
    assert torch.equal(method.adapt(turned)(episode.maps), method.adapt(support)(episode.maps)[:, order])


@both
def test_the_encoders_loss_is_that_of_a_linear_classifier_of_mean_places(kind: type[PLA]) -> None:
    episode = an_episode()
    method = told(kind, episode, encoder_episodes=5).train()
    at = {name: value.detach().double().numpy() for name, value in method.named_parameters()}
    maps = torch.cat([episode.support.maps, episode.maps]).double().numpy()
    shown = torch.cat([episode.support.targets, episode.targets]).numpy()
    encoded = maps.mean(axis=(2, 3)) @ at["visual.weight"].T + at["visual.bias"]
    scores = encoded @ at["base_classifier.weight"].T + at["base_classifier.bias"]
    expected = np.where(shown, np.log1p(np.exp(-scores)), np.log1p(np.exp(scores))).mean()
    assert method.encoder_loss(episode).item() == pytest.approx(expected, rel=1e-5)


def test_an_encoders_stage_leaves_the_first_weights_of_all_else_as_they_are() -> None:
    with_stage, without = (told(PLA, an_episode(), encoder_episodes=count).state_dict() for count in (5, 0))
    assert with_stage.keys() - without.keys() == {"base_classifier.weight", "base_classifier.bias"}
    assert all(torch.equal(with_stage[name], value) for name, value in without.items())


def test_labels_it_was_not_prepared_for_are_refused() -> None:
    episode = an_episode()
    with pytest.raises(InputError, match="prepared for 0 base labels, and the episode has 4"):
        small(PLA).loss(episode)


def test_too_few_steps_to_stop_are_refused() -> None:
    with pytest.raises(InputError, match=r"steps = 1: .* at least 2"):
        small(PLA, steps=1)
