"""Slow imports, before fewtag's own: jaxtyping's hook would compile again whatever a module of ours imports first."""

from collections import Counter
from collections.abc import Iterator
from weakref import finalize

import jaxtyping
import lightning_fabric  # noqa: F401
import matplotlib.pyplot  # noqa: F401
import pytest
import timm  # noqa: F401
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook


@pytest.fixture(autouse=True)
def _shapes_of_first_steps() -> Iterator[None]:
    """From an optimizer's third step on until it is gone, shapes are not checked, which are those of the first two:
    it would take a fifth of the time."""
    steps = Counter[int]()

    def count(optimizer: Optimizer, *_: object) -> None:
        if (taken := steps[id(optimizer)]) == 0:
            finalize(optimizer, forget, id(optimizer))
        steps[id(optimizer)] += 1
        jaxtyping.config.update("jaxtyping_disable", taken > 0)

    def forget(gone: int) -> None:
        del steps[gone]
        jaxtyping.config.update("jaxtyping_disable", False)

    hook = register_optimizer_step_post_hook(count)
    yield
    hook.remove()
    jaxtyping.config.update("jaxtyping_disable", False)
