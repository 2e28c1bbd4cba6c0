"""Writes the tables of the pages models, accuracy and names from results/*-coco52.json, each between its own marks.

    python scripts/models_page.py [--rows FOLDER]

With `--rows`, what `fewtag bench` wrote there for the recipes posterior, rivals, single and curve is first summed up in
results/shots-coco52.json: each run's means, and the posterior's lead on it over the same episodes.
"""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fewtag.files import write_atomically
from fewtag.research.bench.report.comparison import difference, widest_difference
from fewtag.research.bench.report.results import MeasuredRun
from fewtag.research.bench.results import mean_and_interval, read_rows

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "docs" / name for name in ("models.md", "accuracy.md", "names.md")]
TABLE = re.compile(r"<!-- table: (\w+) -->.*?<!-- end -->", flags=re.S)
PICTURES = {"test": "plain", "mixed": "crowded"}
FILES = {
    "default": "tagger-coco52.json",
    "accurate": "tagger-accurate-coco52.json",
    "accurate-336": "tagger-accurate-336-coco52.json",
}
ROWS = {
    "the name alone": "name alone",
    "the name alone, clean": "name alone, clean",
    "1 example": "1 examples",
    "1 example, clean names": "1 examples, clean",
    "1 example, no name": "1 examples, no words",
    "1 example, a private name": "1 examples, private names",
    "1 example, one label named a picture": "1 examples, one label a picture",
    "5 examples": "5 examples",
    "5 examples, one label named a picture": "5 examples, one label a picture",
    "20 examples": "20 examples",
}
SHARES = {
    "episodes'": "",
    "1 %, prior given": ", 1 %, prior given",
    "1 %, prior estimated": ", 1 %, prior estimated",
}

SHOTS = ROOT / "results" / "shots-coco52.json"
RIVALS = {
    "posterior": "the posterior",
    "closed-form": "closed form, with all names",
    "tip-adapter": "Tip-Adapter, with all names",
    "tip-adapter-whitened": "Tip-Adapter, whitened, with all names",
    "logistic-regression": "logistic regression",
    "logistic-regression-whitened": "logistic regression, whitened",
    "classifier": "linear classifier, 40 epochs",
    "classifier-whitened": "linear classifier, whitened",
    "knn": "nearest neighbours",
    "knn-whitened": "nearest neighbours, whitened",
    "protonet": "ProtoNet",
    "protonet-whitened": "ProtoNet, whitened",
}
LABELS = 16
ASKED = {"likeliest": "the likeliest", "unsure": "the most unsure", "mixed": "these in turns"}


EXPECTED = {
    "1 example": "1 examples",
    "5 examples": "5 examples",
    "5 examples; 1 % of pictures show the label, and you say so (`--prior 0.01`)": "5 examples, 1 %, prior given",
    "the same, share estimated": "5 examples, 1 %, prior estimated",
}


def expected(found: dict[str, Any]) -> list[str]:
    """What a person gets, at the tagger's own thresholds."""
    lines = [
        "| taught with | precision · recall, plain pictures | crowded pictures |",
        "|---|---|---|",
    ]
    for name, key in EXPECTED.items():
        rows = [found[f"{phase}, {key}"] for phase in PICTURES]
        cells = [f"{row['precision']:.0%} · {row['recall']:.0%}".replace("%", " %") for row in rows]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def precision(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    return f"{row['macro_ap']:.1f} / {row['micro_ap']:.1f} ± {row['macro_ap_interval']:.1f}"


def accuracy(found: dict[str, dict[str, Any]]) -> list[str]:
    columns = [(model, phase) for model in FILES for phase in PICTURES]
    titles = [f"`{model}`, `{phase}`" for model, phase in columns]
    lines = [f"| taught with | {' | '.join(titles)} |", "|---" * (len(columns) + 1) + "|"]
    for name, key in ROWS.items():
        cells = [precision(found[model].get(f"{phase}, {key}")) for model, phase in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def probabilities(found: dict[str, dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of the models' probabilities, each after the cells that say what it is of."""
    for model, rows in found.items():
        for phase, pictures in PICTURES.items():
            for share, key in SHARES.items():
                for shots in (1, 5):
                    cells = f"| `{model}` | {pictures} | {share} | {shots} |"
                    yield cells, rows[f"{phase}, {shots} examples{key}"]


def calibration(found: dict[str, dict[str, Any]]) -> list[str]:
    lines = [
        "| model | pictures | labels' share | examples | error | precision · recall | F1 · the best possible |",
        "|---|---|---|---|---|---|---|",
    ]
    for cells, row in probabilities(found):
        lines.append(
            f"{cells} {row['reliability_error']:.3f} | {row['precision']:.2f} · {row['recall']:.2f} | "
            f"{row['f1']:.3f} · {row['best_f1']:.3f} |"
        )
    return lines


def reliability(found: dict[str, dict[str, Any]]) -> list[str]:
    """The curve behind each calibration error, a column for each tenth from 20 % on."""
    tenths = [f"{tenth}0–{tenth + 1}0 %" for tenth in range(2, 10)]
    lines = [
        f"| model | pictures | labels' share | examples | {' | '.join(tenths)} |",
        "|---" * (4 + len(tenths)) + "|",
    ]
    for cells, row in probabilities(found):
        curve = [f"{said:.2f} → {true:.2f} ({count:,})" for said, true, count in row["reliability"]]
        assert len(curve) == len(tenths)
        lines.append(f"{cells} {' | '.join(curve)} |")
    return lines


def summarise(folder: Path) -> dict[str, Any]:
    """Every run of the recipes, with the posterior's lead on it where both were measured on the same episodes.

    A lead has its interval over episodes; that of macro-AP the one over labels, if that is wider.
    """
    found: dict[str, Any] = {}
    for recipe in ("posterior", "rivals", "single", "curve"):
        for file in sorted((folder / recipe).glob("*.parquet")):
            run, phase, _ = file.name.split(".")
            rows, (name, shots, _) = read_rows(file), run.rsplit("-", 2)
            own = {"single": f"posterior-single-{shots}", "curve": f"posterior-{shots}"}.get(
                recipe, f"posterior-all-{shots}"
            )
            beside = folder / ("posterior" if recipe == "rivals" else recipe) / f"{own}-shots.{phase}.parquet"
            each: dict[str, Any] = {"command": rows[0].command, "commit": rows[0].commit, "options": rows[0].options}
            for metric in ("macro_ap", "micro_ap"):
                mean, interval = mean_and_interval([100 * getattr(row, metric) for row in rows])
                each |= {metric: round(mean, 2), f"{metric}_interval": round(interval, 2)}
            if beside != file and beside.exists():
                ours, theirs = (
                    MeasuredRun(one.parent, one.name, "", {phase: read_rows(one)}) for one in (beside, file)
                )
                leads = {
                    "macro_ap": widest_difference(ours, theirs, phase),
                    "micro_ap": difference(ours.phases[phase], theirs.phases[phase], "micro_ap"),
                }
                each |= {
                    f"{metric}_lead": [round(100 * lead.mean, 2), round(100 * lead.interval, 2)]
                    for metric, lead in leads.items()
                    if lead
                }
            found[f"{recipe}, {name.removesuffix('-all')}, {shots}, {phase}"] = each
    return found


def rivals(found: dict[str, Any], recipe: str, phase: str, title: str, tagger: dict[str, Any]) -> list[str]:
    """On the network of `default`: macro- and micro-AP after so many examples, marked where one is not behind."""
    columns = sorted(
        {int(key.split(", ")[2]) for key in found if key.startswith(f"{recipe}, ") and key.endswith(phase)}
    )
    lines = [f"| {title} | {' | '.join(map(str, columns))} |", "|---" * (len(columns) + 1) + "|"]
    single = recipe == "single"
    named = {0: "name alone"} | {
        shots: f"{shots} examples{', one label a picture' * single}" for shots in columns if shots
    }
    calibrated = [tagger.get(f"{phase}, {named[shots]}") for shots in columns] if recipe != "curve" else []
    if calibrated:
        lines.append(f"| the tagger: the posterior, calibrated | {' | '.join(map(short, calibrated))} |")
    for name, shown in RIVALS.items():
        kind = "posterior" if (recipe, name) == ("rivals", "posterior") else recipe
        rows = [found.get(f"{kind}, {name}{'-single' * single}, {shots}, {phase}") for shots in columns]
        if any(rows):
            lines.append(f"| {shown} | {' | '.join(map(short, rows))} |")
    return lines


def short(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    leads = [row[f"{metric}_ap_lead"] for metric in ("macro", "micro") if f"{metric}_ap_lead" in row]
    if any(lead < -interval for lead, interval in leads):
        mark = " †"
    else:
        mark = " \\*" if any(lead <= interval for lead, interval in leads) else ""
    return f"{row['macro_ap']:.1f} / {row['micro_ap']:.1f}{mark}"


def sessions(found: dict[str, Any]) -> list[str]:
    """AP after so many answers: of the posterior, and its lead on the closed form of positives alone."""
    answers = found["answers"]
    lines = [
        f"| begins with | asks about | {' | '.join(f'{number} answers' for number in answers)} |",
        "|---" * (len(answers) + 2) + "|",
    ]
    for examples, start in {1: "one example", 0: "the name"}.items():
        for order, asks in ASKED.items():
            if mine := found.get(f"mixed, from {examples}, {order}, posterior"):
                cells = [
                    f"{ap:.1f} ({gain:+.1f} ± {interval:.1f})" if number or examples else f"{ap:.1f}"
                    for number, ap, (gain, interval) in zip(answers, mine["ap"], mine["gain"], strict=True)
                ]
                lines.append(f"| {start} | {asks} | {' | '.join(cells)} |")
    return lines


def bank_of_80(found: dict[str, Any]) -> list[str]:
    """Of labels with one example each: what is given at their own thresholds, and at that of the best F1."""
    lines = [
        "| a bank of 80 labels | tags | precision · recall | at the best F1 | F1 · the best possible |",
        "|---|---|---|---|---|",
    ]
    for labels in ("80 labels", "28 never seen"):
        for how in ("estimated", "default"):
            row = found[f"{labels}, prior {how}"]
            lines.append(
                f"| {labels}, prior {how} | {row['tags']:,} | {row['precision']:.2f} · {row['recall']:.2f} | "
                f"{row['best_precision']:.2f} · {row['best_recall']:.2f} | {row['f1']:.3f} · {row['best_f1']:.3f} |"
            )
    return lines


def tables() -> dict[str, list[str]]:
    """Every table of the pages, by the name in its mark."""
    results = ROOT / "results"
    found = {model: json.loads((results / name).read_text()) for model, name in FILES.items()}
    held, better, archive, many, spoken = (
        json.loads((results / f"{name}-coco52.json").read_text(encoding="utf-8"))
        for name in ("sessions", "sessions-accurate", "archive", "many", "languages")
    )
    shots, own = json.loads(SHOTS.read_text()), found["default"]
    return {
        "expected": expected(own),
        "accuracy": accuracy(found),
        "rivals_test": rivals(shots, "rivals", "test", "`test`, examples:", own),
        "rivals_mixed": rivals(shots, "rivals", "mixed", "`mixed`, examples:", own),
        "single_test": rivals(shots, "single", "test", "`test`, examples:", own),
        "single_mixed": rivals(shots, "single", "mixed", "`mixed`, examples:", own),
        "curve": rivals(shots, "curve", "mixed", "`mixed`, examples:", {}),
        "calibration": calibration(found),
        "reliability": reliability(found),
        "many": bank_of_80(many),
        "sessions": sessions(held),
        "sessions_accurate": sessions(better),
        "archive": sessions(archive),
        "languages": languages(spoken),
    }


def languages(found: dict[str, Any]) -> list[str]:
    """What names in other languages are worth; beside it, what they were while they were looked up as English."""

    def scores(*key: str) -> str:
        row = found.get(", ".join(key))
        return "–" if row is None else f"{row['macro_ap']:.1f} / {row['micro_ap']:.1f}"

    lines = [
        "| names in | plain pictures | looked up as English | crowded pictures | looked up as English | known |",
        "|---|---|---|---|---|---|",
    ]
    for key in [key for key in found if key.startswith("test, ") and not key.endswith(", not translated")]:
        name = key.removeprefix("test, ")
        cells = [scores(phase, name, *asked) for phase in PICTURES for asked in ((), ("not translated",))]
        row = found[key]
        known = f"{LABELS - len(row['unknown'])}, {len(row['translated'])} of them translated"
        plain = name in {"English", "no names", "private names"}
        lines.append(f"| {name} | {' | '.join(cells)} | {'–' if plain else known} |")
    return lines


def with_tables(page: str) -> str:
    """The page with each table made anew between its marks."""
    made = tables()
    return TABLE.sub(
        lambda mark: "\n".join([f"<!-- table: {mark[1]} -->", "", *made[mark[1]], "", "<!-- end -->"]), page
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, help="the folder that `bench --out` wrote")
    if (rows := parser.parse_args().rows) is not None:
        write_atomically(SHOTS, json.dumps(summarise(rows), indent=1).encode())
    for page in PAGES:
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
