"""`fewtag tag --prior`: how common labels are is estimated once, before the first row, and everyone uses that."""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from tiny import draw

from fewtag.core.calibration import steepness
from fewtag.tagger.tagger import Tagger
from fewtag.tagging import run
from fewtag.tagging.sources import Shard, open_source
from fewtag.tagging.tables import MANIFEST

Cli = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("small_sample")


@pytest.fixture
def small_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve pictures are a sample, of a source of at least ten."""
    monkeypatch.setattr(run, "PRIOR_SAMPLE", 16)
    monkeypatch.setattr(run, "SMALLEST_PRIOR_SAMPLE", 10)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Forty pictures, a quarter of which show a dog, and one that cannot be read."""
    folder = tmp_path / "archive"
    folder.mkdir()
    for number in range(40):
        draw(700 + number, *(["dog"] if number % 4 == 0 else [])).save(folder / f"{number:02}.png")
    (folder / "x.png").write_bytes(b"no picture")
    return folder


def scores(path: str) -> dict[str, dict[str, float]]:
    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    return {row["image"]: row["scores"] for row in rows}


def record(path: str) -> dict[str, Any]:
    return json.loads(Path(f"{path}.run.json").read_text())


def odds(values: Any) -> np.ndarray:
    values = np.asarray(values, np.float64)
    return np.log(values / (1 - values))


def test_shares_are_estimated_once_and_written_into_the_record(cli: Cli, bank: Path, archive: Path) -> None:
    assert cli("tag", bank, archive, "--out", "tags.jsonl", "--scores").code == 1
    shares = record("tags.jsonl")["shares"]
    assert list(shares) == ["cat", "dog", "sofa"]
    assert record("tags.jsonl")["prior"] == "estimate"
    assert cli("tag", bank, archive, "--out", "plain.jsonl", "--scores", "--prior", "bank").code == 1
    assert record("plain.jsonl")["shares"] == {}
    usual, found, compared = scores("plain.jsonl"), scores("tags.jsonl"), 0
    steepest = dict(zip(shares, Tagger.load(bank).scorer().steeper, strict=True))
    for name in usual:
        for label, share in shares.items():
            steeper = float(steepness(steepest[label], np.array([share]))[0])
            before, after = usual[name][label], found[name][label]
            if min(before, after) > 0.001 and max(before, after) < 0.999:  # where six digits are enough
                assert odds(after) - odds(share) == pytest.approx(steeper * (odds(before) - odds(0.3)), abs=0.01)
                compared += 1
    assert compared > 10


def test_the_sample_is_the_same_each_time_and_by_name_not_by_chance(bank: Path, archive: Path) -> None:
    tagger, source = Tagger.load(bank), open_source([str(archive)])
    first = run.priors_in(source, tagger, run.Options())
    assert first == run.priors_in(source, tagger, run.Options(batch=3))
    seen: list[int] = []
    run.priors_in(source, tagger, run.Options(), lambda _task, total: seen.append(total) or (lambda _count: None))  # type: ignore[func-returns-value]
    assert seen == [16]


def test_a_picture_that_cannot_be_read_is_done_too(bank: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PRIOR_SAMPLE", 41)
    done: list[int] = []
    run.priors_in(open_source([str(archive)]), Tagger.load(bank), run.Options(), lambda *_task: done.append)
    assert sum(done) == 41


def test_what_an_earlier_run_estimated_is_used_by_the_one_that_goes_on(
    cli: Cli, bank: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after its first shard; when it goes on the sample would say something else."""
    write, written = run.Parts.write, []

    def killed(self: Any, shard: Any, rows: Any, labels: Any) -> Any:
        if written:
            raise KeyboardInterrupt
        written.append(shard.number)
        return write(self, shard, rows, labels)

    command = ("tag", bank, archive, "--out", "tags.jsonl", "--scores", "--shard", 8)
    assert cli("tag", bank, archive, "--out", "whole.jsonl", "--scores").code == 1
    monkeypatch.setattr(run.Parts, "write", killed)
    assert cli(*command).code not in (0, 1)
    manifest = json.loads((Path("tags.jsonl.parts") / MANIFEST).read_text())
    assert manifest["shares"] == record("whole.jsonl")["shares"]
    monkeypatch.setattr(run.Parts, "write", write)
    monkeypatch.setattr(run, "priors_in", None)
    assert cli(*command).code == 1
    assert Path("tags.jsonl").read_text() == Path("whole.jsonl").read_text()
    assert record("tags.jsonl")["shares"] == manifest["shares"]


def test_a_folder_of_parts_keeps_its_shares_in_its_manifest(cli: Cli, bank: Path, archive: Path) -> None:
    assert cli("tag", bank, archive, "--out", "parts", "--scores", "--shard", 16).code == 1
    assert cli("tag", bank, archive, "--out", "whole.jsonl", "--scores").code == 1
    assert json.loads((Path("parts") / MANIFEST).read_text())["shares"] == record("whole.jsonl")["shares"]
    rows = pyarrow.parquet.read_table("parts").to_pylist()
    for row in rows:
        assert row["scores"] == pytest.approx(scores("whole.jsonl")[row["image"]], abs=2e-6)
    said = cli("tag", bank, archive, "--out", "parts", "--scores", "--shard", 16, "--prior", 0.2)
    assert (said.code, "another --prior (estimate, now 0.2)" in said.err) == (2, True)


def test_a_number_stands_for_every_label_without_a_prior_of_its_own(cli: Cli, bank: Path, archive: Path) -> None:
    Tagger.load(bank).set_priors({"cat": 0.4}).save(bank)
    assert cli("tag", bank, archive, "--out", "tags.jsonl", "--scores", "--prior", 0.01).code == 1
    shares = record("tags.jsonl")["shares"]
    assert list(shares) == ["dog", "sofa"]
    assert shares["dog"] < 0.01, "far more than one in a hundred look like dogs"
    tagger = Tagger.load(bank).set_priors(shares)
    (expected,) = tagger.tag([archive / "00.png"])
    assert scores("tags.jsonl")["00.png"] == pytest.approx(dict(expected.scores), abs=2e-6)


def test_a_label_with_a_threshold_of_its_own_keeps_the_probabilities_it_was_chosen_by(
    cli: Cli, bank: Path, archive: Path
) -> None:
    Tagger.load(bank).set_thresholds({"dog": 0.6}).save(bank)
    assert cli("tag", bank, archive, "--out", "tags.jsonl", "--scores").code == 1
    assert list(record("tags.jsonl")["shares"]) == ["cat", "sofa"]
    (expected,) = Tagger.load(bank).tag([archive / "00.png"])
    assert scores("tags.jsonl")["00.png"]["dog"] == pytest.approx(expected.scores["dog"], abs=2e-6)


def test_fewer_pictures_than_a_sample_needs_are_tagged_as_the_bank_or_the_person_has_it(
    cli: Cli, bank: Path, photos: Path
) -> None:
    assert cli("tag", bank, photos, "--out", "tags.csv").code == 0
    assert record("tags.csv")["shares"] == {}
    assert cli("tag", bank, photos, "--out", "said.csv", "--prior", 0.01).code == 0
    assert record("said.csv")["shares"] == {"cat": 0.01, "dog": 0.01, "sofa": 0.01}


@pytest.mark.parametrize("prior", ["0", "1", "2", "-0.5", "nan", "x", ""])
def test_a_prior_that_is_none_is_one_sentence(cli: Cli, bank: Path, archive: Path, prior: str) -> None:
    said = cli("tag", bank, archive, "--out", "tags.csv", f"--prior={prior}")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert f"--prior {prior} is no share of pictures; give one such as 0.01, or estimate, or bank" in said.err
    assert not Path("tags.csv").exists()


def test_the_terminal_and_the_page_have_the_tables_numbers(cli: Cli, bank: Path, archive: Path) -> None:
    assert cli("tag", bank, archive, "--out", "tags.jsonl", "--scores").code == 1
    said = cli("tag", bank, archive, "--json")
    rows = [json.loads(line) for line in said.out.splitlines()]
    assert {row["image"]: row["scores"] for row in rows if "scores" in row} == scores("tags.jsonl")
    assert "estimating how common each label is" in said.err, "before the first row, which may take a while"
    assert "estimating" not in cli("tag", bank, archive / "00.png").err


@pytest.mark.parametrize("out", [("--out", "tags.jsonl", "--scores"), ("--json",)])
def test_a_page_is_made_by_the_runs_own_bank_and_shares(
    cli: Cli, bank: Path, archive: Path, monkeypatch: pytest.MonkeyPatch, out: tuple[str, ...]
) -> None:
    asked: list[str] = []
    estimate, load = run.priors_in, Tagger.load

    def loaded(*given: Any, **options: Any) -> Tagger:
        asked.append("bank")
        return load(*given, **options)

    monkeypatch.setattr(run, "priors_in", lambda *given: asked.append("shares") or estimate(*given))  # type: ignore[func-returns-value]
    monkeypatch.setattr(run.Tagger, "load", loaded)
    assert cli("tag", bank, archive, *out, "--page", "page.html").code == 1
    assert asked == ["bank", "shares"]
    page = Path("page.html").read_text()
    assert page.count("<img") == 40


def test_rows_come_before_the_last_picture_is_read(bank: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    items = Shard.items
    monkeypatch.setattr(
        Shard,
        "items",
        lambda self, batch: (taken.append(1) or item for item in items(self, batch)),  # type: ignore[func-returns-value]
    )
    rows = run.tag_rows(bank, [str(archive)], run.Options(batch=1, prior="bank"))
    (item, row) = next(rows)
    assert (item.name, row.image) == ("00.png", "00.png")
    assert len(taken) < 30, "not all are held at once"
    assert [(item.name, row.image) for item, row in rows][-1] == ("x.png", "x.png")


def test_what_the_sample_took_is_in_the_cache(cli: Cli, bank: Path, archive: Path) -> None:
    said = cli("tag", bank, archive, "--out", "tags.csv", "--json")
    assert 14 <= json.loads(said.out)["cached"] <= 16
    assert json.loads(cli("tag", bank, archive, "--out", "again.csv", "--json", "--no-cache").out)["cached"] == 0


def test_a_packed_source_is_sampled_in_parts(cli: Cli, bank: Path, archive: Path) -> None:
    with tarfile.open("archive.tar", "w") as packed:
        for path in sorted(archive.iterdir()):
            packed.add(path, path.name)
    assert cli("tag", bank, "archive.tar", "--out", "tags.jsonl").code == 1
    shares = record("tags.jsonl")["shares"]
    assert list(shares) == ["cat", "dog", "sofa"]
    assert all(0 < share < 1 for share in shares.values())
