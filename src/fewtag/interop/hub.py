"""Banks on the Hugging Face Hub: shared without their examples, unless a person wants otherwise, and loaded by name."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewtag import __version__
from fewtag.errors import InputError
from fewtag.files import make_folder, write_atomically
from fewtag.tagger.tagger import Tagger

if TYPE_CHECKING:
    from huggingface_hub import HfApi

BANK, CARD = "bank.fewtag", "README.md"


def save_pretrained(tagger: Tagger, folder: str | Path, *, examples: bool = False, license: str = "") -> Path:  # noqa: A002
    """The bank and a model card in a folder, ready to be uploaded.

    Without `examples` the bank holds what was learnt of each label and nothing of a single picture.
    """
    place = Path(folder)
    make_folder(place)
    tagger.save(place / BANK, examples=examples)
    write_atomically(place / CARD, _card(tagger, license).encode())
    return place


def push_to_hub(
    tagger: Tagger,
    repository: str,
    *,
    examples: bool = False,
    private: bool = True,
    license: str = "",  # noqa: A002
    token: str | None = None,
    api: "HfApi | None" = None,
) -> str:
    """Uploads the bank and its card; answers with the address. Private, and without examples, unless told otherwise."""
    hub = api or _hub().HfApi(token=token)
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(tagger, folder, examples=examples, license=license)
        try:
            address = hub.create_repo(repository, private=private, exist_ok=True)
            hub.upload_folder(repo_id=repository, folder_path=folder, commit_message="A bank of fewtag")
        except Exception as error:  # the hub's and the network's errors have no common base
            said = " ".join(str(error).split())[:200]
            raise InputError(f"cannot upload to {repository} ({said}); check its name and your token") from error
    return str(address)


def from_pretrained(source: str | Path, *, revision: str | None = None, token: str | None = None) -> Tagger:
    """A bank by the name of a repository on the hub, or from a folder that `save_pretrained` wrote."""
    folder = Path(source)
    if folder.is_dir():
        return Tagger.load(folder / BANK)
    try:
        file = _hub().hf_hub_download(str(source), BANK, revision=revision, token=token)
    except InputError:
        raise
    except Exception as error:  # as above
        said = " ".join(str(error).split())[:200]
        raise InputError(
            f"there is no folder {source}, and the hub has no such bank ({said}); check the name"
        ) from error
    return Tagger.load(file)


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise InputError('the hub needs huggingface_hub; run: pip install "fewtag[hub]"') from error
    return huggingface_hub


def _card(tagger: Tagger, license: str) -> str:  # noqa: A002
    """What the hub shows: facts for machines first."""
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
            f"Made by fewtag {__version__} on its model `{tagger.model.name}`. Probabilities are calibrated.", "",
            "```python", "from fewtag.interop.hub import from_pretrained", "",
            'tagger = from_pretrained("OWNER/NAME")', 'tagger.predict("garden.jpg")', "```", "",
            "| label | examples | given from | word |", "|---|---|---|---|", *rows, "",
        ]
    )  # fmt: skip
