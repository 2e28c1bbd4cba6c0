"""ProtoNet beside easyfsl's, on the same features and the same episodes.

    python benchmarks/rivals.py ROUNDS

prints, as JSON, the seconds of each; in a process of its own, since nothing else that is measured needs torch.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from measuring import Figure, answer, in_turns, run, seconds_of
from torch import Tensor

from fewtag.research.bench.evaluate import Pool, evaluate, score_draws
from fewtag.research.bench.results import episode_metrics
from fewtag.research.data.sampling import Draw, EpisodeSampler
from fewtag.research.features.rows import MemoryRows
from fewtag.research.methods import Method, create_method
from research import WORDS, labels, random_targets

LABELS = 16
EPISODES = 200
CHANNELS = 2048


class Setting(NamedTuple):
    """COCO-sized episodes over random global features."""

    pool: Pool
    draws: Sequence[Draw]

    @classmethod
    def make(cls, images: int = 2000, episodes: int = EPISODES) -> "Setting":
        targets, names = random_targets(images, LABELS), labels(LABELS)
        generator = torch.Generator().manual_seed(0)
        features = torch.rand(images, CHANNELS, 1, 1, generator=generator)
        words = torch.randn(LABELS, WORDS, generator=generator)
        sampler = EpisodeSampler(targets, names)
        pool = Pool(names, MemoryRows(features), words, torch.from_numpy(targets))
        return cls(pool, [sampler.draw(index) for index in range(episodes)])

    @property
    def features(self) -> Tensor:
        """images × channels"""
        assert isinstance(self.pool.rows, MemoryRows)
        return self.pool.rows.tensor.flatten(1)


def beside_easyfsl(rounds: int) -> Iterator[Figure]:
    """The ratios, measured by this file as a program."""
    found = answer(run([sys.executable, __file__, str(rounds)]))
    for what, ending, promise in (
        ("200 ProtoNet episodes from global features beside easyfsl", "", "≥ 3"),
        ("the same with the eight metrics of each", " with metrics", ""),
    ):
        ours, theirs = found[f"protonet{ending}"], found[f"easyfsl{ending}"]
        yield Figure(
            what, theirs / ours, "×", promise, {"seconds": round(ours, 3), "easyfsl seconds": round(theirs, 3)}
        )


def seconds(rounds: int) -> dict[str, float]:
    setting, protonet = Setting.make(), create_method("protonet", channels=CHANNELS, dimensions=WORDS).eval()
    contenders = {
        "protonet": seconds_of(lambda: protonet_scores(protonet, setting)),
        "easyfsl": seconds_of(lambda: easyfsl_scores(setting)),
        "protonet with metrics": seconds_of(lambda: evaluate(protonet, setting.pool, setting.draws)),
        "easyfsl with metrics": seconds_of(lambda: easyfsl_metrics(setting)),
    }
    with torch.no_grad():
        in_turns(contenders, 1)
        return in_turns(contenders, rounds)


def protonet_scores(method: Method, setting: Setting) -> list[Tensor]:
    return [logits for logits, _ in score_draws(method, setting.pool, setting.draws)]


def easyfsl_scores(setting: Setting) -> list[Tensor]:
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
    truths = (setting.pool.targets[list(draw.query)] for draw in setting.draws)
    return [
        episode_metrics(logits.double().sigmoid().numpy(), truth.numpy())
        for logits, truth in zip(easyfsl_scores(setting), truths, strict=True)
    ]


if __name__ == "__main__":
    print(json.dumps(seconds(int(sys.argv[1]))))
