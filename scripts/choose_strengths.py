"""Names the best strengths of each method in a search by grids, and says where one is at the end of its grid.

    fewtag bench recipes/rivals-search.toml --data DIR --out search
    python scripts/choose_strengths.py search

Runs that differ only in their shots are one setting; settings are compared by the mean of macro- and micro-AP over
shots and phases.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from fewtag.research.bench.results import ResultRow, read_rows


class System(NamedTuple):
    """What strengths are chosen for."""

    method: str
    backbone: str
    words: str
    names: str | None
    whitened: bool


Setting = tuple[tuple[str, object], ...]
"""Options and the space, sorted by name."""


def read_search(folder: Path) -> dict[System, dict[Setting, float]]:
    """Each system's settings with the mean of both precisions, in percent, over shots and phases."""
    found: dict[System, dict[Setting, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(folder.glob("**/*.parquet")):
        rows = read_rows(path)
        system, setting = system_of(rows[0])
        found[system][setting].append(100 * fmean((row.macro_ap + row.micro_ap) / 2 for row in rows))
    return {
        system: {setting: fmean(values) for setting, values in settings.items()} for system, settings in found.items()
    }


def system_of(row: ResultRow) -> tuple[System, Setting]:
    options = {**row.options, **({"space": row.space} if row.space else {})}
    return System(row.method, row.backbone, row.words, row.names, row.space is not None), tuple(sorted(options.items()))


def at_an_end(best: Setting, settings: list[Setting]) -> list[str]:
    """The options in which the best has the least or the greatest of more than two numbers tried."""
    found = []
    for option, value in best:
        tried = {dict(setting)[option] for setting in settings}
        numbers = sorted(each for each in tried if isinstance(each, int | float) and not isinstance(each, bool))
        if len(numbers) > 2 and value in (numbers[0], numbers[-1]):
            found.append(option)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("search", type=Path, help="the folder that `bench --out` wrote")
    chosen = []
    for system, settings in read_search(parser.parse_args().search).items():
        best = max(settings, key=lambda setting: settings[setting])
        ends = at_an_end(best, list(settings))
        chosen.append({**system._asdict(), "settings": len(settings), "mean_ap": round(settings[best], 2)})
        chosen[-1] |= {"best": dict(best), "at_an_end": ends}
    print(json.dumps(chosen, indent=1))


if __name__ == "__main__":
    main()
