"""Yes, no and unknown: what a person says of a picture, in which order, and what comes of it."""

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tiny import classifiers_of
from tiny import same_classifiers as same

from fewtag import InputError, Tagger
from fewtag.core.posterior import Classifiers
from fewtag.tagger import bank as bank_module
from fewtag.tagger.bank import Annotation, Bank, Definition, Example
from fewtag.tagger.model import Model

Draw = Callable[..., Image.Image]


@pytest.fixture
def pets(tagger: Tagger, draw: Draw) -> Tagger:
    """It knows dog, cat and sofa by two pictures each."""
    labels = ["dog", "cat", "sofa"] * 2
    return tagger.fit([draw(number, label) for number, label in enumerate(labels)], labels)


def said(tagger: Tagger) -> list[tuple[list[str], list[str], bool]]:
    """Of each example: what it shows, what it does not, and whether that is all."""
    each = [example.annotation for example in tagger.bank_.examples.values()]
    return [(sorted(told.labels), sorted(told.absent), told.complete) for told in each]


def test_of_one_picture_and_one_label_the_latest_word_counts(pets: Tagger, draw: Draw) -> None:
    picture = draw(9, "dog")
    pets.partial_fit([picture], [["dog"]]).partial_fit([picture], [["sofa"]], absent=[["dog"]])
    assert (pets.counts_["dog"], pets.absent_counts_["dog"], pets.counts_["sofa"]) == (2, 1, 3)
    pets.partial_fit([picture], [["dog"]])
    assert (pets.counts_["dog"], pets.absent_counts_["dog"]) == (3, 0)


def test_a_no_and_what_else_the_picture_shows_add_up(model: Model, draw: Draw) -> None:
    first, second = draw(1, "dog"), draw(2, "cat")
    grown = Tagger(model).fit([first, second], [["dog"], ["cat"]]).partial_fit([first], [[]], absent=[["cat"]])
    assert same(grown, Tagger(model).fit([first, second], [["dog"], ["cat"]], absent=[["cat"], []]))


def test_a_picture_may_show_nothing_of_what_is_known(pets: Tagger, draw: Draw) -> None:
    pets.partial_fit([draw(9)], [[]], absent=[["dog", " cat "]])
    assert pets.absent_counts_ == {"cat": 1, "dog": 1, "sofa": 0}
    pets.partial_fit([draw(10)], [[]], complete=True)
    assert ([], [], True) in said(pets)
    assert pets.counts_ == {"cat": 2, "dog": 2, "sofa": 2}


def test_a_complete_picture_is_a_no_to_every_other_label_those_of_the_future_too(model: Model, draw: Draw) -> None:
    def logit(tagger: Tagger) -> float:
        places = tagger.model.encode(np.stack([np.asarray(draw(1, "dog").resize((32, 32))).transpose(2, 0, 1)]))
        return float(tagger.scorer().classifiers.logits(places, model.strengths)[0, tagger.classes_.index("cat")])

    silent, complete, told = (
        Tagger(model).fit([draw(1, "dog")], ["dog"], complete=said) for said in (False, True, False)
    )
    for tagger in (silent, complete, told):
        tagger.partial_fit([draw(2, "cat")], ["cat"])
    told.partial_fit([draw(1, "dog")], [[]], absent=[["cat"]])
    assert logit(complete) == pytest.approx(logit(told), abs=1e-3), "but for what it tells of the name"
    assert logit(complete) < logit(silent)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "both": ({"labels": [["dog", "cat"]], "absent": [["cat"]]}, "image number 1 is said to show 'cat' and not to show"),
    "both, but for blanks": ({"labels": [["dog"]], "absent": [[" dog "]]}, "said to show 'dog' and not to show it"),
    "absent of an unknown label": (
        {"labels": [[]], "absent": [["dgo"]]},
        r"label 'dgo' is said to be absent, but it is not known; did you mean 'dog'\?",
    ),
    "nothing said": ({"labels": [[]], "absent": [[]]}, "image number 1 has no label; name one thing it shows or does"),
    "other numbers": ({"labels": [["dog"]], "absent": [["cat"], []]}, "given for 1 pictures and absent ones for 2"),
    "a string": ({"labels": [["dog"]], "absent": "cat"}, r"absent labels are a list .* use \[\['cat'\]\]"),
    "an empty name": ({"labels": [["dog"]], "absent": [[""]]}, "label of image number 1 is empty"),
}


@pytest.mark.parametrize(("told", "message"), BAD.values(), ids=BAD)
def test_what_cannot_be_meant_is_one_sentence_and_changes_nothing(
    pets: Tagger, draw: Draw, told: dict[str, Any], message: str
) -> None:
    before = pets.bank_
    with pytest.raises(InputError, match=message) as refused:
        pets.partial_fit([draw(9)], **told)
    assert "\n" not in str(refused.value)
    assert pets.bank_ is before


def test_a_picture_given_twice_in_one_call_cannot_show_a_label_and_not_show_it(pets: Tagger, draw: Draw) -> None:
    with pytest.raises(InputError, match="is said to show 'dog' and not to show it"):
        pets.partial_fit([draw(9), draw(9)], [["dog"], []], absent=[[], ["dog"]])


def test_fit_knows_labels_by_their_definition_or_by_this_call_alone(pets: Tagger, draw: Draw) -> None:
    with pytest.raises(InputError, match="'sofa' is said to be absent, but it is not known; known: 'dog'"):
        pets.fit([draw(1)], [["dog"]], absent=[["sofa"]])
    pets.fit([draw(1), draw(2)], [["dog"], []], absent=[[], ["dog"]])
    assert (pets.counts_, pets.absent_counts_) == ({"dog": 1}, {"dog": 1})
    pets.define("zebra").fit([draw(1)], [["dog"]], absent=[["zebra"]])
    assert pets.absent_counts_ == {"dog": 0, "zebra": 1}


def test_forgetting_takes_a_no_away(model: Model, pets: Tagger, draw: Draw, tmp_path: Path) -> None:
    before = classifiers_of(pets.bank_, model)
    draw(9, "cat").save(tmp_path / "tom.png")
    for forget in ({"image": draw(9, "cat")}, {"example": "tom.png"}):
        pets.partial_fit([tmp_path / "tom.png"], [[]], absent=[["dog"]])
        assert pets.absent_counts_["dog"] == 1
        pets.forget("dog", **forget)
        assert pets.absent_counts_["dog"] == 0
        assert np.array_equal(classifiers_of(pets.bank_, model).attended_weights, before.attended_weights), (
            "as if it had not been said"
        )
    pets.partial_fit([tmp_path / "tom.png"], [["sofa"]], absent=[["dog"]]).forget("dog")
    assert "dog" not in pets.definitions_
    assert not any("dog" in told.absent for told in pets.bank_.examples.values())
    assert pets.counts_["sofa"] == 3, "what else was said stays"


def test_a_yes_that_a_complete_picture_does_not_name_again_stays_and_is_told_of(pets: Tagger, draw: Draw) -> None:
    picture = draw(9, "dog")
    pets.partial_fit([picture], [["dog", "cat"]])
    with pytest.warns(
        UserWarning, match=r"labels add up: 1 said earlier .* such as 'dog' of a picture; to take one back"
    ):
        pets.partial_fit([picture], [["sofa"]], absent=[["cat"]], complete=True)
    told = (["dog", "sofa"], ["cat"], True)
    assert told in said(pets)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pets.partial_fit([picture], [["dog", "sofa"]], complete=True)
        pets.partial_fit([picture], [["sofa"]], absent=[["dog"]], complete=True)
        pets.fit([picture], [["cat"]], complete=True)


def test_a_forgotten_complete_example_leaves_nothing_behind(pets: Tagger, draw: Draw, tmp_path: Path) -> None:
    before, path = Tagger(pets.model, bank=pets.bank_), tmp_path / "tom.png"
    draw(9, "dog").save(path)
    for labels, forget in (
        (["dog"], {"image": path}),
        (["dog"], {"example": "tom.png"}),
        ([], {"image": path}),
        ([], {"example": "tom.png"}),
    ):
        pets.partial_fit([path], [labels], complete=True)
        assert not same(pets, before)
        pets.forget("dog", **forget)
        assert list(pets.bank_.examples) == list(before.bank_.examples), "neither its answers nor its copy"
        assert same(pets, before)


def test_of_a_complete_example_one_label_becomes_unknown_and_the_rest_stays(pets: Tagger, draw: Draw) -> None:
    picture, other = draw(9, "dog"), draw(8, "cat")
    pets.partial_fit([picture, other], [["dog", "cat"], ["cat"]], complete=True)
    pets.forget("dog", picture).forget("dog", other)
    expected = Tagger(pets.model).fit(
        [*(draw(number, label) for number, label in enumerate(["dog", "cat", "sofa"] * 2)), picture, other],
        [*["dog", "cat", "sofa"] * 2, ["cat"], ["cat"]],
        absent=[*[()] * 6, ["sofa"], ["sofa"]],
    )
    assert (said(pets), same(pets, expected)) == (said(expected), True)


def test_a_label_goes_with_the_last_that_is_said_of_it(tagger: Tagger, draw: Draw) -> None:
    tagger.fit([draw(1, "dog"), draw(2, "cat")], [["dog"], ["cat"]], absent=[[], ["dog"]])
    assert tagger.forget("dog", draw(1, "dog")).counts_ == {"cat": 1, "dog": 0}, "its name, and a picture without it"
    assert tagger.forget("dog", draw(2, "cat")).counts_ == {"cat": 1}


def test_a_renamed_label_keeps_its_noes_and_merged_ones_have_both_labels(model: Model, draw: Draw) -> None:
    images = [draw(number, "dog") for number in range(4)]
    shown, absent = [["dog"], ["sofa"], [], ["cat"]], [["sofa"], [], ["dog", "sofa"], ["sofa"]]
    tagger = Tagger(model).fit(images, shown, absent=absent)
    renamed = [["couch" if label == "sofa" else label for label in names] for names in absent]
    fresh = [["couch" if label == "sofa" else label for label in names] for names in shown]
    assert same(tagger.rename("sofa", "couch"), Tagger(model).fit(images, fresh, absent=renamed))
    tagger.rename("couch", "dog", merge=True)
    merged = Tagger(model).fit(images, [["dog"], ["dog"], [], ["cat"]], absent=[[], [], ["dog"], ["dog"]])
    assert same(tagger, merged), "who shows one of the two shows both, and its 'no' to the other goes"
    assert tagger.absent_counts_ == {"cat": 0, "dog": 2}


def copies(picture: Image.Image, folder: Path) -> dict[str, Any]:
    """The same picture, as it may come again."""
    picture.save(folder / "same.png")
    picture.resize((picture.width * 3, picture.height * 3), Image.Resampling.LANCZOS).save(folder / "larger.png")
    picture.save(folder / "again.jpg", quality=95, subsampling=0)
    return {
        "picture": picture,
        "path": folder / "same.png",
        "bytes": (folder / "same.png").read_bytes(),
        "larger": folder / "larger.png",
        "compressed": folder / "again.jpg",
        "array": np.asarray(picture),
    }


def test_a_no_is_never_tagged_again_for_that_picture(pets: Tagger, draw: Draw, tmp_path: Path) -> None:
    picture = draw(50, "dog")
    assert "dog" in pets.predict(picture)[0]
    pets.partial_fit([picture], [[]], absent=[["dog"]])
    column = pets.classes_.index("dog")
    kinds = copies(picture, tmp_path)
    for name, kind in kinds.items():
        assert "dog" not in pets.predict(kind, threshold=0)[0], name
        assert pets.predict_proba(kind)[0, column] == 0, name
        assert pets.predict_proba(kind)[0, column - 1] > 0, name
    for cache in (None, tmp_path / "cache", tmp_path / "cache"):
        for row in pets.tag(list(kinds.values()), cache=cache):
            assert row.scores["dog"] == 0
            assert "dog" not in row.tags
    assert pets.predict_proba([draw(51, "dog")])[0, column] > 0, "another picture is another matter"
    pets.partial_fit([picture], [["dog"]])
    assert "dog" in pets.predict(picture)[0], "until someone says otherwise"


def test_a_picture_of_a_label_keeps_it_although_a_copy_of_it_was_refused(pets: Tagger, draw: Draw) -> None:
    """Of what is said of copies of one picture, in whatever order, that of the most similar one holds."""
    picture, column = draw(50, "dog"), pets.classes_.index("dog")
    smaller = picture.resize((picture.width * 3 // 4, picture.height * 3 // 4))
    yes, no = ([picture], [["dog"]], [[]]), ([smaller], [[]], [["dog"]])
    for told in ([no, yes], [yes, no]):
        taught = copy.deepcopy(pets)
        for images, labels, absent in told:
            taught.partial_fit(images, labels, absent=absent)
        assert taught.predict_proba([smaller])[0, column] == 0
        assert "dog" in taught.predict(picture)[0]


def test_a_no_moves_its_label_gently(pets: Tagger, draw: Draw) -> None:
    """Pictures of it stay its own, and others go down, those like the refused one most."""
    column = pets.classes_.index("dog")
    dogs, like_it = (
        [draw(number, "dog") for number in range(60, 70)],
        [draw(number, "zebra") for number in range(60, 70)],
    )
    before = [pets.predict_proba(some)[:, column] for some in (dogs, like_it)]
    pets.partial_fit([draw(50, "zebra")], [[]], absent=[["dog"]])
    after = [pets.predict_proba(some)[:, column] for some in (dogs, like_it)]
    assert after[1].mean() < before[1].mean()
    assert after[0].mean() > 0.8 * before[0].mean()


def test_a_taught_picture_gets_its_label_back(pets: Tagger, draw: Draw) -> None:
    for number, label in enumerate(["dog", "cat", "sofa"] * 2):
        assert label in pets.predict(draw(number, label))[0]


LABELS = ("ant", "bee", "cow")
FACTS = st.fixed_dictionaries(
    {(picture, label): st.sampled_from(["yes", "no", "unknown"]) for picture in range(7) for label in LABELS}
)


def example(model: Model, number: int, told: Annotation) -> dict[str, Example]:
    places = np.random.default_rng(number).normal(size=(model.places, model.space.size)).astype(np.float32)
    return {f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}{number:048x}": Example.of(told, places)}


def teach(model: Model, bank: Bank, number: int, told: Annotation) -> Bank:
    definitions = {}
    for label in (*told.labels, *told.absent):
        guide = np.random.default_rng(len(label) + ord(label[0])).normal(size=model.space.size).astype(np.float32)
        guide /= np.linalg.norm(guide)
        definitions[label] = Definition("vector", vector=np.ones(3, np.float32), prototype=guide)
    return bank.learn(definitions, example(model, number, told), afresh=False)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(facts=FACTS, complete=st.sets(st.integers(0, 6)), data=st.data())
def test_teaching_in_any_order_is_teaching_at_once(
    model: Model, facts: dict[tuple[int, str], str], complete: set[int], data: st.DataObject
) -> None:
    """Noes and caps included, whatever was said before the last word, and whoever asked in between."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bank_module, "ANSWERS", 2)
        patch.setattr(bank_module, "UNNAMED", 2)
        words = [(*pair, answer) for pair, answer in facts.items() if answer != "unknown"]
        one_by_one = [
            (
                picture,
                Annotation(
                    *((frozenset({label}), frozenset()) if answer == "yes" else (frozenset(), frozenset({label})))
                ),
            )
            for picture, label, answer in words
        ]
        whole = Bank()
        for picture in range(7):
            yes, no = (
                frozenset(label for label in LABELS if facts[picture, label] == answer) for answer in ("yes", "no")
            )
            if told := Annotation(yes, no, picture in complete):
                whole = teach(model, whole, picture, told)
        first_words = [(picture, Annotation(told.absent, told.labels)) for picture, told in one_by_one]
        teachings = data.draw(st.permutations(first_words)) if data.draw(st.booleans()) else []
        teachings += data.draw(
            st.permutations([*one_by_one, *((each, Annotation(complete=True)) for each in complete)])
        )
        grown = Bank()
        for picture, told in teachings:
            grown = teach(model, grown, picture, told)
            if grown.classes and data.draw(st.booleans()):
                grown.classifier(model, data.draw(st.sampled_from(grown.classes)))
        assert grown.classes == whole.classes
        if whole.classes:
            queries = np.random.default_rng(99).normal(size=(5, model.places, model.space.size)).astype(np.float32)
            one, other = (classifiers_of(bank, model).logits(queries, model.strengths) for bank in (grown, whole))
            assert np.abs(one - other).max() < 1e-4


def test_the_latest_word_counts_in_whatever_it_is_said(model: Model) -> None:
    yes, no = Annotation(frozenset({"ant"})), Annotation(frozenset(), frozenset({"ant"}))
    for last, counts in ((yes, (1, 0)), (no, (0, 1))):
        bank = Bank()
        for told in (yes, no, yes, no, last):
            bank = teach(model, bank, 1, told)
        assert (len(bank.members["ant"]), len(bank.refused["ant"])) == counts


def test_a_hundred_answers_are_fitted_alike_whatever_came_first(model: Model) -> None:
    """Without any patch of the caps: 500 yeses and 100 that say nothing, both above them."""
    banks = []
    for order in (range(600), range(599, -1, -1)):
        examples: dict[str, Example] = {}
        for number in order:
            examples |= example(model, number, Annotation(frozenset({"ant" if number < 500 else "bee"})))
        half = dict(list(examples.items())[:300])
        definitions = dict.fromkeys(("ant", "bee"), Definition("none", explicit=True))
        banks.append(Bank().learn(definitions, half, afresh=False).learn(definitions, examples, afresh=False))
    ants = [bank.fit_set("ant") for bank in banks]
    assert ants[0] == ants[1]
    assert (len(ants[0].yes), len(ants[0].no), len(ants[0].unnamed)) == (bank_module.ANSWERS, 0, bank_module.UNNAMED)
    logits = [Classifiers.of([bank.classifier(model, "ant")]).bias for bank in banks]
    assert np.abs(logits[0] - logits[1]).max() < 1e-4


def test_a_word_for_a_thing_is_trusted_more_than_a_private_name_and_the_bank_keeps_which_it_is(
    tagger: Tagger, draw: Draw, tmp_path: Path
) -> None:
    pictures, names = [draw(1, "dog"), draw(2, "dog"), draw(3, "dog")], [["ball"], ["thursday"], ["daisy"]]
    tagger.fit(pictures, names).define("moon", like="ball")
    assert [tagger.definitions_[name].thing for name in ("ball", "moon", "thursday", "daisy")] == [1, 1, 0, 0.5]
    tagger.save(tmp_path / "pets.fewtag")
    again = Tagger.load(tmp_path / "pets.fewtag", model=tagger.model)
    assert [again.definitions_[name].thing for name in ("ball", "moon", "thursday", "daisy")] == [1, 1, 0, 0.5]


def test_a_name_is_compared_by_pictures_that_were_not_chosen_for_it(model: Model, draw: Draw) -> None:
    """Another label's example tells how far the name suits any picture; one that was asked about does not."""

    def trust(absent: list[str]) -> float:
        pictures = [draw(1, "dog"), draw(2, "dog", "cat")]
        return Tagger(model).fit(pictures, [["dog"], ["cat"]], absent=[[], absent]).trusts_["dog"]

    alone = Tagger(model).fit([draw(1, "dog")], [["dog"]]).trusts_["dog"]
    assert trust([]) < alone
    assert trust(["dog"]) == alone


def test_the_more_a_name_is_trusted_from_the_start_the_more_it_counts(
    tagger: Tagger, draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for prior in (0.1, 0.9):
        monkeypatch.setattr(bank_module, "THING", prior)
        found.append(tagger.fit([draw(1, "dog")], [["ball"]]).trusts_["ball"])
    assert found[0] < found[1]


def test_a_given_name_that_is_a_thing_as_well_is_believed_with_even_odds_before_its_picture(model: Model) -> None:
    """One picture has the same evidence for each: trusts differ by the priors' odds, 0.93, 0.49 and 0.05."""
    word, example = np.eye(model.space.size, dtype=np.float32)[0], np.ones((model.places, model.space.size), np.float32)
    odds = []
    for thing in (1.0, 0.5, 0.0):
        definition = bank_module.Definition("name", ("daisy",), word, word, thing=thing)
        examples = {"0" * 64: bank_module.Example.of(bank_module.Annotation(frozenset({"daisy"})), example)}
        trust = bank_module.Bank().learn({"daisy": definition}, examples, afresh=False).classifier(model, "daisy").trust
        odds.append(trust / (1 - trust))
    assert odds[0] / odds[1] == pytest.approx((0.93 / 0.07) / (0.49 / 0.51), rel=1e-3)
    assert odds[1] / odds[2] == pytest.approx((0.49 / 0.51) / (0.05 / 0.95), rel=1e-3)
