"""`fewtag check`: scikit-learn's numbers, and thresholds from one's own pictures."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, f1_score, precision_recall_curve, precision_recall_fscore_support
from tiny import draw

from fewtag.tagger.tagger import Tagger

Cli = Callable[..., Any]
LABELS = ["cat", "dog", "sofa"]


@pytest.fixture
def truth(tmp_path: Path) -> Path:
    """Forty pictures and what they show, with some mistakes of the person who wrote it down."""
    generator = np.random.default_rng(0)
    lines = ["image,labels"]
    (tmp_path / "truth").mkdir()
    for number in range(40):
        shown = [label for label in LABELS if generator.random() < 0.4] or ["zebra"]
        draw(500 + number, *shown).save(tmp_path / "truth" / f"{number}.png")
        said = [label for label in LABELS if (label in shown) != (generator.random() < 0.2)] or ["dog"]
        lines.append(f"{number}.png,{';'.join(said)}")
    (tmp_path / "truth" / "truth.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "truth" / "truth.csv"


def measured(bank: Path, truth: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities, targets and thresholds."""
    rows = [line.split(",") for line in truth.read_text().splitlines()[1:]]
    tagger = Tagger.load(bank)
    targets = np.array([[label in labels.split(";") for label in LABELS] for _, labels in rows])
    thresholds = np.array([tagger.thresholds_[label] for label in LABELS])
    return tagger.predict_proba([truth.parent / name for name, _ in rows]), targets, thresholds


def test_the_numbers_are_scikit_learns(cli: Cli, bank: Path, truth: Path) -> None:
    found = json.loads(cli("check", bank, truth, "--json").out)
    probabilities, targets, thresholds = measured(bank, truth)
    given = probabilities >= thresholds
    precision, recall, f1, support = precision_recall_fscore_support(targets, given)
    assert (found["pictures"], list(found["labels"])) == (40, LABELS)
    for column, label in enumerate(LABELS):
        facts = found["labels"][label]
        expected = (precision[column], recall[column], f1[column])
        assert (facts["precision"], facts["recall"], facts["f1"]) == pytest.approx(expected, abs=1e-6)
        area = average_precision_score(targets[:, column], probabilities[:, column])
        assert facts["average_precision"] == pytest.approx(area, abs=1e-6)
        assert facts["pictures"] == support[column]
        assert facts["threshold"] == pytest.approx(thresholds[column], abs=1e-6)
    assert found["micro"]["f1"] == pytest.approx(f1_score(targets, given, average="micro"), abs=1e-6)
    macro = average_precision_score(targets, probabilities, average="macro")
    assert found["macro_average_precision"] == pytest.approx(macro, abs=1e-6)
    rare = json.loads(cli("check", bank, truth, "--json", "--prior", 0.000001).out)
    assert rare["macro_average_precision"] == found["macro_average_precision"], "a prior changes no order"
    assert sum(each["pairs"] for each in found["reliability"]) == targets.size


def best_thresholds(bank: Path, truth: Path) -> np.ndarray:
    """The bank's, none of which has a smaller F1 than another would have."""
    probabilities, targets, thresholds = measured(bank, truth)
    for column in range(3):
        precision, recall, _ = precision_recall_curve(targets[:, column], probabilities[:, column])
        best = (2 * precision * recall / np.maximum(precision + recall, 1e-12)).max()
        mine = f1_score(targets[:, column], probabilities[:, column] >= np.float32(thresholds[column]))
        assert mine == pytest.approx(best, abs=1e-6)
    return thresholds


def test_the_thresholds_that_are_kept_have_the_best_f1(cli: Cli, bank: Path, truth: Path) -> None:
    before = cli("labels", bank, "--json").out
    assert cli("check", bank, truth).code == 0
    assert cli("labels", bank, "--json").out == before
    assert cli("check", bank, truth, "--set-thresholds").code == 0
    thresholds = best_thresholds(bank, truth)
    labels = json.loads(cli("labels", bank, "--json").out)
    assert [labels[label]["threshold"] for label in LABELS] == pytest.approx(thresholds.tolist(), abs=1e-6)


def test_a_label_that_too_few_pictures_show_or_that_would_go_to_all_keeps_its_threshold(
    cli: Cli, bank: Path, truth: Path
) -> None:
    before = Tagger.load(bank).thresholds_
    rows = [line.split(",") for line in truth.read_text().splitlines()[1:]]
    probabilities = dict(zip([name for name, _ in rows], measured(bank, truth)[0], strict=True))
    dogs, sofas = (
        sorted(probabilities, key=lambda name: -probabilities[name][LABELS.index(label)]) for label in ("dog", "sofa")
    )
    shown = {"dog": dogs[5:], "cat": dogs[:4], "sofa": sofas[:15]}
    lines = [f"{name},{';'.join(label for label in shown if name in shown[label])}" for name in dogs]
    truth.write_text("\n".join(["image,labels", *lines]) + "\n")
    told = cli("check", bank, truth, "--set-thresholds")
    assert "no best threshold for 'cat', 'dog': fewer than 5 pictures show it" in told.out
    assert told.out.endswith(f"{bank}: the best thresholds of 1 label are kept\n")
    own = {label: each.threshold for label, each in Tagger.load(bank).definitions_.items()}
    assert (own["cat"], own["dog"], own["sofa"] is None) == (None, None, False)
    assert Tagger.load(bank).thresholds_["dog"] == before["dog"]


@pytest.mark.parametrize("option", ["--set-thresholds", "--set-priors"])
def test_a_bank_in_which_nothing_can_be_kept_is_refused_before_the_work(
    cli: Cli, bank: Path, truth: Path, option: str
) -> None:
    """And so is a project, in place of which its bank was named, which is refused then."""
    Path("project").mkdir()
    Path("project/studio.sqlite").touch()
    bank.rename("project/bank.fewtag")
    Path("link.fewtag").symlink_to("project/bank.fewtag")
    refused = [
        cli("check", "link.fewtag", truth, option),
        cli("check", "project/bank.fewtag", truth, option),
        cli("learn", "project", truth.parent / "0.png", "--label", "x"),
    ]
    for said in refused:
        assert (said.code, said.out, said.err.count("\n")) == (2, "", 1), said.err
        assert "bank.fewtag is made of the answers in a studio's project" in said.err
    assert cli("check", "project/bank.fewtag", truth).code == 0


def test_for_people_it_is_a_table_and_sentences(cli: Cli, bank: Path, truth: Path) -> None:
    (truth.parent / "0.png").unlink()
    said = cli("check", bank, truth)
    assert (said.code, "0.png: there is no such file" in said.err, "--skip-bad" in said.err) == (2, True, True)
    said = cli("check", bank, truth, "--skip-bad")
    assert said.code == 0
    assert "39 pictures" in said.out
    assert "expected calibration error" in said.out
    assert "skipped: cannot read image" in said.out


def test_examples_of_the_bank_are_told_of(cli: Cli, bank: Path, truth: Path) -> None:
    assert "taught" not in cli("check", bank, truth).out
    rows = [row.split(",") for row in truth.read_text().splitlines()[1:]]
    images, labels = [truth.parent / name for name, _ in rows], [said.split(";") for _, said in rows]
    Tagger.load(bank).partial_fit(images, labels).save(bank)
    said = "40 pictures of these the bank was taught with, which flatters it; take others"
    assert said in cli("check", bank, truth).out.splitlines()
    assert json.loads(cli("check", bank, truth, "--json").out)["taught"] == 40


def test_a_folder_per_label_is_truth_too_and_foreign_labels_are_refused(cli: Cli, bank: Path, tmp_path: Path) -> None:
    assert cli("check", bank, tmp_path / "examples").code == 0
    (tmp_path / "other" / "zebra").mkdir(parents=True)
    draw(1, "zebra").save(tmp_path / "other" / "zebra" / "1.png")
    said = cli("check", bank, tmp_path / "other")
    assert (said.code, "none of the pictures shows a label of the bank: they show zebra" in said.err) == (2, True)


def test_a_label_that_no_picture_shows_has_no_average_precision(cli: Cli, bank: Path, tmp_path: Path) -> None:
    assert cli("define", bank, "zebra").code == 0
    found = json.loads(cli("check", bank, tmp_path / "examples", "--json").out)["labels"]["zebra"]
    assert (found["pictures"], found["average_precision"], found["best_threshold"]) == (0, None, None)


def test_the_priors_that_are_kept_are_the_shares_of_the_pictures(cli: Cli, bank: Path, truth: Path) -> None:
    assert cli("define", bank, "zebra").code == 0
    told = cli("check", bank, truth, "--set-priors").out
    assert told.endswith(
        f"{bank}: the priors of 4 labels are kept; no picture shows 'zebra': taken for rare from now on\n"
    )
    targets = measured(bank, truth)[1]
    priors = Tagger.load(bank).priors_
    assert [priors[label] for label in LABELS] == pytest.approx(((targets.sum(axis=0) + 0.5) / 41).tolist())
    assert priors["zebra"] == pytest.approx(0.5 / 41), "rarer than one in all of them"
    assert Tagger.load(bank).definitions_["dog"].threshold is None


def test_thresholds_that_are_kept_with_priors_are_for_the_probabilities_that_these_make(
    cli: Cli, bank: Path, truth: Path
) -> None:
    assert cli("check", bank, truth, "--set-priors", "--set-thresholds").code == 0
    best_thresholds(bank, truth)


def test_a_row_without_labels_is_a_picture_that_shows_none_of_them(cli: Cli, bank: Path, truth: Path) -> None:
    draw(900).save(truth.parent / "empty.png")
    draw(901, "dog").save(truth.parent / "refused.png")
    with truth.open("a") as file:
        file.write("empty.png,\nrefused.png,cat;!dog\n")
    found = json.loads(cli("check", bank, truth, "--json").out)
    assert found["pictures"] == 42
    assert sum(each["pairs"] for each in found["reliability"]) == 42 * 3


@pytest.mark.slow
def test_from_a_hundred_pictures_on_it_measures_what_tag_does(cli: Cli, bank: Path, tmp_path: Path) -> None:
    folder, lines = tmp_path / "many", ["image,labels"]
    folder.mkdir()
    for number in range(110):
        shown = ["dog", "sofa"] if number % 10 == 0 else ["sofa"]
        draw(500 + number, *shown).save(folder / f"{number:03}.png")
        lines.append(f"{number:03}.png,{';'.join(shown)}")
    (tmp_path / "many.csv").write_text("\n".join(lines) + "\n")
    for asked, used in (((), "estimate"), (("--prior", "bank"), "bank"), (("--prior", "0.3"), "0.3")):
        assert cli("tag", bank, folder, "--out", "tags.jsonl", "--scores", "--force", *asked).code == 0
        rows = [json.loads(line) for line in Path("tags.jsonl").read_text().splitlines()]
        targets = np.array([[label in line.split(",")[1].split(";") for label in LABELS] for line in lines[1:]])
        given = np.array([[label in row["tags"] for label in LABELS] for row in rows])
        found = json.loads(cli("check", bank, tmp_path / "many.csv", "--root", folder, "--json", *asked).out)
        precision, recall, _, _ = precision_recall_fscore_support(targets, given, average="micro")
        assert (found["micro"]["precision"], found["micro"]["recall"]) == pytest.approx((precision, recall), abs=1e-6)
        assert found["prior"] == used
        shares = json.loads(Path("tags.jsonl.run.json").read_text())["shares"]
        assert found["shares"] == pytest.approx(shares or dict(Tagger.load(bank).priors_), abs=1e-6)
    found = cli("check", bank, tmp_path / "many.csv", "--root", folder)
    assert "priors: estimated by a sample of these pictures" in found.out
    found = cli("check", bank, tmp_path / "many.csv", "--root", folder, "--set-thresholds")
    assert "priors: the bank's own" in found.out, "thresholds that are kept are for these"
    said = cli("check", bank, tmp_path / "many.csv", "--root", folder, "--set-priors", "--prior", "0.1")
    assert (said.code, "--prior 0.1 is for measuring" in said.err) == (2, True)


def test_a_picture_in_the_folders_of_two_labels_shows_both(cli: Cli, bank: Path) -> None:
    for folder, names in (("dog", ("both.png", "dog.png")), ("sofa", ("again.png", "sofa.png"))):
        Path("sorted", folder).mkdir(parents=True)
        for seed, name in enumerate(names):
            shown = ("dog", "sofa") if name in {"both.png", "again.png"} else (folder,)
            draw(700 + seed, *shown).save(Path("sorted", folder, name))
    Path("truth.csv").write_text("image,labels\ndog/both.png,dog;sofa\ndog/dog.png,dog\nsofa/sofa.png,sofa\n")
    found = [
        json.loads(cli("check", bank, *given, "--json").out)
        for given in (["sorted"], ["truth.csv", "--root", "sorted"])
    ]
    assert found[0] == found[1]
    assert (found[0]["pictures"], found[0]["labels"]["dog"]["pictures"]) == (3, 2)


def test_labels_that_the_bank_does_not_know_are_told_of(cli: Cli, bank: Path, truth: Path) -> None:
    before = json.loads(cli("check", bank, truth, "--json").out)
    assert before["unknown"] == []
    truth.write_text(truth.read_text().replace("0.png,", "0.png,Dog;xyzzy;", 1))
    found = json.loads(cli("check", bank, truth, "--json").out)
    assert found == {**before, "unknown": ["Dog", "xyzzy"]}
    lines = cli("check", bank, truth).out.splitlines()
    assert "the bank does not know 'Dog' (did you mean 'dog'?), 'xyzzy': not counted" in lines


def test_a_label_called_all_together_has_a_row_of_its_own(cli: Cli, bank: Path, truth: Path) -> None:
    assert cli("define", bank, "all together", "--like", "zebra").code == 0
    rows = [line for line in cli("check", bank, truth).out.splitlines() if "all together" in line]
    assert len(rows) == 2
