"""Scales the demo's album from larger photographs: the pictures of the public repository bird-guess, or of its sources.

    git clone https://github.com/isensee-bastian/bird-guess
    python examples/make_album.py bird-guess/public/assets/birds

album/sources.csv says whose each picture is, where it was published and under which licence; album/album.csv what it
shows, said by people who looked at it.
"""

import csv
import sys
from pathlib import Path

from PIL import Image, ImageOps

ALBUM = Path(__file__).parent / "album"
LONGEST, QUALITY = 448, 74


def main(photographs: Path) -> None:
    with (ALBUM / "sources.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            with Image.open(photographs / row["file"]) as photograph:
                picture = ImageOps.exif_transpose(photograph).convert("RGB")
            picture.thumbnail((LONGEST, LONGEST), Image.Resampling.LANCZOS)
            picture.save(ALBUM / row["image"], quality=QUALITY, optimize=True, progressive=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
