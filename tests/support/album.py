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
    """A truthful person answers a page; how many pictures there were."""
    page = studio.review(label, order, size)
    words = {cell.digest: "yes" if shows(cell.name, label) else "no" for cell in page.pictures}
    source = "audit" if page.order == "audit" else "page"
    if words:
        studio.answer([say(picture, label, word, source) for picture, word in words.items()])
    return len(words)
