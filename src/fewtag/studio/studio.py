"""The studio: every action on a project as a method. Threads may share one instance."""

import math
import os
import shutil
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from PIL.Image import Transpose

from fewtag.errors import InputError, MissingError, UnknownWordError
from fewtag.files import user_cache_folder
from fewtag.pictures.decode import decode, pixel_digest
from fewtag.pictures.prefetch import batches
from fewtag.studio import first_page, values
from fewtag.studio.background import Background
from fewtag.studio.derive import Deriver, by_word, told_in
from fewtag.studio.heat import Heat
from fewtag.studio.index import Indexer
from fewtag.studio.library import RESIDENT, Features, Library
from fewtag.studio.log import VERDICTS, Change, Fold, Said, Verdict, told
from fewtag.studio.pages import Pages
from fewtag.studio.project import FileRow, Project, picture_folders
from fewtag.studio.ranking import Ranking
from fewtag.studio.values import AUDIT, MOST_AT_ONCE, STACK, Progress
from fewtag.tagger.bank import define, path_name, renamed
from fewtag.tagger.model import Model, load_model
from fewtag.tagger.stream import Tagged
from fewtag.tagger.tagger import Tagger


class Studio:
    """A project folder with its labels, and its pictures in memory, open in one process.

    Whatever is refused raises InputError with one sentence; its subclass MissingError names what does not exist.
    """

    def __init__(self, project: Project, model: Model, cache: Path, resident: int = RESIDENT) -> None:
        self.project, self.model, self.folder = project, model, project.folder
        self._id = project.meta("id") or ""
        self._lost = ""
        self._one_change = threading.RLock()
        features = Features(model.places, model.space.size, lambda rows: self.indexer.fetch(rows), resident)
        self.library = Library(features, project.folders())
        self.indexer = Indexer(project, self.library, model, cache, lambda: self.background.tell(), self._carry)
        self.deriver = Deriver(project, self.library, model, self.indexer.read)
        self.ranking = Ranking(self.indexer, self.deriver)
        self.background = Background(self.ranking, self.overview)
        self._heat = Heat(self.ranking)
        pages = Pages(self.ranking, self._heat, self.background.influences)
        # read-only actions are methods of the parts themselves
        self.labels, self.label, self.failures = pages.labels, pages.label, pages.failures
        self.search, self.picture, self.review = pages.search, pages.picture, pages.review
        self.heat, self.explain = self._heat.heat, self._heat.explain
        self.scorer, self.listen = self.ranking.scorer, self.background.listen
        self.thumbnail, self.rescan = self.indexer.thumbnail, self.indexer.rescan

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str] | Project,
        pictures: Sequence[str | os.PathLike[str]] = (),
        *,
        model: str | None = None,
        words: str | None = None,
        device: str = "auto",
        cache: str | os.PathLike[str] | None = None,
        index: bool = True,
        resident: int = RESIDENT,
    ) -> "Studio":
        """Opens or creates a project; indexing starts in the background, where the network is loaded too.

        The pictures of the last session are available when it returns. `pictures` are folders to add. `model` None is
        the project's own, or "default". With `index=False` folders are not walked. `resident` is the number of pictures
        whose places are kept in memory.
        """
        folders = picture_folders(pictures)
        project = folder if isinstance(folder, Project) else Project(folder)
        try:
            source = model or project.meta("model") or "default"
            loaded = load_model(source, words=words or project.meta("words") or None, device=device)
            name = project.meta("id") or str(uuid.uuid4())
            project.set_meta(model=loaded.source, words=loaded.words_source or "", id=name)
            if folders:
                project.add_folders(folders)
            studio = cls(project, loaded, Path(cache) if cache else user_cache_folder(), resident)
            studio._begin(index=index)
        except BaseException:
            project.close()
            raise
        return studio

    def _begin(self, *, index: bool) -> None:
        lost = self.deriver.lost()
        if lost and self.deriver.path.exists():
            aside = self.deriver.path.with_name(f"bank.{time.strftime('%Y-%m-%d-%H%M%S')}.fewtag")
            shutil.copy(self.deriver.path, aside)
            self._lost = (
                f"{self.deriver.path.name} knew {lost} examples that the project has no answers about; it is kept as "
                f"{aside.name}, open that if they matter"
            )
        self.indexer.load_known()
        self.background.start()
        if index:
            self.indexer.start()
        else:
            self.indexer.done.set()

    def close(self) -> None:
        """Stops the threads, writes the bank, releases the project."""
        self.indexer.close()
        self.background.close()
        first_page.write(self)
        self._heat.close()
        self.library.features.close()
        self.project.close()

    def __enter__(self) -> "Studio":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def tagger(self) -> Tagger:
        """A tagger with the current labels, for pictures from elsewhere; not to be taught."""
        return Tagger(self.model, bank=self.ranking.bank())

    def tag(self, digests: Sequence[str]) -> list[Tagged]:
        """Rows for pictures of the project; a person's answers take precedence."""
        for digest in digests:
            self.library.row(digest)
        fold = self._fold
        return self.ranking.tagged(digests, self.scorer(fold), fold) if digests else []

    def overview(self) -> values.Overview:
        """The project in numbers."""
        log = self.project.log
        fold = log.fold
        return values.Overview(
            self._id,
            self.folder.name,
            max(self.indexer.found, len(self.library.files)),
            int(self.library.alive.sum()),
            len(self.library.failures),
            self.model.name,
            tuple(self.indexer.folders),
            len(fold.labels),
            fold.answers,
            bool(log.done),
            bool(log.undone),
            log.version,
            not self.indexer.done.is_set(),
            self.background.trouble or self._lost or self.indexer.notice or self.project.notice,
            self.library.changes,
        )

    def ready(self) -> tuple[bool, str]:
        """Whether pictures can be scored and, if not, what is being waited for."""
        waiting = not len(self.library) and not self.indexer.done.is_set()
        return not waiting, "the first pictures are being read" if waiting else ""

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until indexing is done and the bank is on disk; returns False if the time ran out first."""
        self.indexer.hurry.set()
        until = math.inf if seconds is None else time.monotonic() + seconds
        return all(
            event.wait(None if seconds is None else max(0.0, until - time.monotonic()))
            for event in (self.indexer.done, self.background.written)
        )

    @property
    def _fold(self) -> Fold:
        return self.project.fold

    def _change(self, kind: str, facts: Mapping[str, Any], answers: Sequence[Said] = ()) -> Change:
        change = self.project.change(kind, facts, answers)
        self.background.changed()
        return change

    def _carry(self, old: str, file: FileRow) -> None:
        """Carries answers over to an edited file whose pixels have not changed, or were turned."""
        new, row = str(file.digest), self.project.any_example(old) if self._about(old) else None
        if row is None:
            return
        try:
            image = decode(self.indexer.read(new, [file]), new)
        except InputError:
            return
        turned = (image.transpose(each) for each in (Transpose.ROTATE_90, Transpose.ROTATE_270, Transpose.ROTATE_180))
        if all(pixel_digest(each) != row.pixels for each in chain([image], turned)):
            return
        with self._one_change:
            answers = [
                Said(str(uuid.uuid4()), new, label, said.answer, said.source)
                for label, said in self._about(old).items()
            ]
            if answers:
                self._change("carry", {"from": old}, answers)

    def _about(self, picture: str) -> dict[int, Said]:
        """The latest answers about a picture, by label."""
        fold = self._fold
        return {label: fold.latest[label][picture] for label in fold.labels if picture in fold.latest[label]}

    def _changed(self, name: str, change: Change | None) -> values.Changed:
        return values.Changed(**vars(self.label(name)), undo=change and change.op)

    def define(self, name: str, *, like: Sequence[str] | None = None, words: bool = True) -> values.Changed:
        """Defines or redefines a label by its name (the last part of its path), as like other words, or by pictures."""
        wanted = path_name(name)
        with self._one_change:
            alike = None if like is None else [each for word in like if (each := word.strip())]
            try:
                define(wanted, self.model, {}, like=alike, vector=None, words=words)
            except UnknownWordError as error:
                raise InputError(
                    f"the model does not know the word {error.unknown!r}; select a picture that shows it and teach the "
                    "label by that, or say which words it is like"
                ) from error
            facts: dict[str, Any] = {"name": wanted, "like": alike, "words": words}
            if known := self._fold.get(wanted):
                facts["label"] = known.id
            change = self._change("define", facts)
        return self._changed(wanted, change)

    def define_all(self, names: Sequence[str]) -> None:
        """Defines labels by their names or, if those are no known words, by pictures to come; known ones are kept.

        They are scored later.
        """
        with self._one_change:
            for wanted in map(path_name, names):
                if self._fold.get(wanted) is None:
                    self._define_new(wanted)

    def _define_new(self, name: str, answers: Sequence[Said] = ()) -> Change:
        says = by_word(name, self.model) is not None
        return self._change("define", {"name": name, "like": None, "words": says}, answers)

    def teach(
        self, name: str, pictures: Sequence[str], *, stacks: bool = False, source: str = "teach"
    ) -> values.Changed:
        """Teaches a new or known label with pictures, by digest: yes answers in one group with its definition.

        With `stacks` each answer holds for the picture's whole stack. `source` is who answers.
        """
        wanted = path_name(name)
        if not pictures:
            raise InputError(f"there is no picture to teach {wanted!r} with; select at least one")
        with self._one_change:
            rows = list(dict.fromkeys(pictures))
            for picture in rows:
                self.library.row(picture)
            known = self._fold.get(wanted)
            number = known.id if known else 0
            answers = [Said(str(uuid.uuid4()), picture, number, "yes", source) for picture in rows]
            if stacks:
                answers += [mate for each in answers for mate in self._mates(each, {*rows})]
            change = self._change("answers", {}, answers) if known else self._define_new(wanted, answers)
        return self._changed(wanted, change)

    def rename(self, old: str, new: str, *, merge: bool = False) -> values.Changed:
        """Renames a label and those below it (`old` need not be a label); refuses a taken name, unless `merge`."""
        wanted, former = path_name(new), old if self._fold.get(old) else path_name(old)
        with self._one_change:
            known = {label.name: label.id for label in self._fold.labels.values()}
            names = renamed(sorted(known), former, wanted, merge=merge)
            if not names:
                self._fold.find(old)
            change = None
            if wanted != former:
                into = {known[each]: known[its] for each, its in names.items() if its in known and its not in names}
                under = {known[each]: its for each, its in names.items() if known[each] not in into}
                kind, what, moved = ("merge", "into", into) if into else ("rename", "name", under)
                first = next(iter(moved))
                change = self._change(kind, {"label": first, what: moved.pop(first), "merged": into, "under": under})
        return self._changed(next(iter(names.values())), change)

    def forget(self, name: str) -> str:
        """Removes a label; returns the UUID of the change, whose undo restores it with its answers."""
        with self._one_change:
            return self._change("forget", {"label": self._fold.find(name).id}).op

    def set_threshold(self, name: str, threshold: float | None) -> values.Changed:
        """Sets the probability from which a label is given; None restores the model's own threshold."""
        if threshold is not None and not 0 <= threshold <= 1:
            raise InputError(f"the threshold of label {name!r} is {threshold}; give one from 0 to 1, or None")
        with self._one_change:
            label = self._fold.find(name)
            self.ranking.refresh([label.name])
            scored = self.ranking.scores.kept.get(label.name)
            # stored with the share that its probabilities were shown for, so that it means the same to other commands
            share = None if threshold is None or scored is None else scored.share
            change = self._change("threshold", {"label": label.id, "threshold": threshold, "prior": share})
        return self._changed(name, change)

    def answer(self, answers: Sequence[values.Answer]) -> values.Acknowledged:
        """Records answers: all of them are on disk before it returns, or none."""
        if not answers or len(answers) > MOST_AT_ONCE:
            raise InputError(f"{len(answers)} answers were given at once; give 1 to {MOST_AT_ONCE}")
        with self._one_change:
            log, fresh, seen, held = self.project.log, list[Said](), dict[str, Said](), set[str]()
            labels = {name: log.find(name).id for name in {each.label for each in answers}}
            spoken: dict[int, set[str]] = {label: set() for label in labels.values()}
            for each in answers:
                spoken[labels[each.label]].add(each.picture)
            for each in answers:
                name, label = _uuid(each.id), labels[each.label]
                if each.answer not in VERDICTS:
                    raise InputError(f"the answer {each.answer!r} is none; say yes, no or unknown")
                said = Said(name, each.picture, label, each.answer, each.source)
                if (n := log.number_of.get(name)) is not None:
                    seen |= {known.id: known for known in log.changes[n].answers}
                if (before := seen.get(name)) is not None:
                    if before._replace(label=log.fold.resolve(before.label), source=said.source) != said:
                        raise InputError(f"answer {name} was given before, about something else; give each its own id")
                    held |= {each.picture, *self._spoken_for(name, self._stack(each.picture))}
                    continue
                # a page sends unsent answers as soon as the studio is back, before all pictures are in memory
                if each.picture not in self.library.row_of and not self.project.knows(each.picture):
                    self.library.row(each.picture)
                if each.marked and each.picture in self._fold.latest[label]:
                    continue
                seen[name] = said
                fresh.append(said)
                if each.stack and each.source != AUDIT:
                    mates = self._mates(said, spoken[label])
                    spoken[label] |= {mate.picture for mate in mates}
                    fresh += mates
            undo = self._change("answers", {}, fresh).op if fresh else None
            held |= {said.picture for said in fresh}
            return values.Acknowledged(tuple(_uuid(each.id) for each in answers), undo, len(held))

    def _mates(self, said: Said, spoken: Set[str]) -> list[Said]:
        """The same verdict on the other pictures of the stack, except those that a person answered individually."""
        mates, known = self._stack(said.picture), self._fold.about(said.label)

        def alone(mate: str) -> bool:
            before = known.get(mate)
            return before is not None and before.source != STACK and not self._spoken_for(before.id, mates)

        return [
            said._replace(id=_id_of_mate(said.id, mate), picture=mate, source=STACK)
            for mate in mates
            if mate not in spoken and not alone(mate)
        ]

    def _stack(self, picture: str) -> list[str]:
        """The pictures of a picture's stack, including itself; empty until it is in memory."""
        row = self.library.row_of.get(picture)
        return [] if row is None else [self.library.digests[each] for each in self.library.stack_of(row)]

    def _spoken_for(self, answer: str, mates: Sequence[str]) -> list[str]:
        """Which of these pictures have, or had, their answer from the one with this id, given for a whole stack."""
        return [mate for mate in mates if _id_of_mate(answer, mate) in self.project.log.number_of]

    def undo(self, id: str | None = None) -> values.Undone:  # noqa: A002
        """Reverts the last group of changes, or the one with this id or with the answer of this id."""
        return self._undo_or_redo(id, "done", "there is nothing to undo; every change was taken back")

    def redo(self, id: str | None = None) -> values.Undone:  # noqa: A002
        """Reverts the last undo, as long as nothing new was done since, or the undo with this id."""
        return self._undo_or_redo(id, "undone", "there is nothing to redo; nothing was undone since the last change")

    def _undo_or_redo(self, id: str | None, side: Literal["done", "undone"], nothing: str) -> values.Undone:  # noqa: A002
        with self._one_change:
            log = self.project.log
            pile: list[int] = getattr(log, side)
            if id is None and not pile:
                raise InputError(nothing)
            n = pile[-1] if id is None else log.number_of.get(_uuid(id))
            if n is None:
                raise MissingError(f"there is no change {id}; it was not made here")
            if side == "undone" and log.changes[n].undoes is None:  # the id of a change stands for that of its undo
                n = next((each for each in reversed(pile) if log.changes[each].undoes == n), None)
                if n is None:
                    raise InputError(f"{id} was not undone; there is nothing to redo")
            change = target = log.changes[n]
            while target.undoes is not None:
                target = log.changes[target.undoes]
            earlier, before = log.fold, self._verdicts_of(target)
            undo = log.reverted_by(n)  # sent again, it is the same undo
            if undo is None:
                undo = self.project.undo(n)
                self.background.changed()
            after = self._verdicts_of(target)
            names = {label.id: label.name for label in log.fold.labels.values()}
            reverted = tuple(
                values.Reverted(said.id, said.picture, names.get(about[1], ""), before[about], after.get(about))
                for said in target.answers
                if (about := (said.picture, log.fold.resolve(said.label))) in before
            )
            what = told(target, earlier, log.fold, back=change.undoes is None)
            return values.Undone(undo.op, what, reverted, len(getattr(log, side)))

    def _verdicts_of(self, change: Change) -> dict[tuple[str, int], Verdict | None]:
        """The present verdict on each picture and label in a change."""
        fold, found = self._fold, {}
        for each in change.answers:
            label = fold.resolve(each.label)
            said = fold.about(label).get(each.picture) if label in fold.labels else None
            found[each.picture, label] = None if said is None else said.answer
        return found

    def deliver(
        self,
        format: str,  # noqa: A002
        *,
        confirmed_only: bool = False,
        scores: bool = False,
        dry_run: bool = False,
        progress: Progress = lambda _done, _total: None,
    ) -> values.Delivery:
        """Writes all tags as a table or a data set, or with "onnx" the bank as a graph, to PROJECT/deliveries/.

        "xmp" writes sidecars beside the pictures. No path is accepted, and a dry run writes nothing.
        """
        from fewtag.studio import deliver as delivering  # imported here: its formats would slow down the start

        self.project.check_place()
        if format == "onnx":
            return delivering.write_graph(self.project, self.tagger, dry_run=dry_run)
        fold, files = self._fold, self._files()
        labels = tuple(self.deriver.bank(fold).classes)
        rows = self._delivered(fold, files, confirmed_only)
        if format == "xmp":
            folders: dict[Path, list[tuple[Tagged, Path]]] = {Path(folder): [] for folder in self.indexer.folders}
            for file, row in rows:
                folders[Path(file.folder)].append((row, Path(file.path)))
            return delivering.write_sidecars(folders, labels, self.names_ever, dry_run=dry_run, progress=progress)
        return delivering.deliver(
            self.project,
            (row for _, row in rows),
            labels,
            format,
            scores=scores,
            dry_run=dry_run,
            paths={self.library.shown_name(file): Path(file.path) for file in files},
            progress=progress,
        )

    def take_back_sidecars(
        self, *, dry_run: bool = False, progress: Progress = lambda _done, _total: None
    ) -> values.Delivery:
        """Undoes deliveries as XMP: sidecars become what they were before, to the byte."""
        from fewtag.studio import deliver as delivering

        folders = [Path(folder) for folder in self.indexer.folders]
        return delivering.take_back(folders, dry_run=dry_run, progress=progress)

    @property
    def names_ever(self) -> set[str]:
        """All names that labels ever had: tags that were delivered under them may be removed."""
        every = [change.facts for change in list(self.project.log.changes.values())]
        names = (name for facts in every for name in (facts.get("name"), *facts.get("under", {}).values()))
        return {str(name) for name in names if name is not None}

    def tags_by_file(self, *, confirmed_only: bool = False) -> dict[Path, Tagged]:
        """The tags to write for each picture; a person's answers take precedence."""
        return {Path(file.path): row for file, row in self._delivered(self._fold, self._files(), confirmed_only)}

    def _files(self) -> list[FileRow]:
        """The files of indexed pictures, sorted by name."""
        files = [file for file in list(self.library.files.values()) if file.digest in self.library.row_of]
        return sorted(files, key=self.library.shown_name)

    def _delivered(
        self, fold: Fold, files: Sequence[FileRow], confirmed_only: bool
    ) -> Iterator[tuple[FileRow, Tagged]]:
        """Each file and its row; all by one state of the labels, whatever is taught meanwhile."""
        scorer = self.scorer(fold) if self.deriver.bank(fold).classes else None
        for some in batches(iter(files), 64):
            rows = self.ranking.tagged([str(file.digest) for file in some], scorer, fold, confirmed_only)
            for file, row in zip(some, rows, strict=True):
                yield file, replace(row, image=self.library.shown_name(file))

    def delivery(self, file: str) -> Path:
        """The path of a delivery by its name."""
        from fewtag.studio import deliver as delivering

        return delivering.find(self.project, file)

    def check(self) -> values.Checked:
        """Checks the project: SQLite's own check, a new fold, and the bank on disk against the derived one."""
        problems = self.project.check()
        fold = self._fold
        bank = self.deriver.bank(fold)
        if missing := sum(self.deriver.key(picture) is None for picture in told_in(fold)):
            problems.append(f"{missing} answered pictures have neither a file nor kept features; they teach nothing")
        if self.background.written.is_set() and (lost := self.deriver.differs(bank)):
            problems.append(lost)
        pictures = {file.digest for file in self.project.files() if file.digest}  # a mere check does not index
        return values.Checked(fold.answers, len(fold.labels), len(pictures), tuple(problems))


def _id_of_mate(answer: str, mate: str) -> str:
    """The id of the answer that a picture gets from another one of its stack: the same whenever it is sent again."""
    return str(uuid.uuid5(uuid.UUID(answer), mate))


def _uuid(text: object) -> str:
    try:
        return str(uuid.UUID(str(text)))
    except ValueError as error:
        raise InputError(f"the id {str(text)[:64]!r} is no UUID; give each answer its own") from error
