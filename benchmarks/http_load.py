"""The HTTP API under load: its pictures a second beside `fewtag tag`, and ten times more requests than it can answer.

    python benchmarks/http_load.py [--minutes 10] [--pictures FOLDER] [--quick] [--out results/http.json]

Server and clients are processes of their own, which share the machine's cores. First 16 clients send every picture of a
folder once, in turns with `fewtag tag` of the same files; then, for so many minutes, 64 clients send 16 pictures at a
time, on and on, and do not wait when they are told to. Every row is compared with the first answer to its picture.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

from drawn import gather, make_bank, write_jpegs
from measuring import Figure, answer, in_turns, run

from fewtag.client import ApiError, Client, Row
from fewtag.files import write_atomically

CLIENTS, IMPATIENT, PORTION = 16, 64, 16


@contextmanager
def served(bank: Path) -> Iterator[tuple[Client, int]]:
    """A server of its own process, without a cache, ready; and its process id."""
    command = [sys.executable, "-m", "fewtag", "serve", str(bank), "--port", "0", "--json", "--no-cache", "--read-only"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        client = Client(first["url"], first["token"])
        while not client.ready():
            time.sleep(0.1)
        try:
            yield client, process.pid
        finally:
            process.terminate()


def ask(client: Client, folder: Path, *, seconds: float | None = None, portion: int = 1) -> dict[str, Any]:
    """What `clients` says of its run, in a process of its own."""
    options = ["--portion", str(portion), *([] if seconds is None else ["--seconds", str(seconds)])]
    environment = os.environ | {"FEWTAG_TOKEN": client._token}
    return answer(run([sys.executable, __file__, "clients", client.url, str(folder), *options], environment))


def send_all(client: Client, files: list[Path], portion: int) -> dict[str, Any]:
    """Every file once, by 16 clients; a busy server is waited for."""
    requests = [files[first : first + portion] for first in range(0, len(files), portion)]
    since = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        rows = [row for some in pool.map(client.tag, requests) for row in some]
    seconds = time.perf_counter() - since
    return {"seconds": seconds, "pictures": len(rows), "failed": sum(bool(row.failure) for row in rows)}


def send_on(client: Client, files: list[Path], seconds: float) -> dict[str, Any]:
    """On and on, by clients that are told to wait and do not."""
    impatient, until = Client(client.url, client._token, patience=0.0), time.monotonic() + seconds
    statuses: Counter[str] = Counter()
    first: dict[Path, Row] = {}
    wrong, lock = list[str](), threading.Lock()

    def go_on(number: int) -> None:
        while time.monotonic() < until:
            number += PORTION
            chosen = [files[each % len(files)] for each in range(number, number + PORTION)]
            try:
                rows = impatient.tag(chosen)
            except ApiError as error:
                with lock:
                    statuses[str(error.status)] += 1
                time.sleep(0.05)
                continue
            with lock:
                statuses["200"] += 1
                for path, row in zip(chosen, rows, strict=True):
                    known = first.setdefault(path, row)
                    # the same picture in another batch may differ in its last digits
                    far = max((abs(row.scores[each] - known.scores[each]) for each in row.scores), default=1.0)
                    if row.image != str(path) or far > 1e-4:
                        wrong.append(str(path))

    with ThreadPoolExecutor(IMPATIENT) as pool:
        list(pool.map(go_on, range(0, IMPATIENT * 7, 7)))
    return {"statuses": statuses, "wrong": wrong, "seconds": time.monotonic() - until + seconds}


def throughput(bank: Path, folder: Path, rounds: int) -> Iterator[Figure]:
    """16 clients beside the command line, in turns."""
    count = len(list(folder.iterdir()))

    def tag() -> float:
        with tempfile.TemporaryDirectory() as out:
            table = Path(out) / "tags.csv"
            command = [sys.executable, "-m", "fewtag", "tag", str(bank), str(folder), "--out", str(table)]
            return answer(run([*command, "--no-cache", "--prior", "bank", "--json"]))["seconds"]

    with served(bank) as (client, _):
        contenders = {
            "fewtag tag": tag,
            "one a request": lambda: ask(client, folder)["seconds"],
            "eight a request": lambda: ask(client, folder, portion=8)["seconds"],
        }
        in_turns(contenders, 1)
        rates = {name: count / seconds for name, seconds in in_turns(contenders, rounds).items()}
    for name in ("one a request", "eight a request"):
        facts = {f"{who} pictures/s": round(rate, 1) for who, rate in rates.items() if who in {name, "fewtag tag"}}
        yield Figure(
            f"HTTP, 16 clients, {name}, beside `fewtag tag`", rates[name] / rates["fewtag tag"], "×", "≥ 0.9", facts
        )


def megabytes(process: int) -> float:
    """Of the server and of the processes that decode for it; memory that they share counts once."""
    children, found = list[str](), 0
    for thread in Path(f"/proc/{process}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            children += (thread / "children").read_text().split()
    for each in (process, *children):
        with suppress(FileNotFoundError, ProcessLookupError):
            rollup = Path(f"/proc/{each}/smaps_rollup").read_text()
            found += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return found / 1024


def overload(bank: Path, folder: Path, minutes: float) -> Iterator[Figure]:
    """Memory and answers while far more is asked for than can be answered."""
    with served(bank) as (client, process):
        ask(client, folder)
        sizes, over = list[float](), threading.Event()

        def watch() -> None:
            while not over.wait(0.5):
                sizes.append(megabytes(process))

        with ThreadPoolExecutor(1) as pool:
            watcher = pool.submit(watch)
            found = ask(client, folder, seconds=60 * minutes)
            over.set()
        watcher.result()  # if it failed, there is no memory to tell of
        alone = ask(client, folder)
    rate = alone["pictures"] / alone["seconds"]
    asked, answered = sum(found["statuses"].values()), found["statuses"].get("200", 0)
    others = {status: count for status, count in found["statuses"].items() if status not in {"200", "503"}}
    facts: dict[str, float | str] = {
        "minutes": minutes,
        "requests": asked,
        "answered": answered,
        "asked for, times its capacity": round(PORTION * asked / found["seconds"] / rate, 1),
        "neither 200 nor 503": str(others),
        "pictures/s under load": round(PORTION * answered / found["seconds"], 1),
        "pictures/s alone": round(rate, 1),
    }
    early = max(sizes[: max(1, len(sizes) // 10)])
    yield Figure("HTTP under overload: wrong answers", len(found["wrong"]) + sum(others.values()), "", "≤ 0", facts)
    yield Figure("HTTP under overload: peak of the server's memory", max(sizes), "MB", "≤ 1000")
    yield Figure("HTTP under overload: memory at its end beside its beginning", max(sizes[-5:]) / early, "×", "≤ 1.2")


def main() -> None:
    """As the module says; `clients` is how it calls itself."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=0.5)
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, count = Path(name), 48 if options.quick else 512
        bank, pictures = folder / "bank.fewtag", folder / "pictures"
        make_bank(bank)
        if options.pictures is None:
            write_jpegs(pictures, count, (500, 375))
        else:
            gather(options.pictures, pictures, count)
        found = []
        for figure in chain(
            throughput(bank, pictures, 1 if options.quick else 5),
            overload(bank, pictures, 0.1 if options.quick else options.minutes),
        ):
            found.append(figure.as_dict())
            print(json.dumps(found[-1], ensure_ascii=False), flush=True)
        if options.out is not None:
            write_atomically(options.out, json.dumps(found, indent=1, ensure_ascii=False).encode())


def clients() -> None:
    """16 clients that send all of a folder, or impatient ones for so many seconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--portion", type=int, default=1)
    parser.add_argument("--seconds", type=float)
    options = parser.parse_args(sys.argv[2:])
    client, files = Client(options.url, os.environ["FEWTAG_TOKEN"]), sorted(options.folder.iterdir())
    if options.seconds is None:
        print(json.dumps(send_all(client, files, options.portion)))
    else:
        print(json.dumps(send_on(client, files, options.seconds)))


if __name__ == "__main__":
    clients() if sys.argv[1:2] == ["clients"] else main()
