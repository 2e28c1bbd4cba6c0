"""The shipped fits, made by scripts/make_models.py."""
