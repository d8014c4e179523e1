"""The page of `diglot report` in a real browser: sorting, both modes, a phone's width."""

from __future__ import annotations

import browser
import pytest

pytest.importorskip("jinja2")

from diglot.tools.report import read, render

REASON = browser.missing()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"no browser here: {REASON}")

ROOFLINE, RANKING = "#m0-0", "#m0-1"
CASES = "#m0-1 details:nth-of-type(2)"  # every case
# Of two colours: WCAG 2's contrast. https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio
CONTRAST = """
const light = (colour) => {
  const of = colour.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * of[0] + 0.7152 * of[1] + 0.0722 * of[2];
};
const contrast = (a, b) => {
  const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
  return (x + 0.05) / (y + 0.05);
};
"""


@pytest.fixture(scope="module")
def page(committed_page):
    return committed_page


@pytest.fixture(scope="module")
def window():
    opened = browser.Browser()
    yield opened
    opened.close()


def column(window, name):
    """The cells of a column of every case, and how the column says it is sorted."""
    return window.run(
        """
        const table = document.querySelector(arguments[0] + " table");
        const titles = [...table.tHead.rows[0].cells];
        const at = titles.findIndex((of) => of.textContent === arguments[1]);
        const cells = [...table.tBodies[0].rows].map((row) => row.cells[at].textContent);
        return [cells, titles.map((of) => of.getAttribute("aria-sort"))[at]];
        """,
        CASES,
        name,
    )


def title(name):
    return f"{CASES} th:nth-child({name}) button"


def shown(window, selector):
    """How many elements a selector finds that are to be seen, and how many there are."""
    return tuple(
        window.run(
            """
            const all = [...document.querySelectorAll(arguments[0])];
            const isSeen = (of) => of.checkVisibility() && of.getClientRects().length;
            return [all.filter(isSeen).length, all.length];
            """,
            selector,
        )
    )


def numbers_of(cells):
    """The times behind the places in cells; "–", or a word where there is no time, has none."""
    return [float(c.split()[1].rstrip(",")) for c in cells if c[0].isdigit()]


def test_tables_are_sorted(window, page):
    """By a click and by the keyboard; cells without a number come last."""
    window.open(page)
    assert shown(window, f"{RANKING} table")[0] == 1  # folded parts are not in the way
    window.click(f"{CASES} summary")
    position = window.run(
        "return [...document.querySelectorAll(arguments[0])].findIndex("
        "(of) => of.textContent === 'PyTorch') + 1",
        f"{CASES} th",
    )
    before, sorting = column(window, "PyTorch")
    assert sorting is None

    window.click(title(position))
    cells, sorting = column(window, "PyTorch")
    numbers = numbers_of(cells)
    assert sorting == "descending" and sorted(cells) == sorted(before)
    assert numbers == sorted(numbers, reverse=True) and len(set(numbers)) > 10
    assert numbers_of(cells[len(numbers) :]) == []

    # The focus is on the title now: a key sorts the other way.
    window.press("Enter")
    cells, sorting = column(window, "PyTorch")
    assert (sorting, numbers_of(cells)) == ("ascending", numbers[::-1])
    assert numbers_of(cells[len(numbers) :]) == []

    window.click(title(1))
    cases, sorting = column(window, "case")
    assert sorting == "ascending" and len(set(cases)) > 4
    assert [case.split()[0] for case in cases] == sorted(case.split()[0] for case in cases)
    assert column(window, "PyTorch")[1] is None
    # From one title to the next by the keyboard.
    window.press("Tab")
    window.press("Space")
    assert column(window, "manual formula")[1] == "descending"
    assert window.messages() == []


def test_a_mark_says_what_it_is(window, page):
    """What the pointer meets at a mark has a title: its case, its provider and its figures."""
    window.open(page)
    words = window.run(
        """
        const found = [];
        for (const mark of document.querySelectorAll("#m0-0 figure use")) {
          if (!mark.querySelector("title")) continue;
          mark.scrollIntoView({block: "center"});
          const at = mark.getBoundingClientRect();
          const hit = document.elementFromPoint(at.x + at.width / 2, at.y + at.height / 2);
          found.push(hit?.querySelector("title")?.textContent ?? "");
        }
        return found;
        """
    )
    assert len(words) > 50
    assert sum("TFLOP/s" in of for of in words) == len(words)


def test_the_keyboard_reaches_all(window, page):
    """A folded part opens by a key, and a part that scrolls has a place in the keys' order."""
    window.open(page, width=420)
    window.run("document.querySelector(arguments[0]).focus()", f"{CASES} summary")
    window.press("Enter")
    assert shown(window, f"{CASES} table")[0] == 1
    window.press("Tab")
    focused = "document.activeElement.className"
    assert window.run(f"return {focused}") == "table"
    stuck = window.run(
        """
        return [...document.querySelectorAll(".scroll, .table")].filter(
          (of) => of.scrollWidth > of.clientWidth && of.tabIndex < 0).length;
        """
    )
    assert stuck == 0


@pytest.mark.parametrize("dark", [False, True])
def test_modes(window, page, dark):
    """Pictures follow the mode, and words and marks stand out from their background."""
    window.open(page, dark=dark)
    colours = window.run(
        CONTRAST
        + """
        const colour = (of, what) => getComputedStyle(document.querySelector(of))[what];
        const card = colour("figure", "backgroundColor");
        const found = {};
        for (const of of ["body", ".soft", "summary", "td.bad", "figcaption"])
          found[of] = contrast(colour(of, "color"), card);
        found.texts = Math.min(...[...document.querySelectorAll("figure svg text")].map(
          (of) => contrast(getComputedStyle(of).fill, card)));
        const marks = {};
        for (let i = 0; i < 8; i++) {
          const probe = document.querySelector("svg").appendChild(
            document.createElementNS("http://www.w3.org/2000/svg", "path"));
          probe.setAttribute("style", `fill: var(--c${i})`);
          marks[i] = contrast(getComputedStyle(probe).fill, card);
        }
        found.page = contrast(colour("body", "color"), colour("body", "backgroundColor"));
        return [card, found, marks];
        """
    )
    card, words, marks = colours
    assert card == ("rgb(26, 29, 35)" if dark else "rgb(255, 255, 255)")
    assert min(words.values()) >= 4.5, words
    assert min(marks.values()) >= 3, marks


@pytest.mark.parametrize("width", [360, 420, 1280])
def test_widths(window, page, width):
    """A wide part scrolls inside of the page, which does not."""
    window.open(page, width=width, height=740)
    inner, full = window.run("return [innerWidth, document.documentElement.scrollWidth]")
    assert inner == width and full <= width
    # A picture's words stay legible: of 11 pixels, no more than a third is lost.
    scales = window.run(
        "return [...document.querySelectorAll('figure svg')].filter((of) => of.checkVisibility())"
        ".map((of) => of.getBoundingClientRect().width / of.viewBox.baseVal.width)"
    )
    assert min(scales) > 0.66
    assert window.messages() == []


def test_the_ranking_on_a_phone(window, page):
    """What a row is about stays in sight where the times are scrolled into it."""
    window.open(page, width=390, height=740)
    window.click(f"{CASES} summary")
    left, seen, moved = window.run(
        """
        const box = document.querySelector(arguments[0] + " .table");
        const [first, last] = [box.querySelector("tbody td"), box.querySelector("td:last-child")];
        box.scrollLeft = box.scrollWidth;
        const [at, end] = [first.getBoundingClientRect(), last.getBoundingClientRect()];
        const frame = box.getBoundingClientRect();
        return [at.left - frame.left, end.right <= frame.right + 1, box.scrollLeft];
        """,
        CASES,
    )
    assert moved > 100 and seen and 0 <= left <= 2


def test_pictures_are_drawn(window, page):
    """Nothing is outside of its picture, and lines and marks have an extent."""
    window.open(page)
    wrong = window.run(
        """
        document.querySelectorAll("[hidden]").forEach((of) => { of.hidden = false; });
        const found = [];
        for (const svg of document.querySelectorAll("svg[role=img]")) {
          const box = svg.viewBox.baseVal, inner = svg.getBBox();
          const inside = inner.x >= -2 && inner.y >= -2
            && inner.x + inner.width <= box.width + 2 && inner.y + inner.height <= box.height + 2;
          if (!inside || inner.width < box.width / 2 || inner.height < box.height / 2)
            found.push([svg.getAttribute("aria-label"), inner.x, inner.y, inner.width,
                        inner.height, box.width, box.height]);
        }
        return found;
        """
    )
    assert wrong == []


def test_markup_in_files_is_not_run(window, tmp_path):
    evil = "<img src=x onerror=document.title='run'><script>document.title='run'</script>"
    row = (
        f'{{"op": "{evil}", "provider": "{evil}", "direction": "{evil}", "dtype": "{evil}", '
        f'"shape": [4], "timer": "device", "bytes": 32, "verified": true, "time_us": 2, '
        f'"p20_us": 2, "p80_us": 2, "tb_per_s": 1.5, "options": {{}}, "bars": []}}'
    )
    file = tmp_path / "gelu.json"
    facts = f'"gpu": "{evil}", "commit": "{evil}", "date": "{evil}", "versions": {{}}'
    file.write_text(f'{{"schema": 1, "op": "{evil}", {facts}, "rows": [{row}]}}')
    path = tmp_path / "report.html"
    path.write_text(render(read([file])), encoding="utf-8")
    window.open(path)
    assert window.run("return document.title").startswith("diglot: results, <img src=x")
    assert shown(window, "img")[1] == 0 and shown(window, "svg[role=img]")[0] >= 1
    # What got in all the same would not run: the policy allows the page's own script alone.
    window.run(
        "document.body.append(Object.assign(document.createElement('script'), "
        "{textContent: \"document.title = 'run'\"}))"
    )
    assert window.run("return document.title") != "run"
    assert any("Content Security Policy" in message for message in window.messages())


def test_without_its_script_all_is_shown(window, page, tmp_path):
    text = page.read_text()
    path = tmp_path / "still.html"
    path.write_text(text[: text.index("<script>")])
    window.open(path)
    assert shown(window, f"{ROOFLINE} figure")[0] == shown(window, f"{ROOFLINE} figure")[1] > 1
