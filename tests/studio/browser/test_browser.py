"""The studio in a real browser, by role and name as a person's hands would: mouse, keyboard alone, a small screen."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from serving import serving
from tiny import draw

from fewtag.client import Client
from fewtag.studio import index
from fewtag.studio.studio import Studio

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright  # noqa: E402

# a shell without windows has the same pages for a third of the processor time
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium-headless-shell"),
    pytest.mark.slow,
    pytest.mark.processes,
]
COUNT = 36
expect.set_options(timeout=60_000)
TOKEN = "a-token-of-the-tests-with-43-characters-abc"


@dataclass
class Opened:
    """A studio with a page on it."""

    page: Page
    url: str
    client: Client
    studio: Studio | None = None

    def cell(self, name: str) -> Any:
        return self.page.get_by_role("button", name=re.compile(rf"^{re.escape(name)}\b"))

    def toast(self, text: str | re.Pattern[str]) -> Any:
        return self.page.get_by_role("status").filter(has_text=text)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every third shows a dog, every fourth a cat; neighbours are unlike, or they would be stacked."""
    folder = tmp_path_factory.mktemp("album")
    for number in range(COUNT):
        labels = [label for label, step in (("dog", 3), ("cat", 4)) if number % step == 0]
        labels = labels or ["sofa" if number % 2 else "ball"]
        draw(number, *labels, size=(64, 48)).save(folder / f"{number:02}-{'-'.join(labels)}.png")
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as starter:
        # a browser that runs as root has no sandbox
        arguments = ["--no-sandbox"] if os.name == "posix" and os.geteuid() == 0 else []
        yield starter.chromium.launch(executable_path=CHROMIUM, args=arguments)


@pytest.fixture
def opened(browser: Browser, pictures: Path, tiny_model: Path, tmp_path: Path) -> Iterator[Opened]:
    """A new project over the album, indexed, and its page as the command opens it."""
    with Studio.open(tmp_path / "project", [pictures], model=str(tiny_model), cache=tmp_path / "cache") as studio:
        assert studio.wait(300.0)
        with serving(lambda _decoders: studio) as running, open_page(browser) as page:
            page.goto(f"{running.settings.url}/#token={running.settings.token}")
            yield Opened(page, running.settings.url, running.client, studio)


@contextmanager
def open_page(browser: Browser, **options: Any) -> Iterator[Page]:
    """A page that must neither throw nor break its own policy."""
    wrong: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce", **options)
    context.set_default_timeout(60_000)
    page = context.new_page()
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if "Security Policy" in said.text else None)
    yield page
    context.close()
    assert not wrong, wrong


def teach(opened: Opened, picture: str, label: str) -> None:
    opened.cell(picture).click()
    opened.page.get_by_role("button", name="New label n").click()
    opened.page.get_by_label("Name", exact=True).fill(label)
    opened.page.get_by_role("button", name="Teach").click()
    expect(opened.page.get_by_role("heading", name=re.compile(label, re.IGNORECASE))).to_be_visible()


def answers(opened: Opened) -> int:
    return int(opened.client.get("/v1/project")["answers"])


def answer_page(opened: Opened, act: Callable[[], None]) -> None:
    """The page that is asked for, until the next one is there."""
    expect(opened.page.locator("[data-place]").first).to_be_visible()  # its heading comes before its pictures
    had, size = answers(opened), opened.page.locator("[data-place]").count()
    act()
    until(opened.page, lambda: answers(opened) == had + size)
    expect(opened.page.locator("[aria-busy=true]")).to_have_count(0)


def until(page: Page, holds: Callable[[], bool]) -> None:
    """Waits for what the page does not show."""
    deadline = time.monotonic() + 120
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError("what the test waits for has not come")
        page.wait_for_timeout(50)


def learn(opened: Opened, label: str) -> None:
    """So many answers, from elsewhere, that pictures come by the page; until there is one."""
    while len(asked := opened.client.get("/v1/review", label=label, order="unsure", size=4)["pictures"]) == 1:
        shown = "yes" if label in asked[0]["name"] else "no"
        opened.client.answer(asked[0]["digest"], label, shown)
    expect(opened.page.get_by_role("button", name="Answer the page")).to_be_visible()


def test_from_one_picture_to_a_delivered_table(opened: Opened, tmp_path: Path) -> None:
    page = opened.page
    expect(page.get_by_role("heading", name="All pictures")).to_be_visible()
    expect(page.get_by_text(f"{COUNT} pictures")).to_be_visible()
    assert "token" not in page.url

    teach(opened, "00-dog-cat.png", "dog")
    answer_page(opened, page.get_by_role("button", name="✓ Yes").click)
    expect(opened.toast("Answered: yes")).to_be_visible()
    learn(opened, "dog")
    flipped = page.locator("[data-place='0']")
    before = flipped.get_attribute("aria-pressed")
    flipped.click()
    expect(flipped).not_to_have_attribute("aria-pressed", before or "")
    answer_page(opened, page.get_by_role("button", name="Answer the page").click)

    slider = page.get_by_role("slider", name="Threshold")
    value = int(slider.input_value())
    slider.focus()
    page.keyboard.press("ArrowRight")
    expect(opened.toast(f"from {value + 1} % on")).to_be_visible()
    page.get_by_role("button", name="Undo", exact=True).first.click()
    expect(opened.toast("Taken back")).to_be_visible()

    page.get_by_role("navigation", name="Labels").get_by_role("link", name="All pictures").click()
    opened.cell("03-dog.png").dblclick()
    expect(page.get_by_role("heading", name="03-dog.png")).to_be_visible()
    page.get_by_role("group", name="dog").hover()
    heat = page.get_by_role("img", name="Where dog is seen")
    expect(heat).to_be_visible()
    page.wait_for_function("() => document.querySelector('.heat')?.naturalWidth > 0")

    page.get_by_role("button", name="Deliver").click()
    expect(page.get_by_text(f"{COUNT} rows")).to_be_visible()
    page.get_by_role("dialog").get_by_role("button", name="Deliver").click()
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Download").click()
    downloading.value.save_as(tmp_path / "tags.csv")
    assert len((tmp_path / "tags.csv").read_text(encoding="utf-8").splitlines()) == COUNT + 1


def test_everything_is_done_by_keys_alone(opened: Opened) -> None:
    page, press = opened.page, opened.page.keyboard.press
    expect(opened.cell("00-dog-cat.png")).to_be_visible()
    press("End")
    expect(page.locator(f"[data-place='{COUNT - 1}']")).to_be_focused()
    press("Home")
    press("ArrowRight")
    press("ArrowLeft")
    expect(opened.cell("00-dog-cat.png")).to_be_focused()
    press("Space")
    expect(page.get_by_text("1 selected")).to_be_visible()
    press("n")
    page.keyboard.type("dog")
    press("Enter")
    expect(page.get_by_role("heading", name=re.compile("dog"))).to_be_visible()
    expect(page.locator(".bar.fixed")).to_be_visible()
    had = answers(opened)
    press("j")
    press("k")
    for key, word in (("x", "no"), ("a", "yes"), ("Space", "unknown")):  # one picture at a time: a key is an answer
        answer_page(opened, lambda key=key: press(key))  # type: ignore[misc]
        expect(opened.toast(f"Answered: {word}")).to_be_visible()
    learn(opened, "dog")
    for key, word in (("x", "no"), ("a", "yes"), ("Space", "unknown")):
        here = page.locator("[data-place]:focus").get_attribute("data-place")
        press(key)
        expect(page.locator(f"[data-place='{here}']")).to_have_accessible_name(re.compile(f": {word}"))
    press("Enter")
    expect(opened.toast("Answered")).to_be_visible()
    assert answers(opened) > had
    press("Backspace")
    expect(opened.toast("Taken back")).to_be_visible()
    press("Control+Shift+z")
    expect(opened.toast("Done again")).to_be_visible()
    threshold = page.get_by_role("slider", name="Threshold").input_value()
    press("]")
    expect(page.get_by_role("slider", name="Threshold")).not_to_have_value(threshold)
    expect(opened.toast("% on")).to_be_visible()

    press("Escape")
    expect(page.get_by_role("heading", name="dog")).to_be_visible()
    press("/")
    expect(page.get_by_role("combobox", name="Search")).to_be_focused()
    page.keyboard.press("Control+a")
    page.keyboard.type("is:untagged")
    press("Enter")
    expect(page.get_by_role("heading", name="is:untagged")).to_be_visible()
    press("Control+a")
    expect(page.get_by_role("toolbar")).to_contain_text("selected")
    press("Escape")
    expect(page.get_by_role("toolbar")).to_have_count(0)
    expect(page.locator("[data-place='0']")).to_be_visible()
    press("g")
    expect(page.get_by_role("heading", name="Like this picture")).to_be_visible()
    expect(page.locator("[data-place='0']")).to_be_visible()
    press("Enter")
    group = page.get_by_role("group", name="dog")
    expect(group).to_be_visible()
    page.keyboard.down("h")
    expect(page.get_by_role("img", name="Where dog is seen")).to_be_visible()
    page.keyboard.up("h")
    expect(page.get_by_role("img", name="Where dog is seen")).to_have_count(0)
    press("a")
    expect(group.get_by_role("button", name="dog: yes")).to_have_attribute("aria-pressed", "true")
    for word in ("no", "unknown", "yes"):
        press("1")
        expect(group.get_by_role("button", name=f"dog: {word}")).to_have_attribute("aria-pressed", "true")
    press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_contain_text("The next picture")
    press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    press("d")
    expect(page.get_by_role("dialog", name="Deliver the tags")).to_be_visible()
    press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    press("ArrowRight")
    expect(page.get_by_text(f"2 of {COUNT}")).to_be_visible()


def test_pictures_are_selected_by_click_range_and_rubber_band(opened: Opened) -> None:
    page = opened.page
    opened.cell("01-sofa.png").click()
    opened.cell("05-sofa.png").click(modifiers=["Shift"])
    expect(page.get_by_text("5 selected")).to_be_visible()
    page.get_by_role("button", name="Select nothing").click()
    first, last = (opened.cell(name).bounding_box() for name in ("00-dog-cat.png", "07-sofa.png"))
    assert first is not None
    assert last is not None
    page.mouse.move(first["x"] + 10, first["y"] + 10)
    page.mouse.down()
    page.mouse.move(last["x"] + 5, last["y"] + 5, steps=4)
    page.mouse.up()
    expect(page.get_by_role("toolbar")).to_contain_text("selected")
    count = page.get_by_role("button", pressed=True).count()
    assert count >= 4
    page.keyboard.press("t")
    page.get_by_label("Label", exact=True).fill("cat")
    page.get_by_role("button", name="Tag", exact=True).last.click()
    expect(page.get_by_role("heading", name=re.compile("cat"))).to_be_visible()
    assert next(each for each in opened.client.labels() if each.name == "cat").examples == count


def test_a_part_of_a_picture_is_searched_for(opened: Opened) -> None:
    page = opened.page
    opened.cell("00-dog-cat.png").dblclick()
    edge = page.get_by_role("img", name=re.compile("^00-dog-cat.png")).bounding_box()
    assert edge is not None
    page.mouse.move(edge["x"] + edge["width"] * 0.2, edge["y"] + edge["height"] * 0.2)
    page.mouse.down()
    page.mouse.move(edge["x"] + edge["width"] * 0.7, edge["y"] + edge["height"] * 0.7, steps=4)
    page.mouse.up()
    with page.expect_request("**/v1/search") as asked:
        page.get_by_role("button", name="Like this part").click()
    expect(page.get_by_role("heading", name="Like this part")).to_be_visible()
    assert asked.value.post_data_json["box"] == pytest.approx([0.2, 0.2, 0.7, 0.7], abs=0.02)
    expect(page.locator("[data-place='0']")).to_be_visible()


def test_keys_are_found_on_keyboards_of_other_scripts(opened: Opened) -> None:
    page = opened.page
    session = page.context.new_cdp_session(page)

    def press(key: str, code: str, **more: int) -> None:
        for kind in ("keyDown", "keyUp"):
            session.send("Input.dispatchKeyEvent", {"type": kind, "key": key, "code": code, **more})

    teach(opened, "00-dog-cat.png", "dog")
    page.goto(f"{opened.url}/#/picture/{opened.client.search()['pictures'][5]['digest']}")
    group = page.get_by_role("group", name="dog")
    expect(group).to_be_visible()
    scripts = (("ф", "KeyA", "yes"), ("ס", "KeyX", "no"), ("α", "KeyA", "yes"), ("۱", "Digit1", "no"))
    for key, code, word in (*scripts, ("ش", "KeyA", "yes"), ("ء", "KeyX", "no"), ("ㅁ", "KeyA", "yes")):
        press(key, code)
        expect(group.get_by_role("button", name=f"dog: {word}")).to_have_attribute("aria-pressed", "true")
    press("я", "KeyZ", modifiers=2)
    expect(opened.toast("Taken back")).to_be_visible()
    expect(group.get_by_role("button", name="dog: no")).to_have_attribute("aria-pressed", "true")
    for key, code in (("q", "KeyA"), ("ł", "KeyA"), ("é", "Digit1"), ("d", "KeyH")):  # Latin ones mean what they write
        press(key, code)
    expect(page.get_by_role("dialog", name="Deliver")).to_be_visible()
    page.keyboard.press("Escape")
    expect(group.get_by_role("button", name="dog: no")).to_have_attribute("aria-pressed", "true")
    session.send("Input.dispatchKeyEvent", {"type": "keyDown", "key": "р", "code": "KeyH"})
    expect(page.get_by_role("img", name="Where dog is seen")).to_be_visible()
    session.send("Input.dispatchKeyEvent", {"type": "keyUp", "key": "р", "code": "KeyH"})
    expect(page.get_by_role("img", name="Where dog is seen")).to_have_count(0)


def test_a_look_at_a_picture_keeps_what_was_changed_on_the_page(opened: Opened) -> None:
    page = opened.page
    teach(opened, "00-dog-cat.png", "dog")
    learn(opened, "dog")
    for key in ("j", "Space", "k", "o"):
        page.keyboard.press(key)
    expect(page.get_by_role("group", name="dog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name=re.compile(": unknown"))).to_have_count(1)


def test_a_name_of_another_language_is_told_in_english(opened: Opened) -> None:
    opened.page.get_by_role("button", name="New label", exact=True).click()
    opened.page.get_by_label("Name", exact=True).fill("Hund")
    opened.page.get_by_role("button", name="Add").click()
    expect(opened.toast("“Hund” (dog) starts from its name.")).to_be_visible()


def test_labels_are_renamed_deleted_and_brought_back(opened: Opened) -> None:
    page = opened.page
    teach(opened, "00-dog-cat.png", "dog")
    page.get_by_role("button", name="Rename, merge or delete dog").click()
    page.get_by_label("Name", exact=True).fill("animals/dog")
    page.get_by_role("button", name="Rename", exact=True).click()
    tree = page.get_by_role("navigation", name="Labels")
    expect(tree.get_by_text("animals", exact=True)).to_be_visible()
    page.get_by_role("button", name="Rename, merge or delete animals/dog").click()
    page.get_by_role("button", name="Delete the label").click()
    expect(tree.get_by_text("animals", exact=True)).to_have_count(0)
    opened.toast("deleted").get_by_role("button", name="Undo").click()
    expect(tree.get_by_text("animals", exact=True)).to_be_visible()
    tree.get_by_role("link", name=re.compile("^dog")).click()
    expect(page.get_by_role("heading", name="animals/dog")).to_be_visible()
    page.get_by_role("main").get_by_role("link", name="Review").click()
    page.get_by_role("button", name="Rename, merge or delete animals/dog").click()
    page.get_by_label("Name", exact=True).fill("my dog")
    page.get_by_role("button", name="Rename", exact=True).click()
    expect(page).to_have_url(re.compile("my%20dog"))
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", name="my dog")).to_be_visible()
    expect(page.get_by_role("main").get_by_role("link", name="Review")).to_be_visible()


def test_a_name_that_is_another_labels_is_told_to_merge_before_it_does(opened: Opened) -> None:
    page = opened.page
    opened.client.define("cat")
    teach(opened, "00-dog-cat.png", "dog")
    page.get_by_role("button", name="Rename, merge or delete dog").click()
    name, submit = page.get_by_label("Name", exact=True), page.get_by_role("dialog").locator("[type=submit]")
    for typed, says in (("do", "Rename"), ("cat", "Merge the two"), ("dog", "Rename"), ("cat", "Merge the two")):
        name.fill(typed)
        expect(submit).to_have_text(says)
    submit.click()
    expect(opened.toast("“dog” is now part of “cat”")).to_be_visible()


def test_a_group_that_is_no_label_is_renamed_and_labels_of_one_name_are_told_apart(opened: Opened) -> None:
    page, tree = opened.page, opened.page.get_by_role("navigation", name="Labels")
    for name in ("animals/dog", "animals/cat", "pets/dog"):
        opened.client.define(name)
    expect(tree.get_by_role("link", name="Review")).to_have_count(3)
    tree.get_by_role("link", name="All pictures").click()
    opened.cell("03-dog.png").dblclick()
    expect(page.locator(".belief .name")).to_contain_text(["animals/dog", "pets/dog"])
    expect(page.locator(".belief .name").get_by_text("cat", exact=True)).to_be_visible()
    page.get_by_role("button", name="Rename animals").click()
    page.get_by_label("Name", exact=True).fill("pets")
    page.get_by_role("button", name="Rename", exact=True).click()
    expect(opened.toast("“animals” is now “pets”")).to_be_visible()
    expect(tree.get_by_role("link", name="Review")).to_have_count(2)


def test_a_telephone_is_wide_enough(opened: Opened) -> None:
    page = opened.page
    page.set_viewport_size({"width": 390, "height": 844})
    opened.cell("00-dog-cat.png").click()
    page.get_by_role("toolbar").get_by_role("button", name="New label").click()
    page.get_by_label("Name", exact=True).fill("dog")
    page.get_by_role("button", name="Teach").click()
    page.get_by_role("button", name="✓ Yes").click()
    expect(opened.toast("Answered")).to_be_visible()
    menu = page.get_by_role("button", name="Labels", exact=True)
    for leave in (lambda: page.keyboard.press("Escape"), page.go_back):
        menu.click()
        expect(menu).to_have_attribute("aria-expanded", "true")
        leave()
        expect(menu).not_to_have_attribute("aria-expanded", "true")
    menu.click()
    page.get_by_role("navigation", name="Labels").get_by_role("link", name="All pictures").click()
    expect(page.get_by_role("heading", name="All pictures")).to_be_visible()
    opened.cell("03-dog.png").dblclick()
    page.get_by_role("button", name="Heat-map").click()
    expect(page.get_by_role("img", name="Where dog is seen")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.set_viewport_size({"width": 320, "height": 568})
    edge = page.get_by_role("button", name="Like this").bounding_box()
    assert edge is not None
    assert edge["x"] + edge["width"] <= 320


def test_a_name_without_a_space_is_not_wider_than_a_telephone(opened: Opened) -> None:
    page, name = opened.page, "Donaudampfschifffahrtsgesellschaftskapitänsmützenabzeichen"
    page.set_viewport_size({"width": 320, "height": 568})
    opened.cell("00-dog-cat.png").click()
    page.get_by_role("toolbar").get_by_role("button", name="New label").click()
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_role("button", name="Teach").click()
    wide = "each => each.getBoundingClientRect().right > innerWidth || each.scrollWidth > each.clientWidth"
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    assert not page.get_by_role("heading", name=name).evaluate(wide)
    assert not page.locator(".enough").evaluate(wide)
    page.get_by_role("button", name=f"Rename, merge or delete {name}").click()
    assert not page.get_by_role("dialog").get_by_role("button", name="Close").evaluate(wide)
    page.keyboard.press("Escape")
    page.evaluate("name => (location.hash = `#/?q=${encodeURIComponent(name)}`)", name)
    opened.cell("00-dog-cat.png").click()
    assert not page.get_by_role("button", name=f"Not {name}").evaluate(wide)


def test_on_a_telephone_one_finger_draws_a_part_and_two_zoom(opened: Opened, browser: Browser) -> None:
    with open_page(browser, has_touch=True, is_mobile=True) as page:
        page.goto(f"{opened.url}/#token={TOKEN}")
        digest = opened.client.search("")["pictures"][0]["digest"]
        page.evaluate("digest => (location.hash = `#/picture/${digest}`)", digest)
        edge = page.get_by_role("img", name=re.compile("^00-dog-cat.png")).bounding_box()
        assert edge is not None
        x, y = edge["x"] + edge["width"] / 2, edge["y"] + edge["height"] / 2
        session = page.context.new_cdp_session(page)

        def touch(kind: str, *points: tuple[float, float]) -> None:
            fingers = [{"x": left, "y": top, "id": number} for number, (left, top) in enumerate(points)]
            session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": fingers})

        touch("touchStart", (x, y))
        for step in range(8):
            touch("touchMove", (x + 12 * step, y + 12 * step))
        touch("touchEnd")
        expect(page.get_by_role("button", name="Like this part")).to_be_visible()
        assert page.evaluate("visualViewport.scale") == 1
        touch("touchStart", (x, y))
        touch("touchStart", (x, y), (x + 40, y))
        for step in range(8):
            touch("touchMove", (x - 10 * step, y), (x + 40 + 10 * step, y))
        touch("touchEnd")
        page.wait_for_function("() => visualViewport.scale > 1")
        expect(page.locator(".part")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_screen_is_readable(opened: Opened, scheme: Any) -> None:
    page = opened.page
    page.emulate_media(color_scheme=scheme)
    expect(opened.cell("00-dog-cat.png")).to_be_visible()
    check_readable(page)
    opened.cell("00-dog-cat.png").click()
    expect(page.get_by_role("toolbar")).to_be_visible()
    check_readable(page)
    page.keyboard.press("n")
    expect(page.get_by_role("dialog")).to_be_visible()
    check_readable(page)
    page.get_by_label("Name", exact=True).fill("dog")
    page.keyboard.press("Enter")
    expect(page.locator(".bar.fixed")).to_be_visible()
    check_readable(page)
    page.keyboard.press("o")
    expect(page.get_by_role("group", name="dog")).to_be_visible()
    check_readable(page)
    page.keyboard.press("d")
    expect(page.get_by_role("dialog").get_by_text("new, changed or gone")).to_be_visible()
    check_readable(page)


READABLE = (Path(__file__).parent / "readable.js").read_text(encoding="utf-8")


def check_readable(page: Page) -> None:
    """Every picture has its text, every control a name, every text a contrast of 4.5."""
    page.evaluate("() => Promise.allSettled(document.getAnimations().map((each) => each.finished))")
    wrong = page.evaluate(READABLE)
    assert not wrong, "\n".join(sorted(set(wrong)))


def test_answers_survive_a_killed_server_and_are_counted_once(
    browser: Browser, pictures: Path, tiny_model: Path, tmp_path: Path
) -> None:
    with start_command(pictures, tiny_model, tmp_path, 0) as (url, first):
        port = int(url.rsplit(":", 1)[1])
        client = Client(url, TOKEN)
        with open_page(browser) as page:
            page.goto(f"{url}/#token={TOKEN}")
            opened = Opened(page, url, client)
            teach(opened, "00-dog-cat.png", "dog")
            expect(page.locator(".bar.fixed")).to_be_visible()
            expect(page.locator("[data-place]").first).to_be_visible()
            had = answers(opened)
            size = page.locator("[data-place]").count()

            def answer_is_lost(route: Route) -> None:
                """The server has them on disk, and dies before the page hears of it."""
                client.post("/v1/answers", route.request.post_data_json)
                first.send_signal(signal.SIGKILL)
                first.wait()
                route.abort()

            page.route("**/v1/answers", answer_is_lost, times=1)
            page.keyboard.press("a")
            expect(page.get_by_role("alert").filter(has_text="kept here")).to_be_visible()
            context = page.context
            page.close()
            with start_command(pictures, tiny_model, tmp_path, port):
                page = context.new_page()
                page.goto(f"{url}/#token={TOKEN}")
                expect(page.get_by_role("heading", name="All pictures")).to_be_visible()
                page.wait_for_function(
                    "() => !Object.keys(localStorage).some((key) => key.startsWith('fewtag.answers'))"
                )
                assert answers(opened) == had + size


def test_answers_wait_for_a_studio_that_still_reads_its_pictures(opened: Opened) -> None:
    page = opened.page
    teach(opened, "00-dog-cat.png", "dog")
    expect(page.locator(".bar.fixed")).to_be_visible()
    early = opened.client.get("/v1/project") | {"indexing": True}
    page.route("**/v1/project", lambda route: route.fulfill(json=early), times=1)
    page.route("**/v1/answers", lambda route: route.fulfill(status=404, json={"detail": "no such picture"}), times=1)
    answer_page(opened, lambda: page.keyboard.press("a"))
    expect(page.get_by_role("alert")).to_have_count(0)


@contextmanager
def start_command(
    pictures: Path, tiny_model: Path, folder: Path, port: int
) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    command = [sys.executable, "-m", "fewtag", "studio", folder / "project", pictures, "--no-browser", "--json"]
    command += ["--port", str(port), "--model", tiny_model, "--cache", folder / "cache"]
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, text=True, env={**os.environ, "FEWTAG_TOKEN": TOKEN}
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"], process
    finally:
        process.kill()
        process.wait()


HOSTILE = (Path(__file__).parent / "hostile.html").read_text(encoding="utf-8")


def test_a_page_of_another_origin_can_neither_read_nor_write(opened: Opened) -> None:
    teach(opened, "00-dog-cat.png", "dog")
    before = opened.client.get("/v1/project")
    digest = opened.client.search("")["pictures"][0]["digest"]
    asked = {"url": opened.url, "thumbnail": f"/v1/pictures/{digest}/thumbnail?size=256"}
    text = HOSTILE.replace("ASKED", json.dumps(asked))
    with page_elsewhere(text) as elsewhere:
        other = opened.page.context.new_page()  # with the cookie of the studio, which knows no ports
        other.goto(elsewhere)
        other.wait_for_function("() => document.title !== 'working'")
        told = other.title()
    assert {"read:refused", "events:refused", "json:refused", "image:refused"} <= set(told.split()), told
    assert not re.search(r":(basic|cors|default):2", told), told
    after = opened.client.get("/v1/project")
    assert (after["labels"], after["answers"], after["can_redo"]) == (before["labels"], before["answers"], False)


@contextmanager
def page_elsewhere(text: str) -> Iterator[str]:
    """The same machine, another port: another origin."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_arguments: object) -> None:
            """Quietly."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()


SCROLL = """async (step) => {
  document.querySelector("[data-grid]").scrollTop += step;
  await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
}"""


def test_ten_thousand_pictures_scroll_without_a_long_frame(opened: Opened) -> None:
    """A frame is what the page computes for it, in processor time: other programs do not count."""
    page = opened.page
    known = opened.client.search("")["pictures"]
    page.route("**/v1/search", lambda route: route.fulfill(json=page_of(route.request.post_data_json, known)))
    page.goto(f"{opened.url}/#/?q=is:any")
    expect(page.get_by_text("10,000 pictures")).to_be_visible()
    metrics = page.context.new_cdp_session(page)
    metrics.send("Performance.enable", {"timeDomain": "threadTicks"})

    def spent() -> float:
        told = {each["name"]: each["value"] for each in metrics.send("Performance.getMetrics")["metrics"]}
        return 1000 * sum(told[f"{kind}Duration"] for kind in ("Script", "Layout", "RecalcStyle"))

    def scrolled() -> Iterator[float]:
        last = spent()
        for step in [160] * 10 + [2400] * 10 + [-800] * 5:
            page.evaluate(SCROLL, step)
            now = spent()
            yield now - last
            last = now

    # twice: what a frame costs because another program took its memory's caches does not come again
    first = list(scrolled())
    page.evaluate(SCROLL, -1_000_000)
    times = [min(both) for both in zip(first, scrolled(), strict=True)]
    assert page.locator("[data-grid]").evaluate("grid => grid.scrollHeight") > 100_000
    assert page.locator(".cell").count() < 100
    assert max(times) <= 50, sorted(times)[-5:]


def page_of(asked: dict[str, int], known: list[dict[str, Any]]) -> dict[str, Any]:
    places = range(asked["offset"], min(10_000, asked["offset"] + asked["limit"]))
    cells = [{**known[place % len(known)], "name": f"{place}.png"} for place in places]
    return {"total": 10_000, "members": 10_000, "offset": asked["offset"], "query_means": [], "pictures": cells}


def test_without_the_key_the_page_says_what_to_do(opened: Opened, browser: Browser) -> None:
    for wrong in ("", "#token=wrong"):
        with open_page(browser) as page:
            page.goto(f"{opened.url}/{wrong}")
            expect(page.get_by_role("heading", name="no key")).to_be_visible()
            assert page.locator("img[src*=thumbnail]").count() == 0


def test_sidecars_are_written_and_taken_back(opened: Opened, pictures: Path) -> None:
    page = opened.page
    teach(opened, "00-dog-cat.png", "dog")
    page.keyboard.press("d")
    expect(page.get_by_label("With probabilities")).to_be_visible()
    page.get_by_label("XMP sidecars").check()
    expect(page.get_by_label("With probabilities")).to_have_count(0)
    page.locator("summary").filter(has_text="00-dog-cat.png + dog").click()
    expect(page.get_by_text("<rdf:li>dog</rdf:li>").first).to_be_visible()
    assert not list(pictures.glob("*.xmp"))
    page.get_by_role("dialog").get_by_role("button", name="Deliver").click()
    expect(page.get_by_role("dialog").get_by_text("written.")).to_be_visible()
    assert (pictures / "00-dog-cat.png.xmp").is_file()
    page.get_by_role("button", name="Take all back").click()
    expect(page.get_by_role("dialog").get_by_text("taken back.")).to_be_visible()
    assert not list(pictures.glob("*.xmp"))


def test_what_is_typed_stays_while_others_work(opened: Opened) -> None:
    opened.page.get_by_role("button", name="New label").click()
    name = opened.page.get_by_label("Name", exact=True)
    name.fill("heron")
    opened.client.define("bicycle")
    expect(opened.page.get_by_role("link", name="Review bicycle", include_hidden=True)).to_be_attached()
    expect(name).to_have_value("heron")


def test_a_refusal_is_one_sentence_on_the_screen(opened: Opened) -> None:
    opened.page.route(
        "**/v1/labels/**",
        lambda route: route.fulfill(status=422, json={"detail": "a label needs a name; give it one"}),
    )
    opened.cell("00-dog-cat.png").click()
    opened.page.keyboard.press("n")
    opened.page.get_by_label("Name", exact=True).fill("dog")
    opened.page.keyboard.press("Enter")
    expect(opened.page.get_by_role("alert")).to_contain_text("a label needs a name; give it one")
    expect(opened.page.get_by_label("Name", exact=True)).to_have_value("dog")  # what was typed is not lost


def test_enter_answers_the_page_after_an_order_was_clicked(opened: Opened) -> None:
    teach(opened, "03-dog.png", "dog")
    opened.page.get_by_role("link", name="Sure", exact=True).click()
    expect(opened.page.locator("[data-place='0']")).to_be_focused()
    answer_page(opened, lambda: opened.page.keyboard.press("Enter"))


def test_a_page_that_is_open_elsewhere_is_renewed_and_overrules_nobody(opened: Opened) -> None:
    teach(opened, "03-dog.png", "dog")
    asked = opened.client.get("/v1/review", label="dog", order="unsure", size=4)["pictures"][0]["digest"]
    shown = opened.page.locator(f"img[src*='{asked}']")
    expect(shown.first).to_be_visible()
    opened.client.answer(asked, "dog", "yes")  # by a telephone, say
    expect(opened.page.locator(f".area img[src*='{asked}']")).to_have_count(0)
    late = {"id": str(uuid.uuid4()), "picture": asked, "label": "dog", "answer": "no", "source": "page", "marked": True}
    opened.client.post("/v1/answers", late)  # a page that was drawn before
    assert opened.client.get("/v1/review", label="dog")["answered"]["yes"] == 2


def test_a_label_that_is_there_is_opened_not_defined_anew(opened: Opened) -> None:
    teach(opened, "03-dog.png", "dog")
    opened.page.get_by_role("button", name="New label").click()
    opened.page.get_by_label("Name", exact=True).fill("Dog")
    opened.page.keyboard.press("Enter")
    expect(opened.page.get_by_text("There is a label “dog” already.")).to_be_visible()
    assert [each.name for each in opened.client.labels()] == ["dog"]


def test_a_label_that_was_made_elsewhere_a_moment_ago_is_not_made_a_second_time(opened: Opened) -> None:
    none = opened.page.get_by_text("None yet.")
    expect(none).to_be_visible()  # it has its session
    opened.page.route("**/v1/events", lambda _route: None)  # the page is not told
    opened.page.reload()
    expect(none).to_be_visible()
    opened.client.define("Dog")
    teach(opened, "00-dog-cat.png", "dog")
    assert [(label.name, label.examples) for label in opened.client.labels()] == [("Dog", 1)]


def test_a_quoted_word_becomes_a_label_without_its_quotes(opened: Opened) -> None:
    opened.page.locator("#search").fill('"ball"')
    opened.page.get_by_role("button", name="Make “ball” a label").click()
    expect(opened.page.get_by_label("Name", exact=True)).to_have_value("ball")


def test_a_burst_is_taught_answered_and_taken_back_at_once(browser: Browser, tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "burst"
    folder.mkdir()
    for shot in range(3):
        draw(1, "dog", size=(96, 80)).save(folder / f"a{shot}.jpg", quality=95 - shot)
    draw(2, "cat", "sofa").save(folder / "b.png")
    with Studio.open(tmp_path / "project", [folder], model=str(tiny_model), cache=tmp_path / "cache") as studio:
        assert studio.wait(300.0)
        with serving(lambda _decoders: studio) as running, open_page(browser) as page:
            page.goto(f"{running.settings.url}/#token={running.settings.token}")
            opened = Opened(page, running.settings.url, running.client, studio)
            expect(page.get_by_text("4 pictures · 2 in stacks")).to_be_visible()
            expect(page.get_by_title("3 near-duplicates, answered together")).to_have_text("3")
            teach(opened, "a0.jpg", "dog")
            assert answers(opened) == 3
            assert [label.examples for label in opened.client.labels()] == [1]
            page.keyboard.press("Backspace")
            expect(opened.toast("The label dog taken back")).to_be_visible()
            assert answers(opened) == 0
            expect(page.get_by_role("heading", name=re.compile("dog"))).to_have_count(0)
            expect(page.get_by_text("4 pictures · 2 in stacks")).to_be_visible()
            teach(opened, "b.png", "cat")
            page.get_by_role("button", name="✗ No").click()
            expect(opened.toast("Answered: no, 3 pictures with their stacks.")).to_be_visible()
            assert said(opened, "cat") == {"yes": 1, "no": 3, "unknown": 0}


def test_a_data_set_is_delivered_into_the_projects_folder(opened: Opened) -> None:
    teach(opened, "00-dog-cat.png", "dog")
    opened.page.keyboard.press("d")
    dialog = opened.page.get_by_role("dialog")
    dialog.get_by_role("radio", name=re.compile("COCO")).check()
    expect(dialog.get_by_text("36 rows")).to_be_visible()
    dialog.get_by_role("button", name="Deliver").click()
    expect(dialog.get_by_text("Written: deliveries/tags-")).to_be_visible()
    assert opened.studio is not None
    [folder] = (opened.studio.folder / "deliveries").iterdir()
    assert len(json.loads((folder / "annotations.json").read_text())["images"]) == COUNT


def test_a_newcomer_is_told_what_to_do_from_the_first_picture_on_until_there_is_a_label(opened: Opened) -> None:
    hint = opened.page.get_by_text("Click a picture that shows something")
    expect(hint).to_be_visible()
    opened.page.route("**/v1/labels", lambda _route: None)  # they come later than the pictures
    opened.page.reload()
    expect(opened.cell("00-dog-cat.png")).to_be_visible()
    expect(hint).to_be_visible()
    opened.page.unroute_all()
    opened.page.reload()
    opened.client.define("dog")
    expect(hint).to_have_count(0)


def test_a_question_about_one_picture_shows_it_large_and_without_an_answer(opened: Opened) -> None:
    page = opened.page
    teach(opened, "00-dog-cat.png", "dog")
    asked = page.locator("[data-place='0']")
    expect(asked).to_be_focused()
    assert asked.get_attribute("aria-pressed") is None
    expect(page.locator(".area .mark")).to_have_count(0)
    photo, area = page.locator(".area .photo").bounding_box(), page.locator(".area").bounding_box()
    assert photo is not None
    assert area is not None
    assert max(photo["width"] / area["width"], photo["height"] / area["height"]) > 0.85
    assert abs(photo["x"] + photo["width"] / 2 - area["x"] - area["width"] / 2) < 12  # in the middle
    had = answers(opened)
    page.keyboard.press("Enter")  # which of yes and no would it be
    expect(page.get_by_role("group", name="dog")).to_be_visible()
    assert answers(opened) == had


def test_screens_that_were_opened_while_the_studio_was_away_are_filled_when_it_is_back(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = opened.page
    monkeypatch.setattr(index, "AGAIN_SECONDS", 3600.0)  # no news come by themselves
    assert opened.studio
    opened.studio.rescan()
    assert opened.studio.wait(300.0)
    opened.client.define("dog")
    expect(page.get_by_role("link", name="Review dog")).to_be_visible()
    for address, filled in (("#/?q=dog", "Search"), ("#/review/dog", "Is there a dog?")):
        page.route("**/v1/**", lambda route: route.abort())
        page.evaluate("address => (location.hash = address)", address)
        expect(page.get_by_role("alert").filter(has_text="does not answer")).to_be_visible()
        page.unroute("**/v1/**")
        expect(page.get_by_role("alert")).to_have_count(0)
        if "review" in address:
            expect(page.get_by_role("heading", name=filled)).to_be_visible()
        expect(page.locator("main").get_by_text("Searching")).to_have_count(0)
        expect(page.locator("main img").first).to_be_visible()


def test_an_address_of_nothing_says_so_where_one_looks(opened: Opened) -> None:
    page = opened.page
    expect(opened.cell("00-dog-cat.png")).to_be_visible()
    for address, said in (
        ("#/review/heron", "There is no label “heron”"),
        ("#/review/100%", "There is no label “100%”"),
        (f"#/picture/{'0' * 32}", "There is no such picture"),
        ("#/picture/no-digest", "There is no such picture"),
        ("#/?q=is%3Aunsur", "did you mean 'unsure'?"),
    ):
        page.evaluate("address => (location.hash = address)", address)
        expect(page.get_by_role("main").get_by_text(said)).to_be_visible()
        expect(page.get_by_text("Nothing found")).to_have_count(0)
        expect(page.locator(".toast")).to_have_count(0)
    page.evaluate("location.hash = '#/review/dog'")
    page.get_by_role("button", name="make it a label").click()
    page.get_by_role("button", name="Add").click()
    expect(page.get_by_role("heading", name="Is there a dog?")).to_be_visible()


def test_the_back_button_skips_what_was_half_typed_and_the_box_follows(opened: Opened) -> None:
    page, box = opened.page, opened.page.locator("#search")
    expect(page).to_have_title("project · studio")
    for text in ("ball", "ball cat", "ball cat dog"):
        box.fill(text)
        expect(page.get_by_role("heading", name=text, exact=True)).to_be_visible()
    expect(page).to_have_title("ball cat dog · project · studio")
    page.go_back()
    expect(page.get_by_role("heading", name="All pictures")).to_be_visible()
    expect(box).to_have_value("")
    page.go_forward()
    expect(box).to_have_value("ball cat dog")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("sofa")  # instead of what was there
    expect(box).to_have_value("sofa")


def test_every_button_for_the_selection_is_seen_in_a_page_of_twice_the_size(opened: Opened) -> None:
    page = opened.page
    page.set_viewport_size({"width": 720, "height": 450})
    opened.cell("00-dog-cat.png").click()
    for button in page.get_by_role("toolbar").get_by_role("button").all():
        expect(button).to_be_in_viewport(ratio=1)


def test_a_page_of_four_times_the_size_shows_what_it_asks_about(opened: Opened) -> None:
    page = opened.page
    page.set_viewport_size({"width": 320, "height": 256})
    opened.client.define("dog")
    page.goto(f"{opened.url}/#/review/dog")
    photo = page.locator(".area .photo").first
    expect(photo).to_be_visible()
    assert (photo.bounding_box() or {})["height"] > 80
    page.get_by_role("button", name="✓ Yes").click()
    expect(opened.toast("Answered: yes")).to_be_visible()


def test_labels_of_an_open_picture_stay_in_their_places_while_one_answers(opened: Opened) -> None:
    page = opened.page
    for name in ("dog", "cat", "ball", "sofa"):
        opened.client.define(name)
    expect(page.get_by_role("link", name=re.compile("^Review"))).to_have_count(4)
    opened.cell("00-dog-cat.png").dblclick()
    names = page.locator(".belief .name")
    expect(names).to_have_count(4)
    before, last = names.all_text_contents(), names.last.text_content()
    page.get_by_role("button", name=f"{last}: yes").click()
    expect(page.locator(".belief").last.locator(".p")).not_to_have_text(re.compile("^[0-4]?[0-9] %"))  # learnt
    assert names.all_text_contents() == before


def test_a_label_is_named_in_the_open_picture_with_or_without_learning_from_it(opened: Opened) -> None:
    page = opened.page
    opened.cell("00-dog-cat.png").dblclick()
    expect(page).to_have_title("00-dog-cat.png · project · studio")
    page.get_by_role("complementary").get_by_role("button", name="New label").click()
    page.get_by_label("Name", exact=True).fill("ball")
    page.get_by_label("Learn it from this picture").uncheck()
    page.get_by_role("button", name="Add").click()
    expect(page.get_by_role("heading", name="Is there a ball?")).to_be_visible()
    assert [each.examples for each in opened.client.labels()] == [0]


def test_a_picture_whose_file_is_away_is_shown_by_its_thumbnail(opened: Opened) -> None:
    page = opened.page
    page.route("**/thumbnail?size=1024", lambda route: route.fulfill(status=400, json={"detail": "not there"}))
    opened.cell("00-dog-cat.png").dblclick()
    expect(page.get_by_text("The file cannot be read just now")).to_be_visible()
    page.wait_for_function("() => document.querySelector('.canvas img').naturalWidth > 0")
    opened.client.define("dog")
    page.evaluate("location.hash = '#/review/dog'")  # one question, shown large
    page.wait_for_function("() => document.querySelector('.picture img')?.naturalWidth > 0")


def test_a_file_that_is_dropped_does_not_take_the_pages_place(opened: Opened) -> None:
    page = opened.page
    expect(opened.cell("00-dog-cat.png")).to_be_visible()
    stopped = page.evaluate(
        """() => {
          const dataTransfer = new DataTransfer();
          dataTransfer.items.add(new File(["x"], "heron.jpg", { type: "image/jpeg" }));
          const event = (kind) => new DragEvent(kind, { bubbles: true, cancelable: true, dataTransfer });
          return ["dragover", "drop"].map((kind) => !document.body.dispatchEvent(event(kind)));
        }"""
    )
    assert stopped == [True, True]
    expect(opened.toast("start the studio with the folder")).to_be_visible()


def test_back_from_a_picture_one_goes_on_where_one_was(opened: Opened) -> None:
    page = opened.page
    page.set_viewport_size({"width": 700, "height": 500})
    expect(opened.cell("00-dog-cat.png")).to_be_visible()
    page.locator("[data-grid]").evaluate("grid => (grid.scrollTop = grid.scrollHeight)")
    opened.cell("30-dog.png").dblclick()
    expect(page.get_by_role("heading", name="30-dog.png")).to_be_visible()
    expect(page.locator(".unseen")).to_contain_text("30-dog.png")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("heading", name="31-sofa.png")).to_be_visible()
    page.keyboard.press("Escape")
    expect(opened.cell("31-sofa.png")).to_be_focused()
    expect(opened.cell("31-sofa.png")).to_be_in_viewport()
    page.keyboard.press("ArrowRight")
    expect(opened.cell("32-cat.png")).to_be_focused()


def test_the_focus_is_never_lost(opened: Opened) -> None:
    page, stage = opened.page, opened.page.get_by_role("region", name="The picture")
    opened.client.define("dog")
    cell, link = opened.cell("03-dog.png"), page.get_by_role("link", name="Review dog")
    expect(link).to_be_visible()
    cell.focus()
    for key in ("?", "d", "n"):
        page.keyboard.press(key)
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("Escape")
        expect(cell).to_be_focused()
    cell.click()
    page.keyboard.press("Enter")
    expect(stage).to_be_focused()
    page.get_by_role("button", name="dog: no").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("heading", name="04-cat.png")).to_be_visible()
    expect(stage).to_be_focused()
    page.get_by_role("button", name="The next picture").press("Enter")
    expect(page.get_by_role("heading", name="05-sofa.png")).to_be_visible()
    expect(page.get_by_role("button", name="The next picture")).to_be_focused()
    link.press("Enter")
    expect(page.locator("[data-place='0']")).to_be_focused()
    page.get_by_role("link", name="Missed?").press("Enter")
    expect(page.locator("[data-place='0']")).to_be_focused()


def test_after_a_search_and_a_review_keys_go_on_at_a_picture_that_shows_it(opened: Opened) -> None:
    page, first = opened.page, opened.page.locator("[data-place='0']")
    opened.client.define("dog")
    expect(page.get_by_role("link", name="Review dog")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("sofa")
    expect(page.get_by_role("heading", name="sofa")).to_be_visible()
    expect(page.locator("#search")).to_be_focused()  # one may type on
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Make “sofa” a label")).to_be_visible()
    expect(first).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", name="All pictures")).to_be_visible()
    expect(first).to_be_focused()
    page.get_by_role("link", name="Review dog").press("Enter")
    expect(page.get_by_role("heading", name="Is there a dog?")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", name="dog", exact=True)).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", name="All pictures")).to_be_visible()
    expect(first).to_be_focused()


def test_the_focus_goes_to_the_pictures_from_an_example_that_is_removed(opened: Opened) -> None:
    page, remove = opened.page, opened.page.get_by_role("button", name="Remove this example")
    teach(opened, "00-dog-cat.png", "dog")
    remove.press("Enter")
    expect(opened.toast("No longer an example")).to_be_visible()
    expect(remove).to_have_count(0)
    expect(page.locator("[data-place='0']")).to_be_focused()
    page.get_by_role("button", name="Deliver").focus()
    page.get_by_role("link", name="To the pictures").press("Enter")  # past the buttons above them
    expect(page.locator("[data-place='0']")).to_be_focused()


def test_a_key_that_needs_a_label_says_so(opened: Opened) -> None:
    expect(opened.cell("00-dog-cat.png")).to_be_visible()
    opened.page.keyboard.press("r")
    expect(opened.toast("Search for a label first")).to_be_visible()


def test_the_end_of_a_delivery_has_the_focus_and_is_read_out(opened: Opened) -> None:
    page, dialog = opened.page, opened.page.get_by_role("dialog")
    teach(opened, "00-dog-cat.png", "dog")
    page.keyboard.press("d")
    deliver = dialog.get_by_role("button", name="Deliver")
    expect(deliver).to_be_enabled()  # a key that is pressed before is lost
    deliver.press("Enter")
    expect(dialog.get_by_role("link", name="Download")).to_be_focused()
    expect(dialog.locator("[aria-live]")).to_contain_text("Written: deliveries/tags-")
    dialog.get_by_role("radio", name=re.compile("JSON lines")).check()
    expect(dialog.get_by_text(f"{COUNT} rows, {COUNT} new, changed or gone.")).to_be_visible()


def test_a_review_follows_its_label_to_another_name(opened: Opened) -> None:
    page = opened.page
    teach(opened, "00-dog-cat.png", "dog")
    opened.client.rename("dog", "animals/dog")  # in another tab, say
    expect(page).to_have_url(re.compile("animals%2Fdog"))
    page.keyboard.press("Backspace")
    expect(opened.toast("The name animals/dog taken back")).to_be_visible()
    expect(page).to_have_url(re.compile("#/review/dog$"))
    expect(page.get_by_role("heading", name="Is there a dog?")).to_be_visible()
    expect(page.locator("[data-place='0']")).to_be_focused()


def test_the_focus_stays_with_its_picture_while_others_come(opened: Opened, pictures: Path) -> None:
    page, cell = opened.page, opened.cell("03-dog.png")
    assert opened.studio is not None
    expect(cell).to_be_visible()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(cell).to_be_focused()
    early = pictures / "00-aaa.png"
    draw(77, "ball", size=(64, 48)).save(early)
    try:
        opened.studio.rescan()
        expect(opened.cell("00-aaa.png")).to_be_visible()
        expect(cell).to_be_focused()
        page.keyboard.press("ArrowRight")
        expect(opened.cell("04-cat.png")).to_be_focused()
    finally:
        early.unlink()


def test_a_picture_that_is_moved_is_shown_by_its_new_name(opened: Opened, pictures: Path) -> None:
    assert opened.studio is not None
    expect(opened.page.get_by_text("None yet.")).to_be_visible()
    opened.page.evaluate("location.hash = '#/?q=name:05'")
    expect(opened.page.get_by_text("1 picture", exact=True)).to_be_visible()
    moved = (pictures / "05-sofa.png").rename(pictures / "05-couch.png")
    try:
        opened.studio.rescan()
        expect(opened.cell("05-couch.png")).to_be_visible()
    finally:
        moved.rename(pictures / "05-sofa.png")


def test_escape_leaves_the_selection_then_the_search(opened: Opened) -> None:
    page = opened.page
    page.evaluate("location.hash = '#/?q=is%3Auntagged'")
    expect(page.get_by_role("heading", name="is:untagged")).to_be_visible()
    opened.cell("01-sofa.png").click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("toolbar")).to_have_count(0)
    expect(page.get_by_role("heading", name="is:untagged")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", name="All pictures")).to_be_visible()


def test_not_this_of_a_label_that_is_not_there_keeps_what_was_typed_and_case_does_not_matter(opened: Opened) -> None:
    page = opened.page
    opened.cell("01-sofa.png").click()
    expect(page.get_by_role("toolbar").get_by_role("button", name="Not this")).to_have_count(0)  # of no label
    opened.client.define("dog")
    page.get_by_role("toolbar").get_by_role("button", name="Not this").click()
    page.get_by_label("Label", exact=True).fill("dgo")
    page.get_by_role("button", name="Say no").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_have_text("There is no label “dgo” yet.")
    expect(page.get_by_label("Label", exact=True)).to_have_value("dgo")
    page.get_by_label("Label", exact=True).fill("Dog")
    page.get_by_role("button", name="Say no").click()
    expect(opened.toast("1 picture: not “dog”")).to_be_visible()


def test_a_dialog_that_follows_another_at_once_stays_open(opened: Opened) -> None:
    page = opened.page
    expect(opened.cell("00-dog-cat.png")).to_be_visible()
    for _ in range(5):
        page.keyboard.press("?")
        expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
        page.keyboard.press("Escape")
        page.keyboard.press("d")
        expect(page.get_by_role("dialog", name="Deliver the tags")).to_be_visible()
        page.evaluate("() => new Promise((done) => setTimeout(done))")  # the end of the first is told of later
        expect(page.get_by_role("dialog", name="Deliver the tags")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)


def said(opened: Opened, label: str) -> dict[str, int]:
    return dict(opened.client.get("/v1/review", label=label)["answered"])


@pytest.mark.parametrize(("status", "kept"), [(400, False), (503, True), (429, True)])
def test_what_was_marked_stays_until_the_server_took_it(opened: Opened, status: int, kept: bool) -> None:
    page = opened.page
    teach(opened, "00-dog-cat.png", "dog")
    learn(opened, "dog")
    page.keyboard.press("Space")
    unknown = page.get_by_role("button", name=re.compile(": unknown"))
    expect(unknown).to_have_count(1)
    refusal = {"detail": "the project cannot be written: no space left on device; make room"}
    page.route("**/v1/answers", lambda route: route.fulfill(status=status, json=refusal))
    had = answers(opened)
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert").filter(has_text="no space left on device")).to_be_visible()
    expect(unknown).to_have_count(1)
    expect(opened.toast("Answered")).to_have_count(0)
    assert page.evaluate("Object.keys(localStorage).some((key) => key.startsWith('fewtag.answers'))") is kept
    page.unroute("**/v1/answers")
    size = page.locator("[data-place]").count()
    if not kept:
        expect(page.locator("[aria-busy=true]")).to_have_count(0)
        page.keyboard.press("Enter")
    expect(opened.toast("Answered")).to_be_visible()
    expect(page.get_by_role("alert").filter(has_text="kept here")).to_have_count(0)
    assert answers(opened) == had + size
    assert said(opened, "dog")["unknown"] == 1


def test_a_picture_whose_answer_was_refused_is_shown_without_it(opened: Opened) -> None:
    page = opened.page
    opened.client.define("dog")
    page.evaluate("location.hash = '#/?q=dog'")
    expect(page.locator("main").get_by_role("link", name="Review")).to_be_visible()
    opened.client.answer(opened.client.search("")["pictures"][0]["digest"], "dog", "yes")
    expect(opened.cell("00-dog-cat.png: dog, confirmed")).to_be_visible()
    page.route("**/v1/answers", lambda route: route.fulfill(status=403, json={"detail": "this server only reads"}))
    page.get_by_role("button", name=re.compile("^00-dog-cat.png")).click()
    page.keyboard.press("x")
    expect(page.get_by_role("alert")).to_contain_text("This server only reads")
    page.keyboard.press("Escape")
    expect(opened.cell("00-dog-cat.png: dog, confirmed")).to_be_visible()
    expect(opened.toast("1 picture: not “dog”")).to_have_count(0)


@pytest.mark.parametrize("arrived", [True, False])
def test_an_undo_while_the_studio_is_away_takes_back_what_may_have_arrived(opened: Opened, arrived: bool) -> None:
    page = opened.page
    teach(opened, "00-dog-cat.png", "dog")
    expect(page.locator(".bar.fixed")).to_be_visible()
    had = said(opened, "dog")

    def lost(route: Route) -> None:
        if arrived:
            route.fetch()
        route.abort()

    page.route("**/v1/**", lambda route: route.abort())
    page.route("**/v1/answers", lost, times=1)
    page.keyboard.press("x")
    expect(page.get_by_role("alert").filter(has_text="kept here")).to_be_visible()
    page.keyboard.press("Backspace")
    expect(opened.toast("It is taken back as soon as")).to_be_visible()
    page.unroute_all()
    expect(opened.toast("1 answer about dog taken back")).to_be_visible()
    assert said(opened, "dog") == had
    opened.toast("taken back").get_by_role("button", name="Redo").click()
    expect(opened.toast("1 answer about dog done again")).to_be_visible()
    assert said(opened, "dog") == had | {"no": had["no"] + 1}


def test_an_undo_whose_reply_was_lost_is_no_error(opened: Opened) -> None:
    page = opened.page
    teach(opened, "00-dog-cat.png", "dog")
    had = said(opened, "dog")
    answer_page(opened, lambda: page.keyboard.press("x"))

    def lost(route: Route) -> None:
        route.fetch()
        route.abort()

    page.route("**/v1/undo", lost, times=1)
    opened.toast("Answered: no").get_by_role("button", name="Undo").click()
    expect(opened.toast("1 answer about dog taken back")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
    assert said(opened, "dog") == had


def test_backspace_right_after_a_threshold_takes_back_the_threshold_alone(opened: Opened) -> None:
    page, slider = opened.page, opened.page.get_by_role("slider", name="Threshold")
    teach(opened, "00-dog-cat.png", "dog")
    answer_page(opened, lambda: page.keyboard.press("a"))
    had, value = said(opened, "dog"), slider.input_value()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(f"{request.method} {request.url}"))
    page.clock.install()  # hands that are faster than any timer
    page.keyboard.press("]")
    page.keyboard.press("]")
    expect(slider).not_to_have_value(value)
    page.keyboard.press("Backspace")
    expect(slider).to_have_value(value)
    page.clock.run_for(1000)
    assert not [each for each in asked if "undo" in each or "PATCH" in each]
    assert said(opened, "dog") == had
    page.keyboard.press("]")
    page.clock.run_for(1000)
    expect(opened.toast("% on")).to_be_visible()
    page.keyboard.press("Backspace")
    expect(opened.toast("The threshold of dog taken back")).to_be_visible()


def test_thresholds_of_two_labels_moved_at_once_are_both_kept(opened: Opened) -> None:
    page = opened.page
    for label in ("dog", "cat"):
        opened.client.define(label)
    slider = page.get_by_role("slider", name="Threshold")
    expect(page.get_by_role("link", name="Review dog")).to_be_visible()
    page.clock.install()
    for label in ("dog", "cat"):
        page.evaluate("label => (location.hash = `#/review/${label}`)", label)
        expect(page.get_by_role("heading", name=f"Is there a {label}?")).to_be_visible()
        value = slider.input_value()
        page.keyboard.press("]")
        expect(slider).not_to_have_value(value)
    own = {each.name: each.threshold for each in opened.client.labels()}
    with page.expect_response("**/v1/labels/dog"), page.expect_response("**/v1/labels/cat"):
        page.clock.run_for(1000)
    assert all(each.threshold != own[each.name] for each in opened.client.labels())


def test_the_undo_beside_a_sentence_takes_back_what_the_sentence_says(opened: Opened) -> None:
    page = opened.page
    opened.client.define("dog")
    opened.client.define("cat")
    first, other = (each["digest"] for each in opened.client.search("")["pictures"][:2])
    opened.cell("00-dog-cat.png").click()
    page.keyboard.press("t")
    page.get_by_label("Label", exact=True).fill("dog")
    page.get_by_role("button", name="Tag", exact=True).last.click()
    expect(opened.toast("1 picture: “dog”")).to_be_visible()
    opened.client.answer(other, "cat", "yes")  # by another person
    opened.toast("1 picture: “dog”").get_by_role("button", name="Undo").click()
    expect(opened.toast("1 answer about dog taken back")).to_be_visible()
    assert (said(opened, "dog")["yes"], said(opened, "cat")["yes"]) == (0, 1)
    page.evaluate("location.hash = '#/review/dog'")
    page.get_by_role("button", name="Rename, merge or delete dog").click()
    page.get_by_role("button", name="Delete the label").click()
    undo = opened.toast("“dog” is deleted").get_by_role("button", name="Undo")
    expect(undo).to_be_visible()
    opened.client.answer(first, "cat", "yes")
    undo.click()
    expect(opened.toast("The deletion of dog taken back")).to_be_visible()
    assert [label.name for label in opened.client.labels()] == ["cat", "dog"]
    assert said(opened, "cat")["yes"] == 2


def test_one_undo_takes_back_all_of_more_pictures_than_a_request_holds(opened: Opened) -> None:
    page = opened.page
    known = opened.client.search("")["pictures"]
    opened.client.define("dog")
    sent: list[list[str]] = []
    undone: list[str] = []

    def take(route: Route) -> None:
        sent.append([each["id"] for each in route.request.post_data_json["answers"]])
        route.fulfill(json={"acknowledged": sent[-1], "undo": str(uuid.uuid4()), "pictures": len(sent[-1])})

    def turn(route: Route) -> None:
        asked = route.request.post_data_json.get("id") or sent[-1][0]
        ids = next(each for each in sent if asked in each)
        undone.append(ids[0])
        reverted = [{"id": each, "picture": "", "label": "dog", "was": "yes", "now": None} for each in ids]
        what = f"{len(ids):,} answers about dog taken back"
        route.fulfill(json={"id": str(uuid.uuid4()), "what": what, "undone": reverted, "left": 0})

    page.route("**/v1/search", lambda route: route.fulfill(json=many(route.request.post_data_json, known, 2345)))
    page.route("**/v1/answers", take)
    page.route("**/v1/undo", turn)
    page.evaluate("location.hash = '#/?q=is%3Aany'")
    expect(page.get_by_text("2,345 pictures")).to_be_visible()
    for by_key in (True, False):
        sent.clear()
        undone.clear()
        page.keyboard.press("Control+a")
        expect(page.get_by_text("2,345 selected")).to_be_visible()
        page.keyboard.press("t")
        page.get_by_label("Label", exact=True).fill("dog")
        page.get_by_role("button", name="Tag", exact=True).last.click()
        toast = opened.toast("2,345 pictures: “dog”")
        expect(toast).to_be_visible()
        assert [len(each) for each in sent] == [1000, 1000, 345]
        if by_key:
            page.keyboard.press("Backspace")
        else:
            toast.get_by_role("button", name="Undo").click()
        expect(opened.toast("2,345 answers about dog taken back")).to_be_visible()
        assert undone == [each[0] for each in reversed(sent)]


def test_a_label_is_taught_with_more_pictures_than_a_request_holds_answers_by_one_that_one_undo_takes_back(
    opened: Opened,
) -> None:
    page = opened.page
    known = opened.client.search("")["pictures"]

    def teach(route: Route) -> None:  # of those that there are
        assert len(route.request.post_data_json["pictures"]) == 2345
        route.continue_(post_data=json.dumps({"pictures": [each["digest"] for each in known]}))

    page.route("**/v1/search", lambda route: route.fulfill(json=many(route.request.post_data_json, known, 2345)))
    page.route("**/examples", teach)
    page.evaluate("location.hash = '#/?q=is%3Aany'")
    expect(page.get_by_text("2,345 pictures")).to_be_visible()
    page.keyboard.press("Control+a")
    expect(page.get_by_text("2,345 selected")).to_be_visible()
    page.keyboard.press("n")
    page.get_by_label("Name", exact=True).fill("dog")
    page.get_by_role("button", name="Teach").click()
    expect(opened.toast("“dog” learnt from 2,345 pictures")).to_be_visible()
    assert answers(opened) == len(known)
    page.keyboard.press("Backspace")
    expect(opened.toast("The label dog taken back")).to_be_visible()
    assert opened.client.labels() == []


def many(asked: dict[str, Any], known: list[dict[str, Any]], total: int) -> dict[str, Any]:
    """As many pictures as that, each its own."""
    if asked.get("only") == "digests":
        return {"total": total, "digests": [f"{place:032x}" for place in range(total)]}
    places = range(asked["offset"], min(total, asked["offset"] + asked["limit"]))
    cells = [{**known[place % len(known)], "digest": f"{place:032x}", "name": f"{place}.png"} for place in places]
    return {"total": total, "members": total, "offset": asked["offset"], "query_means": [], "pictures": cells}


def test_answers_are_sent_even_if_the_studio_was_away_when_the_page_was_opened(opened: Opened) -> None:
    page = opened.page
    teach(opened, "00-dog-cat.png", "dog")
    expect(page.locator(".bar.fixed")).to_be_visible()
    had = said(opened, "dog")["no"]
    page.route("**/v1/**", lambda route: route.abort())
    page.keyboard.press("x")
    away = page.get_by_role("alert").filter(has_text="does not answer")
    expect(away).to_contain_text("kept here")
    page.reload()
    expect(away).to_be_visible()
    page.unroute_all()
    page.wait_for_function("() => !Object.keys(localStorage).some((key) => key.startsWith('fewtag.answers'))")
    assert said(opened, "dog")["no"] == had + 1


def test_more_like_this_before_there_is_a_picture_stays_where_one_is(opened: Opened) -> None:
    page = opened.page
    expect(opened.cell("00-dog-cat.png")).to_be_visible()
    page.route("**/v1/search", lambda _route: None)
    page.evaluate("location.hash = '#/?q=is%3Auntagged'")
    expect(page.get_by_role("heading", name="is:untagged")).to_be_visible()
    page.keyboard.press("g")
    page.evaluate("() => new Promise((done) => setTimeout(done))")
    assert page.url.endswith("#/?q=is%3Auntagged")


def test_arrows_walk_on_past_the_pictures_that_were_read(opened: Opened) -> None:
    page = opened.page
    known = opened.client.search("")["pictures"]
    page.route("**/v1/search", lambda route: route.fulfill(json=page_of(route.request.post_data_json, known)))
    page.evaluate("location.hash = '#/?q=is%3Aany'")
    expect(page.get_by_text("10,000 pictures")).to_be_visible()
    page.get_by_role("button", name=re.compile(r"^0\.png")).dblclick()
    expect(page.get_by_text("1 of 10,000")).to_be_visible()
    page.evaluate("studio.store.walk.value = { ...studio.store.walk.value, place: 198 }")  # a long walk
    for place in (200, 201, 202):
        page.keyboard.press("ArrowRight")
        expect(page.get_by_text(f"{place} of 10,000")).to_be_visible()
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_text("201 of 10,000")).to_be_visible()


def test_arrows_and_escape_from_an_example_belong_to_the_examples(opened: Opened) -> None:
    page = opened.page
    opened.cell("05-sofa.png").dblclick()  # another list, walked before
    expect(page.get_by_role("heading", name="05-sofa.png")).to_be_visible()
    page.keyboard.press("Escape")
    for name in ("00-dog-cat.png", "03-dog.png"):
        opened.cell(name).click()
    page.keyboard.press("n")
    page.get_by_label("Name", exact=True).fill("dog")
    page.keyboard.press("Enter")
    examples = page.get_by_role("complementary").get_by_role("img", name=re.compile("^Example"))
    expect(examples).to_have_count(2)
    examples.first.click()
    expect(page.get_by_text("1 of 2")).to_be_visible()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_text("2 of 2")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", name="Is there a dog?")).to_be_visible()


def test_sidecars_that_cannot_be_written_are_told_of(opened: Opened, pictures: Path) -> None:
    page, dialog = opened.page, opened.page.get_by_role("dialog")
    teach(opened, "00-dog-cat.png", "dog")
    (pictures / "00-dog-cat.png.xmp").mkdir()
    try:
        page.keyboard.press("d")
        page.get_by_label("XMP sidecars").check()
        dialog.get_by_role("button", name="Deliver").click()
        expect(dialog.get_by_role("alert")).to_have_text("1 sidecar could not be written.")
        expect(dialog.get_by_text("00-dog-cat.png cannot be written").last).to_be_visible()
        dialog.get_by_role("button", name="Take all back").click()
        expect(dialog.get_by_text("taken back.")).to_be_visible()
        expect(dialog.get_by_role("button", name="Deliver")).to_be_enabled()
    finally:
        (pictures / "00-dog-cat.png.xmp").rmdir()


def test_another_choice_after_a_delivery_can_be_delivered_too(opened: Opened) -> None:
    dialog = opened.page.get_by_role("dialog")
    teach(opened, "00-dog-cat.png", "dog")
    opened.page.keyboard.press("d")
    for choice in ("With probabilities", "Only what a person confirmed"):
        dialog.get_by_role("button", name="Deliver").click()
        expect(dialog.get_by_role("link", name="Download")).to_be_visible()
        dialog.get_by_label(choice).click()
        expect(dialog.get_by_role("link", name="Download")).to_have_count(0)
        expect(dialog.get_by_role("button", name="Deliver")).to_be_enabled()


def test_the_end_of_a_delivery_is_told_where_its_dialog_was_closed(opened: Opened) -> None:
    page = opened.page
    teach(opened, "00-dog-cat.png", "dog")
    running = {"id": "1", "kind": "deliver", "state": "running", "done": 0, "total": 2, "detail": None, "result": None}
    page.route("**/v1/jobs/*", lambda route: route.fulfill(json=running))
    page.keyboard.press("d")
    with page.expect_request("**/v1/jobs/*"):
        page.get_by_role("dialog").get_by_role("button", name="Deliver").click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    done = running | {"state": "done", "result": {"file": "tags.csv", "changes": 1, "failures": 0, "sample": []}}
    page.route("**/v1/jobs/*", lambda route: route.fulfill(json=done))
    expect(opened.toast("Written: deliveries/tags.csv")).to_be_visible()


def test_a_delivery_whose_studio_was_away_is_followed_on_and_a_lost_one_told(opened: Opened) -> None:
    page, dialog = opened.page, opened.page.get_by_role("dialog")
    teach(opened, "00-dog-cat.png", "dog")
    page.keyboard.press("d")
    page.route("**/v1/jobs/*", lambda route: route.abort(), times=2)
    dialog.get_by_role("button", name="Deliver").click()
    expect(dialog.get_by_role("link", name="Download")).to_be_visible()
    dialog.get_by_label("With probabilities").click()
    lost = {"detail": "there is no job 1; the server was started again since"}
    page.route("**/v1/jobs/*", lambda route: route.fulfill(status=404, json=lost))
    dialog.get_by_role("button", name="Deliver").click()
    expect(opened.toast("started again since")).to_be_visible()
    expect(dialog.get_by_role("button", name="Deliver")).to_be_enabled()


def test_a_delivery_while_pictures_are_read_says_how_many_are(opened: Opened) -> None:
    tell_of_project(opened, pictures=50, indexed=COUNT, indexing=True)
    opened.page.keyboard.press("d")
    expect(opened.page.get_by_role("dialog")).to_contain_text(f"Still reading, {COUNT} of 50")


def test_only_the_newest_choice_of_a_delivery_is_looked_at(opened: Opened) -> None:
    page, dialog = opened.page, opened.page.get_by_role("dialog")
    teach(opened, "00-dog-cat.png", "dog")
    held: list[Route] = []
    page.route("**/v1/deliver", lambda route: held.append(route))
    page.keyboard.press("d")
    until(page, lambda: len(held) == 1)
    for choice in ("JSON lines", "COCO", "FiftyOne"):
        dialog.get_by_role("radio", name=re.compile(choice)).check()
    held[0].continue_()
    until(page, lambda: len(held) == 2)
    held[1].continue_()
    expect(dialog.get_by_text(f"{COUNT} rows")).to_be_visible()
    assert [each.request.post_data_json["format"] for each in held] == ["csv", "fiftyone"]


def test_a_heat_map_that_nobody_waits_for_any_more_is_given_up(opened: Opened) -> None:
    page = opened.page
    opened.client.define("dog")
    expect(page.get_by_role("link", name="Review dog")).to_be_visible()
    page.route("**/heat?*at_once=false", lambda _route: None)  # it takes its time
    opened.cell("03-dog.png").dblclick()
    with page.expect_request("**/heat?*at_once=false"):
        page.get_by_role("group", name="dog").hover()
    with page.expect_event("requestfailed", lambda request: "at_once=false" in request.url):
        page.get_by_role("button", name="Like this").hover()


def test_all_is_selected_by_one_request_and_a_long_range_page_by_page(opened: Opened) -> None:
    page = opened.page
    known = opened.client.search("")["pictures"]
    asked: list[dict[str, Any]] = []
    waiting: list[Route] = []

    def find(route: Route) -> None:
        asked.append(route.request.post_data_json)
        if 0 < asked[-1].get("offset", 0) < 1400:  # neither of the pages that one sees
            waiting.append(route)
        else:
            route.fulfill(json=many(asked[-1], known, 1500))

    page.route("**/v1/search", find)
    page.evaluate("location.hash = '#/?q=is%3Aany'")
    expect(page.get_by_text("1,500 pictures")).to_be_visible()
    page.keyboard.press("Control+a")
    expect(page.get_by_text("1,500 selected")).to_be_visible()
    assert sum(each.get("only") == "digests" for each in asked) == 1
    assert not waiting
    page.keyboard.press("Escape")
    expect(page.get_by_role("toolbar")).to_have_count(0)
    page.keyboard.press("Home")
    page.keyboard.press("Shift+End")
    for first in range(200, 1400, 200):
        expect(opened.toast(f"Reading {first:,} of 1,500")).to_be_visible()
        until(page, lambda: len(waiting) > 0)
        (route,) = waiting  # one at a time
        assert route.request.post_data_json["offset"] == first
        waiting.clear()  # before the answer, at which the next comes
        route.fulfill(json=many(route.request.post_data_json, known, 1500))
    expect(page.get_by_text("1,500 selected")).to_be_visible()


def test_a_key_that_is_kept_over_restarts_is_typed_in(opened: Opened, browser: Browser) -> None:
    with open_page(browser) as page:
        page.goto(f"{opened.url}/#/?q=is%3Auntagged")
        key = page.get_by_label("give the key itself")
        key.fill("wrong")
        page.get_by_role("button", name="Enter").click()
        expect(page.get_by_role("alert")).to_have_text("That is not the key of this studio.")
        key.fill(TOKEN)
        page.get_by_role("button", name="Enter").click()
        expect(page.get_by_role("heading", name="is:untagged")).to_be_visible()


def test_a_page_without_a_key_waits_quietly_until_another_one_brings_it(opened: Opened, browser: Browser) -> None:
    with open_page(browser) as page:
        page.goto(opened.url)
        heading = page.get_by_role("heading", name="no key")
        expect(heading).to_be_visible()
        page.evaluate(
            """() => {
              globalThis.gone = 0;
              const watch = new MutationObserver(() => (gone += Number(!document.querySelector("main.locked"))));
              watch.observe(document.body, { childList: true, subtree: true });
            }"""
        )
        for _ in range(2):
            with page.expect_response("**/v1/project"):
                pass
        assert page.evaluate("gone") == 0
        other = page.context.new_page()
        other.goto(f"{opened.url}/#token={TOKEN}")
        expect(page.get_by_role("heading", name="All pictures")).to_be_visible()


@pytest.mark.parametrize(("settled", "most"), [(True, 0), (False, 3)])
def test_review_asks_for_influences_until_they_are_settled(opened: Opened, settled: bool, most: int) -> None:
    page = opened.page
    shown = opened.client.search("")["pictures"][0]["digest"]
    opened.client.post("/v1/labels/dog/examples", {"pictures": [shown]})
    told = opened.client.get("/v1/review", label="dog", order="auto", size=9)
    told["examples"] = [{**each, "influence": None} for each in told["examples"]]
    told["settled"] = settled
    asked: list[str] = []

    def review(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(json=told)

    page.route("**/v1/review?*", review)
    page.clock.install()
    page.evaluate("location.hash = '#/review/dog'")
    expect(page.get_by_role("heading", name="Is there a dog?")).to_be_visible()
    for polls in range(3):
        if most > polls:
            with page.expect_response("**/v1/review?*size=1"):
                page.clock.run_for(2600)
            page.wait_for_function("() => new Promise(requestAnimationFrame).then(() => true)")
        else:
            page.clock.run_for(2600)
            page.evaluate("fetch('/v1/project').then(() => true)")  # what was asked for before is heard of
    assert len([each for each in asked if each.endswith("size=1")]) == most


def test_what_was_typed_does_not_fetch_back_who_went_elsewhere(opened: Opened) -> None:
    page = opened.page
    opened.client.define("dog")
    expect(page.get_by_role("link", name="Review dog")).to_be_visible()
    page.clock.install()
    page.get_by_role("combobox", name="Search").fill("sofa")
    page.get_by_role("link", name="Review dog").click()
    expect(page.get_by_role("heading", name="Is there a dog?")).to_be_visible()
    page.clock.run_for(1000)
    expect(page).to_have_url(re.compile("review/dog"))


def test_a_click_after_a_rubber_band_that_ended_outside_counts(opened: Opened) -> None:
    page = opened.page
    expect(page.get_by_text("Click a picture that shows something")).to_be_visible()  # above the pictures
    edge = opened.cell("00-dog-cat.png").bounding_box()
    assert edge is not None
    page.mouse.move(edge["x"] + 10, edge["y"] + 10)
    page.mouse.down()
    page.mouse.move(edge["x"] + 60, edge["y"] + 40, steps=3)
    page.evaluate("dispatchEvent(new PointerEvent('pointerup'))")  # over another window: no click comes of it
    expect(page.get_by_text("1 selected")).to_be_visible()
    opened.cell("03-dog.png").evaluate("cell => cell.click()")
    expect(page.get_by_text("2 selected")).to_be_visible()


def test_a_look_at_a_picture_keeps_the_selection_and_another_search_does_not(opened: Opened) -> None:
    page = opened.page
    for name in ("00-dog-cat.png", "02-ball.png", "03-dog.png"):
        opened.cell(name).click()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="03-dog.png")).to_be_visible()
    page.keyboard.press("Escape")
    expect(opened.cell("03-dog.png")).to_be_focused()
    expect(page.get_by_text("3 selected")).to_be_visible()
    page.get_by_role("navigation", name="Labels").get_by_role("link", name="Untagged").click()
    expect(page.get_by_role("heading", name="is:untagged")).to_be_visible()
    expect(page.get_by_role("toolbar")).to_have_count(0)


def test_a_drag_from_a_field_onto_the_backdrop_leaves_the_dialog_open(opened: Opened) -> None:
    page = opened.page
    page.get_by_role("button", name="New label").click()
    name = page.get_by_label("Name", exact=True)
    name.fill("heron")
    edge = name.bounding_box()
    assert edge is not None
    page.mouse.move(edge["x"] + 60, edge["y"] + 10)
    page.mouse.down()
    page.mouse.move(5, 5, steps=4)
    page.mouse.up()
    expect(name).to_have_value("heron")
    page.mouse.click(5, 5)
    expect(page.get_by_role("dialog")).to_have_count(0)


def tell_of_project(opened: Opened, **facts: Any) -> dict[str, Any]:
    """The project as it is but for these facts; the page asks for them again and again, since it gets no events."""
    expect(opened.cell("00-dog-cat.png")).to_be_visible()
    told = opened.client.get("/v1/project") | facts
    opened.page.route("**/v1/events", lambda route: route.abort())
    opened.page.route("**/v1/project", lambda route: route.fulfill(json=told))
    opened.page.reload()
    return told


def test_a_notice_of_the_project_is_closed_until_there_is_another(opened: Opened) -> None:
    page = opened.page
    notice = page.get_by_role("alert").filter(has_text="Project: the folder")
    told = tell_of_project(opened, notice="the folder album is gone; plug its disk in")
    notice.get_by_role("button", name="Close").click()
    expect(notice).to_have_count(0)
    told["notice"] = "the folder holidays is gone; plug its disk in"
    expect(notice).to_contain_text("holidays")


def test_a_label_that_goes_while_a_picture_is_read_does_not_hide_the_picture(opened: Opened) -> None:
    page = opened.page
    gone = {"detail": "there is no label 'dog'; there are none"}
    page.route(re.compile(r"/v1/pictures/\w{32}$"), lambda route: route.fulfill(status=404, json=gone), times=1)
    opened.cell("03-dog.png").dblclick()
    expect(page.get_by_role("heading", name="03-dog.png")).to_be_visible()
    expect(page.get_by_text("There is no such picture")).to_have_count(0)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_unreadable_pictures_are_tried_again_at_a_click(opened: Opened) -> None:
    page = opened.page
    told = tell_of_project(opened, failures=1)
    page.route("**/v1/failures", lambda route: route.fulfill(json={"failures": [{"name": "a.jpg", "reason": "torn"}]}))
    page.route("**/v1/rescan", lambda route: route.fulfill(json=told))
    page.get_by_role("button", name="1 unreadable").click()
    expect(page.get_by_role("dialog").get_by_text("a.jpg")).to_be_visible()
    with page.expect_request("**/v1/rescan"):
        page.get_by_role("button", name="Try again now").click()
    expect(opened.toast("The folders are looked through again.")).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_reply_that_breaks_off_is_asked_for_again(opened: Opened) -> None:
    page = opened.page
    opened.client.define("dog")
    page.evaluate("location.hash = '#/review/dog'")
    expect(page.get_by_role("button", name="Yes")).to_be_visible()

    def cut(route: Route) -> None:
        route.fetch()
        route.fulfill(status=200, body='{"acknow')

    page.route("**/v1/answers", cut, times=1)
    page.keyboard.press("a")
    expect(opened.toast("Answered: yes")).to_be_visible()
    assert said(opened, "dog")["yes"] == 1
    page.route("**/v1/project", lambda route: route.fulfill(status=200, body=""), times=1)
    page.evaluate("studio.store.loadProject()")
    expect(page.get_by_role("alert").filter(has_text="does not answer")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_list_that_cannot_be_read_again_stays_on_the_screen(opened: Opened) -> None:
    page = opened.page
    expect(opened.cell("00-dog-cat.png")).to_be_visible()
    page.route("**/v1/pictures", lambda route: route.fulfill(status=503, json={"detail": "too much to do"}), times=1)
    opened.client.define("dog")
    expect(page.get_by_role("alert")).to_contain_text("Too much to do")
    page.keyboard.press("End")  # which draws it anew
    page.keyboard.press("Space")
    expect(page.get_by_text("1 selected")).to_be_visible()


@pytest.mark.parametrize("what", ["Labels", "Project"])
def test_a_reply_that_was_overtaken_is_not_shown(opened: Opened, what: str) -> None:
    page = opened.page
    opened.client.define("dog")
    expect(page.get_by_role("link", name="Review dog")).to_be_visible()
    late: list[tuple[Route, Any]] = []
    page.route(f"**/v1/{what.lower()}", lambda route: late.append((route, route.fetch())), times=1)
    page.evaluate(f"void (globalThis.late = studio.store.load{what}())")
    until(page, lambda: bool(late))
    opened.client.define("cat")
    expect(page.get_by_role("link", name="Review cat")).to_be_visible()
    late[0][0].fulfill(response=late[0][1])
    page.evaluate("globalThis.late")
    expect(page.get_by_role("link", name="Review cat")).to_be_visible()
    version = opened.client.get("/v1/project")["version"]
    assert page.evaluate("studio.store.project.value.version") == version


def test_a_threshold_that_was_refused_is_not_shown(opened: Opened) -> None:
    page, slider = opened.page, opened.page.get_by_role("slider", name="Threshold")
    teach(opened, "00-dog-cat.png", "dog")
    value = slider.input_value()
    refusal = {"detail": "the project cannot be written: no space left on device; make room"}
    page.route("**/v1/labels/dog", lambda route: route.fulfill(status=503, json=refusal))
    page.keyboard.press("]")
    expect(slider).not_to_have_value(value)
    expect(page.get_by_role("alert")).to_contain_text("no space left on device")
    expect(slider).to_have_value(value)


def test_another_choice_while_a_delivery_runs_hides_it_and_its_end_is_told(opened: Opened) -> None:
    page = opened.page
    teach(opened, "00-dog-cat.png", "dog")
    running = {"id": "1", "kind": "deliver", "state": "running", "done": 1, "total": 9, "detail": None, "result": None}
    page.route("**/v1/jobs/*", lambda route: route.fulfill(json=running))
    page.keyboard.press("d")
    dialog = page.get_by_role("dialog")
    with page.expect_response("**/v1/jobs/*"):
        dialog.get_by_role("button", name="Deliver").click()
    dialog.get_by_role("radio", name=re.compile("JSON lines")).click()
    expect(dialog.get_by_role("progressbar")).to_have_count(0)
    page.unroute("**/v1/jobs/*")
    done = running | {"state": "done", "result": {"file": "tags.csv", "changes": 36}}
    page.route("**/v1/jobs/*", lambda route: route.fulfill(json=done))
    expect(opened.toast("Written: deliveries/tags.csv")).to_be_visible()
    expect(dialog.get_by_role("link", name="Download")).to_have_count(0)
    expect(dialog.get_by_role("button", name="Deliver")).to_be_enabled()


def test_a_second_enter_does_not_teach_twice(opened: Opened) -> None:
    page = opened.page
    opened.cell("00-dog-cat.png").click()
    page.keyboard.press("n")
    page.get_by_label("Name", exact=True).fill("dog")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(opened.toast("“dog” learnt from 1 picture")).to_be_visible()
    opened.toast("learnt").get_by_role("button", name="Undo").click()
    expect(opened.toast("The label dog taken back")).to_be_visible()


def test_a_key_with_a_sign_that_is_no_escape_is_told_to_be_wrong(opened: Opened, browser: Browser) -> None:
    with open_page(browser) as page:
        page.goto(f"{opened.url}/#token=50%")
        expect(page.get_by_role("heading", name="This page has no key to the studio")).to_be_visible()


def test_the_label_that_the_arrows_mark_is_seen(opened: Opened) -> None:
    page = opened.page
    digest, labels = opened.client.search()["pictures"][0]["digest"], [f"label {number:02}" for number in range(40)]
    for label in labels:
        opened.client.define(label, words=False)
    given = [{"id": str(uuid.uuid4()), "picture": digest, "label": label, "answer": "yes"} for label in labels]
    opened.client.post("/v1/answers", {"answers": given})
    page.evaluate("digest => (location.hash = `#/picture/${digest}`)", digest)
    expect(page.locator(".belief")).to_have_count(len(labels))
    for _ in range(30):
        page.keyboard.press("ArrowDown")
    marked = page.locator(".belief.here")
    expect(marked).to_be_in_viewport(ratio=1)
    # a screen reader is told of it, too
    name, chance = (marked.locator(part).inner_text() for part in (".name", ".p"))
    expect(page.locator("[aria-live=polite].unseen")).to_have_text(f"{name}: {chance}, yes")


def test_a_picture_says_why_a_label_without_word_and_example_is_not_there(opened: Opened) -> None:
    page = opened.page
    opened.client.define("SKU-4711", words=False)
    page.evaluate("digest => (location.hash = `#/picture/${digest}`)", opened.client.search()["pictures"][0]["digest"])
    labels = page.get_by_role("complementary", name="Labels of the picture")
    expect(labels).to_contain_text("No label has a word or an example yet. Give this picture one by its name:")
    opened.client.forget("SKU-4711")
    expect(labels).to_contain_text("No labels yet")
