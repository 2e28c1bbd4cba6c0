"""Slow imports, before fewtag's own: jaxtyping's hook would compile again whatever a module of ours imports first."""

import lightning_fabric  # noqa: F401
import matplotlib.pyplot  # noqa: F401
import timm  # noqa: F401
