"""Banks on the Hugging Face Hub: nothing of a picture unless it is wanted, through the hub's own client."""

import hashlib
import sys
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import pytest
from tiny import draw

from fewtag import InputError, Tagger
from fewtag.tagger import hub


def test_a_shared_bank_gives_the_same_probabilities_and_holds_no_picture(bank: Path, tmp_path: Path) -> None:
    tagger = Tagger.load(bank)
    tagger.partial_fit([draw(80, "ball")], [["ball"]], absent=[["dog"]]).define("zebra")
    # known by nothing but a no
    tagger.partial_fit([draw(81, "cat")], [["clock"]]).partial_fit([draw(81, "cat")], [[]], absent=[["clock"]])
    tagger.set_thresholds({"cat": 0.25})
    tagger.save_pretrained(tmp_path / "shared", license="cc-by-4.0")
    shared = Tagger.from_pretrained(tmp_path / "shared")
    pictures = [draw(number, label) for number, label in enumerate(["dog", "cat", "sofa"], 200)]
    assert np.array_equal(shared.predict_proba(pictures), tagger.predict_proba(pictures))
    assert (shared.classes_, shared.counts_, shared.thresholds_) == (
        tagger.classes_, tagger.counts_, tagger.thresholds_,
    )  # fmt: skip
    own, theirs = tagger.bank_.examples, shared.bank_.examples
    assert not set(own) & set(theirs)
    assert {(each.name, each.picture) for each in theirs.values()} == {("", b"")}
    codes = [each.features.codes.tobytes() for each in own.values()]
    assert not [each for each in theirs.values() if each.features.codes.tobytes() in codes]
    content = (tmp_path / "shared" / hub.BANK).read_bytes()
    assert not [each.name for each in own.values() if each.name and each.name.encode() in content]
    assert shared.partial_fit([draw(300, "ball")], [["ball"]]).counts_["ball"] == 2
    card = (tmp_path / "shared" / hub.CARD).read_text()
    assert card.startswith("---\nlibrary_name: fewtag\npipeline_tag: image-classification\n")
    assert "license: cc-by-4.0\n" in card
    assert "| cat | 2 | 0.25 | its name |" in card
    tagger.save_pretrained(tmp_path / "whole", examples=True)
    assert set(Tagger.from_pretrained(tmp_path / "whole").bank_.examples) == set(own)


def test_examples_are_not_dropped_by_saving_a_copy_without_them_in_their_place(bank: Path, tmp_path: Path) -> None:
    Tagger.load(bank).save_pretrained(tmp_path, examples=True)
    tagger = Tagger.from_pretrained(tmp_path).partial_fit([draw(80, "ball")], [["ball"]])
    count = len(Tagger.load(bank).bank_.examples)
    for save in (tagger.save_pretrained, partial(tagger.save, examples=False)):
        with pytest.raises(InputError, match=rf"would drop {count} examples; name another file"):
            save(tmp_path if save == tagger.save_pretrained else tmp_path / hub.BANK)
    assert len(Tagger.from_pretrained(tmp_path).bank_.examples) == count
    tagger.save_pretrained(tmp_path, examples=True)
    assert len(Tagger.from_pretrained(tmp_path).bank_.examples) == count + 1


def test_a_shared_copy_is_saved_again_with_what_others_taught_it_meanwhile(bank: Path, tmp_path: Path) -> None:
    Tagger.load(bank).save_pretrained(tmp_path)
    tagger, other = Tagger.from_pretrained(tmp_path), Tagger.from_pretrained(tmp_path)
    other.define("heron").save_pretrained(tmp_path)
    tagger.partial_fit([draw(80, "ball")], [["ball"]]).save_pretrained(tmp_path)
    assert {"ball", "heron"} <= set(Tagger.from_pretrained(tmp_path).classes_)
    tagger.save_pretrained(tmp_path, examples=True)
    assert Tagger.from_pretrained(tmp_path).counts_["ball"] == 1, "neither twice nor lost"
    with pytest.raises(InputError, match="would drop 1 example;"):
        tagger.save_pretrained(tmp_path)


def test_a_card_that_somebody_wrote_or_changed_stays(bank: Path, tmp_path: Path) -> None:
    tagger, card = Tagger.load(bank), tmp_path / hub.CARD
    tagger.save_pretrained(tmp_path)
    tagger.define("zebra").save_pretrained(tmp_path)
    assert "| zebra | 0 |" in card.read_text()
    for text in ("# My birds\n", card.read_text().replace("calibrated", "my own")):
        card.write_text(text)
        tagger.define("heron").save_pretrained(tmp_path)
        assert card.read_text() == text
    assert "heron" in Tagger.from_pretrained(tmp_path).classes_


def test_a_file_that_is_here_is_not_asked_for_on_the_hub(bank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert Tagger.from_pretrained(bank).classes_ == Tagger.load(bank).classes_


def test_saving_a_copy_to_share_is_not_saving(bank: Path, tmp_path: Path) -> None:
    tagger = Tagger.load(bank).define("zebra")
    tagger.save(tmp_path / "copy.fewtag", examples=False)
    tagger.save(bank)
    assert "zebra" in Tagger.load(bank).classes_
    assert Tagger.load(bank).examples_("dog") == tagger.examples_("dog")


def test_pushing_uploads_what_was_saved_and_is_private_by_default(bank: Path, tmp_path: Path) -> None:
    """Against a folder that stands for the hub."""

    class Folder:
        def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> str:
            assert (private, exist_ok) == (True, True)
            return f"hub/{name}"

        def file_exists(self, name: str, file: str) -> bool:
            return (tmp_path / name / file).exists()

        def hf_hub_download(self, name: str, file: str) -> str:
            return str(tmp_path / name / file)

        def upload_folder(
            self, *, repo_id: str, folder_path: str, allow_patterns: list[str], commit_message: str
        ) -> None:
            assert commit_message
            (tmp_path / repo_id).mkdir(parents=True, exist_ok=True)
            for path in Path(folder_path).iterdir():
                if any(path.match(pattern) for pattern in allow_patterns):
                    (tmp_path / repo_id / path.name).write_bytes(path.read_bytes())

    tagger, card = Tagger.load(bank), tmp_path / "me/pets" / hub.CARD
    assert tagger.push_to_hub("me/pets", api=Folder()) == "hub/me/pets"  # type: ignore[arg-type]
    assert {path.name for path in (tmp_path / "me/pets").iterdir()} == {hub.BANK, hub.CARD}
    assert np.array_equal(
        Tagger.from_pretrained(tmp_path / "me/pets").predict_proba(draw(1, "dog")), tagger.predict_proba(draw(1, "dog"))
    )
    assert 'Tagger.from_pretrained("me/pets")' in card.read_text()
    tagger.define("zebra").push_to_hub("me/pets", api=Folder())  # type: ignore[arg-type]
    assert "| zebra |" in card.read_text()
    card.write_text("# My pets\n")
    tagger.define("heron").push_to_hub("me/pets", api=Folder())  # type: ignore[arg-type]
    assert card.read_text() == "# My pets\n", "what a person wrote on the hub"
    assert "heron" in Tagger.from_pretrained(tmp_path / "me/pets").classes_

    class Closed(Folder):
        def create_repo(self, *_: Any, **__: Any) -> str:
            raise ConnectionError("no network")

    with pytest.raises(InputError, match=r"cannot upload to me/pets \(no network\); check its name and your token"):
        tagger.push_to_hub("me/pets", api=Closed())  # type: ignore[arg-type]


def test_the_hub_without_its_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r'pip install "fewtag\[hub\]"'):
        Tagger.from_pretrained("me/nowhere")


def test_what_is_asked_is_what_the_client_takes(bank: Path) -> None:
    client = pytest.importorskip("huggingface_hub")
    api = create_autospec(client.HfApi, instance=True)
    api.create_repo.return_value, api.file_exists.return_value = "hub/me/pets", False
    assert Tagger.load(bank).push_to_hub("me/pets", private=False, api=api) == "hub/me/pets"
    assert api.create_repo.call_args.kwargs["private"] is False
    assert api.upload_folder.call_args.kwargs["repo_id"] == "me/pets"
    assert api.upload_folder.call_args.kwargs["allow_patterns"] == [hub.BANK, hub.CARD], "no lock"


@pytest.fixture
def served(bank: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A hub on this machine with one repository, me/pets; the requests that it had."""
    client = pytest.importorskip("huggingface_hub")
    Tagger.load(bank).save_pretrained(tmp_path / "hub")
    content, asked = (tmp_path / "hub" / hub.BANK).read_bytes(), list[str]()

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == f"/me/pets/resolve/main/{hub.BANK}"
            asked.append(f"{self.command} {self.path}")
            self.send_response(200 if known else 404)
            self.send_header("X-Repo-Commit", "0" * 40)
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("Content-Length", str(len(content) if known else 0))
            self.end_headers()
            if known and self.command == "GET":
                self.wfile.write(content)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Nothing to the terminal."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    ours = {"endpoint": f"http://127.0.0.1:{server.server_port}", "cache_dir": tmp_path / "hub-cache"}
    monkeypatch.setattr(client, "hf_hub_download", partial(client.hf_hub_download, **ours))
    yield asked
    server.shutdown()
    server.server_close()


def test_a_bank_comes_by_its_name_through_the_real_client(served: list[str], bank: Path) -> None:
    own, picture = Tagger.load(bank), draw(1, "dog")
    for more in ({}, {"local_files_only": True}):  # the second time from the client's cache
        found = Tagger.from_pretrained("me/pets", **more)  # type: ignore[arg-type]
        assert np.array_equal(found.predict_proba(picture), own.predict_proba(picture))
    assert served == [f"{word} /me/pets/resolve/main/{hub.BANK}" for word in ("HEAD", "GET")]
    with pytest.raises(
        InputError, match=r"^there is no folder me/nothing, and the hub has no such bank \(.*check the name$"
    ):
        Tagger.from_pretrained("me/nothing")
