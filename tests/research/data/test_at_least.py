import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fewtag.errors import InputError
from fewtag.research.data.sampling import AtLeastSampler

tiny = st.tuples(st.integers(2, 16), st.integers(1, 4)).flatmap(lambda shape: arrays(bool, shape))


def names(targets):
    return [f"label {column}" for column in range(targets.shape[1])]


def check(rows, targets, eligible, least):
    """Follows the drawing picture by picture: each one was eligible, new, and shown by a label that had least."""
    assert set(rows) <= set(eligible)
    assert len(set(rows)) == len(rows)
    shown = [0] * targets.shape[1]
    for row in rows:
        assert min(shown) < least
        served = [column for column, times in enumerate(shown) if times == min(shown)]
        assert any(targets[row, column] for column in served)
        shown = [times + int(shows) for times, shows in zip(shown, targets[row], strict=True)]
    assert min(shown) >= least


@settings(max_examples=80, deadline=None)
@given(tiny, st.data(), st.integers(1, 3), st.integers(0, 3), st.integers(0, 2**32))
def test_every_label_is_shown_often_enough_by_no_picture_too_many_or_it_is_refused(targets, data, shots, queries, seed):
    serves = data.draw(st.lists(st.booleans(), min_size=len(targets), max_size=len(targets)))
    support = [row for row, yes in enumerate(serves) if yes]
    query = [row for row, yes in enumerate(serves) if not yes]
    sampler = AtLeastSampler(
        targets, names(targets), support=support, query=query, shots=shots, queries=queries, seed=seed
    )
    for index in range(3):
        if (targets[support].sum(axis=0) >= shots).all() and (targets[query].sum(axis=0) >= queries).all():
            draw = sampler.draw(index)
            check(draw.support, targets, support, shots)
            check(draw.query, targets, query, queries)
        else:
            with pytest.raises(InputError, match="which needs at least"):
                sampler.draw(index)


@pytest.fixture
def targets():
    return np.random.default_rng(0).random((400, 8)) < np.linspace(0.08, 0.6, 8)


def test_the_same_seed_and_index_give_the_same_draw_in_any_order(targets):
    one, two = (AtLeastSampler(targets, names(targets), seed=3) for _ in range(2))
    forwards = [one.draw(index) for index in range(5)]
    assert [two.draw(index) for index in reversed(range(5))] == forwards[::-1]
    assert len({draw.support for draw in forwards}) == len({draw.query for draw in forwards}) == 5
    assert AtLeastSampler(targets, names(targets), seed=4).draw(0) != forwards[0]


def test_the_order_of_the_labels_does_not_matter(targets):
    columns = [3, 1, 0, 2, 7, 6, 5, 4]
    there = AtLeastSampler(targets, names(targets)).draw(0)
    back = AtLeastSampler(targets[:, columns], [names(targets)[column] for column in columns]).draw(0)
    assert there == back


def test_without_sides_support_and_query_still_share_no_picture(targets):
    sampler = AtLeastSampler(targets, names(targets), shots=5, queries=9)
    for index in range(20):
        draw = sampler.draw(index)
        assert not set(draw.support) & set(draw.query)
        check(draw.query, targets, range(len(targets)), 9)


def test_the_query_is_balanced_although_its_labels_are_not(targets):
    sampler = AtLeastSampler(targets, names(targets), queries=20)
    before = targets.sum(axis=0)
    after = targets[list(sampler.draw(0).query)].sum(axis=0)
    assert before.max() / before.min() > 5
    assert after.max() / after.min() < 3
    lonely = np.repeat(np.eye(3, dtype=bool), [10, 50, 250], axis=0)
    query = list(AtLeastSampler(lonely, names(lonely), queries=9).draw(0).query)
    assert lonely[query].sum(axis=0).tolist() == [9, 9, 9]


def test_the_query_does_not_depend_on_the_shots_and_few_shots_are_among_more(targets):
    sides = {"support": range(200), "query": range(200, 400), "queries": 10}
    one, five = (AtLeastSampler(targets, names(targets), shots=shots, **sides).draw(7) for shots in (1, 5))
    assert one.query == five.query
    assert one.support == five.support[: len(one.support)]
    assert len(one.support) < len(five.support)


def test_every_picture_of_a_label_has_the_same_chance():
    targets = np.ones((10, 1), dtype=bool)
    sampler = AtLeastSampler(targets, ["dog"], queries=2)
    draws = [sampler.draw(index) for index in range(2000)]
    for part, expected in (("support", 200), ("query", 400)):
        counts = np.bincount([row for draw in draws for row in getattr(draw, part)], minlength=10)
        assert np.abs(counts - expected).max() < 5 * expected**0.5


def test_equals_take_turns():
    # a picture of both: whoever is first takes one of its own or that one
    targets = np.array([[True, False], [False, True], [True, True]])
    supports = {AtLeastSampler(targets, ["a", "b"], queries=0, seed=seed).draw(0).support for seed in range(200)}
    assert supports == {(2,), (0, 1), (0, 2), (1, 0), (1, 2)}


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"shots": 4}, "label 'rare' has 3 images for the support, which needs at least 4; lower `shots`"),
        ({"queries": 3}, "label 'rare' has 2 images for the query, which needs at least 3; lower `queries`"),
    ],
)
def test_a_label_with_too_few_images_is_named_with_its_side(wanted, message):
    targets = np.array([[True, True]] * 3 + [[True, False]] * 9)
    with pytest.raises(InputError, match=message):
        AtLeastSampler(targets, ["common", "rare"], **({"shots": 1, "queries": 1} | wanted)).draw(0)


@pytest.mark.parametrize("bad", [{"shots": 0}, {"queries": -1}, {"seed": -1}])
def test_numbers_that_make_no_sense_are_refused(targets, bad):
    with pytest.raises(InputError, match="must be at least"):
        AtLeastSampler(targets, names(targets), **bad)
