"""Banks on the Hugging Face Hub: shared without their examples unless asked otherwise, and loaded by name."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import fewtag
from fewtag.errors import InputError, import_extra
from fewtag.files import digest, make_folder, write_atomically

if TYPE_CHECKING:
    from huggingface_hub import HfApi

    from fewtag.tagger.tagger import Tagger

BANK, CARD = "bank.fewtag", "README.md"
_MARK, _END = b"<!-- fewtag ", b" -->\n"


def save_pretrained(
    tagger: "Tagger",
    folder: str | os.PathLike[str],
    *,
    examples: bool = False,
    license: str = "",  # noqa: A002
) -> None:
    """Writes the bank and a model card to a folder, laid out as on the hub; `examples` are as in `Tagger.save`.

    A card that somebody else wrote or changed is kept.
    """
    _write(tagger, Path(folder), "OWNER/NAME", examples, license)


def _write(tagger: "Tagger", folder: Path, name: str, examples: bool, license: str) -> None:  # noqa: A002
    make_folder(folder)
    tagger.save(folder / BANK, examples=examples)
    card = folder / CARD
    if not card.exists() or _is_ours(card.read_bytes()):
        text = _card(tagger, name, license).encode()
        write_atomically(card, text + _MARK + digest(text).encode() + _END)


def _is_ours(card: bytes) -> bool:
    """Whether fewtag wrote the card and nobody changed it since."""
    text, _, mark = card.rpartition(_MARK)
    return mark == digest(text).encode() + _END


def push_to_hub(
    tagger: "Tagger",
    repo_id: str,
    *,
    examples: bool = False,
    private: bool = True,
    license: str = "",  # noqa: A002
    token: str | None = None,
    api: "HfApi | None" = None,
) -> str:
    """Upload what `save_pretrained` writes, and return the repository's address. The repository is private and holds no
    picture unless asked otherwise. A card that somebody changed on the hub is kept."""
    hub = api or import_extra("huggingface_hub", "the hub", "hub").HfApi(token=token)
    with tempfile.TemporaryDirectory() as folder:
        _write(tagger, Path(folder), repo_id, examples, license)
        with _refused(f"cannot upload to {repo_id}", "check its name and your token"):
            address = hub.create_repo(repo_id, private=private, exist_ok=True)
            there = hub.file_exists(repo_id, CARD) and Path(str(hub.hf_hub_download(repo_id, CARD))).read_bytes()
            files = [BANK] if there and not _is_ours(there) else [BANK, CARD]
            hub.upload_folder(
                repo_id=repo_id, folder_path=folder, allow_patterns=files, commit_message="A bank of fewtag"
            )
    return str(address)


def from_pretrained(
    cls: type["Tagger"],
    source: str | os.PathLike[str],
    *,
    revision: str | None = None,
    token: str | None = None,
    local_files_only: bool = False,
    device: str = "auto",
) -> "Tagger":
    """Load a bank by its repository's name on the hub, from a folder that `save_pretrained` wrote, or from a file."""
    if (here := Path(source)).exists():
        return cls.load(here / BANK if here.is_dir() else here, device=device)
    download = import_extra("huggingface_hub", "the hub", "hub").hf_hub_download
    options = {"revision": revision, "token": token}
    with _refused(f"there is no folder {source}, and the hub has no such bank", "check the name"):
        found = download(os.fspath(source), BANK, local_files_only=local_files_only, **options)
    return cls.load(found, device=device)


@contextmanager
def _refused(what: str, then: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the hub's and the network's errors have no common base
        raise InputError(f"{what} ({' '.join(str(error).split())[:200]}); {then}") from error


def _card(tagger: "Tagger", name: str, license: str) -> str:  # noqa: A002
    """The model card that the hub shows, with its YAML metadata first."""
    facts = ["library_name: fewtag", "pipeline_tag: image-classification", "tags: [fewtag, multi-label, few-shot]"]
    facts += [f"license: {license}"] if license else []
    rows = [
        f"| {label.replace('|', '/')} | {tagger.counts_[label]} | {tagger.thresholds_[label]:.2f} | "
        f"{tagger.definitions_[label]} |"
        for label in tagger.classes_
    ]
    return "\n".join(
        [
            "---", *facts, "---", "",
            f"# A bank of {len(rows)} labels", "",
            f"Made by fewtag {fewtag.__version__} on model `{tagger.model.name}`. Probabilities are calibrated.", "",
            "```python", "from fewtag import Tagger", "",
            f'tagger = Tagger.from_pretrained("{name}")', 'tagger.predict("garden.jpg")', "```", "",
            "| label | examples | given from | word |", "|---|---|---|---|", *rows, "",
        ]
    )  # fmt: skip
