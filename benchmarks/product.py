"""What the product promises of start-up, arrays, files, cache, memory and Ray, beside what else one could use."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import plain
from drawn import gather, make_bank, write_jpegs, write_large
from environments import fit_former_network
from measuring import Figure, Usage, answer, in_turns, peak_megabytes, run, seconds_of

from fewtag import Tagger

HERE = Path(__file__).parent
BENCH = dict(os.environ)


class Setting:
    """A folder to work in, how much to measure, and the engine of a former commit to measure beside."""

    def __init__(self, folder: Path, former: Mapping[str, str], pictures: Path | None, *, quick: bool) -> None:
        self.folder, self.former, self.quick = folder, former, quick
        self.rounds = 1 if quick else 5
        self.bank, self.former_bank = folder / "bank.fewtag", folder / "former.fewtag"
        self.tagger = make_bank(self.bank)
        self.small = folder / "small"
        count = 48 if quick else 512
        if pictures is None:
            write_jpegs(self.small, count, (500, 375))
        else:
            gather(pictures, self.small, count)
        self.count = len(list(self.small.iterdir()))
        self.one = sorted(self.small.iterdir())[0]

    def fewtag(self, *arguments: object, environment: Mapping[str, str] | None = None) -> Usage:
        return run([sys.executable, "-m", "fewtag", *map(str, arguments)], environment or BENCH)

    def make_former_bank(self) -> Path:
        """The same labels, as the former commit keeps them."""
        if not self.former_bank.exists():
            program = (
                "import sys; from fewtag import Tagger; tagger = Tagger(); "
                "[tagger.define(label) for label in sys.argv[2:]]; tagger.save(sys.argv[1])"
            )
            run([sys.executable, "-c", program, str(self.former_bank), *self.tagger.classes_], self.former)
        return self.former_bank


COMMANDS = {
    "labels": (("labels", "BANK"), "≤ 0.5"),
    "tag of one picture": (("tag", "BANK", "PICTURE", "--out", "TABLE"), "≤ 1.5"),
    "define": (("define", "BANK", "zebra"), ""),
    "forget": (("forget", "BANK", "zebra"), ""),
}


def start_up(setting: Setting, python: Path | None) -> Iterator[Figure]:
    """Processor time of commands, in the environment of the wheel alone where there is one."""
    bare = {key: value for key, value in BENCH.items() if key != "PYTHONPATH"}
    programs = {
        "ours": (setting.bank, str(python or sys.executable), BENCH if python is None else bare),
        "former": (setting.make_former_bank(), sys.executable, setting.former),
    }

    def processor(who: str, arguments: tuple[str, ...]) -> float:
        bank, program, environment = programs[who]
        table = setting.folder / "one.csv"
        table.unlink(missing_ok=True)
        names = {"BANK": str(bank), "PICTURE": str(setting.one), "TABLE": str(table)}
        if arguments[0] == "forget":
            run([program, "-m", "fewtag", "define", str(bank), "zebra"], environment)
        return run([program, "-m", "fewtag", *(names.get(word, word) for word in arguments)], environment).processor

    for name, (arguments, promise) in COMMANDS.items():
        contenders = {who: partial(processor, who, arguments) for who in programs}
        in_turns(contenders, 1)
        found = in_turns(contenders, min(setting.rounds, 3))
        facts: dict[str, float | str] = {
            "former": f"{found['former']:.2f} s",
            "times as fast": round(found["former"] / found["ours"], 1),
        }
        yield Figure(f"`fewtag {name}`, processor time", found["ours"], "s", promise, facts)


def decoded_arrays(setting: Setting) -> Iterator[Figure]:
    """`tagger.tag` beside the bare session in its several ways; the ratio is to the fastest of them."""
    tagger = setting.tagger
    count, size = (24 if setting.quick else 192), tagger.model.size
    arrays = np.random.default_rng(0).integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    pixels = np.ascontiguousarray(arrays.transpose(0, 3, 1, 2))
    graph, space = str(tagger.model.network.graph), space_of(tagger)
    contenders = {"tagger.tag": seconds_of(lambda: list(tagger.tag(list(arrays))))}
    for way in plain.WAYS:
        contenders[way] = seconds_of(plain.over_arrays(graph, space, pixels, way))
    in_turns(contenders, 1)
    rates = {name: count / seconds for name, seconds in in_turns(contenders, setting.rounds).items()}
    yield beside_best(
        "`tagger.tag` of decoded arrays beside a bare onnxruntime session", rates, "tagger.tag", plain.WAYS
    )


def files(setting: Setting) -> Iterator[Figure]:
    """`fewtag tag` beside plain loops of decoding threads and session, and beside the former commit's torch engine."""
    space = setting.folder / "space.npz"
    np.savez(space, **space_of(setting.tagger))  # type: ignore[arg-type]  # numpy takes one name for a flag
    model, former, same = setting.tagger.model, setting.make_former_bank(), setting.folder / "same.fewtag"
    make_bank(same, fit_former_network(setting.folder, BENCH))

    def loop(way: str) -> float:
        arguments = (HERE / "plain.py", model.network.graph, space, setting.small, model.size, way)
        return float(run([sys.executable, *map(str, arguments)]).output)

    contenders: dict[str, Callable[[], float]] = {
        "fewtag": lambda: tag(setting, setting.bank, BENCH, "--no-cache", "--prior", "bank"),
        "former": lambda: tag(setting, former, setting.former, "--no-cache"),
        "same": lambda: tag(setting, same, BENCH, "--no-cache", "--prior", "bank"),
        **{way: partial(loop, way) for way in plain.WAYS},
    }
    rates = {name: setting.count / seconds for name, seconds in in_turns(contenders, setting.rounds).items()}
    yield beside_best("`fewtag tag` of files beside the best plain loop", rates, "fewtag", plain.WAYS)
    for what, name, promise in (("EfficientNet-Lite2 in both", "same", "≥ 1.1"), ("today's network", "fewtag", "")):
        facts = {"fewtag pictures/s": round(rates[name], 1), "former pictures/s": round(rates["former"], 1)}
        row = f"`fewtag tag` of files beside the former torch engine: {what}"
        yield Figure(row, rates[name] / rates["former"], "×", promise, facts)


def photographs(setting: Setting) -> Iterator[Figure]:
    """The models on photographs as cameras make them, most of whose time is decoding."""
    count = 8 if setting.quick else 96
    folder = write_jpegs(setting.folder / "12", count, (4000, 3000), different=8)
    banks = {"default": setting.bank} | {name: setting.folder / name for name in ("accurate", "accurate-336")}
    plainly = ("--no-cache", "--prior", "bank")
    contenders = {}
    for name, bank in banks.items():
        if bank != setting.bank:
            make_bank(bank, name)
        contenders[name] = partial(tag, setting, bank, BENCH, *plainly, folder=folder)
    rates = {name: count / seconds for name, seconds in in_turns(contenders, min(setting.rounds, 3)).items()}
    for name in list(banks)[1:]:
        facts = {f"{each} pictures/s": round(rates[each], 1) for each in ("default", name)}
        row = f"`fewtag tag` of JPEGs of 12 megapixels: `{name}` beside `default`"
        yield Figure(row, rates[name] / rates["default"], "×", "", facts)


def cached(setting: Setting) -> Iterator[Figure]:
    """From the cache, with 16 labels; the first run fills it."""
    folder = write_jpegs(setting.folder / "many", 96 if setting.quick else 2048, (500, 375))
    count = len(list(folder.iterdir()))
    # without the look at 256 pictures by which priors are estimated first
    cache = ("--cache", str(setting.folder / "cache"), "--prior", "bank")
    cold = tag(setting, setting.bank, BENCH, *cache, folder=folder)
    warm = in_turns(
        {"warm": lambda: tag(setting, setting.bank, BENCH, *cache, folder=folder, known=count)}, setting.rounds
    )
    facts = {"pictures": count, "pictures/s into the cache": round(count / cold, 1)}
    yield Figure("from the cache, 16 labels", count / warm["warm"], "pictures/s", "≥ 3000", facts)


def sidecars(setting: Setting) -> Iterator[Figure]:
    """`fewtag write` of a table as `tag` writes it, beside pictures that have no sidecars yet; and back again."""
    count = 200 if setting.quick else 10_000
    folder, table = write_jpegs(setting.folder / "written", count, (500, 375)), setting.folder / "written.csv"
    rows = [f"{path.name},dog;birds/heron;sofa\n" for path in sorted(folder.iterdir())]
    table.write_text("image,tags\n" + "".join(rows))
    environment = BENCH | {"XDG_CACHE_HOME": str(setting.folder / "locks")}
    for what, arguments in {"written": ("write", table, folder), "taken back": ("write", folder, "--undo")}.items():
        used = setting.fewtag(*arguments, environment=environment)
        assert len(list(folder.glob("*.xmp"))) == (count if what == "written" else 0)
        facts = {"processor seconds": round(used.processor, 1)}
        promise = "≤ 60" if what == "written" else ""
        yield Figure(f"sidecars of {count:,} tagged pictures, {what}", used.seconds, "s", promise, facts)


def memory(setting: Setting) -> Iterator[Figure]:
    """Peak memory of `tag` and `learn` with photographs of 24 megapixels."""
    large = write_large(setting.folder / "large" / "sunset", 4 if setting.quick else 32)
    pictures = {"pictures": len(list(large.iterdir()))}
    cache = ("--cache", str(setting.folder / "cache-large"))
    commands = {
        "tag": ("tag", setting.bank, large, "--out", setting.folder / "large.csv", *cache),
        "learn": ("learn", setting.folder / "large.fewtag", large.parent),
    }
    for name, arguments in commands.items():
        peak = peak_megabytes([sys.executable, "-m", "fewtag", *map(str, arguments)])
        yield Figure(f"peak memory of `{name}`, 24-megapixel JPEG and PNG", peak, "MB", "≤ 700", pictures)


def ray(setting: Setting) -> Iterator[Figure]:
    """Two workers beside the local engine, once the first is up; a minute's pictures, as the second comes later."""
    startup = []
    plainly = ("--no-cache", "--prior", "bank")
    count = 48 if setting.quick else round(60 * setting.count / tag(setting, setting.bank, BENCH, *plainly))
    folder = write_jpegs(setting.folder / "shared", count, (500, 375))

    def on_ray() -> float:
        out = setting.folder / "ray.csv"
        out.unlink(missing_ok=True)
        arguments = ("--out", out, "--no-cache", "--prior", "bank", "--engine", "ray", "--workers", 2, "--json")
        said = answer(setting.fewtag("tag", setting.bank, folder, *arguments))
        startup.append(said["startup_seconds"])
        return float(said["seconds"])

    local = {"local": lambda: tag(setting, setting.bank, BENCH, *plainly, folder=folder), "ray": on_ray}
    found = in_turns(local, 1 if setting.quick else 2)
    facts = {name: round(count / seconds, 1) for name, seconds in found.items()}
    facts["seconds until the first worker is up"] = round(min(startup), 1)
    yield Figure("Ray with two workers beside the local engine", found["local"] / found["ray"], "×", "≥ 0.9", facts)


def tag(
    setting: Setting,
    bank: Path,
    environment: Mapping[str, str],
    *options: str,
    folder: Path | None = None,
    known: int = 0,
) -> float:
    """Seconds of `fewtag tag` over a folder, its start-up not counted; so many must have come from the cache."""
    out = setting.folder / "tags.csv"
    out.unlink(missing_ok=True)
    folder = folder or setting.small
    said = answer(setting.fewtag("tag", bank, folder, "--out", out, "--json", *options, environment=environment))
    assert said["cached"] == known, f"{said['cached']} came from the cache, {known} were expected"
    return float(said["seconds"])


def space_of(tagger: Tagger) -> dict[str, np.ndarray]:
    """What the graph takes besides pixels."""
    model = tagger.model
    return {"mean": model.space.mean, "basis": model.space.basis, **model.network.constants}


def beside_best(what: str, rates: Mapping[str, float], ours: str, others: Mapping[str, object]) -> Figure:
    best = max(others, key=lambda name: rates[name])
    facts: dict[str, float | str] = {f"{name}, pictures/s": round(rates[name], 1) for name in (ours, *others)}
    return Figure(what, rates[ours] / rates[best], "×", "≥ 0.95", facts | {"best": best})
