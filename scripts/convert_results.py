"""Convert result rows of JSON lines, as fewtag wrote them before it wrote Parquet, and check that nothing is lost.

    python scripts/convert_results.py results

Every `<run>.<phase>.jsonl` under the folder becomes `<run>.<phase>.parquet` and is deleted once the rows read back
equal it, number for number. What an old row does not tell (device, torch, timm) is null.
"""

import json
import sys
from pathlib import Path
from typing import Any

from fewtag.errors import InputError
from fewtag.research.bench.results import ResultRow, read_rows, write_rows


def convert(path: Path) -> Path:
    """Writes the rows beside the old file, compares, and deletes the old one."""
    old = [json.loads(line) for line in path.read_text().splitlines()]
    converted = path.with_suffix(".parquet")
    if converted.exists():
        raise InputError(f"{converted} is there already; delete it or {path.name}, whichever is out of date")
    write_rows(converted, [_typed(row) for row in old])
    if [_untyped(row) for row in read_rows(converted)] != old:
        converted.unlink()
        raise InputError(f"{path} does not come back from Parquet as it is; it was kept")
    path.unlink()
    return converted


def _typed(row: dict[str, Any]) -> ResultRow:
    renamed = {**row, "options": json.dumps(row["options"]), "recipe_digest": row["recipe"]}
    del renamed["recipe"]
    return ResultRow(**renamed)


def _untyped(row: ResultRow) -> dict[str, Any]:
    """The row as it was in JSON, which left out what it did not tell."""
    told = {name: value for name, value in row.model_dump().items() if value is not None}
    told["recipe"] = told.pop("recipe_digest")
    return told


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    paths = sorted(folder.glob("**/*.jsonl"))
    try:
        for path in paths:
            convert(path)
    except InputError as error:
        sys.exit(str(error))
    print(f"converted {len(paths)} files")
