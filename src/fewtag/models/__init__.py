"""The shipped fits, made by scripts/fit_models.py."""
