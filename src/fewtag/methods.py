"""The methods of the benchmark by name; they live in the research wing."""

from fewtag.research.methods import METHODS, create_method

__all__ = ["METHODS", "create_method"]
