"""CVAT auto-annotation: a bank's tags for the pictures of a task, as a function for cvat-cli.

    cvat-cli task auto-annotate 12 --function-module fewtag.interop.cvat -p bank=str:pets.fewtag

The task needs labels of the same names, of type "tag" or "any"; with --allow-unmatched-labels others are left out.
"""

from typing import Any

from PIL import Image

from fewtag.errors import InputError
from fewtag.tagger.tagger import Tagger


class Function:
    """CVAT's interface: `spec` lists the labels, and `detect` returns the tags of one picture."""

    def __init__(self, bank: str, threshold: float | None = None) -> None:
        try:
            import cvat_sdk.auto_annotation as cvat
        except ImportError as error:
            raise InputError("CVAT's functions need its SDK; run: pip install cvat-sdk") from error
        self._tagger, self._threshold, self._cvat = Tagger.load(bank), threshold, cvat
        self._numbers = {label: number for number, label in enumerate(self._tagger.classes_)}
        self.spec = cvat.DetectionFunctionSpec(
            labels=[cvat.label_spec(label, number, type="tag") for label, number in self._numbers.items()]
        )

    def detect(self, context: Any, image: Image.Image) -> list[Any]:
        """The tags over each label's threshold, or over the one that CVAT or a person gives."""
        threshold = context.conf_threshold if context.conf_threshold is not None else self._threshold
        (tags,) = self._tagger.predict(image, threshold=threshold)
        return [self._cvat.tag(self._numbers[tag]) for tag in tags]


create = Function
"""Called by cvat-cli with the parameters of -p."""
