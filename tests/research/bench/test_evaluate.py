"""Evaluation against a loop by hand: the same episodes, the same numbers."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, precision_score
from torch import Tensor

from fewtag.errors import InputError
from fewtag.research.bench import evaluate as module
from fewtag.research.bench.evaluate import Pool, evaluate
from fewtag.research.bench.results import METRICS, episode_metrics
from fewtag.research.data.sampling import Draw, EpisodeSampler
from fewtag.research.features.rows import MemoryRows
from fewtag.research.methods import (
    METHODS,
    Base,
    Classifier,
    Method,
    Precoded,
    Support,
    create_method,
)

LABELS = ("dog", "cat", "sofa")
DRAWS = 4


def make_pool(dtype: torch.dtype = torch.float32) -> Pool:
    generator = torch.Generator().manual_seed(0)
    targets = torch.rand(60, 3, generator=generator) < 0.4
    maps = torch.randn(60, 6, 2, 2, generator=generator)
    maps[:, :3] += 2 * targets[:, :, None, None]
    return Pool(LABELS, MemoryRows(maps.to(dtype)), torch.randn(3, 5, generator=generator), targets)


def make_draws(pool: Pool, seed: int = 0) -> list[Draw]:
    sampler = EpisodeSampler(pool.targets.numpy(), LABELS, seed=seed)
    return [sampler.draw(index) for index in range(DRAWS)]


def make_method(name: str = "word-attention") -> Method:
    torch.manual_seed(0)
    options: dict[str, object] = {"joint": 16} if name != "protonet" else {}
    return create_method(name, channels=6, dimensions=5, options=options)


def make_ready(name: str, pool: Pool) -> Precoded:
    """A method of default options, solved on, or told of, the pool's labels."""
    torch.manual_seed(0)
    method = create_method(name, channels=6, dimensions=5)
    assert isinstance(method, Precoded)
    method.prepare(Base(LABELS, pool.words, pool.targets, torch.rand(len(pool.rows), 6)))
    return method.eval()


@pytest.mark.parametrize("name", ["protonet", "word-attention", "word-attention-reference"])
def test_the_numbers_are_those_of_a_loop_by_hand(name: str) -> None:
    method, pool = make_method(name), make_pool()
    found = evaluate(method, pool, make_draws(pool))
    assert len(found) == DRAWS
    method.eval()
    assert isinstance(pool.rows, MemoryRows)
    for (metrics, label_aps), draw in zip(found, make_draws(pool), strict=True):
        support = [torch.stack([every[row] for row in draw.support]) for every in (pool.rows.tensor, pool.targets)]
        query = torch.stack([pool.rows.tensor[row] for row in draw.query])
        truth = np.stack([pool.targets[row].numpy() for row in draw.query])
        logits = method.adapt(Support(LABELS, pool.words, *support))(query).detach().numpy().astype(np.float64)
        assert tuple(metrics) == METRICS
        assert label_aps == pytest.approx(average_precision_score(truth, logits, average=None), abs=1e-6)
        for scope in ("micro", "macro"):
            ap = average_precision_score(truth, logits, average=scope)
            assert metrics[f"{scope}_ap"] == pytest.approx(ap, abs=1e-6)
            precision = precision_score(truth, logits > 0, average=scope, zero_division=0)
            assert metrics[f"{scope}_precision"] == pytest.approx(precision)


def test_the_same_draws_give_the_same_numbers_and_others_do_not() -> None:
    method, pool = make_method(), make_pool()
    first = evaluate(method, pool, make_draws(pool))
    torch.manual_seed(99)
    assert evaluate(method, pool, make_draws(pool)) == first
    assert evaluate(method, pool, make_draws(pool, seed=1)) != first


class Saturated(Method):
    """Ranks the images without a fault, at logits whose sigmoid is 1: in single precision, then in double."""

    least = 20

    def adapt(self, support: Support) -> Classifier:
        del support
        return lambda maps: self.least + maps[:, :3, 0, 0] / 1000


@pytest.mark.parametrize("least", [20, 60])
def test_large_logits_keep_their_order(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Saturated, "least", least)
    pool = make_pool()
    maps = torch.zeros(60, 6, 1, 1)
    maps[:, :3, 0, 0] = pool.targets.float()
    pool = pool._replace(rows=MemoryRows(maps))
    for metrics, _ in evaluate(Saturated(6, 5), pool, make_draws(pool)):
        assert metrics["macro_ap"] == metrics["micro_ap"] == 1


def test_scores_that_are_no_numbers_are_refused_not_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    method, pool = make_method(), make_pool()
    monkeypatch.setattr(method, "adapt", lambda _: lambda maps: torch.full((len(maps), 3), torch.nan))
    with pytest.raises(InputError, match="a score is not a number"):
        evaluate(method, pool, make_draws(pool))


@pytest.mark.parametrize("training", [True, False])
def test_the_method_is_judged_in_eval_mode_and_left_as_it_was(training: bool) -> None:
    method, pool = make_method().train(training), make_pool()
    modes: list[bool] = []
    adapt = method.adapt

    def spy(support: Support) -> Classifier:
        modes.append(method.training)
        return adapt(support)

    method.adapt = spy  # type: ignore[method-assign]
    evaluate(method, pool, make_draws(pool))
    assert modes == [False] * DRAWS
    assert method.training is training


def test_progress_is_told_an_episode_at_a_time_and_nothing_learns() -> None:
    method, pool, told = make_method(), make_pool(), list[int]()
    evaluate(method, pool, make_draws(pool), advance=told.append)
    assert told == [1] * DRAWS
    assert all(parameter.grad is None for parameter in method.parameters())


def test_an_episode_holds_the_rows_of_its_draw() -> None:
    pool = make_pool()
    episode = pool.episode(Draw(support=(5, 0, 9), query=(7, 3)))
    assert isinstance(pool.rows, MemoryRows)
    assert episode.support.labels == LABELS
    assert torch.equal(episode.support.maps, pool.rows.tensor[[5, 0, 9]])
    assert torch.equal(episode.support.targets, pool.targets[[5, 0, 9]])
    assert torch.equal(episode.maps, pool.rows.tensor[[7, 3]])
    assert torch.equal(episode.targets, pool.targets[[7, 3]])


@pytest.mark.parametrize(("stored", "seen"), [(torch.float16, torch.float32), (torch.uint8, torch.uint8)])
def test_half_precision_maps_are_widened_and_pixels_stay_pixels(stored: torch.dtype, seen: torch.dtype) -> None:
    episode = make_pool(stored).episode(Draw(support=(0, 1, 2), query=(3,)))

    def kinds(*maps: Tensor) -> set[torch.dtype]:
        return {one.dtype for one in maps}

    assert kinds(episode.maps, episode.support.maps) == {seen}


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if issubclass(kind, Precoded)])
@pytest.mark.parametrize("most", [0, 2**20])
def test_encoding_once_changes_no_metric(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make_pool()
    method, draws = make_ready(name, pool), make_draws(pool)
    if hasattr(method, "finetune_epochs"):
        method.finetune_epochs = 2  # how much is learnt does not matter here, and takes its time
    expected = [
        episode_metrics(method.adapt(each.support)(each.maps).double().sigmoid().numpy(), each.targets.numpy())
        for each in map(pool.episode, draws)
    ]
    encoded: list[int] = []
    plain = method.encode

    def counting(maps: Tensor) -> Tensor:
        encoded.append(len(maps))
        return plain(maps)

    monkeypatch.setattr(method, "encode", counting)
    monkeypatch.setattr(module, "MOST_ENCODED", most)
    found = evaluate(method, pool, draws)
    for (ours, _), theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-6)
    used = {row for draw in draws for row in (*draw.support, *draw.query)}
    every_time = sum(len(draw.support) + len(draw.query) for draw in draws)
    assert sum(encoded) == 1 + (len(used) if most else every_time), "each picture once, if there is room; one to look"


def test_a_label_without_an_image_in_one_of_the_episodes_is_refused_by_name() -> None:
    pool = make_pool()
    without = next(row for row in range(60) if pool.targets[row].tolist() == [True, False, True])
    draws = [*make_draws(pool), Draw(support=(without,) * 3, query=make_draws(pool)[0].query)]
    with pytest.raises(InputError, match=r"label 'cat' has no support image \(1 of 3 labels have none\)"):
        evaluate(make_method("protonet"), pool, draws)


def test_no_draw_no_number() -> None:
    assert evaluate(make_method("protonet"), make_pool(), []) == []


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if getattr(kind, "stacks_episodes", False)])
def test_stacked_episodes_score_as_each_by_itself(name: str) -> None:
    pool = make_pool()
    method, draws = make_ready(name, pool), make_draws(pool)
    odd = Draw(support=draws[0].support, query=draws[0].query[:-1])  # of another size, so that none can be stacked
    stacked, apart = (list(module.score_draws(method, pool, each)) for each in (draws, [*draws, odd]))
    for (one, shown), (other, same) in zip(stacked, apart[:DRAWS], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
        assert torch.equal(shown, same)
