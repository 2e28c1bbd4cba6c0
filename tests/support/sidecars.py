"""Sidecars as other programs write them, each in its own hand: prefixes, spacing, order and what else they hold."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
SPACES = {
    "dc": "http://purl.org/dc/elements/1.1/",
    "lr": "http://ns.adobe.com/lightroom/1.0/",
    "digiKam": "http://www.digikam.org/ns/1.0/",
    "MicrosoftPhoto": "http://ns.microsoft.com/photo/1.0/",
    "mediapro": "http://ns.iview-multimedia.com/mediapro/1.0/",
    "acdsee": "http://ns.acdsee.com/iptc/1.0/",
    "xmp": "http://ns.adobe.com/xap/1.0/",
    "xmpMM": "http://ns.adobe.com/xap/1.0/mm/",
    "exif": "http://ns.adobe.com/exif/1.0/",
    "tiff": "http://ns.adobe.com/tiff/1.0/",
    "crs": "http://ns.adobe.com/camera-raw-settings/1.0/",
    "darktable": "http://darktable.sf.net/",
    "photoshop": "http://ns.adobe.com/photoshop/1.0/",
}
KEYWORDS: list[list[tuple[str, ...]]] = [
    [],
    [("Oma",)],
    [("Tiere", "Vögel", "Graureiher"), ("Urlaub",)],
    [("Dog",), ("Places", "Köln & Bonn"), ("<odd>",)],
    [("birds", "heron"), ("birds", "gull"), ("People", "Ann Lee")],
]
"""A person's own, as paths; one of them is what a tagger might say, in another case."""


class Sidecar(NamedTuple):
    program: str
    content: bytes
    paths: list[tuple[str, ...]]


def sidecars() -> Iterator[Sidecar]:
    """Sixty: four programs, five sets of keywords, three ways each."""
    for program, make in {"digiKam": digikam, "darktable": darktable, "Lightroom": lightroom, "Immich": immich}.items():
        for paths in KEYWORDS:
            for way in range(3):
                yield Sidecar(program, make(paths, way), paths)


def _items(items: Sequence[str], indent: str, tag: str = "rdf:li") -> str:
    return "".join(f"{indent}<{tag}>{escape(item)}</{tag}>" for item in items)


def _declared(*prefixes: str, indent: str = "\n    ") -> str:
    return "".join(f'{indent}xmlns:{prefix}="{SPACES[prefix]}"' for prefix in prefixes)


def _names(paths: Sequence[tuple[str, ...]], *, parents: bool = False) -> list[str]:
    return list(dict.fromkeys(part for path in paths for part in (path if parents else path[-1:])))


def digikam(paths: Sequence[tuple[str, ...]], way: int) -> bytes:
    """By exiv2: simple values as attributes, lists as elements, one description; way 1 as digiKam 7.9 made new ones."""
    slashes, bars = ["/".join(path) for path in paths], ["|".join(path) for path in paths]
    listed = ""
    for name, kind, items in (
        ("digiKam:TagsList", "Seq", slashes),
        ("MicrosoftPhoto:LastKeywordXMP", "Bag", slashes),
        ("lr:hierarchicalSubject", "Bag", bars),
        ("mediapro:CatalogSets", "Bag", bars),
        ("dc:subject", "Bag", _names(paths)),
    ):
        if items:
            inside = _items(items, "\n     ")
            listed += f"\n   <{name}>\n    <rdf:{kind}>{inside}\n    </rdf:{kind}>\n   </{name}>"
    prefixes = _declared("xmp", "digiKam", "MicrosoftPhoto", "lr", "mediapro", "acdsee", "dc", "tiff")
    assigned = "".join(f'<Category Assigned="1">{escape(path[-1])}</Category>' for path in paths)
    settings = f"\n   acdsee:categories={quoteattr(f'<Categories>{assigned}</Categories>')}>"
    declaration = ""
    if way != 1:  # with a rating, a title and an XML declaration
        settings = '\n   xmp:Rating="4"\n   digiKam:ColorLabel="0"\n   digiKam:PickLabel="2"\n   tiff:Orientation="1">'
        title = '\n    <rdf:Alt>\n     <rdf:li xml:lang="x-default">Höhe 3 > 2</rdf:li>\n    </rdf:Alt>'
        listed += f"\n   <dc:title>{title}\n   </dc:title>"
        declaration = '<?xml version="1.0" encoding="UTF-8"?>\n'
    text = (
        f'{declaration}<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>\n'
        '<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="XMP Core 4.4.0-Exiv2">\n'
        f' <rdf:RDF xmlns:rdf="{RDF}">\n'
        f'  <rdf:Description rdf:about=""{prefixes}{settings}'
        f"{listed}\n  </rdf:Description>\n </rdf:RDF>\n</x:xmpmeta>\n"
        '<?xpacket end="w"?>'
    )
    return text.replace("\n", "\r\n" if way == 2 else "\n").encode()


BEGUN = '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>\n'.encode()
"""All that digiKam writes beside a picture without tags."""


def darktable(paths: Sequence[tuple[str, ...]], way: int) -> bytes:
    """By exiv2 too, with a history of edits, and tags of its own among the keywords; ancestors as keywords too."""
    own = [("darktable", "format", "jpg"), ("darktable", "changed")]
    marked = [*own[: way and 2], *paths]
    lists = (
        ("dc:subject", "Bag", _names(marked, parents=True)),
        ("lr:hierarchicalSubject", "Seq" if way == 2 else "Bag", ["|".join(path) for path in marked]),
    )
    listed = "".join(
        f"\n   <{name}>\n    <rdf:{kind}>{_items(items, chr(10) + '     ')}\n    </rdf:{kind}>\n   </{name}>"
        for name, kind, items in lists
        if items
    )
    steps = "".join(
        f'\n     <rdf:li\n      darktable:num="{number}"\n      darktable:operation="{operation}"\n'
        f'      darktable:enabled="1"\n      darktable:params="gz02eJx{number}"\n      darktable:multi_name=""/>'
        for number, operation in enumerate(["rawprepare", "demosaic", "exposure"])
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="XMP Core 4.4.0-Exiv2">\n'
        f' <rdf:RDF xmlns:rdf="{RDF}">\n'
        f'  <rdf:Description rdf:about=""{_declared("exif", "xmp", "xmpMM", "darktable", "dc", "lr")}\n'
        '   exif:DateTimeOriginal="2024:05:01 10:00:00.000"\n   xmp:Rating="1"\n'
        '   xmpMM:DerivedFrom="IMG_1.JPG"\n   darktable:xmp_version="5"\n   darktable:raw_params="0"\n'
        '   darktable:history_end="3">'
        f"{listed}\n   <darktable:history>\n    <rdf:Seq>{steps}\n    </rdf:Seq>\n   </darktable:history>"
        "\n  </rdf:Description>\n </rdf:RDF>\n</x:xmpmeta>\n"
    ).encode()


def lightroom(paths: Sequence[tuple[str, ...]], way: int) -> bytes:
    """By Adobe's toolkit: settings as attributes, containing keywords too, a structure or two, no packet around it."""
    lists = (
        ("dc:subject", _names(paths, parents=True)),
        ("lr:hierarchicalSubject", ["|".join(path) for path in paths]),
    )
    listed = "".join(
        f"\n   <{name}>\n    <rdf:Bag>{_items(items, chr(10) + '     ')}\n    </rdf:Bag>\n   </{name}>"
        for name, items in lists
        if items
    )
    if way == 1 and not paths:  # all keywords were taken away
        listed = "\n   <dc:subject>\n    <rdf:Bag/>\n   </dc:subject>"
    history = (
        '\n   <xmpMM:History>\n    <rdf:Seq>\n     <rdf:li rdf:parseType="Resource">'
        "\n      <photoshop:Urgency>2</photoshop:Urgency>\n     </rdf:li>\n    </rdf:Seq>\n   </xmpMM:History>"
    )
    body = (
        f'  <rdf:Description rdf:about=""{_declared("xmp", "xmpMM", "photoshop", "crs", "dc", "lr")}\n'
        '   xmp:Rating="5"\n   xmp:CreatorTool="Adobe Lightroom 13.0 (Windows)"\n   crs:Exposure2012="+0.35"\n'
        '   crs:ToneCurveName="Medium &gt; Contrast"\n   photoshop:SidecarForExtension="CR2">'
        f"{listed}{history}\n  </rdf:Description>\n"
    )
    if way == 2:
        body = f'<!-- kept by hand -->\n{body}  <rdf:Description rdf:about=""{_declared("exif")}\n   exif:ISO="200"/>\n'
    return (
        '<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="Adobe XMP Core 7.0-c000 1.000000, 0000/00/00-00:00:00        ">\n'
        f' <rdf:RDF xmlns:rdf="{RDF}">\n{body} </rdf:RDF>\n</x:xmpmeta>\n'
    ).encode()


def immich(paths: Sequence[tuple[str, ...]], way: int) -> bytes:
    """By exiftool: single quotes, a description for each namespace, one space of indent, and room at the end."""
    blocks = [
        ("exif", "<exif:GPSLatitude>50,56.1N</exif:GPSLatitude>"),
        ("tiff", "<tiff:Orientation>1</tiff:Orientation>"),
    ]
    if paths:
        tags = "".join(f"\n    <rdf:li>{escape('/'.join(path))}</rdf:li>" for path in paths)
        blocks.insert(0, ("digiKam", f"<digiKam:TagsList>\n   <rdf:Seq>{tags}\n   </rdf:Seq>\n  </digiKam:TagsList>"))
    if way == 2:
        blocks.append(("dc", "<dc:description>\n   <rdf:Alt>\n    <rdf:li xml:lang='x-default'>it's ' quoted</rdf:li>"
                             "\n   </rdf:Alt>\n  </dc:description>"))  # fmt: skip
    body = "".join(
        f"\n <rdf:Description rdf:about=''\n  xmlns:{prefix}='{SPACES[prefix]}'>\n  {inside}\n </rdf:Description>\n"
        for prefix, inside in sorted(blocks)
    )
    room = "\n".join([" " * 100] * 3) + "\n" if way == 1 else ""
    return (
        "<?xpacket begin='\ufeff' id='W5M0MpCehiHzreSzNTczkc9d'?>\n"
        "<x:xmpmeta xmlns:x='adobe:ns:meta/' x:xmptk='Image::ExifTool 12.57'>\n"
        f"<rdf:RDF xmlns:rdf='{RDF}'>\n{body}</rdf:RDF>\n</x:xmpmeta>\n{room}<?xpacket end='w'?>"
    ).encode()
