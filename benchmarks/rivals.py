"""Against what others would use: easyfsl, scikit-learn and plain loops, on the same features and the same episodes."""

import time
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from fewtag.research.bench.evaluate import Pool, evaluate, score_draws
from fewtag.research.bench.metrics import episode_metrics
from fewtag.research.data.sampling import Draw, EpisodeSampler
from fewtag.research.features.rows import MemoryRows
from fewtag.research.methods.base import pool
from fewtag.research.methods.closed_form import ClosedForm
from fewtag.research.methods.logistic_regression import LogisticRegression
from fewtag.research.methods.protonet import ProtoNet
from fewtag.research.types import Logits
from research import SHAPE, WORDS, labels, make_method, random_targets
from tagging import side_by_side

LABELS = 16
EPISODES = 200
FEW = 10
"""Episodes for what takes seconds each; its time is that of so many, times what is missing to `EPISODES`."""


class Setting(NamedTuple):
    """COCO-sized episodes over random maps, and the same pictures as pooled features."""

    maps: Pool
    pooled: Pool
    draws: Sequence[Draw]

    @classmethod
    def make(cls, images: int = 2000, shape: tuple[int, int, int] = SHAPE) -> "Setting":
        targets, names = random_targets(images, LABELS), labels(LABELS)
        generator = torch.Generator().manual_seed(0)
        maps = torch.rand(images, *shape, dtype=torch.float16, generator=generator)
        features = torch.cat([pool(some.float()) for some in maps.split(64)])[:, :, None, None]
        shared = torch.randn(LABELS, WORDS, generator=generator), torch.from_numpy(targets)
        sampler = EpisodeSampler(targets, names)
        draws = [sampler.draw(index) for index in range(EPISODES)]
        return cls(Pool(names, MemoryRows(maps), *shared), Pool(names, MemoryRows(features), *shared), draws)

    @property
    def features(self) -> Float[Tensor, "images channels"]:
        assert isinstance(self.pooled.rows, MemoryRows)
        return self.pooled.rows.tensor.flatten(1)


def rivals(rounds: int = 5) -> dict[str, float]:
    """Seconds of `EPISODES` episodes, and by how much the rival's exceed ours."""
    setting = Setting.make()
    return beside_easyfsl(setting, rounds) | beside_slow_ones(setting, rounds=3) | beside_naive_scoring(rounds=3)


def beside_easyfsl(setting: Setting, rounds: int) -> dict[str, float]:
    """ProtoNet alone and with its metrics, from pooled features; the closed form from maps beside it."""
    protonet, closed_form = make_method("protonet"), make_method("closed-form")
    assert isinstance(protonet, ProtoNet)
    least = side_by_side(
        {
            "protonet": seconds_of(lambda: protonet_scores(protonet, setting)),
            "easyfsl": seconds_of(lambda: easyfsl_scores(setting)),
            "protonet_with_metrics": seconds_of(lambda: evaluate(protonet, setting.pooled, setting.draws)),
            "easyfsl_with_metrics": seconds_of(lambda: easyfsl_metrics(setting)),
        },
        rounds,
    )
    whole = side_by_side({"closed_form": seconds_of(lambda: evaluate(closed_form, setting.maps, setting.draws))}, 1)
    return {f"rivals_{name}_seconds": seconds for name, seconds in (least | whole).items()} | {
        "rivals_easyfsl_ratio": least["easyfsl"] / least["protonet"],
        "rivals_easyfsl_with_metrics_ratio": least["easyfsl_with_metrics"] / least["protonet_with_metrics"],
    }


def beside_slow_ones(setting: Setting, rounds: int) -> dict[str, float]:
    """Logistic regression beside scikit-learn's, and ProtoNet beside a loop over episodes, labels and pictures."""
    few = setting._replace(draws=setting.draws[:FEW])
    protonet, regression = make_method("protonet"), make_method("logistic-regression")
    assert isinstance(protonet, ProtoNet)
    assert isinstance(regression, LogisticRegression)
    least = side_by_side(
        {
            "logistic_regression": seconds_of(lambda: list(score_draws(regression, few.pooled, few.draws))),
            "scikit_learn": seconds_of(lambda: scikit_learn_scores(few, regression)),
            "naive": seconds_of(lambda: naive_scores(few, protonet.scale)),
            "protonet": seconds_of(
                lambda: protonet_scores(protonet, setting)
            ),  # of all: a few are over too soon to time
        },
        rounds,
    )
    times = EPISODES / FEW
    return {
        "rivals_logistic_regression_seconds": times * least["logistic_regression"],
        "rivals_scikit_learn_seconds": times * least["scikit_learn"],
        "rivals_scikit_learn_ratio": least["scikit_learn"] / least["logistic_regression"],
        "rivals_naive_seconds": times * least["naive"],
        "rivals_naive_ratio": times * least["naive"] / least["protonet"],
    }


def beside_naive_scoring(rounds: int, *, pictures: int = 32, count: int = 100) -> dict[str, float]:
    """The tagger's scoring of encoded pictures beside a loop over pictures and labels."""
    method = make_method("closed-form")
    assert isinstance(method, ClosedForm)
    generator = torch.Generator().manual_seed(0)
    places = torch.randn(pictures, 49, method.space, generator=generator)
    prototypes = F.normalize(torch.randn(count, method.space, generator=generator), dim=-1)
    least = side_by_side(
        {
            "ours": seconds_of(lambda: method.score(places, prototypes)),
            "naive": seconds_of(lambda: naive_closed_form(method, places, prototypes)),
        },
        rounds,
    )
    return {"rivals_naive_scoring_ratio": least["naive"] / least["ours"]}


def seconds_of(work: Callable[[], object]) -> Callable[[], float]:
    """The work, to be timed whenever it is called."""

    def timed() -> float:
        since = time.perf_counter()
        with torch.no_grad():
            work()
        return time.perf_counter() - since

    return timed


def protonet_scores(method: ProtoNet, setting: Setting) -> list[Logits]:
    """Ours, from pooled features, as a benchmark of ours has them."""
    return [logits for logits, _ in score_draws(method, setting.pooled, setting.draws)]


def easyfsl_scores(setting: Setting) -> list[Logits]:
    """easyfsl's, which knows one label an image: the one a support image was drawn for, whatever else it shows."""
    from easyfsl.methods import PrototypicalNetworks

    network, features = PrototypicalNetworks(torch.nn.Identity()), setting.features
    found = []
    for draw in setting.draws:
        network.process_support_set(features[list(draw.support)], torch.arange(LABELS))
        found.append(network(features[list(draw.query)]))
    return found


def easyfsl_metrics(setting: Setting) -> list[dict[str, float]]:
    """The same eight numbers of easyfsl's scores, an episode at a time, since that is how they come."""
    truths = (setting.pooled.targets[list(draw.query)] for draw in setting.draws)
    return [
        episode_metrics(logits.double().sigmoid(), truth)
        for logits, truth in zip(easyfsl_scores(setting), truths, strict=True)
    ]


def scikit_learn_scores(setting: Setting, method: LogisticRegression, *, tolerance: float = 1e-4) -> list[Logits]:
    """A regression a label, with the penalty and the weights of ours; its own tolerance stops it before the optimum."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression as OneLabel
    from sklearn.multiclass import OneVsRestClassifier

    features = F.normalize(setting.features, dim=-1).double().numpy()
    targets = setting.pooled.targets.numpy()
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for draw in setting.draws:
            support, query = list(draw.support), list(draw.query)
            one = OneLabel(C=1 / method.penalty, class_weight="balanced", tol=tolerance, max_iter=10_000)
            regression = OneVsRestClassifier(one)
            regression.fit(features[support], targets[support])
            found.append(torch.from_numpy(regression.decision_function(features[query])))
    return found


def naive_scores(setting: Setting, scale: float) -> list[Logits]:
    """ProtoNet as one would first write it."""
    found = []
    for draw in setting.draws:
        prototypes = []
        for label in range(LABELS):
            shown = [setting.features[row] for row in draw.support if setting.pooled.targets[row, label]]
            prototypes.append(sum(shown, torch.zeros(())) / len(shown))
        logits = torch.empty(len(draw.query), LABELS)
        for image, row in enumerate(draw.query):
            for label, prototype in enumerate(prototypes):
                logits[image, label] = scale * F.cosine_similarity(setting.features[row], prototype, dim=0)
        found.append(logits)
    return found


def naive_closed_form(
    method: ClosedForm, places: Float[Tensor, "images places space"], prototypes: Float[Tensor, "labels space"]
) -> Logits:
    """The tagger's score as its definition has it: one picture, one label."""
    scores = torch.empty(len(places), len(prototypes))
    for image, local in enumerate(places):
        for label, prototype in enumerate(prototypes):
            alike = F.normalize(local, dim=-1) @ prototype
            focused = (method.query_focus * alike).softmax(dim=0) @ local
            whole, part = (F.cosine_similarity(pooled, prototype, dim=0) for pooled in (local.mean(dim=0), focused))
            scores[image, label] = (1 - method.query_local) * whole + method.query_local * part
    return scores


if __name__ == "__main__":
    for name, value in rivals().items():
        print(f"{name}: {value:.3f}")
