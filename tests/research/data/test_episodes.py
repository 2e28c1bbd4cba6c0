import hashlib
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fewtag.errors import InputError
from fewtag.research.data.sampling import Draw, EpisodeSampler, ReplacingSampler, leaked

tiny = st.tuples(st.integers(1, 12), st.integers(1, 4)).flatmap(lambda shape: arrays(bool, shape))


def names(targets):
    return [f"label {column}" for column in range(targets.shape[1])]


def feasible(targets, wanted):
    """Hall's condition, tried on every set of labels: independent of any flow."""
    columns = range(targets.shape[1])
    return all(
        targets[:, chosen].any(axis=1).sum() >= size * wanted
        for size in range(1, len(columns) + 1)
        for chosen in combinations(columns, size)
    )


def check(draw, targets, shots, queries):
    labels = targets.shape[1]
    assert (len(draw.support), len(draw.query)) == (labels * shots, labels * queries)
    assert len({*draw.support, *draw.query}) == labels * (shots + queries)
    for rows, each in ((draw.support, shots), (draw.query, queries)):
        for column in range(labels):
            assert targets[list(rows[column * each : (column + 1) * each]), column].all()


@settings(max_examples=80, deadline=None)
@given(tiny, st.integers(1, 2), st.integers(0, 2), st.integers(0, 2**32))
def test_what_can_be_drawn_is_drawn_and_the_rest_is_refused(targets, shots, queries, seed):
    if feasible(targets, shots + queries):
        sampler = EpisodeSampler(targets, names(targets), shots=shots, queries=queries, seed=seed)
        for index in range(3):
            check(sampler.draw(index), targets, shots, queries)
    else:
        with pytest.raises(InputError):
            EpisodeSampler(targets, names(targets), shots=shots, queries=queries, seed=seed)


@pytest.fixture
def targets():
    return np.random.default_rng(0).random((200, 8)) < np.linspace(0.08, 0.6, 8)


def test_the_same_seed_and_index_give_the_same_draw_in_any_order(targets):
    one, two = (EpisodeSampler(targets, names(targets), seed=3) for _ in range(2))
    forwards = [one.draw(index) for index in range(5)]
    assert [two.draw(index) for index in reversed(range(5))] == forwards[::-1]
    assert len(set(forwards)) == 5
    assert EpisodeSampler(targets, names(targets), seed=4).draw(0) != forwards[0]


def test_the_order_of_the_labels_does_not_matter(targets):
    columns = [3, 1, 0, 2, 7, 6, 5, 4]
    there = EpisodeSampler(targets, names(targets)).draw(0)
    back = EpisodeSampler(targets[:, columns], [names(targets)[column] for column in columns]).draw(0)
    assert tuple(there.support[column] for column in columns) == back.support


def test_every_image_of_a_label_has_the_same_chance():
    targets = np.ones((10, 1), dtype=bool)
    sampler = EpisodeSampler(targets, ["dog"], shots=1, queries=2)
    draws = [sampler.draw(index) for index in range(2000)]
    for part, expected in (("support", 200), ("query", 400)):
        counts = np.bincount([row for draw in draws for row in getattr(draw, part)], minlength=10)
        assert np.abs(counts - expected).max() < 5 * expected**0.5


def test_a_request_that_chance_misses_is_still_served():
    # image k shows labels k and k + 1: of all the ways to give images to labels one serves every label
    steps = np.eye(30, dtype=bool) | np.eye(30, k=1, dtype=bool)
    sampler = EpisodeSampler(steps, names(steps), shots=1, queries=0)
    supports = {sampler.draw(index).support for index in range(10)}
    assert supports == {tuple(range(30))}


def test_the_fallback_draws_at_random_too(targets, monkeypatch):
    monkeypatch.setattr(EpisodeSampler, "_choose", lambda *_: None)
    sampler = EpisodeSampler(targets, names(targets))
    draws = [sampler.draw(index) for index in range(5)]
    for draw in draws:
        check(draw, targets, 1, 4)
    assert len(set(draws)) == 5
    assert sampler.draw(0) == draws[0]


def test_a_label_with_too_few_images_is_named():
    targets = np.array([[True, True]] * 3 + [[True, False]] * 9)
    with pytest.raises(InputError, match=r"label 'rare' has 3 images, an episode needs 5 \(1 support \+ 4 query\)"):
        EpisodeSampler(targets, ["common", "rare"])


def test_labels_that_share_too_few_images_are_named_and_no_others():
    targets = np.zeros((40, 3), dtype=bool)
    targets[:7, :2] = True
    targets[7:, 2] = True
    with pytest.raises(InputError, match="labels 'fork', 'knife' share 7 images, an episode needs 10 different ones"):
        EpisodeSampler(targets, ["fork", "knife", "dog"])


@pytest.mark.parametrize("bad", [{"shots": 0}, {"queries": -1}, {"seed": -1}])
def test_numbers_that_make_no_sense_are_refused(targets, bad):
    with pytest.raises(InputError, match="must be at least"):
        EpisodeSampler(targets, names(targets), **bad)


def test_a_seed_draws_what_it_always_drew():
    """Published numbers are of draws by seed: whoever changes the order of choice makes another protocol."""
    targets = np.add.outer(np.arange(60), np.arange(4)) % np.array([2, 3, 5, 7]) == 0  # rarer from column to column
    sampler = EpisodeSampler(targets, ("dog", "cat", "sofa", "bus"), seed=0)
    assert sampler.draw(0).support == (52, 41, 33, 32)
    draws = [(draw.support, draw.query) for draw in map(sampler.draw, range(20))]
    assert hashlib.sha256(repr(draws).encode()).hexdigest()[:16] == "60bf0fac0ca7f19a"


def test_with_replacement_every_image_of_a_label_has_the_same_chance_each_time():
    targets = np.array([[1, 0], [1, 0], [1, 1], [0, 1]], dtype=bool)
    sampler = ReplacingSampler(targets, ["a", "b"], shots=2, queries=3)
    draws = [sampler.draw(index) for index in range(1000)]
    for draw in draws:
        assert (len(draw.support), len(draw.query)) == (4, 6)
        assert targets[list(draw.support[:2]), 0].all()
        assert targets[list(draw.query[3:]), 1].all()
    counts = np.bincount([row for draw in draws for row in (*draw.support[:2], *draw.query[:3])], minlength=4)
    assert counts[3] == 0
    assert np.allclose(counts[:3] / 5000, 1 / 3, atol=0.03)


def test_with_replacement_support_images_leak_into_the_query_and_without_they_do_not(targets):
    assert leaked([Draw((0, 1), (1, 2, 2, 0))]) == 0.5
    labels = names(targets)
    replacing = ReplacingSampler(targets, labels, seed=1)
    assert leaked([replacing.draw(index) for index in range(50)]) > 0
    assert leaked([EpisodeSampler(targets, labels, seed=1).draw(index) for index in range(5)]) == 0
    assert replacing.draw(3) == replacing.draw(3) != replacing.draw(4)
    swapped = ReplacingSampler(targets[:, ::-1], labels[::-1], seed=1).draw(3)
    assert set(swapped.support) == set(replacing.draw(3).support)


def test_a_label_without_an_image_cannot_be_drawn_with_replacement():
    with pytest.raises(InputError, match="label 'b' has no image to draw"):
        ReplacingSampler(np.array([[True, False]]), ["a", "b"])
