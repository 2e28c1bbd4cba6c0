"""Spelling variants of an English word: singular and plural, British and American, compounds written as one."""

import difflib
import re
from collections.abc import Iterable, Iterator

# difflib takes some 10 µs a word, so that a typo is answered within a tenth of a second
CANDIDATES = 10_000

_PLURALS = {
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
IRREGULAR = _PLURALS | {plural: singular for singular, plural in _PLURALS.items()}
"""Irregular plurals by their singulars, and the reverse."""
Rules = tuple[tuple[re.Pattern[str], str], ...]

# tried in this order; the first that matches applies
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
_AMERICAN = {
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
RESPELT = _AMERICAN | {american: british for british, american in _AMERICAN.items()}
"""Irregular American spellings by the British ones, and the reverse."""


def split_label(label: str) -> list[str]:
    """The words of a label.

    >>> split_label("salt-and-pepper shaker/mill")
    ['salt', 'and', 'pepper', 'shaker', 'mill']
    """
    return [word for word in re.split(r"[\s\-_/]+", label) if word]


def variants(word: str) -> list[str]:
    """The spellings to try, likeliest first, starting with the word itself.

    >>> variants("Dog")[:3]
    ['Dog', 'dog', 'dogs']
    """
    numbers = (word.lower(), *other_number(word.lower()))
    by_heart = [RESPELT[each] for each in numbers if each in RESPELT]
    # some of these are no words, and will not be found in any table
    by_rule = [rule.sub(there, each) for each in numbers for rule, there in RESPELLINGS if rule.search(each)]
    tried = [word, *numbers]
    for other in by_heart + by_rule:  # irregular ones first, or `tyres` would become `tyers`
        tried += [other, *other_number(other)]
    return list(dict.fromkeys(spelling for spelling in tried if spelling))


def other_number(word: str) -> Iterator[str]:
    """The singular of a plural, the plural of a singular: both for a word in -s, which may be a singular (`bus`)."""
    yield from singulars(word)
    yield from _by_first_rule(word, PLURALS)


def singulars(word: str) -> Iterator[str]:
    """What a word may be the plural of; for an irregular singular its plural, too."""
    if word in IRREGULAR:
        yield IRREGULAR[word]
    yield from _by_first_rule(word, SINGULARS)


def _by_first_rule(word: str, rules: Rules) -> Iterator[str]:
    for ending, replacement in rules:
        if ending.search(word):
            yield ending.sub(replacement, word)
            return


def halves(word: str) -> Iterator[tuple[str, str]]:
    """Every split of a run-together name into two words.

    >>> list(halves("tvset"))
    [('tv', 'set'), ('tvs', 'et')]
    """
    return ((word[:cut], word[cut:]) for cut in range(2, len(word) - 1))


def spelt_like(word: str, known: Iterable[str], most: int) -> list[str]:
    """The known words, given by frequency, that are spelt most like this one: same first letter, similar length."""
    word = word.lower()
    alike = [other for other in known if other[:1].lower() == word[:1] and abs(len(other) - len(word)) <= 2]
    return difflib.get_close_matches(word, alike[:CANDIDATES], n=most)
