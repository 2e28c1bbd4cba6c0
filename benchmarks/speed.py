"""How fast and how lean: every speed the project promises, measured side by side in one run.

    python benchmarks/speed.py --out results/speed [--pictures FOLDER] [--quick] [--only NAME ...]

writes results/speed.json and results/speed.md; `--only` measures these sections anew and keeps the rows of the others.
Contenders take turns and medians are compared, so that other load on the machine hits all of them; each row says its
commit and the load. The former commit comes from the project's own history. Pictures are drawn, unless `--pictures`
names a folder. `--quick` runs everything once on a few pictures: that it works, not how fast it is.
What a GPU does is measured there, by `python benchmarks/device.py`.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from environments import FORMER, former_environment, install_wheel, installed
from growth import growth
from http_load import throughput
from measuring import Figure
from product import Setting, cached, decoded_arrays, files, memory, photographs, ray, sidecars, start_up
from rivals import beside_easyfsl

from fewtag.files import write_atomically

SECTIONS = (
    *("wheel", "start", "arrays", "files", "photographs", "cache", "write", "memory", "http", "ray", "rivals"),
    "growth",
)


def figures(setting: Setting, wanted: Iterable[str]) -> Iterator[tuple[str, Figure]]:
    """Of the sections that are wanted, in order; what starts up is the wheel's own installation, if that was made."""
    python = install_wheel(setting.folder) if "wheel" in wanted else None
    sections: dict[str, Callable[[], Iterator[Figure]]] = {
        "wheel": lambda: installed(setting.folder, python) if python else iter(()),
        "start": lambda: start_up(setting, python),
        "arrays": lambda: decoded_arrays(setting),
        "files": lambda: files(setting),
        "photographs": lambda: photographs(setting),
        "cache": lambda: cached(setting),
        "write": lambda: sidecars(setting),
        "memory": lambda: memory(setting),
        "http": lambda: throughput(setting.bank, setting.small, setting.rounds),
        "ray": lambda: ray(setting),
        "rivals": lambda: beside_easyfsl(setting.rounds),
        "growth": lambda: growth(quick=setting.quick),
    }
    for name in SECTIONS:
        if name in wanted:
            yield from ((name, figure) for figure in sections[name]())


def page(about: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> str:
    """Markdown."""
    lines = [
        f"# Speed on {about['cores']} CPU cores\n",
        f"`{about['command']}`, beside commit {about['former']}, Python {about['python']}. Medians of contenders in "
        "turns; each row with its commit and the machine's load average when it was measured.\n",
        "| what | measured | promised | | commit, load |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        facts = "; ".join(f"{name} {value}" for name, value in row["facts"].items())
        mark = {True: "kept", False: "**missed**", None: ""}[row["kept"]]
        lines.append(
            f"| {row['what']} | {_number(row['value'])} {row['unit']} | {row['promise']} {mark} | {facts} "
            f"| {row['commit']}, {row['load']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/speed"))
    parser.add_argument("--pictures", type=Path, help="a folder of 512 pictures or more, instead of drawn ones")
    parser.add_argument("--quick", action="store_true", help="everything once, on a few pictures")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contender; their median counts")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, help="these sections alone")
    arguments = parser.parse_args()
    options = " --pictures FOLDER" * bool(arguments.pictures) + " --quick" * arguments.quick
    options += f" --rounds {arguments.rounds}" * (arguments.rounds != parser.get_default("rounds"))
    about = {
        "command": f"python benchmarks/speed.py{options}",
        "former": FORMER,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
    }
    table = arguments.out.with_suffix(".json")
    before = json.loads(table.read_bytes())["figures"] if table.exists() else []
    rows = [row for row in before if row["section"] not in arguments.only]
    since = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        setting = Setting(folder, former_environment(folder / "former"), arguments.pictures, quick=arguments.quick)
        setting.rounds = 1 if arguments.quick else arguments.rounds
        for section, figure in figures(setting, arguments.only):
            rows.append(figure.as_dict() | {"section": section})
            print(
                f"{time.perf_counter() - since:6.0f} s  {figure.what}: {_number(figure.value)} {figure.unit}",
                flush=True,
            )
    rows.sort(key=lambda row: SECTIONS.index(row["section"]))
    write_atomically(table, json.dumps(about | {"figures": rows}, indent=1, ensure_ascii=False).encode())
    written = page(about, rows)
    write_atomically(arguments.out.with_suffix(".md"), written.encode())
    print(written)


if __name__ == "__main__":
    main()
