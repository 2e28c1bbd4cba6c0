"""Other ways to write an English word: number, British or American, run together."""

import difflib
import re
from collections.abc import Iterable, Iterator

# difflib takes some 10 µs a word, so that a typo is answered within a tenth of a second
CANDIDATES = 10_000

IRREGULAR_PLURALS = {
    "person": "people",
    "man": "men",
    "woman": "women",
    "child": "children",
    "mouse": "mice",
    "goose": "geese",
    "foot": "feet",
    "tooth": "teeth",
    "knife": "knives",
    "leaf": "leaves",
}
Rules = tuple[tuple[re.Pattern[str], str], ...]

# tried in this order, the first that matches is the rule
PLURALS: Rules = (
    (re.compile("([^aeiou])y$"), r"\1ies"),
    (re.compile("(s|x|z|ch|sh)$"), r"\1es"),
    (re.compile("(.)$"), r"\1s"),
)
SINGULARS: Rules = (
    (re.compile("([^aeiou])ies$"), r"\1y"),
    (re.compile("(s|x|z|ch|sh|o)es$"), r"\1"),
    (re.compile("([^s])s$"), r"\1"),
)

# (British, American, what may follow)
SPELLINGS = (
    ("our", "or", "|s|ed|ing|ful"),
    ("re", "er", "|s"),
    ("is", "iz", "e|es|ed|er|ing|ation"),
    ("ys", "yz", "e|es|ed|er|ing"),
    ("ll", "l", "ed|er|ers|ing"),
    ("ogue", "og", "|s"),
    ("ence", "ense", "|s"),
)
RESPELLINGS: Rules = tuple(
    (re.compile(f"{here}(?=({endings})$)"), there)
    for british, american, endings in SPELLINGS
    for here, there in ((british, american), (american, british))
)
SPELLING_EXCEPTIONS = {
    "aeroplane": "airplane",
    "aluminium": "aluminum",
    "doughnut": "donut",
    "grey": "gray",
    "jewellery": "jewelry",
    "kerb": "curb",
    "moustache": "mustache",
    "plough": "plow",
    "programme": "program",
    "pyjamas": "pajamas",
    "tyre": "tire",
    "yoghurt": "yogurt",
}


def split_label(label: str) -> list[str]:
    """The words of a label.

    >>> split_label("salt-and-pepper shaker/mill")
    ['salt', 'and', 'pepper', 'shaker', 'mill']
    """
    return [word for word in re.split(r"[\s\-_/]+", label) if word]


def variants(word: str) -> list[str]:
    """The spellings to try, likeliest first, the word itself at the head.

    >>> variants("Dog")[:3]
    ['Dog', 'dog', 'dogs']
    """
    lower = word.lower()
    tried = [word, lower, *other_number(lower)]
    # what is known by heart comes before what is made by rule, or `tyres` would be `tyers`
    for respell in (exceptional_spellings, regular_spellings):
        for spelling in (lower, *other_number(lower)):
            for other in respell(spelling):
                tried += [other, *other_number(other)]
    return list(dict.fromkeys(spelling for spelling in tried if spelling))


def other_number(word: str) -> Iterator[str]:
    """The singular of a plural, the plural of a singular."""
    for singular, plural in IRREGULAR_PLURALS.items():
        if word == plural:
            yield singular
        elif word == singular:
            yield plural
    yield from apply_first(SINGULARS, word)
    # of a word in -s too, which may be a singular such as `bus`
    yield from apply_first(PLURALS, word)


def apply_first(rules: Rules, word: str) -> Iterator[str]:
    """What the first rule for this ending makes of the word."""
    for ending, replacement in rules:
        if ending.search(word):
            yield ending.sub(replacement, word)
            return


def exceptional_spellings(word: str) -> Iterator[str]:
    """The American spelling of a British word and the reverse, by heart."""
    for british, american in SPELLING_EXCEPTIONS.items():
        if word == british:
            yield american
        elif word == american:
            yield british


def regular_spellings(word: str) -> Iterator[str]:
    """The same by rule; some are no words, and then found nowhere."""
    return (ending.sub(there, word) for ending, there in RESPELLINGS if ending.search(word))


def halves(word: str) -> Iterator[tuple[str, str]]:
    """Every way to see a run-together name as two words.

    >>> list(halves("tvset"))
    [('tv', 'set'), ('tvs', 'et')]
    """
    return ((word[:place], word[place:]) for place in range(2, len(word) - 1))


def spelt_like(word: str, known: Iterable[str], most: int) -> list[str]:
    """The known words, frequent ones first, spelt most like this one: same first letter and about as long."""
    word = word.lower()
    alike = [other for other in known if other[:1].lower() == word[:1] and abs(len(other) - len(word)) <= 2]
    return difflib.get_close_matches(word, alike[:CANDIDATES], n=most)
