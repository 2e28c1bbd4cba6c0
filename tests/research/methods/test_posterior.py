"""The posterior hands its tensors over to the core; Rocchio moves away from what is rejected; rivals are whitened."""

import numpy as np
import pytest
import torch
from torch import Tensor

from fewtag.core import posterior as core
from fewtag.core.posterior import Classifiers, NameEvidence, Pictures, fit_label
from fewtag.errors import InputError
from fewtag.research.methods import METHODS, Base, ClassNames, Support, create_method
from fewtag.research.methods.closed_form import ENOUGH, ClosedForm, Posterior, Rocchio, Whitened, WordMapped
from fewtag.research.methods.linear import LogisticRegression
from fewtag.research.methods.neighbours import NearestNeighbours
from fewtag.research.types import places, pool

CHANNELS, DIMENSIONS, SPACE = 12, 5, 4
SHOWN = torch.tensor([[1, 0], [1, 1], [0, 1], [0, 1]], dtype=torch.bool)


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_base(labels: int = 6, images: int = 80, names: ClassNames | None = None) -> Base:
    targets = random(images, labels, seed=1) > 0.7
    features = targets.float() @ random(labels, CHANNELS, seed=2) + 0.3 * random(images, CHANNELS, seed=3) + 1
    return Base(
        tuple(f"label {n}" for n in range(labels)), random(labels, DIMENSIONS, seed=4), targets, features, names
    )


def make_support(targets: Tensor = SHOWN) -> Support:
    maps = random(len(targets), CHANNELS, 2, 3, seed=6)
    return Support(("a", "b"), random(2, DIMENSIONS, seed=5), maps, targets)


def prepared(method: WordMapped | Whitened) -> WordMapped | Whitened:
    method.prepare(make_base())
    return method.eval()


@pytest.mark.parametrize("complete", [True, False])
def test_logits_are_those_of_the_core_label_by_label(complete: bool) -> None:
    method = prepared(Posterior(CHANNELS, DIMENSIONS, space=SPACE, complete=complete, unnamed=0.1, name_within=0.3))
    assert isinstance(method, Posterior)
    support, maps = make_support(), random(3, CHANNELS, 2, 3, seed=7)
    strengths = core.Strengths(
        shrinkage=2.0, ridge=0.5, word_weight=3.0, word_decay=0.5, support_focus=16.0, query_local=0.8, unnamed=0.1
    )
    assert method.strengths == strengths
    space, word_prototypes = method.space_, method.word_map_.prototypes(support.words.numpy())
    pictures = Pictures.of(space.project(places(support.maps).numpy()))
    no = 1.0 if complete else 0.1
    weights = np.where(SHOWN.numpy(), 1.0, no).astype(np.float32)
    labels = [
        fit_label(
            pictures,
            SHOWN[:, n].numpy(),
            weights[:, n],
            word_prototypes[n],
            strengths,
            NameEvidence(within=0.3, prior=0.93),
        )
        for n in range(2)
    ]
    expected = Classifiers.of(labels).logits(space.project(places(maps).numpy()), strengths)
    np.testing.assert_allclose(method.adapt(support)(maps), expected, atol=1e-5)


def test_without_any_picture_the_order_is_that_of_the_closed_form_with_the_same_strengths() -> None:
    nothing = make_support(torch.zeros(0, 2, dtype=torch.bool))
    options = {"ridge": 0.5, "shrinkage": 2.0, "query_local": 0.8}
    maps = random(9, CHANNELS, 2, 3, seed=7)
    ours, closed = (
        prepared(kind(CHANNELS, DIMENSIONS, space=SPACE, **options)).adapt(nothing)(maps)
        for kind in (Posterior, ClosedForm)
    )
    assert torch.equal(ours.argsort(dim=0), closed.argsort(dim=0))
    torch.testing.assert_close(ours, 6 * (closed / 20 - 0.3), rtol=1e-4, atol=1e-4)


def test_answers_and_a_complete_support_of_one_label_teach_the_same() -> None:
    """Of a name that is beyond doubt: by answers it is not compared."""
    method = prepared(Posterior(CHANNELS, DIMENSIONS, space=SPACE, name_prior=1 - 1e-12))
    assert isinstance(method, Posterior)
    support, maps = make_support(), random(3, CHANNELS, 2, 3, seed=7)
    word_prototypes = method.word_map_.prototypes(support.words.numpy())
    fitted = method.fit_answers(Pictures.of(method.local(support.maps)), SHOWN[:, 0].numpy(), word_prototypes[0])
    found = Classifiers.of([fitted]).logits(method.local(maps), method.strengths)
    np.testing.assert_allclose(method.adapt(support)(maps)[:, :1], found, atol=1e-5)


def test_the_closed_form_learns_nothing_from_a_no() -> None:
    method = prepared(ClosedForm(CHANNELS, DIMENSIONS, space=SPACE))
    assert isinstance(method, ClosedForm)
    pictures, word = Pictures.of(method.local(random(4, CHANNELS, 2, 3, seed=6))), np.eye(SPACE, dtype=np.float32)[0]
    yes = np.array([True, True, False, False])
    with_no = method.fit_answers(pictures, yes, word)
    without = method.fit_answers(Pictures(*(part[yes] for part in pictures)), yes[yes], word)
    np.testing.assert_allclose(with_no.prototype, without.prototype, atol=1e-6)


@pytest.mark.parametrize("rejected", [0, 2, ENOUGH, 2 * ENOUGH])
def test_rocchio_moves_as_far_as_the_number_of_the_rejected_says(rejected: int) -> None:
    method = prepared(Rocchio(CHANNELS, DIMENSIONS, space=SPACE, rejection=0.5))
    assert isinstance(method, Rocchio)
    pictures = Pictures.of(method.local(random(1 + rejected, CHANNELS, 2, 3, seed=6)))
    shown, word = np.arange(1 + rejected) == 0, np.eye(SPACE, dtype=np.float32)[0]
    before = ClosedForm.prototype(method, pictures, shown, word)
    wanted = before
    if rejected:
        focused = Pictures.of(pictures.places[1:]).attend(before, method.strengths.query_focus)
        away = focused.sum(axis=0) / np.linalg.norm(focused.sum(axis=0))
        wanted = before - 0.5 * min(rejected / ENOUGH, 1) * away
    np.testing.assert_allclose(method.prototype(pictures, shown, word), wanted / np.linalg.norm(wanted), atol=1e-5)


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if issubclass(kind, WordMapped)])
def test_class_names_teach_the_word_map_beside_the_base_labels(name: str) -> None:
    chances = random(80, 3, seed=8).softmax(dim=1)
    names = ClassNames(random(3, DIMENSIONS, seed=9), chances, weight=0.4)
    method, plain = (create_method(name, channels=CHANNELS, dimensions=DIMENSIONS) for _ in range(2))
    assert isinstance(method, WordMapped)
    assert isinstance(plain, WordMapped)
    base = make_base(names=names)
    method.prepare(base)
    plain.prepare(make_base())
    projected = method.space_.project(base.features.numpy())
    labels = method.base_prototypes(projected, base.targets.numpy())
    classes = projected.T.astype(np.float64) @ chances.numpy() / np.linalg.norm(projected.T @ chances.numpy(), axis=0)
    words = np.concatenate([base.words, names.words])
    expected = core.fit_words(
        words, np.concatenate([labels, np.float32(classes.T)]), method.ridge, np.full(3, 0.4, np.float32)
    )
    np.testing.assert_allclose(method.word_map_.matrix, expected.matrix, atol=1e-5)
    np.testing.assert_array_equal(method.word_map_.mean, plain.word_map_.mean)
    assert not np.allclose(method.word_map_.matrix, plain.word_map_.matrix, atol=1e-3)


@pytest.mark.parametrize("name", ["knn", "logistic-regression", "protonet", "tip-adapter", "classifier"])
def test_a_rival_in_the_whitened_space_sees_projected_maps(name: str) -> None:
    inner, alone = (create_method(name, channels=SPACE, dimensions=DIMENSIONS).eval() for _ in range(2))
    whitened = prepared(Whitened(inner, CHANNELS, shrinkage=2.0))
    assert isinstance(whitened, Whitened)
    base, support, maps = make_base(), make_support(), random(3, CHANNELS, 2, 3, seed=7)
    space = core.fit_space(base.features.numpy(), SPACE, 2.0)
    alone.prepare(base._replace(global_features=torch.from_numpy(space.project(base.features.numpy()))))

    def project(some: Tensor) -> Tensor:
        return torch.from_numpy(space.project(some.permute(0, 2, 3, 1).numpy())).permute(0, 3, 1, 2)

    expected = alone.adapt(support._replace(maps=project(support.maps)))(project(maps))
    torch.testing.assert_close(whitened.adapt(support)(maps), expected, rtol=1e-3, atol=1e-3)


def test_answers_teach_logistic_regression_as_a_support_does() -> None:
    method = prepared(Whitened(LogisticRegression(SPACE, DIMENSIONS, penalty=0.1), CHANNELS, shrinkage=2.0))
    assert isinstance(method, Whitened)
    support, maps = make_support(), random(3, CHANNELS, 2, 3, seed=7)
    word = np.zeros(SPACE, np.float32)
    fitted = method.fit_answers(Pictures.of(method.local(support.maps)), SHOWN[:, 0].numpy(), word)
    found = Classifiers.of([fitted]).logits(method.local(maps), method.strengths)
    np.testing.assert_allclose(method.adapt(support)(maps)[:, :1], found, atol=1e-3)


def test_other_rivals_do_not_learn_from_answers() -> None:
    method = prepared(Whitened(NearestNeighbours(SPACE, DIMENSIONS), CHANNELS, shrinkage=2.0))
    assert isinstance(method, Whitened)
    pictures = Pictures.of(method.local(random(1, CHANNELS, 2, 3, seed=6)))
    with pytest.raises(InputError, match="only logistic-regression"):
        method.fit_answers(pictures, np.ones(1, bool), np.zeros(SPACE, np.float32))


def test_pooling_and_whitening_may_change_places() -> None:
    method = prepared(Whitened(NearestNeighbours(SPACE, DIMENSIONS), CHANNELS, shrinkage=2.0))
    assert isinstance(method, Whitened)
    maps = random(3, CHANNELS, 2, 3, seed=7)
    np.testing.assert_allclose(pool(method.encode(maps)), method.space_.project(pool(maps).numpy()), atol=1e-5)
