"""Several who write to one bank: what each taught is in it, whoever comes last."""

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from tiny import same_classifiers

from fewtag import InputError, Tagger
from fewtag.tagger.model import Model

pytestmark = pytest.mark.processes

Draw = Callable[..., Image.Image]


@pytest.fixture
def bank(model: Model, draw: Draw, tmp_path: Path) -> Path:
    """It knows dog, cat and sofa by a picture each."""
    labels = ["dog", "cat", "sofa"]
    path = tmp_path / "pets.fewtag"
    Tagger(model).fit([draw(number, label) for number, label in enumerate(labels)], labels).save(path)
    return path


def both(bank: Path) -> tuple[Tagger, Tagger]:
    return Tagger.load(bank), Tagger.load(bank)


def test_two_who_teach_lose_nothing(bank: Path, draw: Draw) -> None:
    first, second = both(bank)
    first.partial_fit([draw(10, "dog")], [["dog", "zebra"]]).save(bank)
    second.partial_fit([draw(11, "cat"), draw(10, "dog")], [["cat", "ball"], ["cat"]]).save(bank)
    first.define("penguin").save(bank)
    counts = {"ball": 1, "cat": 3, "dog": 2, "penguin": 0, "sofa": 1, "zebra": 1}
    assert Tagger.load(bank).counts_ == first.counts_ == counts


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda tagger: pickle.loads(pickle.dumps(tagger))])
def test_a_copy_adds_to_the_file_that_its_tagger_came_from(
    bank: Path, draw: Draw, copied: Callable[[Tagger], Tagger]
) -> None:
    first = Tagger.load(bank).partial_fit(draw(10, "dog"), ["dog", "ball"]).rename("cat", "kitten")
    first.set_priors({"dog": 0.2}).define("zebra").forget("sofa")
    second = copied(first).define("heron")
    Tagger.load(bank).define("penguin").save(bank)
    second.save(bank)
    known = {"ball": 1, "dog": 2, "heron": 0, "kitten": 1, "penguin": 0, "zebra": 0}
    assert Tagger.load(bank).counts_ == known
    assert "heron" not in first.classes_
    first.define("clock").save(bank)
    assert Tagger.load(bank).counts_ == known | {"clock": 0}


def test_what_comes_of_it_is_what_one_would_have_taught(bank: Path, draw: Draw) -> None:
    first, second, alone = *both(bank), Tagger.load(bank)
    first.partial_fit([draw(10, "dog")], ["dog"]).save(bank)
    second.partial_fit([draw(11, "dog")], ["dog"]).save(bank)
    alone.partial_fit([draw(11, "dog"), draw(10, "dog")], ["dog", "dog"])
    merged = Tagger.load(bank)
    assert same_classifiers(merged, alone)


def test_a_no_here_and_a_yes_there_are_both_kept(bank: Path, draw: Draw) -> None:
    first, second = both(bank)
    first.partial_fit([draw(10, "dog")], [[]], absent=[["cat"]]).save(bank)
    second.partial_fit([draw(10, "dog"), draw(11)], [["dog"], []], absent=[[], ["dog"]]).save(bank)
    merged = Tagger.load(bank)
    assert merged.counts_ == {"cat": 1, "dog": 2, "sofa": 1}
    assert merged.absent_counts_ == {"cat": 1, "dog": 1, "sofa": 0}


def test_a_no_to_a_label_that_was_forgotten_meanwhile_brings_its_name_back(bank: Path, draw: Draw) -> None:
    first, second = both(bank)
    first.forget("dog").save(bank)
    second.partial_fit([draw(10, "cat")], [[]], absent=[["dog"]]).save(bank)
    merged = Tagger.load(bank)
    assert (merged.counts_["dog"], merged.absent_counts_["dog"]) == (0, 1)


def test_one_forgets_what_the_other_learns(bank: Path, draw: Draw) -> None:
    first, second = both(bank)
    first.forget("dog").save(bank)
    second.partial_fit([draw(10, "dog")], ["dog"]).save(bank)
    assert Tagger.load(bank).counts_ == {"cat": 1, "dog": 1, "sofa": 1}, "what was taught after it was forgotten"


def test_one_learns_what_the_other_forgets(bank: Path, draw: Draw) -> None:
    first, second = both(bank)
    first.partial_fit([draw(10, "dog")], ["dog"]).save(bank)
    second.forget("dog", draw(0, "dog")).forget("sofa").save(bank)
    assert Tagger.load(bank).counts_ == {"cat": 1, "dog": 1}


def test_thresholds_and_names_are_not_lost_although_no_number_changes(bank: Path, draw: Draw) -> None:
    first, second = both(bank)
    first.set_thresholds({"dog": 0.75}).save(bank)
    second.partial_fit([draw(10, "cat")], ["cat"]).save(bank)
    assert Tagger.load(bank).thresholds_["dog"] == pytest.approx(0.75)
    first.rename("sofa", "couch").save(bank)
    second.set_thresholds({"cat": 0.25}).save(bank)
    merged = Tagger.load(bank)
    assert merged.counts_ == {"cat": 2, "couch": 1, "dog": 1}
    assert merged.thresholds_["dog"] == pytest.approx(0.75)
    assert merged.thresholds_["cat"] == pytest.approx(0.25)


def test_renamed_here_taught_there(bank: Path, draw: Draw) -> None:
    first, second = both(bank)
    first.partial_fit([draw(10, "sofa")], ["sofa"]).save(bank)
    second.rename("sofa", "couch").save(bank)
    assert Tagger.load(bank).counts_ == {"cat": 1, "couch": 2, "dog": 1}


def test_a_change_while_the_bank_is_loaded_is_not_lost(bank: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the moment that its numbers are read and the moment that loading is done."""
    from fewtag.tagger import bank_file as module

    read = module.read_bank
    other = Tagger.load(bank)

    def slowly(path: Path) -> object:
        content = read(path)
        other.partial_fit([draw(10, "dog")], ["zebra"]).save(bank)
        return content

    monkeypatch.setattr(module, "read_bank", slowly)
    late = Tagger.load(bank)
    monkeypatch.setattr(module, "read_bank", read)
    late.define("ball").save(bank)
    assert Tagger.load(bank).counts_ == {"ball": 0, "cat": 1, "dog": 1, "sofa": 1, "zebra": 1}


def test_another_file_is_replaced(bank: Path, model: Model, draw: Draw, tmp_path: Path) -> None:
    Tagger(model).fit([draw(5, "dog")], ["zebra"]).save(tmp_path / "other.fewtag")
    Tagger.load(bank).save(tmp_path / "other.fewtag")
    assert Tagger.load(tmp_path / "other.fewtag").classes_ == ("cat", "dog", "sofa")
    Tagger(model).define("ball").save(bank)
    assert Tagger.load(bank).classes_ == ("ball",)


def test_a_bank_that_is_gone_is_written_anew(bank: Path) -> None:
    tagger = Tagger.load(bank)
    bank.unlink()
    tagger.define("ball").save(bank)
    assert Tagger.load(bank).classes_ == ("ball", "cat", "dog", "sofa")


def test_two_who_open_a_new_bank_share_it(tiny_model: Path, draw: Draw, tmp_path: Path) -> None:
    path = tmp_path / "new.fewtag"
    first, second = (Tagger.open(path, model=str(tiny_model)) for _ in range(2))
    first.partial_fit([draw(1, "dog")], ["dog"]).save(path)
    second.partial_fit([draw(2, "cat")], ["cat"]).save(path)
    assert Tagger.open(path).counts_ == {"cat": 1, "dog": 1}


def test_a_bank_that_moved_to_another_model_meanwhile_is_not_written_over(bank: Path, other_file: Path) -> None:
    late = Tagger.load(bank)
    Tagger.load(bank, model=str(other_file), upgrade=True).save(bank)
    with pytest.raises(InputError, match="is now one of another model 'other'; load it again"):
        late.define("ball").save(bank)
    assert Tagger.load(bank).classes_ == ("cat", "dog", "sofa")


def test_a_bank_that_was_taught_while_it_moved_is_not_written_over(bank: Path, other_file: Path, draw: Draw) -> None:
    moving = Tagger.load(bank, model=str(other_file), upgrade=True)
    Tagger.load(bank).partial_fit([draw(9, "dog")], ["zebra"]).save(bank)
    with pytest.raises(InputError, match="is now one of another model 'tiny'; load it again"):
        moving.save(bank)
    assert "zebra" in Tagger.load(bank).classes_


@pytest.mark.parametrize("exists", [True, False], ids=["an old bank", "a new one"])
def test_two_commands_at_once_lose_nothing(
    exists: bool, bank: Path, tiny_model: Path, draw: Draw, tmp_path: Path
) -> None:
    if not exists:
        bank.unlink()
    labels = ["zebra", "ball", "penguin"]
    commands = []
    for number, label in enumerate(labels):
        draw(20 + number, "dog").save(tmp_path / f"{label}.png")
        commands.append([sys.executable, "-m", "fewtag", "learn", str(bank), str(tmp_path / f"{label}.png")])
        commands[-1] += ["--label", label, "--model", str(tiny_model)]
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]
    assert [process.wait(120) for process in running] == [0, 0, 0]
    known = {"dog": 1, "cat": 1, "sofa": 1} if exists else {}
    assert Tagger.load(bank).counts_ == known | dict.fromkeys(labels, 1)
