"""ProtoNet against numpy's means and scikit-learn's cosine."""

import numpy as np
import pytest
import torch
from sklearn.metrics.pairwise import cosine_similarity

from fewtag.research.methods import Support, create_method

SHOWN = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 1, 1]], dtype=torch.bool)


@pytest.mark.parametrize("scale", [20.0, 3.0])
def test_scores_are_cosines_with_the_mean_of_each_labels_images(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    support_maps, query_maps = (torch.rand(count, 5, 2, 3, generator=generator) for count in (4, 6))
    method = create_method("protonet", channels=5, dimensions=2, options={"scale": scale})
    logits = method.adapt(Support(("a", "b", "c"), torch.zeros(3, 2), support_maps, SHOWN))(query_maps)

    pooled = support_maps.numpy().astype(np.float64).mean(axis=(2, 3))
    prototypes = np.stack([pooled[SHOWN[:, label].numpy()].mean(axis=0) for label in range(3)])
    expected = scale * cosine_similarity(query_maps.numpy().astype(np.float64).mean(axis=(2, 3)), prototypes)
    np.testing.assert_allclose(logits.numpy(), expected, atol=1e-4)


def test_words_do_not_matter_and_there_is_nothing_to_learn() -> None:
    maps = torch.rand(4, 5, 2, 3, generator=torch.Generator().manual_seed(1))
    method = create_method("protonet", channels=5, dimensions=2)
    one, other = (method.adapt(Support(("a", "b", "c"), torch.full((3, 2), at), maps, SHOWN)) for at in (0.0, 9.0))
    assert torch.equal(one(maps), other(maps))
    assert list(method.parameters()) == []
