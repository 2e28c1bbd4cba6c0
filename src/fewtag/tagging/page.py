"""HTML pages: pictures with their tags, as one file that loads nothing from elsewhere."""

import base64
import html
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from string import Template

from PIL import Image

from fewtag.errors import InputError
from fewtag.files import write_atomically
from fewtag.pictures.decode import THUMBNAIL, decode, thumbnail
from fewtag.pictures.files import encoded_bytes
from fewtag.tagger.stream import Item, Tagged

MOST = 1000
"""The most pictures on one page, at about 20 KB each."""
_MARK = '<meta name="generator" content="fewtag">'
_PAGE = Template(
    """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
$mark<title>$title</title><style>
:root { color-scheme: light dark; font: 15px/1.4 system-ui, sans-serif }
body { margin: 1.5rem auto; max-width: 90rem; padding: 0 1rem }
main { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: 1rem }
article { border: 1px solid #8884; border-radius: .5rem; overflow: hidden }
img { width: 100%; aspect-ratio: 4 / 3; object-fit: contain; background: #8882; display: block }
h2 { font-size: .8rem; font-weight: normal; opacity: .7; margin: .5rem .6rem 0; overflow-wrap: anywhere }
ul { list-style: none; margin: .3rem .6rem .6rem; padding: 0; display: flex; flex-wrap: wrap; gap: .3rem }
li { border-radius: 1rem; padding: .05rem .55rem; background: #3a7d4433 }
li.none, li.failure { background: #8883 } p.facts { opacity: .8 }
</style></head><body><h1>$title</h1><p class="facts">$facts</p><main>
$cards
</main></body></html>
"""
)


@dataclass(frozen=True)
class Card:
    """A picture on the page, with its caption and the chips below it."""

    caption: str
    source: str
    chips: Sequence[tuple[str, str]]
    """Text and CSS class of each chip."""

    def html(self) -> str:
        chips = "".join(f'<li class="{kind}">{html.escape(text)}</li>' for text, kind in self.chips)
        name = html.escape(self.caption)
        picture = f'<img loading="lazy" alt="{name}" src="{self.source}">' if self.source else ""
        return f"<article>{picture}<h2>{name}</h2><ul>{chips}</ul></article>"


def write_page(out: Path, title: str, facts: str, cards: Iterable[Card]) -> None:
    page = _PAGE.substitute(
        mark=_MARK, title=html.escape(title), facts=html.escape(facts), cards="\n".join(card.html() for card in cards)
    )
    write_atomically(out, page.encode(errors="backslashreplace"))  # file names may not be valid text


def is_page(path: Path) -> bool:
    """Whether `write_page` wrote it."""
    if not path.is_file():  # a folder, or a pipe, which would not end
        return False
    with path.open("rb") as file:
        return _MARK.encode() in file.read(1000)


def tagged_card(item: Item, row: Tagged) -> Card:
    """The card of a row of `tag`: its tags, with their probabilities if the row has scores."""
    if row.failure:
        return Card(row.image, "", [(row.failure, "failure")])
    chips = [(f"{tag} {row.scores[tag]:.0%}" if tag in row.scores else tag, "tag") for tag in row.tags]
    return Card(row.image, embed(item), chips or [("no tag", "none")])


def embed(item: Item) -> str:
    """A thumbnail as a data URI; empty if the picture cannot be read."""
    with suppress(InputError):
        if data := encoded_bytes(item.image, item.name):
            return embed_image(decode(data, item.name, at_least=THUMBNAIL))
    return ""


def embed_image(picture: Image.Image) -> str:
    return embed_bytes(thumbnail(picture))


def embed_bytes(content: bytes) -> str:
    """A data URI of a thumbnail as `thumbnail` makes it and a bank keeps it."""
    return f"data:image/webp;base64,{base64.b64encode(content).decode()}" if content else ""
