"""A person at the studio, whose pictures' names say what they show."""

import uuid

from fewtag.studio.studio import Studio
from fewtag.studio.values import Answer

LABELS = ("dog", "cat", "sofa")


def digests(studio: Studio) -> dict[str, str]:
    """By name, of all pictures."""
    return {cell.name: cell.digest for cell in studio.search(limit=1000, stacked=False).pictures}


def shows(name: str, label: str) -> bool:
    return label in name


def say(picture: str, label: str, word: str, source: str = "click") -> Answer:
    return Answer(str(uuid.uuid4()), picture, label, word, source)


def answer_page(studio: Studio, label: str, order: str = "auto", size: int = 8) -> int:
    """A truthful person answers so many pictures, or as many as there are, in a page or in several short ones."""
    said = 0
    while said < size and (page := studio.review(label, order, size - said)).pictures:
        source = "audit" if page.order == "audit" else "page"
        words = {cell.digest: "yes" if shows(cell.name, label) else "no" for cell in page.pictures}
        studio.answer([say(picture, label, word, source) for picture, word in words.items()])
        said += len(words)
    return said
