"""Writes the tables of docs/models.md from results/*-coco52.json, between its marks.

    python scripts/models_page.py [--rows FOLDER]

With `--rows`, what `fewtag bench` wrote there for the recipes posterior, rivals, single and curve is first summed up in
results/shots-coco52.json: each run's means, and the posterior's lead on it over the same episodes.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from fewtag.files import write_atomically
from fewtag.research.bench.report.comparison import difference
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


def sizes(found: dict[str, Any]) -> list[str]:
    """`accurate` at its own size, and at a larger one with nothing fitted anew."""
    columns = [
        ("val", "1 examples"),
        *((phase, row) for row in ("1 examples", "5 examples") for phase in ("test", "mixed")),
    ]
    titles = [f"{row.replace('1 examples', '1 example')}, {phase}" for phase, row in columns]
    lines = [f"| `accurate` at | processor time | {' | '.join(titles)} |", "|---" * (len(columns) + 2) + "|"]
    for size in (224, 336):
        cells = [precision(found[f"{size}, {phase}, {row}"]) for phase, row in columns]
        lines.append(f"| {size} px | {found['processor_time_to_224'][str(size)]:.1f} | {' | '.join(cells)} |")
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


def summarise(folder: Path) -> dict[str, Any]:
    """Every run of the recipes, with the posterior's lead on it where both were measured on the same episodes."""
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
                if beside != file and beside.exists() and (lead := difference(read_rows(beside), rows, metric)):
                    each[f"{metric}_lead"] = [round(100 * lead.mean, 2), round(100 * lead.interval, 2)]
            found[f"{recipe}, {name.removesuffix('-all')}, {shots}, {phase}"] = each
    return found


def rivals(found: dict[str, Any], recipe: str, phase: str, title: str, tagger: dict[str, Any]) -> list[str]:
    """On the network of `default`: macro- and micro-AP after so many examples; starred where one is not behind."""
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
    star = " \\*" if any(lead <= interval for lead, interval in leads) else ""
    return f"{row['macro_ap']:.1f} / {row['micro_ap']:.1f}{star}"


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, help="the folder that `bench --out` wrote")
    if (rows := parser.parse_args().rows) is not None:
        write_atomically(SHOTS, json.dumps(summarise(rows), indent=1).encode())
    results = ROOT / "results"
    found = {model: json.loads((results / name).read_text()) for model, name in FILES.items()}
    held, better, archive, many = (
        json.loads((results / f"{name}-coco52.json").read_text())
        for name in ("sessions", "sessions-accurate", "archive", "many")
    )
    shots = json.loads(SHOTS.read_text())
    before, rest = PAGE.read_text().split(BEGIN)
    after = rest.split(END)[1]
    tables = [accuracy(found), sizes(json.loads((results / "sizes-coco52.json").read_text()))]
    tables += [rivals(shots, "rivals", phase, f"`{phase}`, examples:", found["default"]) for phase in ("test", "mixed")]
    tables += [
        rivals(shots, "single", phase, f"one label a picture, `{phase}`:", found["default"])
        for phase in ("test", "mixed")
    ]
    tables += [rivals(shots, "curve", "mixed", "at `mixed`'s own frequencies:", {}), honesty(found), bank_of_80(many)]
    tables += [
        sessions(held, "held out:"),
        sessions(better, "`accurate`, held out:"),
        sessions(archive, "the archive:"),
    ]
    lines = "\n\n".join("\n".join(table) for table in tables)
    PAGE.write_text(f"{before}{BEGIN}\n\n{lines}\n\n{END}{after}")


if __name__ == "__main__":
    main()
