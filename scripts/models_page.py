"""Writes the tables of docs/models.md from results/*-coco52.json and rivals/, between its marks.

python scripts/models_page.py
"""

import json
from pathlib import Path
from typing import Any

from fewtag.research.bench.results import mean_and_interval, read_rows

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "models.md"
BEGIN, END = "<!-- tables -->", "<!-- end of tables -->"
FILES = {"default": "tagger-coco52.json", "accurate": "tagger-accurate-coco52.json"}
ROWS = {
    "the name alone": "name alone",
    "the name alone, clean": "name alone, clean",
    "1 example": "1 examples",
    "1 example, clean names": "1 examples, clean",
    "1 example, no name": "1 examples, no words",
    "1 example, a private name": "1 examples, private names",
    "1 example, one label a picture": "1 examples, one label a picture",
    "5 examples": "5 examples",
    "5 examples, one label a picture": "5 examples, one label a picture",
    "20 examples": "20 examples",
}
RARE = {
    f"{shots} example{'s' * (shots > 1)}, prior {how}": f"{shots} examples, 1 %, prior {how}"
    for shots in (1, 5)
    for how in ("given", "estimated")
}

RIVALS = {
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
ASKED = {"likeliest": "the likeliest", "unsure": "the most unsure", "mixed": "these in turns"}


def precision(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    return f"{row['macro_ap']:.1f} / {row['micro_ap']:.1f} ± {row['macro_ap_interval']:.1f}"


def accuracy(found: dict[str, dict[str, Any]]) -> list[str]:
    lines = ["| | `default`, test | `default`, mixed | `accurate`, test | `accurate`, mixed |", "|---|---|---|---|---|"]
    for name, key in ROWS.items():
        cells = [precision(found[model].get(f"{phase}, {key}")) for model in FILES for phase in ("test", "mixed")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def reliability(row: dict[str, Any]) -> str:
    return ", ".join(f"{said:.2f} → {true:.2f} ({count:,})" for said, true, count in row["reliability"])


def honesty(found: dict[str, dict[str, Any]]) -> list[str]:
    lines = ["| | error | said → true (pairs) | precision · recall | best F1 · own |", "|---|---|---|---|---|"]
    usual = {name: ROWS[name] for name in ("1 example", "5 examples")}
    for model, rows in found.items():
        for phase in ("test", "mixed"):
            for name, key in {**usual, **{f"1 %, {rare}": key for rare, key in RARE.items()}}.items():
                row = rows[f"{phase}, {key}"]
                lines.append(
                    f"| `{model}`, {phase}, {name} | {row['reliability_error']:.3f} | {reliability(row)} | "
                    f"{row['precision']:.2f} · {row['recall']:.2f} | {row['best_f1']:.3f} · {row['f1']:.3f} |"
                )
    return lines


def rivals(found: dict[str, Any]) -> list[str]:
    """Of the network of `default`: its own classifier beside the methods of recipes/rivals.toml."""
    columns = [(shots, phase) for shots in (1, 5) for phase in ("test", "mixed")]
    titles = [f"{shots} example{'s' * (shots > 1)}, {phase}" for shots, phase in columns]
    lines = [f"| | {' | '.join(titles)} |", "|---" * (len(columns) + 1) + "|"]
    own = [precision(found[f"{phase}, {shots} examples"]) for shots, phase in columns]
    lines.append(f"| the tagger's posterior | {' | '.join(own)} |")
    for name, title in RIVALS.items():
        files = [ROOT / "results" / "rivals" / f"{name}-{shots}-shots.{phase}.parquet" for shots, phase in columns]
        if any(file.exists() for file in files):
            lines.append(f"| {title} | {' | '.join(measured(file) for file in files)} |")
    return lines


def measured(file: Path) -> str:
    if not file.exists():
        return precision(None)
    rows = read_rows(file)
    macro, interval = mean_and_interval([100 * row.macro_ap for row in rows])
    micro, _ = mean_and_interval([100 * row.micro_ap for row in rows])
    return precision({"macro_ap": macro, "micro_ap": micro, "macro_ap_interval": interval})


def sessions(found: dict[str, Any], title: str) -> list[str]:
    """AP after so many answers: of the posterior, and its lead on the closed form of positives alone."""
    answers = found["answers"]
    lines = [
        f"| {title} begins with | asks about | {' | '.join(f'{number} answers' for number in answers)} |",
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
        "| a bank of 80 labels | tags | precision · recall | at the best F1 | F1 · best |",
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


def main() -> None:
    found = {model: json.loads((ROOT / "results" / name).read_text()) for model, name in FILES.items()}
    held, archive, many = (
        json.loads((ROOT / "results" / f"{name}-coco52.json").read_text()) for name in ("sessions", "archive", "many")
    )
    before, rest = PAGE.read_text().split(BEGIN)
    after = rest.split(END)[1]
    tables = [accuracy(found), rivals(found["default"]), honesty(found), bank_of_80(many)]
    tables += [sessions(held, "held out:"), sessions(archive, "the archive:")]
    lines = "\n\n".join("\n".join(table) for table in tables)
    PAGE.write_text(f"{before}{BEGIN}\n\n{lines}\n\n{END}{after}")


if __name__ == "__main__":
    main()
