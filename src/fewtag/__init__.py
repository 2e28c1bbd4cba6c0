"""Multi-label few-shot image classification with word-guided prototypes."""

__version__ = "0.1.0"
