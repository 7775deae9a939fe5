"""The page in a real browser: every figure drawn, nothing on the console, hover, toggles, themes, widths."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fedframe.report.page.build import make_page
from fedframe.report.page.runs import open_runs
from tests.report.browser import PATIENCE, Seen, address
from tests.report.made import dump, made_cases, made_comparison, made_gain, made_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

EVIL = "</script><script>document.title='broken'</script><img src=x onerror=alert(1)>"
# How many pixels of a canvas are painted, and how many marks a drawing has.
PAINTED = """canvas => {
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  let painted = 0;
  for (let i = 3; i < data.length; i += 4) painted += data[i] > 0;
  return painted;
}"""
FIGURES = {
    "curves": "svg.plot path",
    "partition": "canvas",
    "spread": "svg.plot path",
    "classes": "svg.plot rect",
    "confusion": "canvas",
    "calibration": "svg.plot circle",
    "features": "svg.plot circle",
    "gram": "canvas",
    "heads": "canvas",
    "alike": "svg.plot rect",
    "collapse": "svg.plot path",
    "drift": "canvas",
    "degeneration": "svg.plot path",
    "cost": "svg.plot :is(rect, circle)",
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("pages")
    folders = {
        "run": made_run(root / "run", names=[EVIL, *"bcdef"], client_names=[EVIL, *(f"c{i}" for i in range(11))]),
        "one client": made_run(root / "one", clients=1, classes=2, rounds=1, samples=5),
        "thousand": made_run(root / "thousand", clients=1000, classes=100, rounds=60, samples=2000),
        "comparison": made_comparison(root / "comparison"),
    }
    dump(folders["run"] / "gain.json", made_gain(["north-eastern general hospital", "south", EVIL]))
    for name, folder in folders.items():
        (root / f"{name}.html").write_text(make_page(open_runs([folder])), "utf-8")
    return {name: root / f"{name}.html" for name in folders}


@pytest.fixture(scope="module")
def desk(browser: Browser, pages: dict[str, Path]) -> Iterator[Seen]:
    """The page of a run as it is on a desk, opened once: tests of one figure each do not get in each other's way."""
    seen = Seen(browser, address(pages["run"]))
    yield seen
    seen.close()


@pytest.fixture
def see(browser: Browser, pages: dict[str, Path]) -> Iterator[Any]:
    opened: list[Seen] = []

    def look(name: str, **more: Any) -> Seen:
        opened.append(Seen(browser, address(pages[name]), **more))
        return opened[-1]

    yield look
    for seen in opened:
        seen.close()


@pytest.mark.parametrize("name", ["run", "one client", "thousand", "comparison"])
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_every_figure_is_drawn_and_nothing_complains(see: Any, name: str, width: int, scheme: str) -> None:
    seen = see(name, width=width, scheme=scheme)
    assert seen.complaints == []
    assert [url for url in seen.asked_for if not url.startswith(("file:", "data:"))] == []  # no network
    for section, mark in FIGURES.items():
        found = seen.page.locator(f"#{section} .body {mark}")
        assert found.count() > 0, section
        if mark == "canvas":
            assert found.first.evaluate(PAINTED) > 50, section
    assert "could not be drawn" not in seen.page.inner_text("main")
    wide, room = seen.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide <= room, "the page scrolls sideways"
    assert seen.page.get_attribute("html", "data-theme") == scheme


def test_numbers_of_the_essentials_stay_whole_on_a_phone(see: Any) -> None:
    cells = see("run", width=390).page.locator("#essentials table").first.locator(":is(th, td):not(:first-child)")
    broken = """cells => cells.filter(cell => {
      const text = cell.firstChild, range = document.createRange();
      let at = 0;
      return text.data.split(" ").some(word => {
        range.setStart(text, at);
        range.setEnd(text, at + word.length);
        at += word.length + 1;
        return range.getClientRects().length > 1;
      });
    }).map(cell => cell.innerText)"""
    assert cells.count() >= 6
    assert cells.evaluate_all(broken) == []


def test_tables_of_many_columns_fit_on_a_phone(see: Any) -> None:
    page = see("run", width=390).page
    tables = page.locator(":is(#gain, #measures) .body .table.stack")
    assert tables.count() == 2
    assert tables.evaluate_all("boxes => boxes.map(box => box.scrollWidth - box.clientWidth)") == [0, 0]
    said = page.locator("#gain .table.stack tbody tr").first.locator("td[data-column]")
    named = said.evaluate_all("cells => cells.map(cell => getComputedStyle(cell, '::before').content)")
    assert named[:3] == ['"test samples"', '"alone"', '"shared"']


LOOK = """new MutationObserver(() => {
  const filled = (name) => document.querySelector(`#${name} .body`).childElementCount;
  if (document.documentElement.dataset.drawn === 'seen') window.then ??= [filled('scores'), filled('cost')];
}).observe(document, { subtree: true, attributes: true, attributeFilter: ['data-drawn'] })"""


def test_what_can_be_seen_is_drawn_first_and_the_rest_follows(browser: Browser, pages: dict[str, Path]) -> None:
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    tab.set_default_timeout(PATIENCE)
    tab.add_init_script(LOOK)
    tab.goto(address(pages["thousand"]))
    tab.wait_for_selector("html[data-drawn=all]", state="attached", timeout=PATIENCE)
    first, last = tab.evaluate("window.then")
    assert first > 0
    assert last == 0
    assert tab.locator("#cost .body > *").count() > 0
    tab.close()


def test_names_are_text_and_never_markup(desk: Seen) -> None:
    seen = desk
    assert seen.page.title().startswith("fedavg on")
    assert seen.page.locator("img").count() == 0
    seen.page.locator("#confusion summary").click()
    assert EVIL in seen.page.inner_text("#confusion table")


def test_hover_shows_what_is_under_the_pointer(desk: Seen) -> None:
    page = desk.page
    # Curves answer wherever the pointer is, points only to one that is near.
    for section, target in {"curves": "svg.plot", "spread": "svg.plot", "features": "svg.plot circle"}.items():
        drawing = page.locator(f"#{section} {target}").last
        drawing.scroll_into_view_if_needed()
        box = drawing.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.5, steps=4)
        tip = page.locator(f"#{section} [aria-label=tip] text")
        tip.first.wait_for(state="attached")
        assert tip.first.text_content()
    for section, word in {"partition": "training samples", "confusion": "test samples", "gram": "cosine"}.items():
        canvas = page.locator(f"#{section} canvas").first
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] * 0.55, box["y"] + box["height"] * 0.45, steps=3)
        page.wait_for_selector("#tip:not([hidden])")
        assert word in page.inner_text("#tip")


def test_arrow_keys_read_a_heat_map(desk: Seen) -> None:
    page = desk.page
    page.locator("#drift canvas").first.focus()
    for key in ("ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    assert page.inner_text("#tip").startswith("client c0, round 2")
    assert "round 2" in (page.locator("#drift canvas").first.get_attribute("aria-label") or "")
    page.keyboard.press("Escape")
    assert page.is_hidden("#tip")


def picture(page: Any, section: str) -> str:
    """What a section looks like, as a text that changes with it."""
    text: str = page.eval_on_selector(
        f"#{section} .body", "body => body.innerHTML + [...body.querySelectorAll('canvas')].map(c => c.toDataURL())"
    )
    return text


@pytest.mark.parametrize(
    ("section", "choice"),
    [
        ("curves", "training loss"),
        ("curves", "seconds"),
        ("partition", "size"),
        ("partition", "share of client"),
        ("spread", "training samples"),
        ("classes", "accuracy"),
        ("confusion", "samples"),
        ("gram", "minus ideal"),
        ("drift", "length of the update"),
        ("features", "client"),
    ],
)
def test_toggles_change_the_figure_by_keyboard_too(desk: Seen, section: str, choice: str) -> None:
    seen = desk
    before = picture(seen.page, section)
    option = seen.page.locator(f"#{section} .choice label", has_text=choice).last.locator("input")
    option.focus()
    seen.page.keyboard.press("Space")
    assert option.is_checked()
    assert picture(seen.page, section) != before
    assert seen.complaints == []


def test_a_line_can_be_hidden_and_brought_back(see: Any) -> None:
    page = see("comparison").page
    button = page.locator("#curves .legend button").first
    lines = page.locator("#curves svg.plot g[aria-label=line]")
    assert lines.count() == 3
    button.click()
    assert lines.count() == 2
    page.locator("#curves .legend button").first.click()
    assert lines.count() == 3


def opened(see: Any, folders: list[Path], target: Path, width: int = 1280) -> Any:
    """A page of these folders, drawn."""
    target.write_text(make_page(open_runs(folders)), "utf-8")
    page = see("run", width=width).page
    page.goto(address(target))
    page.wait_for_selector("html[data-drawn=all]", state="attached")
    return page


def test_long_names_stay_apart_on_an_axis(see: Any, tmp_path: Path) -> None:
    long = "a-rather-long-setting-of-a-method"
    runs = [made_run(tmp_path / f"{i}", model=f"{long}-{i}-{long}:Net") for i in (1, 2)]
    page = opened(see, runs, tmp_path / "page.html", width=390)
    names = page.locator("#scores svg.plot").first.locator("g[aria-label='y-axis tick label'] text").all_text_contents()
    assert len(names) == len(set(names)) == 2
    cases = opened(see, [made_cases(tmp_path / "cases", ("fedavg",))], tmp_path / "cases.html")
    found = (
        cases.locator("#scores svg.plot").first.locator("g[aria-label='y-axis tick label'] text").all_text_contents()
    )
    assert found == ["fedavg, alpha=0.1", "fedavg, alpha=0.5"]


def test_equal_lines_are_drawn_in_turns_and_said_to_be_equal(see: Any, tmp_path: Path) -> None:
    runs = [made_run(tmp_path / name, method=name) for name in ("fedavg", "fedprox", "fedetf")]
    shutil.copy(runs[0] / "metrics.jsonl", runs[1] / "metrics.jsonl")
    page = opened(see, runs, tmp_path / "page.html")
    lines = page.locator("#curves svg.plot g[aria-label=line]")
    assert [bool(line.get_attribute("stroke-dasharray")) for line in lines.all()] == [False, True, False]
    assert page.inner_text("#curves .turns") == "Equal, and drawn in turns: fedavg; fedprox."
    page.locator("#curves .legend button").first.click()  # what lies on nothing is whole again
    assert [bool(line.get_attribute("stroke-dasharray")) for line in lines.all()] == [False, False]
    assert page.locator("#curves .turns").count() == 0


def test_intervals_that_are_cut_are_said_to_be(see: Any, tmp_path: Path) -> None:
    folder = made_comparison(tmp_path / "all", ("fedavg", "fedprox"), 2)
    page = opened(see, [folder], tmp_path / "calm.html")
    assert page.locator("#curves .cut").count() == 0
    for seed, score in enumerate((0.1, 0.9)):
        for name, pattern, text in (
            ("summary.json", r'"final": [\d.]+', f'"final": {score}'),
            ("metrics.jsonl", r'"generic": [\d.]+', f'"generic": {score}'),
        ):
            path = folder / "runs" / "fedavg" / f"seed-{seed}" / name
            path.write_text(re.sub(pattern, text, path.read_text()))
    page = opened(see, [folder], tmp_path / "wild.html")
    for name in ("scores", "curves"):
        assert "beyond 0 or 100 %" in page.inner_text(f"#{name} .cut")


def test_a_phone_shows_differences_and_p_without_scrolling(see: Any) -> None:
    page = see("comparison", width=390).page
    wide, room = page.locator("#paired .figure-table").evaluate("table => [table.scrollWidth, table.clientWidth]")
    assert wide <= room
    assert page.locator("#paired .figure-table th").all_inner_texts() == ["method, mean", "difference", "p", "p (Holm)"]
    cells = page.locator("#paired .figure-table tbody tr").nth(1).locator("td").all_inner_texts()
    assert cells[1:] == ["+2.0\n+1.0 to +3.0", "0.012", "0.024"]


def test_differences_of_nothing_are_a_point_and_not_a_line(see: Any, tmp_path: Path) -> None:
    folders = [made_run(tmp_path / f"{m}{s}", method=m, seed=s) for m in ("fedavg", "fedprox") for s in (0, 1)]
    for seed in (0, 1):
        shutil.copy(folders[seed] / "summary.json", folders[2 + seed] / "summary.json")
    page = opened(see, folders, tmp_path / "page.html")
    box = page.locator("#paired svg.plot g[aria-label=rule] line").last.bounding_box()
    assert box is None or box["width"] < 5


def test_the_theme_button_changes_the_colours_of_page_and_canvas(see: Any) -> None:
    page = see("run", scheme="light").page
    before = picture(page, "partition"), page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    page.wait_for_selector("html[data-theme=dark][data-drawn=all]", state="attached")
    after = picture(page, "partition"), page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_every_figure_is_a_table_too_and_can_be_saved(see: Any) -> None:
    page = see("run").page
    for section in FIGURES:
        page.locator(f"#{section} details.numbers summary").click()
        page.locator(f"#{section} details.numbers tbody tr").first.wait_for(state="attached")  # filled after the click
    with page.expect_download() as waiting:
        page.locator("#partition details.numbers button").click()
    lines = Path(waiting.value.path()).read_text().splitlines()
    assert waiting.value.suggested_filename == "fedframe-partition.csv"
    assert len(lines) == 13  # a head and twelve clients
    assert lines[1].startswith(EVIL)  # quoted only if it needs to be


def test_a_comparison_shows_the_run_that_is_chosen(see: Any) -> None:
    page = see("comparison").page
    assert "+2.0" in page.inner_text("#paired table")
    before = picture(page, "confusion")
    page.locator("#gram .choice label", has_text="fedetf").locator("input").check()
    page.wait_for_selector("html[data-drawn=all]", state="attached")
    assert picture(page, "confusion") != before  # one choice for all sections
    assert page.locator("#confusion .choice label", has_text="fedetf").locator("input").is_checked()


def test_contents_list_what_there_is_and_the_rest_says_why_it_is_missing(see: Any, tmp_path: Path) -> None:
    page = see("run").page
    links = page.locator("#contents a").evaluate_all("links => links.map(link => link.hash)")
    assert "#drift" in links
    folder = made_run(tmp_path / "run")
    (folder / "drift.jsonl").unlink()
    dump(folder / "gain.json", made_gain(["0"]))
    (tmp_path / "page.html").write_text(make_page(open_runs([folder])), "utf-8")
    page.goto(address(tmp_path / "page.html"))
    page.wait_for_selector("html[data-drawn=all]", state="attached")
    fewer = page.locator("#contents a").evaluate_all("links => links.map(link => link.hash)")
    assert set(links) - set(fewer) == {"#drift"}
    assert "--measure drift" in page.inner_text("#not-shown li:has(#drift)")


def test_names_of_points_that_lie_together_do_not_cover_each_other(see: Any, tmp_path: Path) -> None:
    runs = [made_run(tmp_path / name) for name in "abc"]  # the same run three times: one point
    (tmp_path / "page.html").write_text(make_page(open_runs(runs)), "utf-8")
    page = see("run").page
    page.goto(address(tmp_path / "page.html"))
    page.wait_for_selector("html[data-drawn=all]", state="attached")
    names = page.locator("#cost svg.plot g[aria-label=text] text").all()
    heights = sorted(box["y"] for name in names if (box := name.bounding_box()) is not None)
    assert len(heights) == 3
    assert all(b - a >= 14 for a, b in pairwise(heights))


def test_figures_have_names_and_descriptions_for_those_who_cannot_see_them(desk: Seen) -> None:
    page = desk.page
    for section in FIGURES:
        figure = page.locator(f"#{section} figure")
        title = page.locator(f"#{figure.get_attribute('aria-labelledby')}")
        described = [
            page.locator(f"#{name}").text_content() for name in (figure.get_attribute("aria-describedby") or "").split()
        ]
        assert title.text_content()
        assert len(described) == 2
        assert all(described), section


def test_tables_print_whole(see: Any, tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", clients=3, client_names=["north", "south", "west"], classes=2)
    page = opened(see, [folder], tmp_path / "page.html")
    page.emulate_media(media="print")
    cut = page.locator(".table").evaluate_all(
        "tables => tables.filter(table => table.scrollHeight > table.clientHeight + 1"
        " && getComputedStyle(table).overflowY !== 'visible').length"
    )
    styles = page.locator(".table").evaluate_all("tables => tables.map(table => getComputedStyle(table).maxHeight)")
    assert cut == 0
    assert set(styles) == {"none"}
    assert page.locator("#spread").inner_text().count("tests") >= 3  # a bar for every site, with its name
    assert "north" in page.locator("#spread").inner_text()
